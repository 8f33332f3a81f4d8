"""The document of `loadgen report`: every row at its limit, brokers next to each other.

Its figures are those of the runs that confirmed a limit: the median, and the distance of the
greatest and the least as a share of it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import Any

from loadgen.cases.registry import CASES, style_of
from loadgen.errors import RunDirectoryError
from loadgen.plan.reading import count, objects, part, text
from loadgen.plan.tables import Cell, DataTable, TableCell
from loadgen.report.build import sweep_table
from loadgen.report.build.cards_report import about_lines, is_local, load_hosts
from loadgen.report.build.charts import charts_of
from loadgen.report.build.published_rows import conditions_of
from loadgen.report.build.rows import DATA, table
from loadgen.report.build.run_section import node_figures
from loadgen.report.build.summary import summarize
from loadgen.report.build.sweep_report import charts_of as charts_of_sweep
from loadgen.report.build.sweep_report import table_block, verdict_of
from loadgen.report.build.sweep_table import FIGURES, SweepRow, SweepTable
from loadgen.report.headline import median_of
from loadgen.report.model import Block, Chart, Charts, Paragraph, Report, Section
from loadgen.report.power.settings import LogSettings
from loadgen.report.record import open_run
from loadgen.report.render.text import name, number
from loadgen.report.score_card import ScoreCard
from loadgen.run.redaction import redact_command
from loadgen.run.search import report_plan
from loadgen.run.search.report_plan import REPEAT, Measurement, ReportItem, ReportPlan, ReportRow
from loadgen.run.search.report_runs import MeasuredItem, ReportResult
from loadgen.sentences import REPORT_TEXT, listed, percent

SCHEMA = 1
_PER_WATT = ReportRow("MPW", "msgs/Watt", "messages_per_watt")
_PER_RACK_UNIT = ReportRow("MPU", "msgs/sec/U", "messages_per_rack_unit")
_OF_ONE_RUN = ("Latency distribution", "Connection curve", "Power by outlet and messages per watt")
"""Charts of a run at its limit that the document shows."""
_SIGNIFICANT = 0.05
"""Share by which two limits must differ to be called different: the precision of a search."""


@dataclass(frozen=True, slots=True)
class ReportFigure:
    """One figure of one broker; `value` is None without a limit, and `verdict` gives the reason.

    `spread` is a share of the value; a limit has none, as all its windows offered the same load.
    `within` is the share by which the lowest load that failed exceeds it. `runs` are directories
    within that of the report.
    """

    case: str
    name: str
    unit: str
    broker: str
    value: float | None
    spread: float | None
    within: float | None
    runs: tuple[str, ...]
    verdict: str


@dataclass(frozen=True, slots=True)
class _Shown:
    """A measurement in the document: the rows of its sweep, the chosen one, and its runs."""

    measurement: Measurement
    broker: str
    rows: tuple[SweepRow, ...] = ()
    row: SweepRow | None = None
    runs: Mapping[str, ScoreCard] = field(default_factory=dict)
    """Cards by the directories of their runs within that of the report."""
    differences: tuple[str, ...] = ()
    """The differences that prevent a comparison with the published figures of a suite."""

    @property
    def cards(self) -> list[ScoreCard]:
        return [*self.runs.values()]


def report_document(
    result: ReportResult,
    command: Sequence[str] = (),
    power: Mapping[int, LogSettings] | None = None,
) -> Report:
    """Return the document of a report; `power` has the logs of each broker, counted from 1."""
    names, suite = [broker.name for broker in result.plan.brokers], result.plan.suite
    measured = sorted(result.measured, key=lambda of: CASES[of.measurement.item.case].place)
    shown = [
        _shown(of, result.directory, names, (power or {}).get(of.measurement.broker))
        for of in measured
    ]
    left_out = (*result.plan.left_out, *result.left_out)
    nothing = [_Shown(missing, names[missing.broker - 1]) for missing in left_out]
    figures = [figure for entry in (*shown, *nothing) for figure in _figures(entry)]
    limitations = [*_limitations(shown, left_out, names)]
    cards = [card for entry in shown for card in entry.cards[-1:]]
    sections = (
        Section("Score card", (_score_card(figures, names, suite, shown),), "score-card"),
        *_charted(shown),
        Section("Nodes of the brokers", tuple(_nodes(shown)), "nodes"),
        Section("System under test", tuple(_systems(shown)), "system"),
        Section("Load hosts", tuple(_load_hosts(cards)), "load-hosts"),
        Section("Method", tuple(_method(result)), "method"),
        Section("Runs", (_runs(shown, result.plan),), "runs"),
        Section("Limitations", tuple(Paragraph(text) for text in limitations), "limitations"),
    )
    title = f"Report: {', '.join(names)}"
    return Report(
        title=title,
        heading=title,
        lead=(
            *map(Paragraph, key_results(figures)),
            *(Paragraph(text, "muted") for text in footnotes(figures)),
            *about_lines(cards),
        ),
        sections=lambda: (section for section in sections if section.blocks),
        document={
            "schema": SCHEMA,
            "kind": "report",
            "command": redact_command(command),
            "brokers": [
                {"name": entry.name, "urls": redact_command(entry.urls + entry.secured)}
                for entry in result.plan.brokers
            ],
            "window_s": result.plan.window_s,
            "interrupted": result.interrupted,
            "rows": [asdict(figure) for figure in figures],
            "limitations": limitations,
        },
        header=tuple(field.name for field in fields(ReportFigure)),
        rows=lambda: (
            tuple(" ".join(value) if isinstance(value, tuple) else value for value in astuple(f))
            for f in figures
        ),
    )


def _shown(
    measured: MeasuredItem, directory: Path, names: Sequence[str], logs: LogSettings | None
) -> _Shown:
    measurement = measured.measurement
    rows = sweep_table.table_of(measured.sweep).rows if measured.sweep.measured else ()
    row = _chosen(rows, measurement.item)
    paths = [] if row is None else _runs_of(row, measured.sweep.directory)
    cards = {}
    differences: tuple[str, ...] = ()
    for path in paths:
        try:
            run = open_run(path)
            cards[str(path.relative_to(directory))] = summarize(run, logs)
        except RunDirectoryError:
            continue
        if conditions := measurement.item.conditions:
            differences = conditions.differences(conditions_of(run.record))
    return _Shown(measurement, names[measurement.broker - 1], rows, row, cards, differences)


def _chosen(rows: Sequence[SweepRow], item: ReportItem) -> SweepRow | None:
    """Return the row that an item reports: that with the best figure, among valid ones if any."""
    measured = [row for row in rows if row.runs]
    candidates = [row for row in measured if row.valid] or measured or rows[:1]
    return max(candidates, key=lambda row: row.figures.get(item.best) or 0.0, default=None)


def _runs_of(row: SweepRow, directory: Path) -> list[Path]:
    """Return the directories of a row's runs: all that confirmed a limit, or all repetitions."""
    if row.limit is None:
        return [directory / entry for entry in row.directories]
    confirming: list[Path] = []
    for entry in row.directories:
        last = directory / entry
        step = last.name.partition("-")[0]
        confirming += sorted(last.parent.glob(f"{step}-*"))[-REPEAT:]
    return confirming


