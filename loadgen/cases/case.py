"""The interface of a case: an object with everything in which it differs from the others."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from pydantic import TypeAdapter

from loadgen.judge.facts import RunFacts
from loadgen.judge.own_delay import SEND_DELAY_LIMIT_US
from loadgen.judge.published import SECURED, PublishedFigure
from loadgen.judge.verdict import Verdict
from loadgen.plan.groups import MESSAGING, DeviceGroup
from loadgen.plan.plan import Plan, plan_of
from loadgen.plan.rehearsal import Role, roles_of
from loadgen.plan.scenario import Scenario
from loadgen.plan.tables import DataTable
from loadgen.sentences import read_table

S = TypeVar("S", bound=Scenario)


RowType = Literal["Throughput", "Latency", "Connection rate", "Data-center Efficiency"]


@dataclass(frozen=True, slots=True)
class Measure:
    type: RowType
    unit: str
    load: bool = False  # the figure is the load that was played, not a limit of the broker
    optional: bool = False  # a row without a figure is left out


MEASURES: Mapping[str, Measure] = TypeAdapter(dict[str, Measure]).validate_python(
    read_table("loadgen.cases", "measures.toml")
)
"""Measures by name; `latency`, `transit` and `connect_latency` are distributions, others values."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    name: str  # this and `description` may hold `{field}`, filled with the values of the run
    measure: str  # key of MEASURES
    description: str
    unpublished: bool = False  # the published score card does not have the row


