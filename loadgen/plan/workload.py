"""A scenario, resolved: everything that its run asks for, before any host or broker is known.

`resolve` asks the scenario once. Planning, broker, preflight, phases and verdict read the
`Workload`, and nobody goes back to the scenario.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from loadgen.errors import ScenarioError
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.case import Case
from loadgen.plan.groups import (
    DeviceConduct,
    DeviceGroup,
    Tls,
    Version,
)
from loadgen.plan.rate_steps import RateStep, mean_share, rate_steps
from loadgen.plan.scenario import Scenario, processors_of
from loadgen.plan.thresholds import Threshold, parse_threshold
from loadgen.plan.units import shown

S = TypeVar("S", bound=Scenario)

_VERSIONS: Mapping[str, Version] = {"3.1": 3, "3.1.1": 4, "5": 5}

ROOT = "$run"
"""First level of a topic that is the run's own; no publisher may use a name with `$` before it."""


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """How long the phases take, and how connections are opened.

    `drain_s` is the longest, of which the last `settle_s` are a wait for repeats of what has come.
    `connect_rate` is connects a second of all workers, None as fast as `in_flight` (connects under
    way at once, of all workers) allows. `rates` are steps of the rate within `duration_s`, none for
    an even one.
    """

    warmup_s: float
    duration_s: float
    drain_s: float
    connect_rate: float | None = None
    in_flight: int = 64
    timeout_s: float = 30.0
    rates: tuple[RateStep, ...] = ()
    settle_s: float = 0.0
    stops_at_exception: bool = False  # whether the first thing that goes wrong ends the run


@dataclass(frozen=True, slots=True)
class Bridge:
    """Brokers behind the front brokers, to which those forward.

    `urls` is empty where `backends` private ones are started. The topics of backend B, from 1 on,
    are FRONT_ROOT/B/T in front and BACKEND_ROOT/B/T behind, T from 0 below `topics`.
    """

    backends: int
    urls: tuple[str, ...]
    topics: int
    front_root: str
    backend_root: str
    qos: int
    durable: bool


@dataclass(frozen=True, slots=True)
class Brokers:
    """Which brokers a run asks for.

    `names` are one name of a private broker, or URLs. `instances` private ones are started, each a
    broker of its own; `separate_urls` says the same of several URLs. Private ones keep on disk what
    they hold where the run `stores`, after each change with `save_each`, and are `encrypted` on
    request. `may_be_several`: the case can be spread over `instances`.
    """

    names: tuple[str, ...]
    instances: int = 1
    separate_urls: bool = False
    stores: bool = False
    save_each: bool = False
    encrypted: bool = False
    bridge: Bridge | None = None
    may_be_several: bool = False

    @property
    def addresses(self) -> tuple[str, ...]:
        """Names and URLs of all, those behind the bridge last."""
        return (*self.names, *(self.bridge.urls if self.bridge is not None else ()))

    @property
    def private(self) -> bool:
        """Whether they are started here, and so have this host's limits."""
        return not any("://" in name for name in self.names)

    @property
    def apart(self) -> int:
        """How many brokers that do not know each other."""
        if self.instances > 1:
            return self.instances
        return len(self.names) if self.separate_urls else 1

    @property
    def backends(self) -> int:
        """How many brokers are behind the bridge; 0 without one."""
        return 0 if self.bridge is None else self.bridge.backends


