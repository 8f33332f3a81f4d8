"""The table of a sweep: one row per combination, from the runs in its directory.

The columns are those of the published tables. Of several repetitions a row shows median and spread.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen.cases.registry import CASES, style_of
from loadgen.errors import RunDirectoryError
from loadgen.plan.reading import figure, part
from loadgen.report.build.rows import DATA
from loadgen.report.build.summary import summarize
from loadgen.report.headline import median_of
from loadgen.report.record import open_run
from loadgen.report.render.text import notice_for
from loadgen.report.score_card import ScoreCard
from loadgen.run.search.sweep import PointResult, SweepPoint, SweepResult, standing_of
from loadgen.sentences import counted

Figures = Mapping[str, float | None]


@dataclass(frozen=True, slots=True)
class FigureColumn:
    """A column of figures: key, title, and the unit of its numbers ("" for a count)."""

    key: str
    title: str
    unit: str


FIGURES: Mapping[str, FigureColumn] = {
    key: FigureColumn(key, title, unit)
    for titles in (DATA["sweep"], *(case.charts.extra_columns for case in CASES.values()))
    for key, (title, unit) in titles.items()
}
"""Columns of all cases, also those that only one has."""


@dataclass(frozen=True, slots=True)
class SweepRow:
    """One combination. `values` are the swept fields as given, `numbers` the numeric ones.

    `figures` are medians over `runs` runs. `spread` is the distance of the greatest and the least
    main figure (in a search: limit) as a share of the median, None for one run. `reasons` are those
    of the verdict, or errors. `limit` is the result of a search: field, load, above, stands
    (closed, not closed, at least, nothing held; only closed is a limit), ended, confirmed, own,
    codes. `broker` and `protocol` are those of its runs, all of them if they differ.
    """

    key: str
    values: Mapping[str, str]
    numbers: Mapping[str, float]
    figures: Figures
    runs: int
    spread: float | None
    valid: bool
    reasons: tuple[str, ...] = ()
    limit: Mapping[str, Any] | None = None
    directories: tuple[str, ...] = ()
    broker: str = ""
    protocol: str = ""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> tuple[str, ...]:
            """Return `reasons` by its old name, which is accepted until 1.0."""
            return object.__getattribute__(self, "reasons" if name == "told" else name)


@dataclass(frozen=True, slots=True, repr=False)
class SweepTable:
    """A sweep's rows in the order of its grid, and the columns that they have."""

    case: str
    axes: tuple[str, ...]
    columns: tuple[FigureColumn, ...]
    rows: tuple[SweepRow, ...]
    searched: str = ""
    broker: str = ""
    protocol: str = ""
    programs: tuple[str, ...] = field(default_factory=tuple)
    notice: str = ""  # before any figure

    def __repr__(self) -> str:
        valid, rows = sum(row.valid for row in self.rows), counted(len(self.rows), "row")
        return f"SweepTable({self.case} by {', '.join(self.axes)}: {valid} of {rows} VALID)"

    @property
    def repeated(self) -> bool:
        return any(row.runs > 1 for row in self.rows)


def table_of(result: SweepResult) -> SweepTable:
    cards: list[ScoreCard] = []
    rows = []
    for point in result.points:
        results = [item for item in result.measured if item.key == point.key]
        if results:
            rows.append(_row(result.directory, point, results, cards))
    case = result.points[0].scenario.case if result.points else ""
    return SweepTable(
        case=case,
        axes=tuple(result.points[0].values) if result.points else (),
        columns=tuple(
            FIGURES[key]
            for key in style_of(case).columns
            if any(row.figures.get(key) is not None for row in rows) or not rows
        ),
        rows=tuple(rows),
        searched=next((str(row.limit["field"]) for row in rows if row.limit), ""),
        broker=_joined(card.run.broker_name for card in cards),
        protocol=_joined(card.run.protocol for card in cards),
        programs=tuple(dict.fromkeys(card.run.program for card in cards)),
        # Not from a card: a limit needs the notice, even if no run of it is left.
        notice=notice_for(case),
    )


def _joined(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(filter(None, texts)))


