"""scorecard.html: the page of one run or of several, with one table of all on top."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import compress
from typing import Any

from markupsafe import Markup

from loadgen.report.build.charts import charts_of
from loadgen.report.build.compare import Comparison, difference_text, regressions, spread_text
from loadgen.report.build.overview import MOST_APART, about_lines, is_merged, merged_rows
from loadgen.report.build.rows import FIGURES, Row
from loadgen.report.build.run_charts import MOST_SIDES, comparison_chart, run_charts_of
from loadgen.report.model import LATENCY_FIGURES, NOTHING_SAID, About, ScoreCard
from loadgen.report.render.page import LARGEST_BYTES, part, render
from loadgen.report.render.text import COMMAND_CHARACTERS, name, number

_MOST_ROWS = 200
"""So many rows of sides are shown."""

_WRONG_ABOVE_ZERO = ("lost", "duplicated", "out_of_order", "corrupt", "connect_failures")
_GROUP_COUNTERS = ("sent", "expected", "received", "duplicated", "out_of_order")

_LONGEST_LIST = 6
"""Values of single runs that a cell of a comparison lists."""

_COUNTS = {"publish_received": "PUBLISH received", "publish_sent": "PUBLISH sent"}


def to_html(
    cards: Sequence[ScoreCard],
    comparisons: Sequence[Comparison] = (),
    about: About = NOTHING_SAID,
) -> bytes:
    """The page, the runs in the order given."""
    merged, fold = is_merged(cards, comparisons), len(cards) > MOST_APART
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    together = run_charts_of(cards)
    sides = {run: side.label for one in comparisons for side in one.sides for run in side.runs}
    runs = [_line(card, place, sides.get(place, "")) for place, card in enumerate(cards)]
    table = merged_rows(cards, comparisons if merged else ())
    # A column that all rows leave empty takes room from those that say something.
    filled = [any(column) for column in zip(*(one.cells for one in table), strict=True)]
    table = [replace(one, cells=tuple(compress(one.cells, filled))) for one in table]
    values = {
        "title": name(about.title) or f"Score card: {cases}",
        "about": about,
        "about_lines": about_lines(cards),
        "programs": ", ".join(dict.fromkeys(name(c.run.program) for c in cards if c.run.program)),
        "merged": merged,
        "fold": fold,
        "runs": runs,
        "figures": [*compress(FIGURES.values(), filled)],
        "nothing": Row("", "", "", ""),
        "table": table[:_MOST_ROWS],
        "more_rows": len(table[_MOST_ROWS:]),
        "charts": together,
        "comparisons": [_comparison(comparison) for comparison in comparisons],
        "difference_text": difference_text,
        "spread_text": spread_text,
        "longest_list": _LONGEST_LIST,
        "regressions": regressions(comparisons),
    }
    return render("page.html.j2", **values, sections=_sections(cards, runs, values))


def _sections(
    cards: Sequence[ScoreCard], runs: Sequence[Mapping[str, Any]], page: Mapping[str, Any]
) -> list[Markup]:
    """The runs that are shown whole: of many as many as a page has room for."""
    room = LARGEST_BYTES - len(render("page.html.j2", **page, sections=[""] * len(runs)))
    sections: list[Markup] = []
    for card, line in zip(cards, runs, strict=True):
        section = part(
            "run.html.j2", run=_run(card, line), several=len(cards) > 1, fold=page["fold"]
        )
        room -= len(section.encode())
        if room < 0 and sections and page["merged"]:
            break
        sections.append(section)
    return sections


def _line(card: ScoreCard, place: int, side: str) -> dict[str, Any]:
    """What the page shows of every run."""
    return {
        "card": card,
        "number": place + 1,
        "anchor": f"run-{place + 1}",
        "title": name(card.run.case.upper()),
        "broker": name(card.run.broker_name or "broker"),
        "side": side,
        "figures": " · ".join(filter(None, map(_told, card.rows))),
    }


def _told(row: Row) -> str:
    """The figure of a row that says most, in words."""
    told = (("", row.value), ("50P ", row.p50), ("AVG ", row.avg), ("MAX ", row.max))
    found = next((f"{title}{number(value)}" for title, value in told if value is not None), "")
    return found and f"{name(row.name)} {found} {name(row.unit)}"


def _run(card: ScoreCard, line: Mapping[str, Any]) -> dict[str, Any]:
    """What the template shows of a whole run, beside its line."""
    run, curves = card.run, card.curves  # unpacked once, for the charts too
    groups = curves.groups if any(any(g.counters.values()) for g in curves.groups) else ()
    return {
        **line,
        "counts": [
            (key.replace("_", " "), value, bool(key in _WRONG_ABOVE_ZERO and value))
            for key, value in asdict(card.counts).items()
        ],
        "latency_figures": LATENCY_FIGURES,
        "count_names": _COUNTS,
        "group_columns": [column.replace("_", " ") for column in _GROUP_COUNTERS],
        "network": [(key.replace("_", " "), count) for key, count in card.network.items() if count],
        "charts": charts_of(card),
        "groups": [
            (g.name, g.devices, *(g.counters[column] for column in _GROUP_COUNTERS)) for g in groups
        ],
        "command": name(shlex.join(run.command), COMMAND_CHARACTERS) if run.command else "",
        "facts": [
            ("run", run.id),
            *((f"{key} SHA-256", value) for key, value in card.integrity.digests.items()),
            ("program", run.program),
            ("seed", "" if run.seed is None else run.seed),
            *_flat("scenario", run.scenario),
            *_flat("broker", run.broker),
            *_flat("environment", run.environment),
        ],
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    """What the template shows of one comparison."""
    shown = slice(MOST_SIDES)
    return {
        "comparison": comparison,
        "sides": comparison.sides[shown],
        "left_out": len(comparison.sides) > MOST_SIDES,
        "title": name(comparison.case.upper()),
        "bound": None if comparison.bound is None else f"{100 * comparison.bound:g} %",
        "lines": [
            (line, [*zip(line.cells, (None, *line.differences), strict=True)][shown])
            for line in comparison.lines
        ],
        "chart": comparison_chart(comparison),
    }


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """A nested object as lines of (path, value)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(map(str, value))
    elif value is not None:
        yield prefix, str(value)
