"""A scenario with its derived values: groups, streams, phases, needs and shares of workers."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from math import inf
from typing import Any, Literal

from pydantic import TypeAdapter

from loadgen.errors import ScenarioError
from loadgen.mqtt.topics import is_wild, split_shared
from loadgen.plan.deliveries import require_exact, require_ordered
from loadgen.plan.fields import option_of
from loadgen.plan.groups import (
    MESSAGING,
    ROOT,
    DeviceGroup,
    Reconnect,
    Target,
    Tls,
    Version,
    WorkerPlan,
    largest_payload_bytes,
    sent_qos,
)
from loadgen.plan.rate_steps import RateStep, mean_share, rate_steps
from loadgen.plan.scenario import ENCRYPTED, Scenario
from loadgen.plan.stages import longest_absence_s, presence
from loadgen.plan.thresholds import Threshold, parse_threshold
from loadgen.plan.units import shown
from loadgen.sentences import PLAN_TEXT

VERSIONS: Mapping[str, Version] = {"3.1": 3, "3.1.1": 4, "5": 5}


@dataclass(frozen=True, slots=True)
class PhasePlan:
    warmup_s: float = 0.0
    duration_s: float = 0.0
    drain_s: float = 0.0  # at most
    connect_rate: float | None = None  # a second, of all workers; None: only `in_flight` limits
    in_flight: int = 64  # connects under way at once, of all workers
    timeout_s: float = 30.0
    rates: tuple[RateStep, ...] = ()  # within `duration_s`, empty for an even rate
    settle_s: float = 0.0  # last part of the drain: a wait for repeated messages
    stops_at_exception: bool = False  # True if the first exception ends the run


@dataclass(frozen=True, slots=True)
class Bridge:
    """The brokers that the front brokers forward to.

    The topics of backend B, from 1 on, are FRONT_ROOT/B/T at the front and BACKEND_ROOT/B/T at the
    backend, with T from 0 to `topics` - 1.
    """

    backends: int
    urls: tuple[str, ...]  # empty if private brokers are started
    topics: int
    front_root: str
    backend_root: str
    qos: int
    durable: bool


Storage = Literal["none", "periodic", "each change"]
"""The times at which a private broker writes its messages to disk."""


@dataclass(frozen=True, slots=True)
class Brokers:
    names: tuple[str, ...] = ()  # the name of a private broker, or URLs
    instances: int = 1  # private brokers to start, each separate from the others
    separate_urls: bool = False  # several URLs are separate brokers, too
    storage: Storage = "none"  # of private brokers
    encrypted: bool = False  # private brokers
    bridge: Bridge | None = None
    may_be_several: bool = False  # the case can be spread over `instances`

    @property
    def addresses(self) -> tuple[str, ...]:
        """Names and URLs of all brokers, the backends of the bridge last."""
        return (*self.names, *(self.bridge.urls if self.bridge is not None else ()))

    @property
    def private(self) -> bool:
        """True if the brokers are started here, and so have this host's limits."""
        return not any("://" in name for name in self.names)

    @property
    def separate_count(self) -> int:
        """Number of brokers without a connection to each other."""
        if self.instances > 1:
            return self.instances
        return len(self.names) if self.separate_urls else 1

    @property
    def backends(self) -> int:
        """Number of brokers behind the bridge; 0 without a bridge."""
        return 0 if self.bridge is None else self.bridge.backends


@dataclass(frozen=True, slots=True)
class BrokerNeeds:
    """Capabilities that a broker needs, and advice for brokers that lack them."""

    qos: int = 0
    qos_option: str = "--qos {highest}"  # advice if the broker allows QoS {highest} at most
    payload_bytes: int = 0  # of the largest message
    wildcards: str = ""  # reason for wildcard subscriptions, "" if they are not needed
    shared: str = ""  # reason for shared subscriptions, "" if they are not needed
    older: str = "use --mqtt 3.1.1"  # advice if the broker does not support this version