@dataclass(frozen=True, slots=True)
class BrokerNeeds:
    """What a broker must be able to do, and what a user can do where it is not.

    What devices do is asked for as they do it (`plan/rehearsal.py`); this has the words for it.
    """

    qos: int = 0
    qos_option: str = "--qos {highest}"  # for a broker that allows QoS {highest} at most
    payload_bytes: int = 0  # of the largest message
    wildcards: str = ""  # why wildcard subscriptions are needed, "" where they are not
    shared: str = ""  # why shared subscriptions are needed, "" where they are not
    older: str = "use --mqtt 3.1.1"  # what helps where it does not speak this version


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(DeviceConduct):
    """What a run asks for.

    The publishing groups own the streams from 0 on in their order, and topics that are the run's
    own begin with `ROOT`. How it is to be spread and paced is None where the planner decides.
    """

    case: Case[Any]
    given: Mapping[str, object]  # the scenario as plain JSON values without passwords
    groups: tuple[DeviceGroup, ...] = ()
    phases: PhasePlan
    brokers: Brokers
    needs: BrokerNeeds
    version: Version
    tls: Tls  # used where targets are encrypted
    arrivals_random: bool = False  # whether schedules are drawn at random
    seed: int = 1
    hosts: int = 1
    place: tuple[str, ...] = ()  # GROUP=HOST,... of those groups that are not on all hosts
    workers: int | None = None
    source_address: str | None = None
    processors: tuple[int, ...] = ()
    send_tick_us: int | None = None
    latency_bound_us: float | None = None  # None where latency is not judged
    thresholds: tuple[Threshold, ...] = ()  # that the user set
    abort_on_fail: bool = False  # whether the run ends when one of them is missed
    metrics: str | None = None  # HOST:PORT at which live figures are served
    otlp: str | None = None  # URL of the collector that they are sent to
    sut_file: str | None = None  # that describes the system under test
    broker_name: str | None = None  # what users call it, with its version
    broker_note: str | None = None
    anyway: bool = False  # whether it is played though the broker lacks what it needs
    broker_pid: int | None = None  # process of the broker to watch, None for those that are found
    # What is killed within the window: the brokers, or one consumer's connection.
    crash: Literal["", "broker", "consumer"] = ""
    crash_after_s: float | None = None  # into the window, None for its middle
    crash_command: str | None = None  # that kills and restarts the brokers; None: we do ours
    recovery_s: float | None = None  # within which a killed broker must be back, where it counts
    report_every_s: float | None = None  # how often events tell where the run stands, None: never
    model: Any = None  # what the case's behaviour and `review` work with

    @property
    def protocol(self) -> str:
        """Version of MQTT as people write it."""
        return VERSION_NAMES[self.version]

    @property
    def mean_share(self) -> float:
        """Share of the target rate over all rate steps."""
        return mean_share(self.phases.rates)


_AS_GIVEN = (
    *("seed", "hosts", "place", "workers", "source_address", "metrics", "otlp", "anyway"),
    *("broker_name", "broker_note", "broker_pid", "abort_on_fail", "per_device"),
    *("client_id", "clients_file", "access_control", "payload_template"),
)
"""Fields that a workload has as the scenario has them."""


def resolve(case: Case[S], scenario: S) -> Workload:
    """Return the workload of a scenario of this case; raises ScenarioError if it cannot be."""
    version = _VERSIONS[scenario.mqtt]
    bound_s, tick_s = scenario.latency_bound, scenario.send_tick
    rates = rate_steps(scenario.steps, scenario.duration, scenario.warmup)
    workload = Workload(
        case=case,
        given=scenario.plain(),
        phases=PhasePlan(
            warmup_s=scenario.warmup,
            duration_s=sum(step.seconds for step in rates) or scenario.duration,
            drain_s=scenario.drain,
            connect_rate=scenario.connect_rate,
            in_flight=scenario.in_flight,
            timeout_s=scenario.connect_timeout,
            rates=rates,
            settle_s=scenario.settle if "schedule" in scenario.parts else 0.0,
        ),
        brokers=Brokers(
            scenario.broker,
            instances=scenario.instances,
            separate_urls=scenario.separate_brokers,
            may_be_several="fleet" in scenario.parts,
            encrypted=scenario.tls,
        ),
        needs=BrokerNeeds(
            qos=scenario.qos,
            payload_bytes=scenario.size[1] if "messages" in scenario.parts else 0,
            older=f"use --mqtt {'3.1.1' if version != 4 else '5'}",
        ),
        version=version,
        tls=_tls(scenario),
        processors=processors_of(scenario.affinity),
        latency_bound_us=None if bound_s is None else bound_s * 1e6,
        thresholds=tuple(map(parse_threshold, scenario.require)),
        sut_file=scenario.sut,
        send_tick_us=None if tick_s is None else round(tick_s * 1e6),
        arrivals_random=scenario.arrivals != "constant",
        reconnect=scenario.reconnecting(),
        churn_per_s=scenario.churn or 0.0,
        away_s=scenario.away,
        payload_file=scenario.payload,
        **{name: getattr(scenario, name) for name in _AS_GIVEN},
    )
    workload = case.resolve(scenario, workload)
    workload = replace(workload, groups=_finished(case.groups(scenario), workload, scenario))
    returns = workload.reconnect is not None or workload.churn_per_s > 0
    if version == 3 and returns and not all(group.clean_start for group in workload.groups):
        raise ScenarioError(
            "mqtt: a broker of 3.1 does not say whether it kept the session of a device that "
            "returns; allowed: 3.1.1 or 5 with reconnect, churn or a crash"
        )
    # The first group's devices are named by the file of clients, if there is one.
    named = len(workload.groups) - (scenario.clients_file is not None)
    if scenario.client_id is not None and "{group}" not in scenario.client_id and named > 1:
        raise ScenarioError(
            f"client_id: {shown(scenario.client_id)} is the same for devices of several groups, "
            f"which throw each other out; allowed: with {{group}} for {scenario.case}"
        )
    return workload


