"""The rows of the published score card, filled with what a run measured.

The rows of a case, with their names, types and units, are in its module of `loadgen.cases`, and the
figures of each measure in `_MEASURES`. A value or a statistic that the published card leaves empty
is None. An unknown case gets its rates.
"""

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files

from loadgen.cases.case import MEASURES, RowSpec
from loadgen.cases.registry import CASES
from loadgen.judge.published import SECURED, Figures, plain_number
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import figure, part
from loadgen.report.record import RunRecord

TYPES = ("Throughput", "Latency", "Connection rate", "Data-center Efficiency")
"""Groups of rows, in the order of the published card."""

DATA = tomllib.loads(files("loadgen.report").joinpath("columns.toml").read_text("utf-8"))
"""Rows and columns that do not depend on the case."""

FIGURES: Mapping[str, str] = {key: title for key, (title, _) in DATA["figures"].items()}
"""Figures of a row, and the title of each column."""

PUBLISHED_FIGURES = {key: FIGURES[key] for key, (_, known) in DATA["figures"].items() if known}
"""Those that the published card has."""


@dataclass(frozen=True, slots=True)
class Row(Figures):
    """One line: `value` in `unit`."""

    type: str
    name: str
    description: str
    unit: str
    p99_9: float | None = None
    remark: str = ""
    """A caveat about these figures, or the reason for their absence."""

    @property
    def figures(self) -> tuple[float | None, ...]:
        """In the order of `FIGURES`."""
        return tuple(getattr(self, key) for key in FIGURES)


RowKey = tuple[str, str, int]
"""Name and unit of a row, and its place among rows with that name and unit."""


def keyed(rows: Sequence[Row]) -> dict[RowKey, Row]:
    """Return the rows of a run by keys that rows of another run of its case share."""
    found: dict[RowKey, Row] = {}
    alike: Counter[tuple[str, str]] = Counter()
    for row in rows:
        found[row.name, row.unit, alike[row.name, row.unit]] = row
        alike[row.name, row.unit] += 1
    return found


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts for rows; rates as in `score_card.ScoreCard`.

    `remarks` are those of rows, by their measure; a row with one is there without a figure, too.
    """

    record: RunRecord
    rates: Mapping[str, float]
    latency: Mapping[str, LatencySummary]
    connected: int
    high_water_mark: int | None
    subscription_high_water_mark: int | None
    watts: float | None
    rack_units: float | None
    messages_per_core_second: float | None = None
    remarks: Mapping[str, str] = field(default_factory=dict)


END_TO_END = "end_to_end"
_TRANSIT = ".TRANSIT"
LARGE_MESSAGE_BYTES = 64 * 1024
"""Size above which bytes a second say more than messages a second."""

_UNKNOWN = (
    RowSpec("{case}", "ingress_rate", "Ingress rate."),
    RowSpec("{case}", "egress_rate", "Egress rate."),
)
"""Rows of a case that this program does not know."""


_COMMON = {
    part: RowSpec(f"{{case}}.{part}", measure, description)
    for part, (measure, description) in DATA["rows"].items()
}
"""Rows that every case gets if it has the figure, by the last part of the name."""


def score_rows(facts: Facts) -> tuple[Row, ...]:
    """Return the rows of a run's case, in the order of the published card."""
    case = CASES.get(facts.record.case)
    specs = case.rows if case else _UNKNOWN
    words = _Words(facts)
    secured = SECURED if case and case.secured and facts.record.secure else ""
    rows = [
        _row(row_spec, facts, words, secured)
        for spec in specs
        for row_spec in ((spec, _transit_of(spec)) if spec.measure == "latency" else (spec,))
    ]
    words["case"] += secured
    measured = {spec.measure for spec in specs}
    rows += [
        _row(row_spec, facts, words)
        for row_spec in _COMMON.values()
        if row_spec.measure not in measured
    ]
    return tuple(row for row in rows if row is not None)


