"""The score card of a run as data, and for programs: scorecard.json and scorecard.csv.

Data that only pages need is in `Curves` and not in these files.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import pyarrow as pa

from loadgen.judge.ledger import Ledger
from loadgen.judge.verdict import Verdict
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.tables import DataTable
from loadgen.report.build.broker_section import BrokerLoad
from loadgen.report.build.rows import FIGURES, PUBLISHED_FIGURES, Row
from loadgen.report.packing import Spooled, unpacked
from loadgen.report.power.power import OutletPower
from loadgen.report.record import PlannedGroup
from loadgen.run.seal import Integrity

SCHEMA = 1
LATENCY_FIGURES = ("count", "avg", "p50", "p90", "p99", "p99.9", "max", "stdev")
"""Figures of a latency series that a score card shows."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run's facts; `seconds` is the length of its measurement window, or of its connect phase
    if it publishes nothing."""

    id: str
    case: str
    started: str
    seconds: float
    hosts: int
    workers: int
    broker: Mapping[str, Any]
    protocol: str
    scenario: Mapping[str, Any]
    environment: Mapping[str, Any]
    program: str
    command: tuple[str, ...]
    seed: int | None

    @property
    def broker_name(self) -> str:
        """Name and version, as far as they are known."""
        words = (self.broker.get(key) for key in ("name", "version"))
        return " ".join(str(word) for word in words if word)


@dataclass(frozen=True, slots=True)
class About:
    """A publisher's title, name and note for a score card."""

    title: str = ""
    author: str = ""
    note: str = ""


NOTHING_SAID = About()


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages intended in the window and deliveries; connections over the whole run."""

    sent: int
    expected: int
    received: int
    lost: int
    duplicated: int
    out_of_order: int
    corrupt: int
    connects: int
    connect_failures: int
    disconnects: int
    high_water_mark: int | None
    subscription_high_water_mark: int | None
    acknowledged: int
    foreign: int


@dataclass(frozen=True, slots=True)
class NodePower:
    """The outlets that feed one machine; `name` is "" for those given without one."""

    name: str
    outlets: int
    watts: float


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power over the window; `watts` is the sum over the outlets.

    Figures are None if they are `withheld`, because the logs contradict themselves. `remark` has
    the reason, and other notes on the watts.
    """

    outlets: tuple[OutletPower, ...]
    nodes: tuple[NodePower, ...]
    watts: float
    messages_per_watt: float | None
    joules_per_message: float | None
    watts_per_rack_unit: float | None
    withheld: bool = False
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Connecting:
    """The result of connecting; `seconds` is None if the phase did not end."""

    connected: int
    failures: Mapping[str, int]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Distribution of one series: (percentile, µs), ascending, the last at 100."""

    series: str
    count: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Counters of one group of devices over the window."""

    planned: PlannedGroup
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Curves:
    """The curves that pages draw and exports hold.

    Times are seconds after the window's start, which is `wall_start_ns` in UTC nanoseconds since
    the epoch, 0 if the run did not record its wall clock.
    """

    wall_start_ns: int
    histograms: Mapping[str, Mapping[str, Any]]
    """Series to its merged row of the reduced interval table (`metrics.reducer`)."""
    phases: tuple[tuple[str, float, float], ...]
    distribution: tuple[Curve, ...]
    course: pa.Table
    """A row a second, at `at_s`, `span_s` long.

    `sent` and `received` are rates a second of the part in which messages were due, `covered_s`
    long and beginning at `covered_at_s`; null if that part is too short for a rate. `connects`,
    `connect_failures` and `disconnects` are numbers, `connected` is the number of connected devices
    at its end. `p50_us`, `p99_us` and `max_us` are null if no latency was measured.
    """
    backlog: tuple[tuple[float, int, int], ...]
    """(seconds, messages owed by publishers, deliveries outstanding)"""
    connected: tuple[tuple[float, int], ...]
    """(seconds since the connect phase began, devices connected until then)"""
    processes: pa.Table
    """A row per `worker` and second, at `at_s`: shares of a processor `used` and `waited` for, 0 to
    1, and `resident_bytes`."""


