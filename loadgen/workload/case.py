"""What a case is: one object that says everything in which it differs from the others.

A case lives in a module of its own in `loadgen.cases` and nothing outside knows its name. Command
line, planning, control and score card read the properties below; four of them are functions:

    groups    scenario -> the groups of devices, before any host or broker is known
    resolve   scenario, workload -> the workload, with what only this case asks for
    plan      workload, plan -> the plan that its workers play
    review    what was observed -> what the verdict judges, and what run.json says of the case
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from loadgen.workload.groups import DeviceGroup, RunPlan
from loadgen.workload.scenario import Scenario
from loadgen.workload.verdict import SEND_DELAY_LIMIT_US, RunFacts, Verdict

if TYPE_CHECKING:
    from loadgen.workload.workload import Workload

S = TypeVar("S", bound=Scenario)

# Rows ---------------------------------------------------------------------------------------------

RowType = Literal["Throughput", "Latency", "Connection rate", "Data-center Efficiency"]
Measure = Literal[
    "producers",
    "ingress_rate",
    "egress_rate",
    "persistent_rate",
    "messages_per_watt",
    "messages_per_rack_unit",
    "joules_per_message",
    "messages_per_core_second",
    "latency",
    "connect_seconds",
    "queue_rate",
    "forwarding_rate",
    "base",
    "high_water_mark",
]
"""What a row's figures are taken from. `latency` gives a distribution, the others a value."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One row of a case's score card.

    `name` and `description` may hold `{field}`, filled from what was played. `beside` marks a row
    that the published score card does not have.
    """

    type: RowType
    name: str
    measure: Measure
    description: str
    unit: str
    beside: bool = False


@dataclass(frozen=True, slots=True)
class PublishedFigure:
    """A published row that a case can be held against: its name, what it measures, its columns.

    Columns are None where the report's are empty; latencies are in microseconds,
    `high_water_mark` is in messages. `relation` says what is alike and what is not where the row
    has another name than the case. `least_qos`: of several rows, this one stands for runs of that
    QoS and above.

    Source: "IBM MessageSight Appliance v1.0 Performance Benchmarks" (test date April 22, 2013),
    section "Score card"; high-water marks from its section "Additional test results data". They
    were measured on that report's appliance and network: a yardstick for what a case is about, not
    a result of ours.
    """

    name: str
    measure: Measure
    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None
    high_water_mark: int | None = None
    relation: str = ""
    least_qos: int = 0


PUBLISHED_SOURCE = "IBM MessageSight Appliance v1.0 Performance Benchmarks, 2013"


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """How runs of a case are drawn and tabulated.

    columns    of a sweep's table, keys of `scorecard.sweep_table.FIGURES`
    main       the figure that the case is about, of the same keys
    lines      what a sweep's chart draws: key and title each; with `two_axes` the second line has
               an axis of its own
    axis       what several runs on one score card are drawn over: ratio, background, backends, or
               "" for nothing
    by_size    whether runs are drawn by message size
    """

    columns: tuple[str, ...] = ("producers", "consumers", "ingress", "egress", "p99")
    main: str = "egress"
    lines: tuple[tuple[str, str], ...] = (("egress", "egress"),)
    two_axes: bool = False
    axis: str = ""
    by_size: bool = False


@dataclass(frozen=True, slots=True)
class Variants:
    """Values of one field that are commands of their own: value to summary and example."""

    field: str
    commands: Mapping[str, tuple[str, str]]


# After a run --------------------------------------------------------------------------------------


class GroupCounts(Protocol):
    """What was counted of the groups of devices (`control.tally.GroupTally`)."""

    def total(self, group: str, name: str, phase: str | None = None) -> int:
        """Sum of a counter of one group, over all phases or one."""

    def under_way(self, groups: Iterable[str]) -> Sequence[tuple[int, int]]:
        """(CLOCK_MONOTONIC ns, expected and not received by then) at the end of each second."""


Loads = Sequence[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and of each process the ns it ran or waited for a processor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a run showed, as `Case.review` gets it when the drain has ended.

    workload, plan      what was asked for, and how it was spread
    facts               what the verdict would judge without the case
    finals              last answer of each worker by its number; one that was lost is missing
    windows             start and end of each phase by name, CLOCK_MONOTONIC ns
    counts              what was counted of each group
    loads               of the brokers started here for a bridge, front first; else empty
    cut_off             the consumer that was cut off on request, and what it held; else empty
    broker_is_local     whether a broker runs on this host
    window_rows         reads the run's interval rows of the window, merged by group and series
    """

    workload: "Workload"
    plan: RunPlan
    facts: RunFacts
    finals: Mapping[int, Mapping[str, Any]]
    windows: Mapping[str, tuple[int, int]]
    counts: GroupCounts
    loads: Loads = ()
    cut_off: Mapping[str, Any] = field(default_factory=dict)
    broker_is_local: Callable[[], bool] = lambda: False
    window_rows: Callable[[], list[dict[str, Any]]] = list


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a case adds to a run that was judged.

    verdict     the run's, with the case's own reasons
    observed    for run.json, `observed` of the case's name; None for nothing
    audit       for run.json, `audit`; None for a case without one
    files       documents to write beside run.json, by file name
    """

    verdict: Verdict
    observed: Mapping[str, Any] | None = None
    audit: Mapping[str, Any] | None = None
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Review:
    """What a case makes of what was observed: `facts` are judged, `conclude` gets their verdict."""

    facts: RunFacts
    conclude: Callable[[Verdict], Conclusion] = Conclusion


# Cases --------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Case(Generic[S]):
    """One case; `loadgen.cases.registry` finds it by its module's `CASE`.

    place       where it stands among the others in help texts and tables, the least first
    summary     what it is, one sentence; `example` a command
    scenario    its fields, defaults and refusals
    groups      its devices. Topics begin with `workload.ROOT`, for which the plan puts the run's
                own; streams, keep-alive and will are filled in afterwards
    resolve     the workload with what only this case asks for: needs of the broker, what is
                disturbed during the run, the model that its plan and review work with
    plan        the plan for its workers, from the plain one
    review      called once after the drain, before the verdict
    rows        of its score card
    published   figures that it can be held against; empty where no report has them
    notice      what must stand before any figure of its runs
    variants    values of a field that are commands of their own; None for one command
    secured     published with TLS too, as rows whose names end with .SEC

    What it measures:

    connects_only      no messages: its result is the connect phase, its rate connects a second
    timed_pair         latency of one pair, while the other messages are its background
    send_delay_limit_us  the p99 send delay above which the generator is too late for this case

    How it is searched and shown:

    scales_by_devices  deliveries grow with the devices where no rate is given
    charts             of its runs and sweeps
    demo               fields of `loadgen demo` by the broker's name; empty for a case without
    """

    place: int
    summary: str
    example: str
    scenario: type[S]
    groups: Callable[[S], tuple[DeviceGroup, ...]]
    rows: tuple[RowSpec, ...]
    resolve: "Callable[[S, Workload], Workload]" = lambda _scenario, workload: workload
    plan: "Callable[[Workload, RunPlan], RunPlan]" = lambda _workload, plan: plan
    review: Callable[[Evidence], Review] = lambda evidence: Review(evidence.facts)
    published: tuple[PublishedFigure, ...] = ()
    notice: str = ""
    variants: Variants | None = None
    secured: bool = False
    connects_only: bool = False
    timed_pair: bool = False
    send_delay_limit_us: float = SEND_DELAY_LIMIT_US
    scales_by_devices: bool = False
    charts: ChartStyle = ChartStyle()
    demo: Mapping[str, Mapping[str, object]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in commands, scenario files and results."""
        return str(self.scenario.model_fields["case"].default)

    def counterparts(self, published: object = None, qos: int = 0) -> tuple[PublishedFigure, ...]:
        """The published figures that a run stands beside; the scenario may name the row."""
        chosen = published
        if published not in [figure.name for figure in self.published]:
            least = max((f.least_qos for f in self.published if f.least_qos <= qos), default=0)
            chosen = next((f.name for f in self.published if f.least_qos == least), None)
        return tuple(figure for figure in self.published if figure.name == chosen)
