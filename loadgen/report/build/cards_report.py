"""The report of one run or of several: the answer first, then a section for each run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache, partial
from typing import Any

from loadgen.plan.reading import objects, part, text
from loadgen.plan.tables import Cell, DataTable
from loadgen.report import score_card
from loadgen.report.build.charts import charts_of
from loadgen.report.build.compare import Comparison, Line, regressions
from loadgen.report.build.comparison_chart import MOST_SIDES, comparison_chart
from loadgen.report.build.rows import in_report_order, table
from loadgen.report.build.run_section import run_section
from loadgen.report.headline import headline
from loadgen.report.model import Block, Charts, Fold, Judged, Paragraph, Report, Section
from loadgen.report.render.text import name, number
from loadgen.report.score_card import NOTHING_SAID, About, Run, ScoreCard
from loadgen.sentences import counted

MOST_OPEN = 6  # maximum number of runs whose sections are open; of more, sections are folded
_MOST_ABOUT_LINES = 7
_LONGEST_LIST = 6  # values of single runs that a cell of a comparison lists
_GIB = 1 << 30


def report_of(
    cards: Sequence[ScoreCard], comparisons: Sequence[Comparison] = (), about: About = NOTHING_SAID
) -> Report:
    """Return the report of these runs, in the order given.

    For programs one run is an object, several are {"schema", "runs": [...], "comparison": [...]}.
    """
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    several = len(cards) > 1
    compared = {run for item in comparisons for side in item.sides for run in side.runs}
    alone = [place for place in range(len(cards)) if place not in compared]
    drawn = cache(lambda: charts_of(cards[0]))
    notices = (about.author, about.note, *dict.fromkeys(card.notice for card in cards))
    lead: list[Block] = [Paragraph(notice) for notice in notices if notice]
    lead += [_answer(cards, "", (place,)) for place in alone]
    lead += [
        _answer(cards, f"{item.case.upper()} · {side.label}", side.runs)
        for item in comparisons
        for side in item.sides[:MOST_SIDES]
    ]
    lead += about_lines(cards)
    lead += [Paragraph(worse, "wrong") for worse in regressions(comparisons)]
    if alone:
        lead.append(_results([cards[place] for place in alone]))
    for item in comparisons:
        lead += _comparison(cards, item)
    if not several:
        lead.append(Charts(lambda: drawn()[:1]))
    if several:
        lead.append(Fold(f"All {counted(len(cards), 'run')}", (_all(cards, comparisons),), True))

    def section(place: int) -> Section:
        card = cards[place]
        charts = Charts(lambda: charts_of(card) if several else drawn()[1:])
        return run_section(card, place, charts, several=several, folded=len(cards) > MOST_OPEN)

    document: dict[str, Any] = {
        "schema": score_card.SCHEMA,
        "runs": [partial(score_card.card_document, card) for card in cards],
        "comparison": [asdict(item) for item in comparisons],
    }
    if len(cards) == 1:
        document = score_card.card_document(cards[0])
    publisher = {"about": asdict(about)} if about != NOTHING_SAID else {}
    return Report(
        title=name(about.title) or f"Score card: {cases}",
        heading=about.title or ("Comparison" if comparisons and not alone else "Score card"),
        lead=tuple(lead),
        sections=lambda: map(section, range(len(cards))),
        document=document | publisher,
        header=score_card.CSV_HEADER,
        rows=lambda: (line for card in cards for line in score_card.csv_lines(card)),
        cards=tuple(cards),
    )


def _answer(cards: Sequence[ScoreCard], title: str, runs: Sequence[int]) -> Judged:
    """Return the verdict on repetitions; it names each reason once."""
    members = [cards[run] for run in runs]
    alone = len(members) == 1
    of_all = counted(len(members), "run")
    invalid = [card for card in members if not card.verdict.valid]
    words = {card.verdict.word for card in members}
    details: dict[str, list[str]] = {}
    for reason in (reason for card in invalid for reason in card.verdict.reasons):
        details.setdefault(reason.code, []).append(reason.detail)
    reasons = (
        (code, texts[0] if alone else f"in {len(texts)} of {of_all}: {texts[0]}")
        for code, texts in details.items()
    )
    remarks = dict.fromkeys(remark.detail for card in members for remark in card.verdict.remarks)
    share = f"{len(invalid)} of {of_all} INVALID: " if invalid and not alone else ""
    broker = members[0].run.broker_name or "broker"
    return Judged(
        words.pop() if len(words) == 1 else "INVALID",
        tuple(reasons),
        tuple(remarks) if alone else (),
        name(title or f"{members[0].run.case.upper()} · {broker}"),
        share + headline(*members),
        f"run-{runs[0] + 1}",
    )


def _results(cards: Sequence[ScoreCard]) -> DataTable:
    """Return the rows of runs of different cases in the order of the published card."""
    rows: list[tuple[Cell | str, ...]] = []
    for place, row in in_report_order([card.rows for card in cards]):
        wrong = cards[place].verdict.word == "INVALID"
        about = Cell(row.description, notes=(row.unit,), remark=row.remark)
        rows.append((row.type, row.name, about, *(Cell(f, wrong=wrong) for f in row.figures)))
    return table("results", rows)


def about_lines(cards: Sequence[ScoreCard]) -> list[Paragraph]:
    """Return the conditions of the runs: program, MQTT version, length, dates, hosts, brokers."""
    runs = [card.run for card in cards]
    days = sorted({str(run.started)[:10] for run in runs if run.started})
    spans = [f"{number(seconds)} s" for seconds in sorted({run.seconds for run in runs})]
    length, day = (" to ".join(dict.fromkeys(ends[:1] + ends[-1:])) for ends in (spans, days))
    facts = [*(run.program for run in runs), *(run.protocol for run in runs)]
    facts += [f"window {length}", day]
    lines = [", ".join(dict.fromkeys(filter(None, facts)))]
    hosts = [_host(*host) for card in cards for host in load_hosts(card)]
    lines += dict.fromkeys([*hosts, *map(_broker, runs)])
    lines = [line for line in lines if line]
    if more := len(lines[_MOST_ABOUT_LINES:]):
        lines = [*lines[:_MOST_ABOUT_LINES], f"and {more} more, see each run"]
    return [Paragraph(line, "muted") for line in lines]


def load_hosts(card: ScoreCard) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the name and the environment of each host that made the load of a run."""
    agents = objects(card.details.get("load_hosts"))
    environment = card.run.environment
    here = [(text(environment, "host"), environment)]
    return [(text(agent, "name"), part(agent, "environment")) for agent in agents] or here