def with_latency(
    rows: Sequence[Row], case: str, latency: Mapping[str, LatencySummary]
) -> tuple[Row, ...]:
    """Return the rows, and the end-to-end latency as the last if none of them is a latency."""
    timed = latency.get(END_TO_END)
    if timed is None or any(row.unit == "microseconds" for row in rows):
        return tuple(rows)
    row = Row(
        type="Latency",
        name=f"{case.upper()}.{END_TO_END}",
        description="From the intended moment of sending to the receiver.",
        unit="microseconds",
        **{key: getattr(timed, key) for key in FIGURES if key != "value"},
    )
    return (*rows, row)


def figures_of(measure: str, facts: Facts) -> "_Found":
    """Return the figures of a run for a measure, by the keys of `FIGURES`."""
    if measure in _MEASURES:
        return dict.fromkeys(FIGURES) | _MEASURES[measure](facts)
    own = CASES[facts.record.case].case_figures(facts.record.scenario, None)
    return dict.fromkeys(FIGURES) | {"value": own.get(measure)}


def _known_to(measure: str, figures: "_Found", record: RunRecord) -> str:
    """Return the uncertainty of a latency that two clocks measured; "" for one clock."""
    bound_ns = record.observed.get("clock_bound_ns")
    between = record.observed.get("timed_between_hosts") is True
    if measure not in ("latency", "transit") or not between or not isinstance(bound_ns, int):
        return ""
    bound_us = bound_ns / 1000
    shares = {"p50": "median", "p99": "99th percentile"}
    small = [name for key, name in shares.items() if (figures[key] or bound_us) < bound_us]
    excess = f", which is more than the {' and the '.join(small)}" if small else ""
    return f"Between hosts, known to within {bound_us:,.1f} µs{excess}."


def _transit_of(spec: RowSpec) -> RowSpec:
    """Return the row next to that of a latency, without the generator's lateness."""
    return RowSpec(
        f"{spec.name}{_TRANSIT}",
        "transit",
        "The same from the moment of really sending: broker and network, without late sending.",
    )


def _row(spec: RowSpec, facts: Facts, words: "_Words", suffix: str = "") -> Row | None:
    figures = figures_of(spec.measure, facts)
    remark = facts.remarks.get(spec.measure, "") or _known_to(spec.measure, figures, facts.record)
    nothing = all(value is None for value in figures.values())
    if MEASURES[spec.measure].optional and nothing and not remark:
        return None
    title = spec.name.format_map(words)
    name = f"{title.removesuffix(_TRANSIT)}{suffix}{_TRANSIT if title.endswith(_TRANSIT) else ''}"
    about = spec.description.format_map(words)
    return Row(spec.type, name, about, spec.unit, **figures, remark=remark)


def in_report_order(runs: Sequence[Sequence[Row]]) -> list[tuple[int, Row]]:
    """Return the rows of several runs as one card, each with its run's place.

    Rows of the same name stay in the order given.
    """
    rows = [(place, row) for place, own in enumerate(runs) for row in own]
    return sorted(rows, key=lambda one: _place(one[1]))


def _place(row: Row) -> tuple[int, ...]:
    """Return a sort key: by type, then by case; secured cases follow, unknown ones are last."""
    parts = [END_TO_END, *_COMMON]
    whole, _, part = row.name.rpartition(".")
    title = whole if part in parts else row.name
    title = title.removesuffix(_TRANSIT)
    case = CASES.get(title.removesuffix(SECURED).lower())
    own_type, place = (TYPES.index(case.rows[0].type), case.place) if case else (len(TYPES), 0)
    return (
        TYPES.index(row.type) if row.type in TYPES else len(TYPES),
        case is None,
        title.endswith(SECURED),
        own_type,
        place,
        parts.index(part) if part in parts else -1,
        row.name.endswith(_TRANSIT),
    )


# --- figures --------------------------------------------------------------------------------

_Found = dict[str, float | None]


def _rate(name: str) -> Callable[[Facts], _Found]:
    return lambda facts: {"value": facts.rates[name]}


def _share(dividend: float | None, divisor: float | None) -> _Found:
    """Return a quotient; None if either is missing or 0."""
    return {"value": dividend / divisor if dividend and divisor else None}


