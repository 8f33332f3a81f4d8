"""The rows of the published score card, filled with what a run measured.

Which rows a case has, and their names, types and units, stand in its module of `loadgen.cases`;
here each `Measure` becomes a number. A row whose value or statistics the published card leaves
empty has None there too. An unknown case gets its rates.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from loadgen.cases.registry import CASES
from loadgen.scorecard.latency import Latency
from loadgen.scorecard.record import RunRecord
from loadgen.workload.case import Measure

TYPES = ("Throughput", "Latency", "Connection rate", "Data-center Efficiency")
"""Groups of rows, in the order of the published card."""

FIGURES = {
    "value": "VALUE",
    "avg": "AVG",
    "p50": "50P",
    "p99": "99P",
    "max": "MAX",
    "stdev": "STDV",
}
"""Figures of a row, and the published card's title of each column."""

_NAMES = (
    *("FANIN", "FANOUT", "PERSISTENT", "QUEUE", "BRIDGE", "FANIN.SEC", "FANOUT.SEC"),
    *("LATENCY", "CONNBURST"),
)
_EFFICIENCY = ("MPW", "MPU", "JPM", "MPC")
"""Last part of the names of Data-center Efficiency, in order."""

_SECURE_NAMES = ("FANIN", "FANOUT")


@dataclass(frozen=True, slots=True)
class Row:
    """One line: `value` in `unit`; latencies in microseconds; None where the card is empty."""

    type: str
    name: str
    description: str
    unit: str
    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None

    @property
    def figures(self) -> tuple[float | None, ...]:
        """In the order of `FIGURES`."""
        return tuple(getattr(self, key) for key in FIGURES)


@dataclass(frozen=True, slots=True)
class Facts:
    """What rows are made of. Rates are messages a second of those intended in the window."""

    record: RunRecord
    rates: Mapping[str, float]
    latency: Mapping[str, Latency]
    connected: int
    connect_seconds: float | None
    high_water_mark: int | None
    watts: float | None
    rack_units: float | None
    messages_per_core_second: float | None = None


@dataclass(frozen=True, slots=True)
class _Spec:
    """A row to fill: `value` from the facts, the other columns from a latency series."""

    row: Row
    value: Callable[[Facts], float | None]
    series: str | None = None
    optional: bool = False
    """Left out where there is no value."""


def score_rows(facts: Facts) -> tuple[Row, ...]:
    """The rows of a run's case, in the order of the published card."""
    specs = _specs(facts.record.case)
    known = {spec.row.name for spec in specs}
    specs = (*specs, *(s for s in _efficiency(facts.record.case) if s.row.name not in known))
    filled = ((spec, _fill(spec, facts)) for spec in specs)
    return tuple(row for spec, row in filled if row.value is not None or not spec.optional)


def in_report_order(runs: Sequence[Sequence[Row]]) -> list[tuple[int, Row]]:
    """Rows of several runs as one card, each with its run's place.

    Rows of the same name stay in the order given.
    """
    rows = [(place, row) for place, own in enumerate(runs) for row in own]
    return sorted(rows, key=lambda one: _place(one[1]))


def _place(row: Row) -> tuple[int, int, int]:
    whole, _, part = row.name.rpartition(".")
    if part in _EFFICIENCY:
        return _rank(TYPES, row.type), _rank(_NAMES, whole), _EFFICIENCY.index(part)
    return _rank(TYPES, row.type), _rank(_NAMES, row.name), -1


def _rank(order: tuple[str, ...], item: str) -> int:
    return order.index(item) if item in order else len(order)


def _fill(spec: _Spec, facts: Facts) -> Row:
    secure = facts.record.secure and spec.row.name in _SECURE_NAMES
    words = _words(facts)
    name = spec.row.name.format_map(words)
    row = replace(
        spec.row,
        name=f"{name}.SEC" if secure else name,
        description=spec.row.description.format_map(words),
        value=spec.value(facts),
    )
    timed = facts.latency.get(spec.series) if spec.series else None
    if timed is None:
        return row
    return replace(
        row, avg=timed.avg, p50=timed.p50, p99=timed.p99, max=timed.max, stdev=timed.stdev
    )


# --- which rows -----------------------------------------------------------------------------


def _rate(name: str) -> Callable[[Facts], float | None]:
    return lambda facts: facts.rates[name]


def _per_watt(facts: Facts) -> float | None:
    return facts.rates["received"] / facts.watts if facts.watts else None


def _joules(facts: Facts) -> float | None:
    rate = facts.rates["received"]
    return facts.watts / rate if facts.watts and rate else None


def _per_rack_unit(facts: Facts) -> float | None:
    return facts.rates["received"] / facts.rack_units if facts.rack_units else None