@dataclass(frozen=True, slots=True)
class ScoreCard:
    """One run's result: scorecard.json, schema 1, and its curves."""

    run: Run
    verdict: Verdict
    rows: tuple[Row, ...]
    counts: Counts
    latency: Mapping[str, LatencySummary]
    power: Power | None
    connect: Connecting
    network: Mapping[str, int]
    rates: Mapping[str, float]
    """Messages a second.

    Those intended in the window: sent, expected, received. Into and out of the broker during the
    window: ingress, egress, and `asked`, the rate of the plan without steps.
    """
    packed_curves: bytes | Spooled = b""
    groups: tuple[GroupTotals, ...] = ()
    audit: Mapping[str, Any] | None = None
    ledger: Mapping[str, Any] | None = None
    """Where every message ended (`judge.ledger`), None for a run without messages."""
    notice: str = ""  # before any figure
    sections: tuple[DataTable, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """Details that only some cases have, by their names in scorecard.json."""
    broker: BrokerLoad | None = None
    integrity: Integrity = Integrity("unsealed", {})  # noqa: RUF009 (frozen, never changed)

    @property
    def has_messages(self) -> bool:
        """False for a run that only connects."""
        return self.ledger is not None or self.counts.sent > 0

    @property
    def curves(self) -> Curves:
        """The curves, unpacked each time: a caller that needs them twice stores them."""
        curves: Curves = unpacked(bytes(self.packed_curves))
        return curves


SERIES_TYPE = "Latency series"
"""Type of the lines of latencies; their name is that of the series in scorecard.json."""
_ROW = ("type", "name", "description", "unit", *FIGURES, "remark")
_RATES = {"asked": "Asked ingress", "ingress": "Ingress", "egress": "Egress"}
_STATES = ("intended", *(field.name for field in fields(Ledger)))

CSV_HEADER = (
    *("Type", "Name", "Description", "Unit", *PUBLISHED_FIGURES.values()),
    *("Valid", "Reasons", "Case", "Run", "Started", "Seconds", "Broker"),
    *("Scenario digest", "Results digest", "Remark"),
    *("Count", "MIN", "90P", "99.9P"),
    *(f"Ledger {state.replace('_', ' ')}" for state in _STATES),
    *_RATES.values(),
)
"""New columns come at the end."""


def card_document(card: ScoreCard) -> dict[str, Any]:
    """Return a card as JSON values: keys in the order of the contract, then newer ones."""
    return {
        "schema": SCHEMA,
        **({"notice": card.notice} if card.notice else {}),
        "run": asdict(card.run),
        "verdict": card.verdict.document(),
        "rows": [{key.replace("_", "."): getattr(row, key) for key in _ROW} for row in card.rows],
        "counts": asdict(card.counts),
        "latency": {
            series: {key: timed.figure(key) for key in LATENCY_FIGURES}
            for series, timed in card.latency.items()
        },
        "power": _without_courses(card.power),
        "audit": None if card.audit is None else dict(card.audit),
        "rates": dict(card.rates),
        "connect": asdict(card.connect),
        "network": dict(card.network),
        "broker_load": _without_courses(card.broker),
        **card.details,
        "ledger": card.ledger,
        "remarks": [asdict(remark) for remark in card.verdict.remarks],
        "digest": {**card.integrity.digests, "state": card.integrity.state},
    }


def _without_courses(part: Any) -> dict[str, Any] | None:
    """Return a part of the card, which may be None, without the data of charts."""
    drawn = ("curve", "moments")
    return part and asdict(part, dict_factory=lambda of: {k: v for k, v in of if k not in drawn})


def csv_lines(card: ScoreCard) -> Iterator[tuple[object, ...]]:
    """Yield a line for each row of the card and each latency series, with the data of the run."""
    run, digests = card.run, card.integrity.digests
    about = (
        *(card.verdict.word, " ".join(reason.code for reason in card.verdict.reasons)),
        *(run.case, run.id, run.started, run.seconds, run.broker_name),
        *(digests.get("scenario"), digests.get("results")),
    )
    window = (card.ledger or {}).get("window", {})
    last = (*(window.get(state) for state in _STATES), *(card.rates.get(key) for key in _RATES))
    for row in card.rows:
        yield (
            *(row.type, row.name, row.description, row.unit),
            *(getattr(row, key) for key in PUBLISHED_FIGURES),
            *(*about, row.remark, None, None, None, row.p99_9, *last),
        )
    for series, timed in card.latency.items():
        yield (
            *(SERIES_TYPE, series, "", "microseconds"),
            *(None, timed.avg_us, timed.p50_us, timed.p99_us, timed.max_us, timed.stdev_us),
            *(*about, "", timed.count, timed.min_us, timed.p90_us, timed.p99_9_us, *last),
        )
