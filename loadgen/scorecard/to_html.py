"""scorecard.html: the page of one run or of several, with one table of all on top."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from loadgen.scorecard.broker import CountCheck
from loadgen.scorecard.charts import charts_of
from loadgen.scorecard.compare import Comparison, difference_text, regressions, spread_text
from loadgen.scorecard.latency import COLUMNS as LATENCY_COLUMNS
from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.page import page_figure, render
from loadgen.scorecard.rows import FIGURES, in_report_order
from loadgen.scorecard.run_charts import comparison_chart, run_charts_of
from loadgen.scorecard.text import COMMAND_CHARACTERS, name, number

_WRONG_ABOVE_ZERO = ("lost", "duplicated", "out_of_order", "corrupt", "connect_failures")
_GROUP_COUNTERS = ("sent", "expected", "received", "duplicated", "out_of_order")

_MOST_OPEN = 6
"""Of more runs than this each is folded until it is opened."""

_LONGEST_LIST = 6
"""Values of single runs that a cell of a comparison lists."""

_COUNTS = {"publish_received": "PUBLISH received", "publish_sent": "PUBLISH sent"}


def to_html(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison] = ()) -> bytes:
    """The page, the runs in the order given."""
    runs = [_run(card, place) for place, card in enumerate(cards)]
    together = [page_figure(chart) for chart in run_charts_of(cards)]
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    return render(
        "page.html.j2",
        title=f"Score card: {cases}",
        subtitle=_subtitle(cards),
        runs=runs,
        figures=[*FIGURES.values()],
        latency_columns=LATENCY_COLUMNS,
        group_columns=tuple(column.replace("_", " ") for column in _GROUP_COUNTERS),
        table=_table(cards),
        charts=together,
        comparisons=[_comparison(comparison) for comparison in comparisons],
        regressions=regressions(comparisons),
        fold=len(cards) > _MOST_OPEN,
        drawn=bool(together or comparisons or any(run["charts"] for run in runs)),
    )


def _subtitle(cards: Sequence[ScoreCard]) -> str:
    programs = ", ".join(dict.fromkeys(name(c.run.program) for c in cards if c.run.program))
    hosts = dict.fromkeys(name(c.run.environment.get("host") or "") for c in cards)
    on = ", ".join(host for host in hosts if host)
    return " · ".join(part for part in (programs, f"on {on}" if on else "") if part)


def _table(cards: Sequence[ScoreCard]) -> list[dict[str, Any]]:
    """Lines of the published table; the type only where it changes."""
    lines: list[dict[str, Any]] = []
    before = ""
    for place, row in in_report_order([card.rows for card in cards]):
        lines.append(
            {
                "type": row.type if row.type != before else "",
                "row": row,
                "cells": [*zip(FIGURES.values(), row.figures, strict=True)],
                "valid": cards[place].verdict.valid,
                "run": place + 1,
            }
        )
        before = row.type
    return lines


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
        "charts": [page_figure(chart) for chart in charts_of(card)],
        "groups": [
            (g.name, g.devices, *(g.counters[column] for column in _GROUP_COUNTERS)) for g in groups
        ],
        "checks": [_check(check) for check in card.broker.counts] if card.broker else [],
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


def _check(check: CountCheck) -> dict[str, Any]:
    """One of the broker's own counts beside ours."""
    return {
        "count": _COUNTS.get(check.count, check.count),
        "check": check,
        "ratio": f"{check.broker / check.ours:.3f} times ours" if check.ours else "",
    }


def _comparison(comparison: Comparison) -> dict[str, Any]:
    """What the template shows of one comparison."""
    chart = comparison_chart(comparison)
    return {
        "comparison": comparison,
        "title": name(comparison.case.upper()),
        "bound": None if comparison.bound is None else f"{100 * comparison.bound:g} %",
        "lines": [
            {
                "line": line,
                "cells": [
                    {
                        "mean": "–" if cell is None else number(cell.mean),
                        "stdev": ""
                        if cell is None or cell.stdev is None
                        else f"± {number(cell.stdev)}",
                        "values": [] if cell is None else _listed(cell.values),
                        "difference": difference,
                        "share": difference_text(difference),
                        "spread": spread_text(difference),
                    }
                    for cell, difference in zip(line.cells, (None, *line.differences), strict=True)
                ],
            }
            for line in comparison.lines
        ],
        "chart": None if chart is None else page_figure(chart),
    }


def _listed(values: Sequence[float]) -> list[str]:
    """The values of several runs, the first of many."""
    shown = [number(value) for value in values[:_LONGEST_LIST]]
    more = ["…"] if len(values) > _LONGEST_LIST else []
    return [*shown, *more] if len(values) > 1 else []


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """A nested object as lines of (path, value)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(map(str, value))
    elif value is not None:
        yield prefix, str(value)
