"""The cases: who publishes what to whom, and which score card rows that gives.

Case descriptions: "IBM MessageSight Appliance v1.0 Performance Benchmarks" (2013), section "Test
cases descriptions"; row names, types and columns: its section "Score card". QUEUE and BRIDGE are
ours; `published.COUNTERPARTS` says which rows over JMS and WebSphere MQ they stand for.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from loadgen.workload.groups import DeviceGroup, Publishes, Responds, Subscribes, Will
from loadgen.workload.scenario import Case, Scenario

__all__ = [
    "CASE_INFO",
    "CaseInfo",
    "Column",
    "Measure",
    "Row",
    "RowType",
    "backends_of",
    "brokers_of",
    "groups_of",
    "rate_of",
    "rows_of",
]

RowType = Literal["Throughput", "Latency", "Connection rate", "Data-center Efficiency"]
Column = Literal["value", "avg", "p50", "p99", "max", "stdev"]
Measure = Literal[
    "producers",
    "ingress_rate",
    "egress_rate",
    "persistent_rate",
    "messages_per_watt",
    "messages_per_rack_unit",
    "latency",
    "connect_seconds",
    "queue_rate",
    "forwarding_rate",
    "base",
]
"""What a row's figures are taken from; unique where the row's name is not (FANOUT has two)."""

_DISTRIBUTION: tuple[Column, ...] = ("avg", "p50", "p99", "max", "stdev")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the score card; `columns` are those with a figure, the others stay empty.

    `description` may hold `{field}` of the scenario, filled by `rows_of`; `needs` names the
    scenario field without which the row is left out ("" for none).
    """

    type: RowType
    name: str
    measure: Measure
    description: str
    unit: str
    columns: tuple[Column, ...] = ("value",)
    needs: str = ""


@dataclass(frozen=True, slots=True)
class CaseInfo:
    """What a case is, for help texts and the score card."""

    case: Case
    summary: str
    example: str
    groups: tuple[str, ...]
    rows: tuple[Row, ...]