def _row(
    directory: Path, point: SweepPoint, results: Sequence[PointResult], cards: list[ScoreCard]
) -> SweepRow:
    played: list[ScoreCard] = []
    reasons: list[str] = []
    for result in results:
        reasons += [result.error] if result.error else []
        if result.run is None:
            continue
        try:
            card = summarize(open_run(directory / result.run))
        except RunDirectoryError as error:
            reasons.append(str(error))
            continue
        played.append(card)
        reasons += card.verdict.codes if result.limit is None else ()
    cards += played
    measured = [figures_of(card) for card in played]
    aim = None if point.search is None else point.search.aim
    limits = [result.limit for result in results if result.limit is not None]
    limit = _limit([{**limit, "stands": standing_of(limit, aim)} for limit in limits])
    main = style_of(played[-1].run.case).main if played else ""
    loads = [limit["load"] for limit in limits] or [figures.get(main) for figures in measured]
    return SweepRow(
        key=results[0].key,
        values=point.values,
        numbers=_numbers(point),
        figures={key: median_of(figures[key] for figures in measured) for key in FIGURES},
        runs=len(measured),
        spread=spread_of(loads),
        valid=all(result.valid for result in results)
        and (limit is None or limit["stands"] == "closed"),
        reasons=tuple(dict.fromkeys(reasons)),
        limit=limit,
        directories=tuple(result.run for result in results if result.run is not None),
        broker=_joined(card.run.broker_name for card in played),
        protocol=_joined(card.run.protocol for card in played),
    )


_WEAKEST_FIRST = ("at least", "not closed", "closed")


def _limit(limits: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Merge the searches of one combination: median loads, all codes, and the weakest standing."""
    if not limits:
        return None
    codes = dict.fromkeys(reason["code"] for limit in limits for reason in limit["reasons"])
    standings = {limit["stands"] for limit in limits}
    stands = next((stands for stands in _WEAKEST_FIRST if stands in standings), "nothing held")
    return {
        "field": limits[0]["field"],
        "load": median_of(limit["load"] for limit in limits),
        "above": None if stands == "at least" else median_of(limit["above"] for limit in limits),
        "stands": stands,
        "ended": tuple(dict.fromkeys(limit["ended"] for limit in limits)),
        "confirmed": all(limit["confirmed"] for limit in limits),
        "own": any(limit["own"] for limit in limits),
        "codes": tuple(codes),
    }


def spread_of(values: Iterable[float | None]) -> float | None:
    """Return the distance of the extremes as a share of the median; None for one value."""
    present = [value for value in values if value is not None]
    middle = median_of(present) if len(present) > 1 else None
    return (max(present) - min(present)) / middle if middle else None


def _numbers(point: SweepPoint) -> dict[str, float]:
    """Return swept fields as numbers, and the middle of a range of sizes."""
    numbers = {}
    for name in point.values:
        value = getattr(point.scenario, name)
        values = value if isinstance(value, (list, tuple)) else [value]
        if values and all(type(item) in (int, float) for item in values):
            numbers[name] = float(sum(values) / len(values))
    return numbers


def figures_of(card: ScoreCard) -> dict[str, float | None]:
    """Return the figures of one run by the keys of `FIGURES`; None if the run has none."""
    publishing = [group for group in card.groups if group.planned.rate is not None]
    background = [g.counters["sent"] for g in publishing if not g.planned.timed]
    subscribers = sum(group.planned.count for group in card.groups if group not in publishing)
    latency = card.latency.get("end_to_end" if card.has_messages else "connect")
    scenario, cores = card.run.scenario, card.run.environment.get("cores")
    used = None if card.broker is None else card.broker.cores
    if card.broker is not None and card.broker.processors is not None:
        cores = card.broker.processors  # the broker is on another host
    case = CASES.get(card.run.case)
    share = used / cores if used is not None and cores else None
    observed = part(card.details, card.run.case, "figures")
    levels = ("avg", "p50", "p99", "max", "stdev")
    return {
        **{key: figure(observed, key) for key in FIGURES},
        **({} if case is None else case.case_figures(scenario, share)),
        "ratio": figure(scenario, "ratio"),
        "topics": sum(group.planned.topics for group in publishing) or None,
        "producers": sum(group.planned.count for group in publishing) or None,
        "consumers": subscribers if card.has_messages and subscribers else None,
        "devices": sum(group.planned.count for group in card.groups),
        "background": min(sum(background) / card.run.seconds, card.rates["ingress"])
        if background
        else None,
        "ingress": card.rates["ingress"] if card.has_messages else None,
        "egress": card.rates["egress"] if card.has_messages else None,
        "high_water_mark": card.counts.high_water_mark,
        "seconds": None if card.has_messages else card.connect.seconds,
        **{key: None if latency is None else latency.figure(key) for key in levels},
    }