def _figures(shown: _Shown) -> Iterator[ReportFigure]:
    item, row = shown.measurement.item, shown.row
    measured = [_with_power(card) for card in shown.cards]
    for wanted in (*item.rows, *((_PER_WATT, _PER_RACK_UNIT) if item.rows else ())):
        values = [entry.get(wanted.figure) for entry in measured]
        value, spread, within = median_of(values), sweep_table.spread_of(values), None
        if row is not None and row.limit is not None and wanted.unit in DATA["offered_units"]:
            limit = row.limit
            spread = None
            if limit["load"] and limit["above"]:
                within = limit["above"] / limit["load"] - 1
            value = limit["load"] if wanted.figure == "limit" else value
        if value is None and wanted in (_PER_WATT, _PER_RACK_UNIT):
            continue
        about = (shown.measurement.title, wanted.name, wanted.unit, shown.broker)
        runs, verdict = tuple(shown.runs), _verdict(shown)
        yield ReportFigure(*about, value, spread, within, runs, verdict)


def _verdict(shown: _Shown) -> str:
    """Return the verdict of a row; a confirmed limit of the generator is not one of the broker."""
    row, reason = shown.row, shown.measurement.reason
    if row is None:
        return f"left out: {reason}" if reason else "nothing was measured"
    if row.limit is None or not row.limit["own"]:
        return verdict_of(row)
    return f"{verdict_of(row)}: {' '.join(row.limit['codes'])} of the generator"


def _with_power(card: ScoreCard) -> dict[str, float | None]:
    memory = card.broker.resident_bytes_max if card.broker is not None else None
    figures = sweep_table.figures_of(card) | {"memory": memory and memory / 1e9}
    # Such a row has the name of its case first: FANIN.MPW.
    measured = {row.name.rpartition(".")[2]: row.value for row in card.rows}
    ratios = (_PER_WATT, _PER_RACK_UNIT)
    return figures | {ratio.figure: measured.get(ratio.name) for ratio in ratios}