CASE_INFO: Mapping[Case, CaseInfo] = MappingProxyType(
    {
        "fanin": CaseInfo(
            case="fanin",
            summary="Many publishers, each with a topic of its own, and one wildcard subscriber.",
            example="loadgen fanin --devices 10k --duration 30",
            groups=("publishers", "subscriber"),
            rows=(
                Row(
                    "Throughput",
                    "FANIN",
                    "producers",
                    "Producers served at QoS {qos}, {each} msgs/sec each, all read by one wildcard "
                    "subscription. Message size, {size} bytes.",
                    "producers",
                ),
            ),
        ),
        "fanout": CaseInfo(
            case="fanout",
            summary="Topics with one publisher and many subscribers each.",
            example="loadgen fanout --topics 10 --ratio 100 --rate 200",
            groups=("publishers", "subscribers"),
            rows=(
                Row(
                    "Throughput",
                    "FANOUT",
                    "ingress_rate",
                    "Rate into the broker at QoS {qos}, {topics} topics. Message size, {size} "
                    "bytes. Fanout ratio 1:{ratio}. (Ingress)",
                    "msgs/sec",
                ),
                Row(
                    "Throughput",
                    "FANOUT",
                    "egress_rate",
                    "Rate out of the broker at QoS {qos}, {topics} topics. Message size, {size} "
                    "bytes. Fanout ratio 1:{ratio}. (Egress)",
                    "msgs/sec",
                ),
            ),
        ),
        "persistent": CaseInfo(
            case="persistent",
            summary="Pairs of a publisher and a durable subscriber, stored by the broker.",
            example="loadgen persistent --pairs 10 --rate 1k --rack-units 2 --pdu outlet1.csv",
            groups=("publishers", "subscribers"),
            rows=(
                Row(
                    "Throughput",
                    "PERSISTENT",
                    "persistent_rate",
                    "Rate of messages kept for durable sessions at QoS {qos}, {pairs} pairs. "
                    "Message size, {size} bytes.",
                    "msgs/sec",
                ),
                Row(
                    "Data-center Efficiency",
                    "PERSISTENT.MPW",
                    "messages_per_watt",
                    "PERSISTENT rate divided by the broker's mean watts over the measurement "
                    "window, summed over its outlets.",
                    "msgs/Watt",
                    needs="pdu",
                ),
                Row(
                    "Data-center Efficiency",
                    "PERSISTENT.MPU",
                    "messages_per_rack_unit",
                    "PERSISTENT rate divided by the {rack_units} rack units of the broker.",
                    "msgs/sec/U",
                    needs="rack_units",
                ),
            ),
        ),
        "latency": CaseInfo(
            case="latency",
            summary="One timed pair while background publishers load the broker.",
            example="loadgen latency --devices 10k --rate 10k --duration 1m",
            groups=(
                "background_publishers",
                "background_subscribers",
                "pair_publisher",
                "pair_subscriber",
            ),
            rows=(
                Row(
                    "Latency",
                    "LATENCY",
                    "latency",
                    "Application to application latency at {rate} msgs/sec, QoS {qos}, while "
                    "{devices} producers publish {background_rate} msgs/sec in all. Message size, "
                    "{size} bytes.",
                    "microseconds",
                    _DISTRIBUTION,
                ),
            ),
        ),
        "connburst": CaseInfo(
            case="connburst",
            summary="A burst of devices that connect and stay.",
            example="loadgen connburst --devices 15k --in-flight 64",
            groups=("devices",),
            rows=(
                Row(
                    "Connection rate",
                    "CONNBURST",
                    "connect_seconds",
                    "Time until all of {devices} devices are connected{subscribed}.",
                    "seconds",
                ),
            ),
        ),
        "queue": CaseInfo(
            case="queue",
            summary="Queues: each message of a topic goes to one of its consumers.",
            example="loadgen queue --queues 10 --consumers 10 --rate 5k",
            groups=("producers", "consumers"),
            rows=(
                Row(
                    "Throughput",
                    "QUEUE",
                    "queue_rate",
                    "Rate through {topics} queues at QoS {qos}, {consumers} consumers each, "
                    "{batch} messages in flight as one unit. Message size, {size} bytes.",
                    "msgs/sec",
                ),
            ),
        ),
        "bridge": CaseInfo(
            case="bridge",
            summary="Producers at one broker, consumers at others that it forwards to.",
            example="loadgen bridge --backends 2 --devices 10k --qos 1 --durable",
            groups=("producers_1", "consumers_1"),
            rows=(
                Row(
                    "Throughput",
                    "BRIDGE",
                    "forwarding_rate",
                    "Forwarding rate at QoS {qos} from {devices} producers to {backends} "
                    "backends, {topics} topics each{durable}. Message size, {size} bytes.",
                    "msgs/sec",
                ),
            ),
        ),
        "request": CaseInfo(
            case="request",
            summary="Devices that ask and devices that answer, timed until the answer is there.",
            example="loadgen request --devices 1k --responders 10 --rate 5k",
            groups=("requesters", "responders"),
            rows=(
                Row(
                    "Latency",
                    "REQUEST",
                    "latency",
                    "From the moment of a request to its response, {rate} requests/sec from "
                    "{devices} devices, QoS {qos}, {responders} responders. Message size, {size} "
                    "bytes.",
                    "microseconds",
                    _DISTRIBUTION,
                ),
            ),
        ),
        "specjms": CaseInfo(
            case="specjms",
            summary="The supermarket supply chain of SPECjms2007 and jms2009-PS, with its audit.",
            example="loadgen specjms horizontal --base 100 --duration 60",
            groups=(),
            rows=(
                Row(
                    "Throughput",
                    "jms@{topology}",
                    "base",
                    "BASE of the supply chain, {topology} topology. Not reviewed or accepted by "
                    "SPEC.",
                    "BASE",
                ),
            ),
        ),
    }
)
"""Every case by name, in the published score card's words for type and row name.

A bridge has two groups for each backend; those of the first are named here.
"""


def rate_of(scenario: Scenario) -> float:
    """Messages a second over all publishers of the case's own traffic (0 for connburst)."""
    if scenario.case == "connburst":
        return 0.0
    return float(scenario.devices) if scenario.rate is None else scenario.rate


def brokers_of(scenario: Scenario) -> int:
    """How many brokers that do not know each other the scenario plays."""
    if scenario.instances > 1:
        return scenario.instances
    return len(scenario.broker) if scenario.separate_brokers else 1


def backends_of(scenario: Scenario) -> int:
    """How many brokers are behind the bridge; 0 for another case."""
    if scenario.case != "bridge":
        return 0
    return scenario.backends or len(scenario.backend) or 1


