"""The score card of a run as data: what scorecard.json holds, and the curves that pages draw.

Data that only pages need is in `Curves` and not in the JSON.
"""

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import ref

import pyarrow as pa

from loadgen.judge.verdict import Verdict
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.tables import DataTable
from loadgen.report.build.broker_section import BrokerLoad
from loadgen.report.build.rows import Row
from loadgen.report.power.power import OutletPower
from loadgen.report.record import PlannedGroup
from loadgen.run.seal import Integrity

LATENCY_FIGURES = {
    "count": "count",
    "avg": "avg",
    "p50": "50p",
    "p90": "90p",
    "p99": "99p",
    "p99_9": "99.9p",
    "max": "max",
    "stdev": "stdev",
}
"""Figures of a latency series that a score card shows, and the title of each column."""


@dataclass(frozen=True, slots=True)
class Run:
    """The run's facts. `seconds` is the length of the measurement window, or for a run without
    one (CONNBURST) that of the connect phase."""

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
        return " ".join(
            str(self.broker[key]) for key in ("name", "version") if self.broker.get(key)
        )


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
    """The outlets that feed one machine, "" for those given without one."""

    name: str
    outlets: int
    watts: float


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power over the window; `watts` is the sum over the outlets.

    Messages are those received: the report divides the rate of PERSISTENT by the watts. It does
    not if the figure is `withheld`, because the logs contradict themselves. `remark` has the
    reason, and other notes on the watts.
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


@dataclass(frozen=True, slots=True, weakref_slot=True)
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
    """A row a `worker` and second, at `at_s`: shares of a processor `used` and `waited` for, 0 to
    1, and `resident_bytes`."""


class PackedCurves:
    """Compressed curves, a tenth of the size, for a report of a thousand runs."""

    __slots__ = ("_packed", "_size", "_unpacked")

    def __init__(self, curves: Curves) -> None:
        plain = pickle.dumps(curves, pickle.HIGHEST_PROTOCOL)
        self._size = len(plain)
        self._packed: bytes = pa.compress(plain, codec="zstd", asbytes=True)
        self._unpacked = ref(curves)

    def unpacked(self) -> Curves:
        """Return the curves; the same object as long as a caller refers to it."""
        curves = self._unpacked()
        if curves is None:
            plain = pa.decompress(self._packed, self._size, codec="zstd", asbytes=True)
            curves = pickle.loads(plain)
            self._unpacked = ref(curves)
        return curves

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PackedCurves) and self.unpacked() == other.unpacked()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[type["PackedCurves"], tuple[Curves]]:
        # A weak reference cannot be pickled for another process.
        return PackedCurves, (self.unpacked(),)


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
    packed_curves: PackedCurves
    groups: tuple[GroupTotals, ...] = ()
    audit: Mapping[str, Any] | None = None
    ledger: Mapping[str, Any] | None = None
    """Where every message ended (`report.build.record_sections`), None for a run without any."""
    notice: str = ""
    """Notice before any figure."""
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
        return self.packed_curves.unpacked()