def _tls(scenario: Scenario) -> Tls:
    # A list of ciphers is for TLS 1.2 alone: beside 1.3 it would change nothing.
    version = scenario.tls_version or (None if scenario.tls_ciphers is None else "1.2")
    return Tls(
        ca_file=scenario.tls_ca,
        certificate_file=scenario.tls_certificate,
        key_file=scenario.tls_key,
        verify=scenario.tls_verify,
        minimum=version,
        maximum=version,
        ciphers=scenario.tls_ciphers,
        resume=scenario.tls_resume,
    )


def _finished(
    groups: tuple[DeviceGroup, ...], workload: Workload, scenario: Scenario
) -> tuple[DeviceGroup, ...]:
    """The groups with their streams, and with what is alike in all of them."""
    # Exactly once over two connections needs a session at both ends (MQTT 5, 4.3.3 and 4.4).
    return_later = workload.reconnect is not None or workload.churn_per_s > 0
    finished: list[DeviceGroup] = []
    stream = 0
    for group in groups:
        publishes = group.publishes
        if publishes is not None:
            publishes = replace(publishes, first_stream=stream)
            stream += group.count
        keeps = publishes is not None and publishes.qos == 2 and return_later
        finished.append(
            replace(
                group,
                count=workload.brokers.apart if group.each_broker else group.count,
                publishes=publishes,
                keep_alive_s=round(scenario.keep_alive),
                will=None if finished else scenario.will,
                clean_start=group.clean_start and not keeps,
            )
        )
    return tuple(finished)


def rooted(groups: tuple[DeviceGroup, ...], root: str) -> tuple[DeviceGroup, ...]:
    """The groups with `root` as the first level of the topics that are the run's own."""
    return tuple(_rooted(group, root) for group in groups)


def _rooted(group: DeviceGroup, root: str) -> DeviceGroup:
    def own(topic: str) -> str:
        return root + topic.removeprefix(ROOT) if topic.startswith(f"{ROOT}/") else topic

    publishes, subscribes, responds = group.publishes, group.subscribes, group.responds
    if publishes is not None:
        publishes = replace(publishes, topic_prefix=own(publishes.topic_prefix))
    if subscribes is not None:
        topic, prefix = subscribes.topic, subscribes.topic_prefix
        subscribes = replace(
            subscribes,
            topic=None if topic is None else own(topic),
            topic_prefix=None if prefix is None else own(prefix),
        )
    if responds is not None:
        responds = replace(responds, topic_prefix=own(responds.topic_prefix))
    return replace(group, publishes=publishes, subscribes=subscribes, responds=responds)