@dataclass(frozen=True, slots=True)
class ChartStyle:
    """Charts and tables of a case's runs; figures are in `report/columns.toml`."""

    # Columns of a sweep's table.
    columns: tuple[str, ...] = ("producers", "consumers", "ingress", "egress", "p99")
    main: str = "egress"  # the figure that the case measures
    # Lines of a sweep's chart: key and title each.
    lines: tuple[tuple[str, str], ...] = (("egress", "egress"),)
    two_axes: bool = False  # True if the second line has a separate axis
    # Columns that only this case has: key to title and unit.
    extra_columns: Mapping[str, tuple[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variants:
    """Values of a field that have separate commands, each with summary and example."""

    field: str
    commands: Mapping[str, tuple[str, str]]


_TYPES: Mapping[str, TypeAdapter[Any]] = {
    "rows": TypeAdapter(tuple[RowSpec, ...]),
    "charts": TypeAdapter(ChartStyle),
    "variants": TypeAdapter(Variants),
    "published": TypeAdapter(tuple[PublishedFigure, ...]),
}


def data_of(case: str) -> dict[str, Any]:
    """Return the fields of a `Case` that are data, from the file next to its module."""
    return {
        name: _TYPES[name].validate_python(value) if name in _TYPES else value
        for name, value in read_table("loadgen.cases", f"{case}.toml").items()
        if name != "help"
    }


Loads = Sequence[tuple[int, tuple[int | None, ...]]]
"""Samples: CLOCK_MONOTONIC ns, and ns in which each process ran or waited for a processor."""


def busy_shares(loads: Loads, window: tuple[int, int]) -> tuple[float | None, ...]:
    """Return the share of the window, 0 to 1, in which each process had work; None if unknown."""
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
    """The observations of a run, for `Case.review` after the drain."""

    plan: Plan
    facts: RunFacts  # facts for the verdict, without those of the case
    # Last answers of the workers by number; a lost worker has none.
    finals: Mapping[int, Mapping[str, Any]]
    windows: Mapping[str, tuple[int, int]]  # each phase's start and end, CLOCK_MONOTONIC ns
    counts: Any  # counters of the groups of devices, a `run.tally.Tally`
    loads: Loads = ()  # of the brokers started here for a bridge, front first
    # Faults that the run caused: the disconnected consumer and its messages in flight, or the
    # times at which the brokers were killed and served again.
    broken: Mapping[str, Any] = field(default_factory=dict)
    broker_is_local: Callable[[], bool] = lambda: False  # returns True if a broker is on this host
    # Reads the run's interval rows of the window, merged by group and series.
    window_rows: Callable[[], list[dict[str, Any]]] = list
    # Returns (start, end, count) of each second of each worker, CLOCK_MONOTONIC in ns, of a counter
    # and a group; by default of the messages that all groups received.
    course: Callable[..., list[tuple[int, int, int]]] = list
    # Returns (CLOCK_MONOTONIC ns, messages) of each report of the broker's stored messages.
    stored: Callable[[], list[tuple[int, int]]] = list


@dataclass(frozen=True, slots=True)
class Conclusion:
    """A case's additions to a judged run; `observed` and `audit` are for run.json."""

    verdict: Verdict  # the verdict of the run, with the reasons of the case
    observed: Mapping[str, Any] | None = None  # the part with the case's name; None to write none
    audit: Mapping[str, Any] | None = None  # None for a case without an audit
    # Documents to write next to run.json, by file name.
    files: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Review:
    """The facts of a case for the verdict, and `conclude`, which takes that verdict."""

    facts: RunFacts
    conclude: Callable[[Verdict], Conclusion] = Conclusion


@dataclass(frozen=True, kw_only=True)
class Case(Generic[S]):
    """A case; `loadgen.cases.registry` reads it as `CASE` of its module."""

    place: int  # sort key in help texts and tables
    summary: str  # a sentence
    example: str  # a command
    scenario: type[S]  # its fields, defaults and checks
    # Its devices. Topics begin with `plan.ROOT`, which the plan replaces by the run's first level;
    # streams, keep-alive and will are filled in.
    groups: Callable[[S], tuple[DeviceGroup, ...]]
    rows: tuple[RowSpec, ...]  # rows of its score card
    # The plan of its scenario and groups. A case with special needs of the broker, faults or a
    # model passes them to `plan_of`.
    plan: Callable[[S, tuple[DeviceGroup, ...]], Plan] = plan_of
    # Module with the behaviour of its devices (`plan.behaviour`), which reads the plan's `model`.
    behaviour: str = MESSAGING
    # The devices that rehearse the run at the broker before the load.
    roles: Callable[[Plan], tuple[Role, ...]] = roles_of
    # Called once after the drain, before the verdict.
    review: Callable[[Evidence], Review] = lambda evidence: Review(evidence.facts)
    # Published figures to compare with; empty if no report has this case.
    published: tuple[PublishedFigure, ...] = ()
    # Tables of a report, made from the `observed` of `Conclusion`.
    tables: Callable[[Mapping[str, Any]], tuple[DataTable, ...]] = lambda _observed: ()
    document: str = ""  # file that `review` writes next to run.json, empty for none
    # Module with its comparison of runs and its disclosure, "" for a case without run rules.
    disclosure: str = ""
    notice: str = ""  # text that must precede all figures of its runs
    takes_file: bool = False  # True if its command has the scenario file as argument
    variants: Variants | None = None  # values of a field that have separate commands

    # Measurement.
    connects_only: bool = False  # True without messages: the result is the connect phase
    timed_pair: bool = False  # True if the result is the latency of one pair, others its background
    # Highest p99 send delay at which the generator is fast enough for this case.
    send_delay_limit_us: float = SEND_DELAY_LIMIT_US

    # Search and report.
    scales_by_devices: bool = False  # True if deliveries grow with the devices unless a rate is set
    charts: ChartStyle = ChartStyle()  # charts of its runs and sweeps
    # Figures of the case, by key, from the scenario of run.json and the share of this host's
    # processors that the broker used, None if unknown.
    case_figures: Callable[[Mapping[str, Any], float | None], Mapping[str, float | None]] = (
        lambda _scenario, _broker_share: {}
    )
    # Fields of `loadgen demo`; empty for a case that it does not play.
    demo: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return str(self.scenario.model_fields["case"].default)

    @property
    def secured(self) -> bool:
        """True if it is also published with TLS, as rows with names that end with .SEC."""
        return any(figure.name.endswith(SECURED) for figure in self.published)