def _host(host: str, environment: Mapping[str, Any]) -> str:
    cores, memory = environment.get("cores"), environment.get("memory_bytes")
    parts = (
        environment.get("cpu_model"),
        counted(cores, "core") if isinstance(cores, int) else "",
        f"{memory / _GIB:.0f} GiB" if isinstance(memory, int) else "",
        environment.get("os"),
        f"kernel {environment['kernel']}" if environment.get("kernel") else "",
    )
    about = ", ".join(str(part) for part in parts if part)
    return name(": ".join(filter(None, (f"Load host {host}", about)))) if host else ""


def _broker(run: Run) -> str:
    where = "on the same host as the load" if is_local(run) else "on another host"
    return name(f"{run.broker_name or 'Broker'}, {where}")


def is_local(run: Run) -> bool:
    urls = (str(url).partition("://")[2].rpartition("@")[2] for url in run.broker.get("urls") or ())
    loopback = any(url.startswith(("127.", "localhost", "[::1]")) for url in urls)
    return bool(run.broker.get("started_by_us") or loopback)


def _all(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> DataTable:
    sides = {run: side.label for item in comparisons for side in item.sides for run in side.runs}
    rows = (
        (
            Cell(str(place + 1), notes=(card.run.id,), link=f"run-{place + 1}"),
            Cell(card.run.case.upper(), notes=(sides.get(place, ""),)),
            Cell(
                card.verdict.word,
                notes=tuple(f"{r.code} {name(r.detail, 160)}" for r in card.verdict.reasons[:3]),
                wrong=not card.verdict.valid,
            ),
            headline(card),
        )
        for place, card in enumerate(cards)
    )
    return table("runs", rows)


def _comparison(cards: Sequence[ScoreCard], comparison: Comparison) -> Iterator[Block]:
    """Yield the sides of one case next to each other, their chart, and remarks."""
    sides = comparison.sides[:MOST_SIDES]
    yield table(
        "sides",
        (_line(line, len(sides)) for line in comparison.lines),
        [f"{side.label}, {counted(len(side.runs), 'run')}" for side in sides],
        case=name(comparison.case.upper()),
        bound=None if comparison.bound is None else 100 * comparison.bound,
    )
    if left_out := len(comparison.sides) - len(sides):
        yield Paragraph(f"{counted(left_out, 'more side')} in scorecard.json.")
    for remark in comparison.remarks:
        yield Paragraph(remark, "remark")
    drawn = comparison_chart(cards, comparison)
    if drawn is not None:
        yield Charts(lambda: [drawn])


def _line(line: Line, sides: int) -> tuple[Cell, ...]:
    cells = [Cell(line.title, notes=(line.unit,))]
    for sample, difference in list(zip(line.cells, (None, *line.differences), strict=True))[:sides]:
        if sample is None:
            cells.append(Cell(None))
            continue
        notes = []
        worse = difference is not None and difference.regression
        if difference is not None:
            words = (difference.text, difference.certainty, "REGRESSION" if worse else "")
            notes.append(", ".join(filter(None, words)))
        if len({*sample.values}) > 1:
            values = " · ".join(map(number, sample.values[:_LONGEST_LIST]))
            notes.append(values + (" · …" if len(sample.values) > _LONGEST_LIST else ""))
        cells.append(Cell(sample.median, notes=tuple(notes), wrong=worse))
    return tuple(cells)