@dataclass(frozen=True, slots=True)
class Crash:
    """A fault that the run causes in its window: a killed broker, or a disconnected consumer."""

    victim: Literal["broker", "consumer"]
    after_s: float | None = None  # since the window began, None for its middle
    command: str | None = None  # kills and restarts the brokers, None for private ones
    recovery_s: float | None = None  # within which a killed broker must serve again


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A scenario with the values derived from it for devices, brokers and workers.

    The publishing groups have the streams from 0 on, in the order of the groups. The run's topics
    begin with `ROOT` until the plan is fitted to its hosts, then with `root`.
    """

    scenario: Scenario
    groups: tuple[DeviceGroup, ...] = ()
    reconnect: Reconnect | None = None  # delays after a loss; None: devices do not reconnect
    behaviour: str = MESSAGING  # module with the devices' behaviour (plan/behaviour.py)
    model: Any = None  # data of the case for its behaviour and `review`
    tls: Tls = field(default_factory=Tls)  # used if targets are encrypted

    # Only the coordinator uses these.
    phases: PhasePlan = PhasePlan()
    brokers: Brokers = Brokers()
    needs: BrokerNeeds = BrokerNeeds()
    crash: Crash | None = None
    report_every_s: float | None = None  # interval of events with the progress, None: no events

    # Filled in when the broker's addresses and the hosts are known.
    run_tag: int = 0  # 32 bits, in every payload of this run
    connected_by: int | None = None  # tag of the run that connected the devices, None: this one
    targets: tuple[Target, ...] = ()
    workers: tuple[WorkerPlan, ...] = ()
    username: str | None = None
    password: str | None = None
    send_tick_us: int = 0  # longest wait of a due message to be sent with others
    max_packet_bytes: int = 1 << 20
    separate_brokers: bool = False  # each target is one, and the topics are spread over them

    @property
    def version(self) -> Version:
        return VERSIONS[self.scenario.mqtt]

    def version_of(self, group: DeviceGroup) -> Version:
        return group.version or self.version

    @property
    def root(self) -> str:
        """First level of the run's topics, and prefix of its client identifiers."""
        return f"lg{self.run_tag if self.connected_by is None else self.connected_by:08x}"

    @property
    def encrypted(self) -> bool:
        return any(target.transport in ("tls", "wss") for target in self.targets)

    @property
    def separate_count(self) -> int:
        """Number of targets without a connection to each other; 1 for several of one system."""
        return len(self.targets) if self.separate_brokers else 1

    @property
    def thresholds(self) -> tuple[Threshold, ...]:
        return tuple(map(parse_threshold, self.scenario.require))

    @property
    def mean_share(self) -> float:
        return mean_share(self.phases.rates)

    def group(self, name: str) -> DeviceGroup:
        return next(group for group in self.groups if group.name == name)


def plan_of(
    scenario: Scenario,
    groups: tuple[DeviceGroup, ...],
    *,
    needs: BrokerNeeds | None = None,
    phases: PhasePlan | None = None,
    bridge: Bridge | None = None,
    storage: Storage = "none",
    reconnect: Reconnect | None = None,
    crash: Crash | None = None,
    report_every_s: float | None = None,
    model: Any = None,
) -> Plan:
    """Return the plan of a scenario before host and broker are known; raises ScenarioError."""
    brokers = Brokers(
        scenario.broker,
        instances=scenario.instances,
        separate_urls=scenario.separate_brokers,
        storage=storage,
        encrypted=scenario.tls,
        bridge=bridge,
        may_be_several="fleet" in scenario.parts and bridge is None,
    )
    require_exact(rooted(groups, "run"), brokers.separate_count)
    reconnect = reconnect or scenario.reconnecting()
    returns = reconnect is not None or bool(scenario.churn)
    if scenario.header == "none":
        require_ordered(rooted(groups, "run"), brokers.separate_count, returns=returns)
    plan = Plan(
        scenario=scenario,
        groups=_finished(groups, scenario, brokers.separate_count, returns=returns),
        reconnect=reconnect,
        model=model,
        tls=_tls(scenario),
        phases=phases or phases_of(scenario),
        brokers=brokers,
        needs=needs or _needs(scenario, groups),
        crash=crash,
        report_every_s=report_every_s,
    )
    _require_consistent(plan, returns=returns)
    return plan


def phases_of(scenario: Scenario) -> PhasePlan:
    rates = rate_steps(scenario.steps, scenario.duration, scenario.warmup)
    return PhasePlan(
        warmup_s=scenario.warmup,
        duration_s=sum(step.seconds for step in rates) or scenario.duration,
        drain_s=scenario.drain,
        connect_rate=scenario.connect_rate,
        in_flight=scenario.in_flight,
        timeout_s=scenario.connect_timeout,
        rates=rates,
        settle_s=scenario.settle if "schedule" in scenario.parts else 0.0,
    )