def _distribution(series: str) -> Callable[[Facts], _Found]:
    """Return the distribution of a latency; the published card leaves the value empty."""
    return lambda facts: {k: getattr(facts.latency.get(series), k, None) for k in FIGURES}


def _connect_seconds(facts: Facts) -> _Found:
    """Return the time to connect all devices; None if a device did not connect."""
    devices = sum(group.count for group in facts.record.groups)
    return {"value": facts.record.connect_seconds if facts.connected >= devices else None}


def _payload_rate(facts: Facts) -> _Found:
    """Return MB/s out of the broker; None if messages are small or of several sizes."""
    sizes = {group.size_bytes for group in facts.record.publishing}
    (low, high) = sizes.pop() if len(sizes) == 1 else (0, 0)
    if low != high or low <= LARGE_MESSAGE_BYTES:
        return {"value": None}
    return {"value": facts.rates["egress"] * low / 1e6}


_MEASURES: Mapping[str, Callable[[Facts], _Found]] = {
    "producers": lambda facts: {"value": sum(g.count for g in facts.record.publishing) or None},
    "ingress_rate": _rate("ingress"),
    "egress_rate": _rate("egress"),
    # Stored by the broker and delivered: a message that only went in may never have been stored.
    "persistent_rate": _rate("egress"),
    "queue_rate": _rate("egress"),
    "forwarding_rate": _rate("egress"),
    "messages_per_watt": lambda facts: _share(facts.rates["egress"], facts.watts),
    "messages_per_rack_unit": lambda facts: _share(facts.rates["egress"], facts.rack_units),
    "joules_per_message": lambda facts: _share(facts.watts, facts.rates["egress"]),
    "messages_per_core_second": lambda facts: {"value": facts.messages_per_core_second},
    # From the intended moment of sending, so that a late sender is charged.
    "latency": _distribution("end_to_end"),
    "transit": _distribution("transit"),
    "connect_latency": _distribution("connect"),
    "connect_seconds": _connect_seconds,
    "recovery_seconds": lambda facts: {
        "value": figure(part(facts.record.observed, "recovery"), "drained_s")
    },
    "high_water_mark": lambda facts: {"value": facts.subscription_high_water_mark},
    "payload_rate": _payload_rate,
}

# --- what descriptions say ------------------------------------------------------------------


class _Words(dict[str, str]):
    """Values for names and descriptions, from the groups that were played.

    Any other word is the scenario's field of that name, "?" without such a field. A capitalized
    word is the capitalized field.
    """

    def __init__(self, facts: Facts) -> None:
        self._scenario = scenario = facts.record.scenario
        publishing = facts.record.publishing
        background = [group for group in publishing if not group.timed]
        case = CASES.get(facts.record.case)
        paired = case is not None and case.timed_pair
        counted = background if paired else publishing or facts.record.groups
        super().__init__(
            case=facts.record.case.upper(),
            devices=f"{sum(group.count for group in counted):,}",
            background_rate=plain_number(sum(g.rate or 0.0 for g in background)),
            rack_units=plain_number(facts.rack_units or 0.0),
            subscribed=" and subscribed" if scenario.get("subscribe") is True else "",
            backends=_text(scenario.get("backends") or len(scenario.get("backend") or ()) or 1),
            durable=", durable consumers" if scenario.get("durable") is True else "",
        )
        for group in [group for group in publishing if group.timed][:1]:
            low, high = group.size_bytes
            self |= {
                "qos": str(group.qos),
                "size": f"{low:,}" if low == high else f"{low:,}-{high:,}",
                "topics": f"{group.topics:,}",
                "ratio": f"{group.deliveries:,}",
                "pairs": f"{group.topics or group.count:,}",
                "rate": plain_number(group.rate or 0.0),
                "each": plain_number((group.rate or 0.0) / max(group.count, 1)),
            }

    def __missing__(self, key: str) -> str:
        value = self._scenario.get(key.lower())
        if value is None:
            return "?"
        return _text(value).capitalize() if key[0].isupper() else _text(value)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
