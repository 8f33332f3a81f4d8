"""The interface of a case: one object that has everything in which it differs from the others.

A case lives in a module of this package and nothing outside has its name. Command line, planning,
control and score card read the properties below; four of them are functions:

    groups    scenario -> the groups of devices, before any host or broker is known
    plan      scenario, groups -> the plan, with what only this case needs
    review    what was observed -> what the verdict judges, and what run.json says of the case
    tables    what run.json says of the case -> tables of the report
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Protocol, TypeVar

from loadgen.judge.facts import RunFacts
from loadgen.judge.own_delay import SEND_DELAY_LIMIT_US
from loadgen.judge.published import SECURED, PublishedFigure
from loadgen.judge.verdict import Verdict
from loadgen.plan.disclosure import Disclosure
from loadgen.plan.groups import MESSAGING, DeviceGroup
from loadgen.plan.plan import Plan, plan_of
from loadgen.plan.rehearsal import Role, roles_of
from loadgen.plan.scenario import Scenario
from loadgen.plan.tables import DataTable

S = TypeVar("S", bound=Scenario)

# Rows ---------------------------------------------------------------------------------------------

RowType = Literal["Throughput", "Latency", "Connection rate", "Data-center Efficiency"]


@dataclass(frozen=True, slots=True)
class Measure:
    """What a row's figures are taken from: its type and unit.

    `load`: it is what was played, so that ours is no limit. `optional`: a row without a figure is
    left out.
    """

    type: RowType
    unit: str
    load: bool = False
    optional: bool = False


MEASURES: Mapping[str, Measure] = {
    "producers": Measure("Throughput", "producers", load=True),
    "ingress_rate": Measure("Throughput", "msgs/sec", load=True),
    "egress_rate": Measure("Throughput", "msgs/sec", load=True),
    "persistent_rate": Measure("Throughput", "msgs/sec", load=True),
    "queue_rate": Measure("Throughput", "msgs/sec", load=True),
    "forwarding_rate": Measure("Throughput", "msgs/sec", load=True),
    "base": Measure("Throughput", "BASE", optional=True),
    "high_water_mark": Measure("Throughput", "messages", optional=True),
    "payload_rate": Measure("Throughput", "MB/sec", optional=True),
    "latency": Measure("Latency", "microseconds"),
    "transit": Measure("Latency", "microseconds", optional=True),
    "recovery_seconds": Measure("Latency", "seconds", optional=True),
    "connect_seconds": Measure("Connection rate", "seconds"),
    "connect_latency": Measure("Connection rate", "microseconds"),
    "messages_per_watt": Measure("Data-center Efficiency", "msgs/Watt", optional=True),
    "messages_per_rack_unit": Measure("Data-center Efficiency", "msgs/sec/U", optional=True),
    "joules_per_message": Measure("Data-center Efficiency", "joules/msg", optional=True),
    "messages_per_core_second": Measure("Data-center Efficiency", "msgs/core-sec", optional=True),
}
"""By name: `latency`, `transit` and `connect_latency` give a distribution, the others a value."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of a case's score card.

    `name` and `description` may hold `{field}`, filled from what was played. `beside` marks a row
    that the published score card does not have.
    """

    name: str
    measure: str  # of MEASURES
    description: str
    beside: bool = False

    @property
    def type(self) -> RowType:
        return MEASURES[self.measure].type

    @property
    def unit(self) -> str:
        return MEASURES[self.measure].unit


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """How runs of a case are drawn and tabulated; figures by `report.build.sweep_table.FIGURES`."""

    # Of a sweep's table.
    columns: tuple[str, ...] = ("producers", "consumers", "ingress", "egress", "p99")
    main: str = "egress"  # the figure that the case is about
    # What a sweep's chart draws: key and title each.
    lines: tuple[tuple[str, str], ...] = (("egress", "egress"),)
    two_axes: bool = False  # the second line has an axis of its own
    # What several runs on one score card are drawn over: ratio, background, backends, "" for none.
    axis: str = ""
    by_size: bool = False  # whether runs are drawn by message size


@dataclass(frozen=True, slots=True)
class Variants:
    """Values of one field that are commands of their own: value to summary and example."""

    field: str
    commands: Mapping[str, tuple[str, str]]


# After a run --------------------------------------------------------------------------------------


class GroupCounts(Protocol):
    """What was counted of the groups of devices (`run.tally.GroupTally`)."""

    def total(self, group: str, name: str, phase: str | None = None) -> int:
        """Sum of a counter of one group, over all phases or one."""

    def under_way(self, groups: Iterable[str]) -> Sequence[tuple[int, int]]:
        """(CLOCK_MONOTONIC ns, expected and not received by then) at the end of each second."""


Loads = Sequence[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""


def busy_shares(loads: Loads, window: tuple[int, int]) -> tuple[float | None, ...]:
    """Share of the window in which each process had something to do, 0 to 1; None if unknown."""
    inside = [sample for sample in loads if window[0] <= sample[0] <= window[1]]
    if len(inside) < 2:
        return ()
    (first_ns, first), (last_ns, last) = inside[0], inside[-1]
    return tuple(
        None if a is None or b is None else min(1.0, (b - a) / (last_ns - first_ns))
        for a, b in zip(first, last, strict=True)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run showed, as `Case.review` gets it when the drain has ended."""

    plan: Plan
    facts: RunFacts  # what the verdict would judge without the case
    # Last answer of each worker by its number; one that was lost is missing.
    finals: Mapping[int, Mapping[str, Any]]
    windows: Mapping[str, tuple[int, int]]  # each phase's start and end, CLOCK_MONOTONIC ns
    counts: GroupCounts
    loads: Loads = ()  # of the brokers started here for a bridge, front first
    # What was broken on request: the consumer that was cut off and what it held, or the moments at
    # which the brokers were killed and served again.
    broken: Mapping[str, Any] = field(default_factory=dict)
    broker_is_local: Callable[[], bool] = lambda: False  # whether a broker runs on this host
    # Reads the run's interval rows of the window, merged by group and series.
    window_rows: Callable[[], list[dict[str, Any]]] = list
    # (from, until, messages received) of each second of each worker, CLOCK_MONOTONIC in ns.
    course: Callable[[], list[tuple[int, int, int]]] = list


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a case adds to a run that was judged; `observed` and `audit` are for run.json."""

    verdict: Verdict  # the run's, with the case's own reasons
    observed: Mapping[str, Any] | None = None  # of the case's name; None for nothing
    audit: Mapping[str, Any] | None = None  # None for a case without one
    # Documents to write beside run.json, by file name.
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Review:
    """What a case makes of what was observed: `facts` are judged, `conclude` gets their verdict."""

    facts: RunFacts
    conclude: Callable[[Verdict], Conclusion] = Conclusion


# Cases --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case(Generic[S]):
    """One case; `loadgen.cases.registry` finds it by its module's `CASE`."""

    place: int  # where it stands among the others in help texts and tables, the least first
    summary: str  # what it is, one sentence
    example: str  # a command
    scenario: type[S]  # its fields, defaults and refusals
    # Its devices. Topics begin with `plan.ROOT`, for which the plan puts the run's own; streams,
    # keep-alive and will are filled in.
    groups: Callable[[S], tuple[DeviceGroup, ...]]
    rows: tuple[RowSpec, ...]  # of its score card
    # The plan: that of its scenario and groups, or what `plan_of` makes with what only this case
    # needs of the broker, breaks during the run, or has as a model.
    plan: Callable[[S, tuple[DeviceGroup, ...]], Plan] = plan_of
    # Module of what its devices do (`plan.behaviour`); it reads the plan's `model`.
    behaviour: str = MESSAGING
    # What a device or two of each group ask of a broker before the load.
    roles: Callable[[Plan], tuple[Role, ...]] = roles_of
    # Called once after the drain, before the verdict.
    review: Callable[[Evidence], Review] = lambda evidence: Review(evidence.facts)
    # Figures that it can be held against; empty where no report has them.
    published: tuple[PublishedFigure, ...] = ()
    # The tables that a report shows of what `review` recorded as observed.
    tables: Callable[[Mapping[str, Any]], tuple[DataTable, ...]] = lambda _observed: ()
    document: str = ""  # file that `review` writes beside run.json, empty for none
    disclosure: Disclosure | None = None  # None for a case without run rules
    notice: str = ""  # what must stand before any figure of its runs
    variants: Variants | None = None  # values of a field that are commands of their own

    # What it measures.
    connects_only: bool = False  # no messages: its result is the connect phase
    timed_pair: bool = False  # latency of one pair, the other messages being its background
    # The p99 send delay above which the generator is too late for this case.
    send_delay_limit_us: float = SEND_DELAY_LIMIT_US

    # How it is searched and shown.
    scales_by_devices: bool = False  # deliveries grow with the devices where no rate is given
    charts: ChartStyle = ChartStyle()  # of its runs and sweeps
    # Fields of `loadgen demo`; empty for a case that it leaves out.
    demo: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in commands, scenario files and results."""
        return str(self.scenario.model_fields["case"].default)

    @property
    def secured(self) -> bool:
        """Whether it is published with TLS too, as rows whose names end with .SEC."""
        return any(figure.name.endswith(SECURED) for figure in self.published)
