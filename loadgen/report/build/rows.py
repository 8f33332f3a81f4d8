"""The rows of the published score card, filled with what a run measured.

A case names its rows; `_VALUES` and `_SERIES` have the figures of each measure. A value that the
published card leaves empty is None. An unknown case gets its rates.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loadgen.cases.case import MEASURES, RowSpec
from loadgen.cases.registry import CASES
from loadgen.judge.published import SECURED, Figures, per_second, plain_number
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import figure, objects, part
from loadgen.plan.tables import Cell, DataTable, TableCell
from loadgen.report.headline import AS_ASKED
from loadgen.report.record import RunRecord
from loadgen.report.render.text import number
from loadgen.sentences import REPORT_TEXT, read_table, render

if TYPE_CHECKING:
    from loadgen.report.score_card import ScoreCard

TYPES = ("Throughput", "Latency", "Connection rate", "Data-center Efficiency")
"""Groups of rows, in the order of the published card."""
DATA = read_table("loadgen.report", "columns.toml")
"""Rows and columns that do not depend on the case."""
FIGURES: Mapping[str, str] = {key: title for key, (title, _) in DATA["figures"].items()}
"""Figures of a row, and the title of each column."""
PUBLISHED_FIGURES = {key: FIGURES[key] for key, (_, known) in DATA["figures"].items() if known}
"""Those that the published card has."""
TableRow = Sequence[Cell | TableCell]


def table(
    key: str, rows: Iterable[TableRow], columns: Sequence[str] = (), **values: object
) -> DataTable:
    """Return a table of `columns.toml`; `columns` follow its own, and `values` fill its texts."""
    form = {"title": "", "note": [""], "texts": [0], "look": "", **DATA["tables"][key]}
    return DataTable(
        title=form["title"].format(**values),
        note=render(key, form["note"], values).strip(),
        header=(*form["header"], *columns),
        rows=tuple(map(tuple, rows)),
        texts=tuple(form["texts"]),
        look=form["look"],
    )


END_TO_END = "end_to_end"
_TRANSIT = ".TRANSIT"
LARGE_MESSAGE_BYTES = 64 * 1024  # size above which bytes a second say more than messages a second

_UNKNOWN = (
    RowSpec("{case}", "ingress_rate", "Ingress rate."),
    RowSpec("{case}", "egress_rate", "Egress rate."),
)
"""Rows of a case that this program does not know."""


@dataclass(frozen=True, slots=True)
class Row(Figures):
    type: str
    name: str
    description: str
    unit: str
    p99_9: float | None = None
    remark: str = ""  # a caveat about these figures, or the reason for their absence

    @property
    def figures(self) -> tuple[float | None, ...]:
        return tuple(getattr(self, key) for key in FIGURES)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts for rows: the record, its figures as a card without rows, and the rack units."""

    record: RunRecord
    card: "ScoreCard"
    rack_units: float | None = None


def score_rows(facts: Facts) -> list[Row]:
    """Return the rows of a run's case, in the order of the published card."""
    record, case = facts.record, CASES.get(facts.record.case)
    specs = case.rows if case else _UNKNOWN
    words = _Words(facts)
    secured = SECURED if case and case.secured and record.secure else ""
    named = []
    for spec in specs:
        title = f"{spec.name.format_map(words)}{secured}"
        named.append((title, spec.measure, spec.description.format_map(words)))
        if spec.measure == "latency":
            named.append((f"{title}{_TRANSIT}", "transit", "From actual sending to the receiver."))
    measured = {spec.measure for spec in specs}
    named += [
        (f"{words['case']}{secured}.{short}", measure, description.format_map(words))
        for short, (measure, description) in DATA["rows"].items()
        if measure not in measured
    ]
    rows = []
    for title, measure, description in named:
        figures = figures_of(measure, facts)
        remark = _REMARKS[measure](facts) if measure in _REMARKS else ""
        remark = remark or _known_to(measure, record)
        if not remark and figures["value"] is not None:
            remark = _short_of(measure, facts.card)
        kind = MEASURES[measure]
        if remark or not kind.optional or any(value is not None for value in figures.values()):
            rows.append(Row(kind.type, title, description, kind.unit, **figures, remark=remark))
    return rows


def with_latency(
    rows: Sequence[Row], case: str, latency: Mapping[str, LatencySummary]
) -> tuple[Row, ...]:
    """Return the rows, and the end-to-end latency as the last if none of them is a latency."""
    timed = latency.get(END_TO_END)
    if timed is None or any(row.unit == "microseconds" for row in rows):
        return tuple(rows)
    figures: dict[str, Any] = {key: timed.figure(key) for key in FIGURES if key != "value"}
    row = Row(
        type="Latency",
        name=f"{case.upper()}.{END_TO_END}",
        description="From the intended moment of sending to the receiver.",
        unit="microseconds",
        **figures,
        remark=own_share_remark(latency),
    )
    return (*rows, row)


