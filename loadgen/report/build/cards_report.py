"""The report of one run or of several: verdicts, results, comparisons, then a section a run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from loadgen.plan.tables import Cell, DataTable
from loadgen.report.build.card_files import CSV_HEADER, SCHEMA, card_document, csv_lines
from loadgen.report.build.compare import (
    Comparison,
    Line,
    difference_text,
    regressions,
    spread_text,
)
from loadgen.report.build.results import (
    MOST_APART,
    headline,
    is_merged,
    results_table,
    sample_cell,
)
from loadgen.report.build.run_charts import MOST_SIDES, comparison_chart, run_charts_of
from loadgen.report.build.run_section import judged, run_section
from loadgen.report.model import (
    Block,
    Bullets,
    Charts,
    Fold,
    Paragraph,
    Report,
    Section,
    Verdicts,
)
from loadgen.report.render.text import name, number
from loadgen.report.score_card import NOTHING_SAID, About, ScoreCard
from loadgen.sentences import counted

_MOST_ROWS = 200
"""Rows of results that a report shows; all of them are in the CSV file."""
_MOST_ABOUT_LINES = 7
_LONGEST_LIST = 6
"""Values of single runs that a cell of a comparison lists."""
_GIB = 1 << 30


def report_of(
    cards: Sequence[ScoreCard],
    comparisons: Sequence[Comparison] = (),
    about: About = NOTHING_SAID,
) -> Report:
    """Return the report of these runs, in the order given."""
    merged = is_merged(cards, comparisons)
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    folded = len(cards) > MOST_APART
    results = results_table(cards, comparisons)
    verdicts = () if folded else (_verdicts(cards),)
    lead: list[Block] = [*_about(cards, about), *verdicts, *_cut(results)]
    if merged:
        note = "A row is a side: the mean ± standard deviation of its runs, and how many they are."
        lead += [
            Paragraph(note, "muted"),
            Fold(f"All {counted(len(cards), 'run')}", (_all(cards, comparisons),), in_text=True),
        ]
    if worse := tuple(regressions(comparisons)):
        lead.append(Bullets("Regressions", worse))
    lead.append(Charts(lambda: run_charts_of(cards)))
    return Report(
        title=name(about.title) or f"Score card: {cases}",
        heading=about.title or "Score card",
        lead=tuple(lead),
        sections=(
            *map(_comparison, comparisons),
            *(
                run_section(card, place, several=len(cards) > 1, folded=folded)
                for place, card in enumerate(cards)
            ),
        ),
        document=_document(cards, comparisons, about),
        header=CSV_HEADER,
        rows=tuple(line for card in cards for line in csv_lines(card)),
        cards=tuple(cards),
    )


def _document(
    cards: Sequence[ScoreCard], comparisons: Sequence[Comparison], about: About
) -> dict[str, Any]:
    """Return one run as an object, several as {"schema", "runs": [...], "comparison": [...]}."""
    documents = [card_document(card) for card in cards]
    publisher = {"about": asdict(about)} if about != NOTHING_SAID else {}
    if len(documents) == 1:
        return documents[0] | publisher
    comparison = [asdict(comparison) for comparison in comparisons]
    return {"schema": SCHEMA, "runs": documents, "comparison": comparison} | publisher


# What is seen first --------------------------------------------------------------------------


def _about(cards: Sequence[ScoreCard], about: About) -> Iterator[Paragraph]:
    for text in (about.author, about.note, *dict.fromkeys(card.notice for card in cards)):
        if text:
            yield Paragraph(text)
    programs = ", ".join(dict.fromkeys(card.run.program for card in cards if card.run.program))
    for line in filter(None, (programs, *_about_lines(cards))):
        yield Paragraph(line, "muted")


def _about_lines(cards: Sequence[ScoreCard]) -> list[str]:
    """Return lines with the dates, the hosts and the brokers of the runs."""
    days = sorted({str(card.run.started)[:10] for card in cards if card.run.started})
    lines = [" to ".join(dict.fromkeys((days[0], days[-1])))] if days else []
    lines += dict.fromkeys(filter(None, map(_host, cards)))
    lines += dict.fromkeys(map(_broker, cards))
    more = len(lines) - _MOST_ABOUT_LINES
    if more <= 0:
        return lines
    return [*lines[:_MOST_ABOUT_LINES], f"and {more} more, see each run"]


def _host(card: ScoreCard) -> str:
    environment = card.run.environment
    cores, memory = environment.get("cores"), environment.get("memory_bytes")
    parts = (
        environment.get("cpu_model"),
        counted(cores, "core") if isinstance(cores, int) else "",
        f"{memory / _GIB:.0f} GiB" if isinstance(memory, int) else "",
        environment.get("os"),
        f"kernel {environment['kernel']}" if environment.get("kernel") else "",
    )
    host, about = environment.get("host"), ", ".join(str(part) for part in parts if part)
    return name(f"Load host {host}: {about}" if about else f"Load host {host}") if host else ""


def _broker(card: ScoreCard) -> str:
    broker = card.run.broker
    local = broker.get("started_by_us") or any(map(_is_loopback, broker.get("urls") or ()))
    where = "on the same host as the load" if local else "on another host"
    return name(f"{card.run.broker_name or 'Broker'}, {where}")


def _is_loopback(url: object) -> bool:
    host = str(url).partition("://")[2].rpartition("@")[2]
    return host.startswith(("127.", "localhost", "[::1]"))


def _verdicts(cards: Sequence[ScoreCard]) -> Verdicts:
    if len(cards) == 1:
        broker = name(cards[0].run.broker_name or "broker")
        return Verdicts((judged(cards[0], name(cards[0].run.case.upper()), notes=(broker,)),))
    return Verdicts(
        tuple(
            judged(
                card,
                name(card.run.case.upper()),
                f"run-{place}",
                (f"run {place}", name(card.run.broker_name or "broker")),
            )
            for place, card in enumerate(cards, start=1)
        )
    )


def _cut(results: DataTable) -> Iterator[Block]:
    yield replace(results, rows=results.rows[:_MOST_ROWS])
    if more := len(results.rows[_MOST_ROWS:]):
        yield Paragraph(f"{counted(more, 'more row')} in scorecard.csv.")


def _all(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> DataTable:
    """Return a line for every run, with its side, verdict and most telling figures."""
    sides = {run: side.label for item in comparisons for side in item.sides for run in side.runs}
    rows = tuple(
        (
            Cell(str(place + 1), notes=(card.run.id,), link=f"run-{place + 1}"),
            Cell(card.run.case.upper(), notes=(sides.get(place, ""),)),
            Cell(
                card.verdict.word,
                notes=tuple(f"{r.code} {name(r.detail, 160)}" for r in card.verdict.reasons[:3]),
                wrong=not card.verdict.valid,
            ),
            " · ".join(filter(None, map(headline, card.rows))),
        )
        for place, card in enumerate(cards)
    )
    return DataTable("", "", ("Run", "Side", "Verdict", "Figures"), rows, texts=(0, 1, 2, 3))


# Comparisons ---------------------------------------------------------------------------------


def _comparison(comparison: Comparison) -> Section:
    """Return the sides of one case next to each other."""
    sides = comparison.sides[:MOST_SIDES]
    bound = comparison.bound
    worse = "" if bound is None else f"; worse by more than {100 * bound:g} % is a regression"
    note = (
        "Mean of each side, with the standard deviation of its runs. A difference is from the "
        "first side; it is more than the spread if it exceeds the half width of the 95 % interval "
        f"by Student's t (Welch){worse}."
    )
    left_out = len(comparison.sides) - len(sides)
    more = [Paragraph(f"{counted(left_out, 'more side')} in scorecard.json.")] if left_out else []
    drawn = [comparison_chart(comparison)]
    return Section(
        f"{name(comparison.case.upper())} side by side",
        (
            Paragraph(note, "muted"),
            *(Paragraph(remark, "remark") for remark in comparison.remarks),
            *more,
            DataTable(
                "",
                "",
                ("Name", *(f"{side.label}, {counted(len(side.runs), 'run')}" for side in sides)),
                tuple(_line(line, len(sides)) for line in comparison.lines),
                look="sides",
            ),
            Charts(lambda: [chart for chart in drawn if chart is not None]),
        ),
    )


def _line(line: Line, sides: int) -> tuple[Cell, ...]:
    cells = [Cell(f"{line.name} {line.column}", notes=(line.unit,))]
    for sample, difference in list(zip(line.cells, (None, *line.differences), strict=True))[:sides]:
        notes = []
        if difference is not None:
            mark = ", REGRESSION" if difference.regression else ""
            notes.append(f"{difference_text(difference)}, {spread_text(difference)}{mark}")
        if sample is not None and len(sample.values) > 1:
            values = " · ".join(map(number, sample.values[:_LONGEST_LIST]))
            notes.append(values + (" · …" if len(sample.values) > _LONGEST_LIST else ""))
        worse = difference is not None and difference.regression
        cells.append(sample_cell(sample, tuple(notes), wrong=worse))
    return tuple(cells)