def rate_in_window(group: DeviceGroup, phases: PhasePlan) -> float:
    """Return the mean rate at which a group publishes by plan in the window."""
    sent, window_s = group.publishes, phases.duration_s
    if sent is None or not sent.rate:
        return 0.0
    most_s = sent.messages * group.count / sent.rate if sent.messages else inf
    return sent.rate * presence(group.stages, group.count, window_s, phases.warmup_s, most_s)


def _needs(scenario: Scenario, groups: tuple[DeviceGroup, ...]) -> BrokerNeeds:
    read = [group.subscribes for group in groups if group.subscribes is not None]
    parts = [part for group in groups for part in (group.publishes, group.responds) if part]
    shares = any(subscribes.shared for subscribes in read)
    wild = any(is_wild(pattern) for subscribes in read for pattern in subscribes.filters)
    other = "3.1.1" if scenario.mqtt != "3.1.1" else "5"
    return BrokerNeeds(
        qos=max([part.qos for part in (*parts, *read)], default=scenario.qos),
        payload_bytes=largest_payload_bytes(groups),
        wildcards=f"which {scenario.case} needs" if wild else "",
        shared=f"which {scenario.case} needs; take another broker" if shares else "",
        older=f"{scenario.case} needs it; take another broker" if shares else f"use --mqtt {other}",
    )


def _require_consistent(plan: Plan, *, returns: bool) -> None:
    """Refuse fields that contradict the groups or the addresses, which workers do not have."""
    scenario = plan.scenario
    if not scenario.tls and not any(url.startswith(ENCRYPTED) for url in plan.brokers.addresses):
        for name, field in scenario.fields().items():
            if name.startswith("tls_") and getattr(scenario, name) != field.default:
                written = f"no_{name}" if getattr(scenario, name) is False else name
                raise ScenarioError(PLAN_TEXT.NOT_ENCRYPTED(option=option_of(written)))
    if not plan.phases.drain_s and any(group.publishes for group in plan.groups):
        raise ScenarioError(PLAN_TEXT.NO_DRAIN())
    sending = [group for group in plan.groups if group.publishes and group.publishes.rate]
    # What a subscriber that comes later receives is a result, too.
    waiting = any(group.subscribes is not None and group.stages for group in plan.groups)
    if sending and not (waiting or any(rate_in_window(one, plan.phases) for one in sending)):
        raise ScenarioError(PLAN_TEXT.NOTHING_DUE())
    for group in plan.groups:
        if group.is_closed and sent_qos(group) == 0:
            raise ScenarioError(PLAN_TEXT.CLOSED_QOS(group=group.name))
        leaves = returns or bool(group.stages)
        if group.version == 3 and leaves and not group.clean_start:
            raise ScenarioError(PLAN_TEXT.SESSION_OF_3_1())
        has_messages = group.publishes is not None or group.subscribes is not None
        if scenario.header == "property" and has_messages and group.version != 5:
            raise ScenarioError(PLAN_TEXT.HEADER_PROPERTY())
        if group.stages and scenario.steps is not None:
            raise ScenarioError(PLAN_TEXT.STAGES_STEPS(group=group.name))
        if group.version == 5 and group.subscribes is not None and not group.clean_start:
            churned_s = 1.5 * scenario.away if scenario.churn and group.subscribes.qos else 0.0
            times = -plan.phases.warmup_s, plan.phases.duration_s
            away_s = max(churned_s, longest_absence_s(group.stages, group.count, *times))
            if away_s >= group.session_expiry_s:
                raise ScenarioError(PLAN_TEXT.SESSION_EXPIRES(group=group.name, away_s=away_s))
    if scenario.resubscribe and not any(group.subscribes for group in plan.groups):
        raise ScenarioError(PLAN_TEXT.RESUBSCRIBE_NOBODY())
    # A file of clients has the identifiers of its devices.
    named = sum(group.clients_file is None for group in plan.groups)
    if scenario.client_id is not None and "{group}" not in scenario.client_id and named > 1:
        raise ScenarioError(
            PLAN_TEXT.CLIENT_ID_OF_GROUPS(pattern=shown(scenario.client_id), case=scenario.case)
        )