def key_results(figures: Sequence[ReportFigure]) -> Iterator[str]:
    """Yield a sentence for the first row of each case, with the ratio of two brokers."""
    for case in dict.fromkeys(f.case for f in figures):
        rows = [f for f in figures if f.case == case]
        held = [f for f in rows if f.name == rows[0].name and f.value]
        if not held:
            continue
        parts = [
            REPORT_TEXT.KEY_FIGURE(
                broker=f.broker,
                prefix=_mark(f).get("prefix", ""),
                value=number(f.value),
                unit=f.unit,
                sign=_mark(f).get("sign", ""),
                spread=None if f.spread is None else 100 * f.spread,
                within=None if f.within is None else 100 * f.within,
            )
            for f in held
        ]
        sentence: str = REPORT_TEXT.KEY(case=case, row=rows[0].name, figures="; ".join(parts))
        values = {f.broker: f.value for f in held if f.value and not _mark(f)}
        if values:
            high, low = max(values, key=values.__getitem__), min(values, key=values.__getitem__)
            if values[high] > values[low] * (1 + _SIGNIFICANT):
                ratio = values[high] / values[low]
                sentence += REPORT_TEXT.RATIO(high=high, low=low, ratio=ratio)
        yield name(f"{sentence}.")


def _mark(figure: ReportFigure) -> Mapping[str, str]:
    """Return the mark of a figure that is not a confirmed limit of the broker; "" for others."""
    marks = DATA["marks"] if figure.value is not None else ()
    return next((mark for mark in marks if re.search(mark["verdict"], figure.verdict)), {})


def footnotes(figures: Sequence[ReportFigure]) -> Iterator[str]:
    """Yield the meaning of each mark that these figures have."""
    signs = {_mark(figure).get("sign") for figure in figures}
    for mark in DATA["marks"]:
        if mark["sign"] in signs:
            yield f"{mark['sign']} {mark['text']}"


def _score_card(
    figures: Sequence[ReportFigure], names: Sequence[str], suite: str, shown: Sequence[_Shown]
) -> DataTable:
    items = report_plan.report_items(suite)
    published = [*dict.fromkeys(broker for item in items for broker in item.published)]
    rows: list[tuple[Cell | TableCell, ...]] = []
    for case, row, unit in dict.fromkeys((f.case, f.name, f.unit) for f in figures):
        own = {f.broker: f for f in figures if (f.case, f.name) == (case, row)}
        cells: list[Cell | TableCell] = [_cell(own.get(broker)) for broker in names]
        for item in (item for item in items if item.scenario and item.name == case):
            keys = [wanted.figure for wanted in item.rows if wanted.name == row]
            cells += [item.published.get(there, {}).get(keys[0]) for there in published]
            of_item = [entry for entry in shown if entry.measurement.item is item]
            texts = dict.fromkeys(text for entry in of_item for text in entry.differences)
            cells.append("; ".join(texts))
        rows.append((f"{case} {row}", unit, *cells))
    header = [*names, *published, *(["Not comparable: this run"] if published else [])]
    return replace(table("score_card", rows, header), note=items[0].suite)


def _cell(figure: ReportFigure | None) -> Cell:
    if figure is None:
        return Cell(None)
    if figure.value is None:
        return Cell("–", notes=(name(figure.verdict.partition(":")[0]),))
    mark = _mark(figure)
    spread = "" if figure.spread is None else f"spread {percent(figure.spread, 1)}"
    within = "" if figure.within is None else f"within {percent(figure.within, 1)}"
    note = ", ".join(filter(None, (spread, within, mark.get("sign"))))
    return Cell(figure.value, notes=(note,), wrong=mark.get("prefix") == "")


def _charted(shown: Sequence[_Shown]) -> Iterator[Section]:
    """Yield a section with the charts of each item that was varied, or has a chart of its run."""
    for item in dict.fromkeys(entry.measurement.item for entry in shown):
        members = [entry for entry in shown if entry.measurement.item is item]
        blocks: tuple[Block, ...] = ()
        if item.vary:
            points = _table(item, members)
            blocks = (Charts(cache(partial(charts_of_sweep, points))), table_block(points))
        elif drawn := [chart for entry in members for chart in _at_limit(entry)]:
            blocks = (Charts(partial(list, drawn)),)
        if blocks:
            by = f" by {item.vary[0].replace('_', ' ')}" if item.vary else ""
            yield Section(f"{item.case.upper()}{by}", blocks, item.name)


def _table(item: ReportItem, shown: Sequence[_Shown]) -> SweepTable:
    """Return the points of an item, of all brokers, as one sweep."""
    rows = [
        replace(row, values={"broker": entry.broker + tls, **row.values})
        for entry in shown
        for tls in (" (TLS)" if entry.measurement.secured else "",)
        for row in entry.rows
    ]
    columns = tuple(FIGURES[key] for key in dict.fromkeys((style_of(item.case).main, "p99")))
    searched = next((str(row.limit["field"]) for row in rows if row.limit), "")
    return SweepTable(item.case, ("broker", item.vary[0]), columns, tuple(rows), searched)


