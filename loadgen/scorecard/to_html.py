"""scorecard.html: the page of one run or of several, with one table of all on top."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loadgen.scorecard.charts import charts_of
from loadgen.scorecard.compare import Comparison, difference_text, regressions, spread_text
from loadgen.scorecard.model import LATENCY_FIGURES, NOTHING_SAID, About, ScoreCard
from loadgen.scorecard.overview import (
    MOST_APART,
    about_lines,
    is_merged,
    merged_rows,
)
from loadgen.scorecard.page import render
from loadgen.scorecard.rows import FIGURES, in_report_order
from loadgen.scorecard.run_charts import comparison_chart, run_charts_of
from loadgen.scorecard.text import COMMAND_CHARACTERS, name

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
    runs = [_run(card, place) for place, card in enumerate(cards)]
    together = run_charts_of(cards)
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    return render(
        "page.html.j2",
        title=name(about.title) or f"Score card: {cases}",
        about=about,
        about_lines=about_lines(cards),
        merged=merged_rows(cards, comparisons) if is_merged(cards, comparisons) else [],
        subtitle=_subtitle(cards),
        runs=runs,
        figures=[*FIGURES.values()],
        latency_figures=LATENCY_FIGURES,
        group_columns=tuple(column.replace("_", " ") for column in _GROUP_COUNTERS),
        table=in_report_order([card.rows for card in cards]),
        charts=together,
        comparisons=[_comparison(comparison) for comparison in comparisons],
        difference_text=difference_text,
        spread_text=spread_text,
        longest_list=_LONGEST_LIST,
        count_names=_COUNTS,
        regressions=regressions(comparisons),
        fold=len(cards) > MOST_APART,
        drawn=bool(together or comparisons or any(run["charts"] for run in runs)),
    )


def _subtitle(cards: Sequence[ScoreCard]) -> str:
    programs = ", ".join(dict.fromkeys(name(c.run.program) for c in cards if c.run.program))
    hosts = dict.fromkeys(name(c.run.environment.get("host") or "") for c in cards)
    on = ", ".join(host for host in hosts if host)
    return " · ".join(part for part in (programs, f"on {on}" if on else "") if part)


def _run(card: ScoreCard, place: int) -> dict[str, Any]:
    """What the template shows of one run."""
    run = card.run
    groups = card.curves.groups if any(any(g.counters.values()) for g in card.curves.groups) else ()
    return {
        "card": card,
        "anchor": f"run-{place + 1}",
        "title": name(run.case.upper()),
        "broker": name(run.broker_name or "broker"),
        "counts": [
            (key.replace("_", " "), value, bool(key in _WRONG_ABOVE_ZERO and value))
            for key, value in asdict(card.counts).items()
        ],
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
    return {
        "comparison": comparison,
        "title": name(comparison.case.upper()),
        "bound": None if comparison.bound is None else f"{100 * comparison.bound:g} %",
        "lines": [
            (line, [*zip(line.cells, (None, *line.differences), strict=True)])
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