def _background_rate(scenario: Scenario) -> float:
    given = scenario.background_rate
    return float(scenario.devices) if given is None else given


def _publishes(
    scenario: Scenario, topic_prefix: str, topics: int, rate: float, deliveries: int
) -> Publishes:
    return Publishes(
        topic_prefix=topic_prefix,
        topics=topics,
        first_stream=0,
        rate=rate,
        deliveries=deliveries,
        qos=scenario.qos,
        size_bytes=scenario.size,
        arrivals=scenario.arrivals,
        window=scenario.inflight_window,
    )


def _fanin(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    count = scenario.devices
    return (
        DeviceGroup(
            "publishers",
            count,
            publishes=_publishes(scenario, f"{root}/fanin", count, rate_of(scenario), 1),
            clean_start=not scenario.durable,
        ),
        DeviceGroup(
            "subscriber",
            brokers_of(scenario),
            subscribes=Subscribes("publishers", scenario.qos, wildcard=True),
            clean_start=not scenario.durable,
        ),
    )


def _fanout(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    topics, ratio = scenario.topics, scenario.ratio
    return (
        DeviceGroup(
            "publishers",
            topics,
            publishes=_publishes(scenario, f"{root}/fanout", topics, rate_of(scenario), ratio),
            clean_start=not scenario.durable,
        ),
        DeviceGroup(
            "subscribers",
            topics * ratio,
            subscribes=Subscribes("publishers", scenario.qos),
            clean_start=not scenario.durable,
        ),
    )


def _persistent(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    pairs = scenario.pairs
    return (
        DeviceGroup(
            "publishers",
            pairs * scenario.producers,
            publishes=_publishes(scenario, f"{root}/persistent", pairs, rate_of(scenario), 1),
        ),
        DeviceGroup(
            "subscribers",
            pairs,
            subscribes=Subscribes(
                "publishers", scenario.qos, acknowledge_every=scenario.acknowledge_every
            ),
            clean_start=False,
        ),
    )


def _latency(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    # A topic without a publisher would only cost a subscriber that hears nothing.
    topics = min(scenario.topics, scenario.devices)
    background = (
        DeviceGroup(
            "background_publishers",
            scenario.devices,
            publishes=_publishes(
                scenario, f"{root}/background", topics, _background_rate(scenario), 1
            ),
            timed=False,
        ),
        DeviceGroup(
            "background_subscribers",
            topics,
            subscribes=Subscribes("background_publishers", scenario.qos),
            timed=False,
        ),
    )
    pair = (
        DeviceGroup(
            "pair_publisher",
            1,
            publishes=_publishes(scenario, f"{root}/pair", 1, rate_of(scenario), 1),
        ),
        DeviceGroup("pair_subscriber", 1, subscribes=Subscribes("pair_publisher", scenario.qos)),
    )
    return (*background, *pair) if scenario.devices else pair


def _connburst(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    # All ask for one topic, as the published command line does ("-rx 0:1:t:1:500000:2:0").
    subscribes = Subscribes("", scenario.qos, topic=f"{root}/connburst/0")
    return (
        DeviceGroup(
            "devices", scenario.devices, subscribes=subscribes if scenario.subscribe else None
        ),
    )


def _queue(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    queues, batch = scenario.queues, scenario.batch
    publishes = _publishes(scenario, f"{root}/queue", queues, rate_of(scenario), 1)
    return (
        DeviceGroup(
            "producers",
            queues * scenario.producers,
            publishes=replace(publishes, unit=batch, window=batch),
        ),
        DeviceGroup(
            "consumers",
            queues * scenario.consumers,
            subscribes=Subscribes(
                "producers", scenario.qos, shared="consumers", acknowledge_every=batch
            ),
            clean_start=not scenario.durable,
        ),
    )


def _bridge(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    # Topics are the scenario's, whatever the run: a bridge maps them by its configuration.
    fronts, backends, topics = len(scenario.broker), backends_of(scenario), scenario.topics
    rate_each = rate_of(scenario) / scenario.devices
    groups: list[DeviceGroup] = []
    for backend in range(backends):
        each, more = divmod(scenario.devices, backends)
        count = each + (backend < more)
        topic_prefix = f"{scenario.front_root}/{backend + 1}"
        senders = f"producers_{backend + 1}"
        groups += (
            DeviceGroup(
                senders,
                count,
                publishes=_publishes(scenario, topic_prefix, topics, rate_each * count, 1),
                targets=tuple(range(fronts)),
            ),
            DeviceGroup(
                f"consumers_{backend + 1}",
                topics,
                subscribes=Subscribes(
                    senders,
                    scenario.qos,
                    acknowledge_every=scenario.acknowledge_every,
                    topic_prefix=f"{scenario.backend_root}/{backend + 1}",
                ),
                clean_start=not scenario.durable,
                targets=(fronts + backend,),
            ),
        )
    return tuple(groups)


def _request(scenario: Scenario, root: str) -> tuple[DeviceGroup, ...]:
    responders, responses = scenario.responders, f"{root}/response"
    return (
        DeviceGroup(
            "requesters",
            scenario.devices,
            publishes=_publishes(scenario, f"{root}/request", responders, rate_of(scenario), 1),
            subscribes=Subscribes("requesters", scenario.qos, topic_prefix=responses, answers=True),
        ),
        DeviceGroup(
            "responders",
            responders,
            subscribes=Subscribes("requesters", scenario.qos),
            responds=Responds(responses, scenario.qos, scenario.inflight_window),
            timed=False,
        ),
    )


_GROUPS: Mapping[Case, Callable[[Scenario, str], tuple[DeviceGroup, ...]]] = MappingProxyType(
    {
        "fanin": _fanin,
        "fanout": _fanout,
        "persistent": _persistent,
        "latency": _latency,
        "connburst": _connburst,
        "queue": _queue,
        "bridge": _bridge,
        "request": _request,
    }
)


def groups_of(scenario: Scenario, topic_root: str = "loadgen") -> tuple[DeviceGroup, ...]:
    """The scenario's groups, its publishing devices owning the streams from 0 on, in group order.

    Topics are `topic_root/NAME/NUMBER`; a run gives a root of its own, so that two runs against
    one broker do not hear each other.
    """
    groups: list[DeviceGroup] = []
    stream = 0
    for group in _GROUPS[scenario.case](scenario, topic_root):
        publishes = group.publishes
        if publishes is not None:
            publishes = replace(publishes, first_stream=stream)
            stream += group.count
        will = None if scenario.will is None or groups else Will(scenario.will)
        # Exactly once over two connections needs a session at both ends (MQTT 5, 4.3.3 and 4.4).
        forgets = publishes is None or scenario.qos < 2 or not _devices_return(scenario)
        groups.append(
            replace(
                group,
                publishes=publishes,
                keep_alive_s=scenario.keep_alive,
                will=will,
                clean_start=group.clean_start and forgets,
            )
        )
    return tuple(groups)


def _devices_return(scenario: Scenario) -> bool:
    """Whether a device may connect more than once."""
    given = scenario.reconnect is not None or scenario.churn is not None
    return given or scenario.crash_broker or scenario.crash_consumer


def rows_of(scenario: Scenario) -> tuple[Row, ...]:
    """The score card rows that this scenario gives, their descriptions filled in."""
    smallest, largest = scenario.size
    facts = {
        "qos": scenario.qos,
        "size": str(smallest) if smallest == largest else f"{smallest}-{largest}",
        "devices": f"{scenario.devices:,}",
        "topics": f"{scenario.queues if scenario.case == 'queue' else scenario.topics:,}",
        "consumers": f"{scenario.consumers:,}",
        "batch": f"{scenario.batch:,}",
        "backends": f"{backends_of(scenario):,}",
        "responders": f"{scenario.responders:,}",
        "durable": ", durable consumers" if scenario.durable else "",
        "ratio": f"{scenario.ratio:,}",
        "pairs": f"{scenario.pairs:,}",
        "rate": _plain(rate_of(scenario)),
        "each": _plain(rate_of(scenario) / max(1, scenario.devices)),
        "background_rate": _plain(_background_rate(scenario)),
        "rack_units": _plain(scenario.rack_units or 0.0),
        "subscribed": " and subscribed" if scenario.subscribe else "",
        "topology": scenario.topology.capitalize(),
    }
    return tuple(
        replace(
            row,
            name=row.name.format_map(facts),
            description=row.description.format_map(facts),
        )
        for row in CASE_INFO[scenario.case].rows
        if not row.needs or getattr(scenario, row.needs)
    )


def _plain(number: float) -> str:
    return f"{number:,.0f}" if number.is_integer() else f"{number:,.4g}"