def _short_of(measure: str, card: "ScoreCard") -> str:
    """Return the asked rate for a rate of a run that sent less in time; "" otherwise."""
    asked = card.rates.get("asked", 0.0)
    if not measure.endswith("_rate") or card.rates["ingress"] >= AS_ASKED * asked:
        return ""
    return REPORT_TEXT.RATE_ASKED(asked=asked)


def _known_to(measure: str, record: RunRecord) -> str:
    """Return the uncertainty of a latency that two clocks measured; "" for one clock."""
    bound_ns = record.observed.get("clock_bound_ns")
    between = record.observed.get("timed_between_hosts") is True
    if measure not in ("latency", "transit") or not between or not isinstance(bound_ns, int):
        return ""
    return REPORT_TEXT.CLOCK_BOUND(bound=bound_ns / 1000)


def in_report_order(runs: Sequence[Sequence[Row]]) -> list[tuple[int, Row]]:
    """Return the rows of several runs as one card, each with its run's place.

    They are sorted by type, then by case; secured cases follow, unknown ones are last.
    """
    endings = [END_TO_END, *DATA["rows"]]

    def place_of(row: Row) -> tuple[int, ...]:
        case_name, _, ending = row.name.rpartition(".")
        title = (case_name if ending in endings else row.name).removesuffix(_TRANSIT)
        case = CASES.get(title.removesuffix(SECURED).lower())
        kind = MEASURES[case.rows[0].measure].type if case else ""
        return (
            TYPES.index(row.type) if row.type in TYPES else len(TYPES),
            case is None,
            title.endswith(SECURED),
            *((TYPES.index(kind), case.place) if case else (len(TYPES), 0)),
            endings.index(ending) if ending in endings else -1,
            row.name.endswith(_TRANSIT),
        )

    rows = [(number, row) for number, of_run in enumerate(runs) for row in of_run]
    return sorted(rows, key=lambda numbered: place_of(numbered[1]))


def figures_of(measure: str, facts: Facts) -> dict[str, float | None]:
    """Return the figures of a run for a measure, by the keys of `FIGURES`.

    The published card leaves the value of a distribution empty.
    """
    if measure in _SERIES:
        timed = facts.card.latency.get(_SERIES[measure])
        return {key: timed.figure(key) if timed and key != "value" else None for key in FIGURES}
    if measure in _VALUES:
        value = _VALUES[measure](facts)
    else:
        case = CASES[facts.record.case]
        value = case.case_figures(facts.record.scenario, None).get(measure)
    return dict.fromkeys(FIGURES) | {"value": value}


_SERIES = {
    # From the intended moment of sending, so that a late sender is charged.
    "latency": END_TO_END,
    "transit": "transit",
    "connect_latency": "connect",
}
"""Measures that are distributions, and their series."""


def _egress(facts: Facts) -> float:
    return facts.card.rates["egress"]


def _connect_seconds(facts: Facts) -> float | None:
    devices = sum(group.count for group in facts.record.groups)
    connect = facts.card.connect
    return connect.seconds if connect.connected >= devices else None


def _payload_rate(facts: Facts) -> float | None:
    """Return MB/s out of the broker; None if messages are small or of several sizes."""
    sizes = {group.size_bytes for group in facts.record.publishing}
    (low, high) = sizes.pop() if len(sizes) == 1 else (0, 0)
    return _egress(facts) * low / 1e6 if low == high and low > LARGE_MESSAGE_BYTES else None


def _most_of_groups(facts: Facts, name: str) -> float | None:
    returns = objects(part(facts.record.observed, "run").get("returns"))
    return max((seconds for one in returns if (seconds := figure(one, name))), default=None)


_VALUES: Mapping[str, Callable[[Facts], float | None]] = {
    "producers": lambda facts: sum(group.count for group in facts.record.publishing) or None,
    "ingress_rate": lambda facts: facts.card.rates["ingress"],
    "egress_rate": _egress,
    # Stored by the broker and delivered: a message that only went in may never have been stored.
    "persistent_rate": _egress,
    "queue_rate": _egress,
    "forwarding_rate": _egress,
    "messages_per_watt": lambda f: (f.card.power and f.card.power.messages_per_watt) or None,
    "joules_per_message": lambda f: (f.card.power and f.card.power.joules_per_message) or None,
    "messages_per_rack_unit": lambda facts: (
        _egress(facts) / facts.rack_units if _egress(facts) and facts.rack_units else None
    ),
    "messages_per_core_second": lambda facts: (
        None if facts.card.broker is None else facts.card.broker.messages_per_core_second
    ),
    "connect_seconds": _connect_seconds,
    "return_seconds": lambda facts: _most_of_groups(facts, "back_seconds"),
    "catch_up_seconds": lambda facts: _most_of_groups(facts, "catch_up_seconds"),
    "recovery_seconds": lambda facts: figure(part(facts.record.observed, "recovery"), "drained_s"),
    "high_water_mark": lambda facts: facts.card.counts.subscription_high_water_mark,
    "payload_rate": _payload_rate,
}
"""Measures that are one value."""