def _at_limit(shown: _Shown) -> list[Chart]:
    if not shown.measurement.item.charts and not any(card.power for card in shown.cards):
        return []
    return [
        replace(chart, title=f"{chart.title}: {shown.broker}")
        for card in shown.cards[-1:]
        for chart in charts_of(card)
        if chart.title in _OF_ONE_RUN
    ]


def _systems(shown: Sequence[_Shown]) -> Iterator[Block]:
    """Yield the description of each broker's system, as its first run has it."""
    for broker in dict.fromkeys(entry.broker for entry in shown):
        cards = [card for entry in shown if entry.broker == broker for card in entry.cards]
        if cards:
            yield Paragraph(broker)
        for section in cards[0].sections if cards else ():
            if section.title.startswith(("System under test", "Broker", "Storage", "Access")):
                yield section


def _nodes(shown: Sequence[_Shown]) -> Iterator[Block]:
    rows = [
        (f"{entry.measurement.title}, {entry.broker}: {about}", *figures)
        for entry in shown
        for card in entry.cards[-1:]
        if card.broker is not None
        for about, *figures in map(node_figures, card.broker.nodes)
    ]
    if rows:
        yield table("nodes", rows)


def _load_hosts(cards: Sequence[ScoreCard]) -> Iterator[Block]:
    """Yield the settings of the load hosts that differ from their profile, at their worst."""

    def costs(setting: Mapping[str, Any]) -> str:
        return text(setting, "detail") if setting.get("effect") == "costs" else ""

    environments = [environment for card in cards for _, environment in load_hosts(card)]
    checked = [tuning for each in environments if (tuning := part(each, "tuning"))]
    differences = [objects(tuning.get("differences")) for tuning in checked]
    if not checked:
        return
    settings = max(differences, key=lambda of_run: sum(map(bool, map(costs, of_run))))
    words = REPORT_TEXT.TUNING(
        profile=text(checked[0], "profile"),
        met=count(checked[0], "met"),
        differ=len(settings) or None,
        unknown=listed(checked[0].get("unknown") or [], 10),
    )
    rows = [(*(text(of, key) for key in ("name", "wanted", "found")), costs(of)) for of in settings]
    yield table("tuning", rows, checked=words)


def _method(result: ReportResult) -> Iterator[Block]:
    spoiled = sum(each.spoiled for entry in result.measured for each in entry.sweep.measured)
    window_s = result.plan.window_s
    if result.plan.suite:
        method = REPORT_TEXT.METHOD_OF_SUITE(window_s=window_s if isfinite(window_s) else None)
    else:
        method = REPORT_TEXT.METHOD(runs=REPEAT, window_s=window_s, spoiled=spoiled or None)
    yield Paragraph(method)
    cases = dict.fromkeys(entry.measurement.item.case for entry in result.measured)
    rows = [(case.upper(), CASES[case].summary, CASES[case].example) for case in cases]
    yield table("cases", rows)


def _runs(shown: Sequence[_Shown], plan: ReportPlan) -> DataTable:
    """Return a line for each measurement: its verdict, the command that repeats it, its runs."""
    rows = []
    for entry in shown:
        measurement, folder = entry.measurement, f"measured/{entry.measurement.folder}"
        command = Cell(report_plan.command_of(measurement, plan), notes=(folder,))
        rows.append((measurement.name, entry.broker, _verdict(entry), command))
    return table("measurements", rows)


def _limitations(
    shown: Sequence[_Shown], left_out: Sequence[Measurement], names: Sequence[str]
) -> Iterator[str]:
    local = [card for entry in shown for card in entry.cards if is_local(card.run)]
    cores = local[0].run.environment.get("cores") if local else None
    if isinstance(cores, int):
        yield REPORT_TEXT.SAME_HOST(cores=cores)
    for entry in shown:
        about = {"case": entry.measurement.name, "broker": entry.broker}
        row = entry.row
        if row is None or not row.runs:
            told = "nothing was measured" if row is None else verdict_of(row)
            yield REPORT_TEXT.INVALID(**about, verdict=told)
        elif row.limit is not None and row.limit["own"]:
            yield REPORT_TEXT.OWN_LIMIT(**about, codes=" ".join(row.limit["codes"]))
        elif row.limit is not None and row.limit["stands"] != "closed":
            yield REPORT_TEXT.OPEN_LIMIT(**about)
        elif not row.valid:
            yield REPORT_TEXT.INVALID(**about, verdict=verdict_of(row))
    by_reason: dict[tuple[int, str], list[str]] = {}
    for missing in left_out:
        reason = missing.reason.rstrip(". ")
        by_reason.setdefault((missing.broker, reason), []).append(missing.name)
    for (broker, reason), titles in by_reason.items():
        yield REPORT_TEXT.LEFT_OUT(cases=tuple(titles), broker=names[broker - 1], reason=reason)