def _tls(scenario: Scenario) -> Tls:
    # OpenSSL's list of ciphers is for TLS 1.2; if 1.3 were offered, too, it would have no effect.
    version = scenario.tls_version or (None if scenario.tls_ciphers is None else "1.2")
    return Tls(
        ca_file=scenario.tls_ca,
        certificate_file=scenario.tls_certificate,
        key_file=scenario.tls_key,
        verify=scenario.tls_verify,
        version=version,
        ciphers=scenario.tls_ciphers,
        alpn=scenario.tls_alpn,
        resume=scenario.tls_resume,
    )


def _finished(
    groups: tuple[DeviceGroup, ...], scenario: Scenario, brokers: int, *, returns: bool
) -> tuple[DeviceGroup, ...]:
    """Return the groups with their streams and with the fields that are the same in all of them."""
    finished: list[DeviceGroup] = []
    stream = 0
    for group in with_shared_fields(groups, scenario):
        publishes = group.publishes
        if publishes is not None:
            least, most = publishes.size_bytes
            outside_bytes = scenario.outside_bytes
            size_bytes = (least + outside_bytes, most + outside_bytes)
            publishes = replace(publishes, first_stream=stream, size_bytes=size_bytes)
            stream += group.count
        # Exactly once over two connections needs a session at both ends (MQTT 5, 4.3.3 and 4.4).
        keeps = publishes is not None and publishes.qos == 2 and returns
        finished.append(
            replace(
                group,
                count=brokers if group.each_broker else group.count,
                publishes=publishes,
                keep_alive_s=round(scenario.keep_alive),
                will=group.will or (None if finished else scenario.will),
                clean_start=group.clean_start and not keeps,
            )
        )
    return tuple(finished)


def with_shared_fields(
    groups: tuple[DeviceGroup, ...], scenario: Scenario
) -> tuple[DeviceGroup, ...]:
    """Return the groups with version, payload and clients of the scenario unless they have own."""
    completed: list[DeviceGroup] = []
    for group in groups:
        publishes = group.publishes
        if publishes and publishes.payload is None and publishes.payload_template is None:
            publishes = replace(
                publishes, payload=scenario.payload, payload_template=scenario.payload_template
            )
        listed = group.clients_file or (None if completed else scenario.clients_file)
        version = group.version or VERSIONS[scenario.mqtt]
        completed.append(replace(group, publishes=publishes, version=version, clients_file=listed))
    return tuple(completed)


def rooted(groups: tuple[DeviceGroup, ...], root: str) -> tuple[DeviceGroup, ...]:
    def replaced(pattern: str) -> str:
        name, plain = split_shared(pattern)
        if not plain.startswith(f"{ROOT}/"):
            return pattern
        plain = root + plain.removeprefix(ROOT)
        return plain if name is None else f"$share/{name}/{plain}"

    def with_topics(group: DeviceGroup) -> DeviceGroup:
        publishes, subscribes, responds = group.publishes, group.subscribes, group.responds
        if publishes is not None:
            publishes = replace(publishes, topic=replaced(publishes.topic))
        if subscribes is not None:
            subscribes = replace(subscribes, filters=tuple(map(replaced, subscribes.filters)))
        if responds is not None:
            responds = replace(responds, topic=replaced(responds.topic))
        return replace(group, publishes=publishes, subscribes=subscribes, responds=responds)

    return tuple(map(with_topics, groups))


_COORDINATORS = ("brokers", "needs", "report_every_s")
_ADDRESSES = {"broker", "user", "password", "tls_passphrase"}
_OF_GROUPS = {"max_unacknowledged", "closed"}  # as window and rate of the groups


@cache
def _plans() -> TypeAdapter[Plan]:
    return TypeAdapter(Plan)


def document_of(plan: Plan) -> dict[str, Any]:
    """Return the parts of a plan that a worker needs, as JSON values."""
    # The scenario is reduced to the fields that cases share, without the broker's addresses.
    left_out: dict[str, Any] = dict.fromkeys(_COORDINATORS, True) | {
        "scenario": _ADDRESSES | _OF_GROUPS,
        "crash": {"command"},
    }
    document: dict[str, Any] = _plans().dump_python(plan, mode="json", exclude=left_out)
    return document


def read_plan(document: Any) -> Plan:
    return _plans().validate_python(document)