_VALUES: Mapping[Measure, Callable[[Facts], float | None]] = {
    "producers": lambda facts: _producers(facts),
    "ingress_rate": _rate("sent"),
    "egress_rate": _rate("received"),
    # Stored by the broker and handed on: what only went in may never have been stored.
    "persistent_rate": _rate("received"),
    "queue_rate": _rate("received"),
    "forwarding_rate": _rate("received"),
    "messages_per_watt": _per_watt,
    "messages_per_rack_unit": _per_rack_unit,
    # The published card leaves this cell empty: the row is its distribution.
    "latency": lambda facts: None,
    "connect_seconds": lambda facts: _connect_seconds(facts),
    "base": lambda facts: _base(facts),
    "high_water_mark": lambda facts: facts.high_water_mark,
}

_SERIES: Mapping[Measure, str] = {"latency": "end_to_end"}
"""From the intended moment of sending, so that a late sender is charged."""


def _efficiency(case: str) -> tuple[_Spec, ...]:
    """Rows that every case gets where there is something to divide by."""
    kinds: tuple[tuple[str, str, str, Callable[[Facts], float | None]], ...] = (
        (
            "MPW",
            "Received rate divided by the mean watts of all outlets.",
            "msgs/Watt",
            lambda facts: _per_watt(facts) or None,
        ),
        (
            "MPU",
            "Received rate divided by the {rack_units} rack units of the broker.",
            "msgs/sec/U",
            lambda facts: _per_rack_unit(facts) or None,
        ),
        ("JPM", "Energy for each message received.", "joules/msg", _joules),
        (
            "MPC",
            "Messages into and out of the broker for each second of its processor time.",
            "msgs/core-sec",
            lambda facts: facts.messages_per_core_second,
        ),
    )
    return tuple(
        _Spec(
            Row("Data-center Efficiency", f"{case.upper()}.{part}", description, unit),
            value,
            optional=True,
        )
        for part, description, unit, value in kinds
    )


def _specs(case: str) -> tuple[_Spec, ...]:
    if case not in CASES:
        name = case.upper()
        return (
            _Spec(Row("Throughput", name, "Ingress rate.", "msgs/sec"), _rate("sent")),
            _Spec(Row("Throughput", name, "Egress rate.", "msgs/sec"), _rate("received")),
        )
    return tuple(
        _Spec(
            Row(row.type, row.name, row.description, row.unit),
            _VALUES[row.measure],
            _SERIES.get(row.measure),
            optional=bool(row.needs) or row.measure in ("base", "high_water_mark"),
        )
        for row in CASES[case].rows
    )


# --- what descriptions say ------------------------------------------------------------------


class _Words(dict[str, str]):
    """Values for a description; what a run did not record is shown as such."""

    def __missing__(self, key: str) -> str:
        return "?"


def _words(facts: Facts) -> _Words:
    """Fields of the rows' descriptions, taken from the groups that were really played."""
    publishing = facts.record.publishing
    timed = [group for group in publishing if group.timed]
    background = [group for group in publishing if not group.timed]
    case = CASES.get(facts.record.case)
    paired = case is not None and case.timed_pair
    counted = background if paired else publishing or facts.record.groups
    subscribe = facts.record.scenario.get("subscribe") is True
    words = _Words(
        devices=f"{sum(group.count for group in counted):,}",
        background_rate=_plain(sum(g.rate or 0.0 for g in background)),
        rack_units=_plain(facts.rack_units or 0.0),
        subscribed=" and subscribed" if subscribe else "",
        topology=str(facts.record.scenario.get("topology") or "").capitalize(),
    )
    if timed:
        group = timed[0]
        low, high = group.size_bytes
        words |= {
            "qos": str(group.qos),
            "size": f"{low}" if low == high else f"{low}-{high}",
            "topics": f"{group.topics:,}",
            "ratio": f"{group.deliveries:,}",
            "pairs": f"{group.topics or group.count:,}",
            "rate": _plain(group.rate or 0.0),
            "each": _plain((group.rate or 0.0) / max(group.count, 1)),
        }
    scenario = facts.record.scenario
    backends = scenario.get("backends") or len(scenario.get("backend") or ()) or 1
    words |= {
        key: _told(scenario[key]) for key in ("consumers", "batch", "responders") if key in scenario
    }
    words |= {
        "backends": _told(backends),
        "durable": ", durable consumers" if scenario.get("durable") is True else "",
    }
    return words


def _told(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def _producers(facts: Facts) -> float | None:
    return sum(group.count for group in facts.record.publishing) or None


def _base(facts: Facts) -> float | None:
    """BASE of a supply chain; None where the workload is not scaled by it."""
    base = facts.record.scenario.get("base")
    freeform = facts.record.scenario.get("topology") == "freeform"
    return float(base) if isinstance(base, int) and not freeform else None


def _connect_seconds(facts: Facts) -> float | None:
    """None where a device stayed away: then there is no time by which all were connected."""
    devices = sum(group.count for group in facts.record.groups)
    return facts.connect_seconds if facts.connected >= devices else None


def _plain(number: float) -> str:
    return f"{number:,.0f}" if float(number).is_integer() else f"{number:,.4g}"