# A latency counts from the moment at which a message should have been sent until it was read. Two
# series show the generator's part: `transit` begins at the actual send, and `own_delay` is the time
# for which a message was readable before it was read. Shares of percentiles are approximate.
_MOSTLY = 0.5
_SHOWN = ("p50", "p99", "p99_9", "avg")


def mostly_own(latency: Mapping[str, LatencySummary]) -> dict[str, str]:
    """Return the figures of the end-to-end latency that are mostly our own, with both in µs."""
    total, transit, waited = (latency.get(s) for s in ("end_to_end", "transit", "own_delay"))
    mostly: dict[str, str] = {}
    if total is None or transit is None:
        return mostly
    for key in _SHOWN:
        total_us, sent_us = total.figure(key), transit.figure(key)
        if not total_us or sent_us is None:
            continue
        own_us = max(total_us - sent_us, 0.0)
        own_us += min((waited.figure(key) if waited else None) or 0.0, sent_us)
        if own_us > _MOSTLY * total_us:
            mostly[key] = f"{number(own_us)} of {number(total_us)} µs"
    return mostly


def own_share_remark(latency: Mapping[str, LatencySummary]) -> str:
    mostly = "; ".join(f"{FIGURES[key]}, {text}" for key, text in mostly_own(latency).items())
    return REPORT_TEXT.OWN_DELAY(figures=mostly) if mostly else ""


def recovery_remark(record: RunRecord) -> str:
    """Return why a crash has no recovery time; "" with one, and without a crash."""
    seen = part(record.observed, "recovery")
    ended = not seen or figure(seen, "drained_s") is not None
    return "" if ended else REPORT_TEXT.NOT_DRAINED()


def slow_remark(record: RunRecord) -> str:
    """Return the number of deliveries that waited for slow subscribers; "" without any."""
    waited = figure(part(record.observed, "slow"), "waited")
    return REPORT_TEXT.SLOW_WAITED(waited=waited) if waited else ""


def _of_power(facts: Facts) -> str:
    return facts.card.power.remark if facts.card.power else ""


_REMARKS: Mapping[str, Callable[[Facts], str]] = {
    "egress_rate": lambda facts: slow_remark(facts.record),
    "latency": lambda facts: own_share_remark(facts.card.latency),
    "messages_per_core_second": lambda f: f.card.broker.withheld if f.card.broker else "",
    "messages_per_watt": _of_power,
    "joules_per_message": _of_power,
    "recovery_seconds": lambda facts: recovery_remark(facts.record),
}
"""Remarks of measures; with one, a row without a figure is shown."""


class _Words(dict[str, str]):
    """Values for names and descriptions; other words are fields of the scenario, else "?"."""

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
            background_rate=per_second(sum(g.rate or 0.0 for g in background)),
            rack_units=plain_number(facts.rack_units or 0.0),
            subscribed=" and subscribed" if scenario.get("subscribe") is True else "",
            backends=_text(scenario.get("backends") or len(scenario.get("backend") or ()) or 1),
            durable=", durable consumers" if scenario.get("durable") is True else "",
        )
        for group in [group for group in publishing if group.timed][:1]:
            low, high = group.size_bytes
            # The rate of a closed loop, or one that was not reached, is that of the run.
            short = bool(_short_of("ingress_rate", facts.card))
            rate = group.rate or facts.card.rates["ingress"]
            if short and background:
                self["background_rate"] += " asked"
            elif short:
                rate = facts.card.rates["ingress"]
            self |= {
                "qos": str(group.qos),
                "size": f"{low:,}" if low == high else f"{low:,}-{high:,}",
                "topics": f"{group.topics:,}",
                "ratio": f"{group.deliveries:,}",
                "pairs": f"{group.topics or group.count:,}",
                "rate": per_second(rate),
                "requests": per_second(rate, "request"),
                "each": per_second(rate / max(group.count, 1)),
            }

    def __missing__(self, key: str) -> str:
        value = self._scenario.get(key.lower())
        if value is None:
            return "?"
        return _text(value).capitalize() if key[0].isupper() else _text(value)


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
