"""scorecard.html: one file that opens offline, in light and dark, on a phone and on paper.

Whatever a run, a broker or a scenario brought along is text: jinja2 escapes it, data for charts
is JSON without a `<`, and the page's own policy lets nothing run but its two scripts (named by
their hash) and nothing be fetched. The page holds no time of making: the same run gives the same
bytes.
"""

import re
import shlex
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any
from urllib.parse import quote

import orjson
from jinja2 import Environment, StrictUndefined, Template
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from loadgen.scorecard.broker import CountCheck
from loadgen.scorecard.charts import charts_of
from loadgen.scorecard.compare import SPREAD, Comparison, regressions
from loadgen.scorecard.figures import Chart
from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.rows import in_report_order
from loadgen.scorecard.run_charts import comparison_chart, run_charts_of
from loadgen.scorecard.sections import told
from loadgen.scorecard.text import COMMAND_CHARACTERS, name, number

_WRONG_ABOVE_ZERO = ("lost", "duplicated", "out_of_order", "corrupt", "connect_failures")
_GROUP_COLUMNS = ("devices", "sent", "expected", "received", "duplicated", "out_of_order")


_MOST_OPEN = 6
"""Of more runs than this each is folded until it is opened."""

_LONGEST_LIST = 6
"""Values of single runs that a cell of a comparison lists."""

_COUNTS = {"publish_received": "PUBLISH received", "publish_sent": "PUBLISH sent"}


def to_html(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison] = ()) -> bytes:
    """The page of one run or of several, in the order given, with one table of all on top."""
    script = page_resource("page.js")
    runs = [_run(card, place) for place, card in enumerate(cards)]
    together = [page_figure(chart) for chart in run_charts_of(cards)]
    cases = ", ".join(dict.fromkeys(name(card.run.case.upper()) for card in cards))
    policy = (
        f"default-src 'none'; script-src {script_hash(get_plotlyjs())} {script_hash(script)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = _template().render(
        policy=policy,
        title=f"Score card: {cases}",
        subtitle=_subtitle(cards),
        css=Markup(page_resource("page.css")),
        runs=runs,
        table=_table(cards),
        charts=together,
        comparisons=[_comparison(comparison) for comparison in comparisons],
        regressions=regressions(comparisons),
        fold=len(cards) > _MOST_OPEN,
        drawn=bool(together or comparisons or any(run["charts"] for run in runs)),
        plotly=Markup(get_plotlyjs()),
        script=Markup(script),
    )
    return page.encode()


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
    )
    environment.filters["shown"] = name
    environment.filters["number"] = number
    environment.filters["told"] = told
    return environment.from_string(page_resource("page.html.j2"))


def page_resource(file: str) -> str:
    """Text of a file that comes with the package."""
    return files("loadgen.scorecard").joinpath(file).read_text("utf-8")


def script_hash(script: str) -> str:
    """A script as a Content-Security-Policy names it."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _subtitle(cards: Sequence[ScoreCard]) -> str:
    programs = ", ".join(dict.fromkeys(name(c.run.program) for c in cards if c.run.program))
    hosts = dict.fromkeys(name(c.run.environment.get("host") or "") for c in cards)
    on = ", ".join(host for host in hosts if host)
    return " · ".join(part for part in (programs, f"on {on}" if on else "") if part)


def _table(cards: Sequence[ScoreCard]) -> list[dict[str, Any]]:
    """Lines of the published table; the type only where it changes."""
    # By identity: rows of two runs can be equal.
    run = {id(row): place for place, card in enumerate(cards) for row in card.rows}
    lines = []
    before = ""
    for row in in_report_order(tuple(row for card in cards for row in card.rows)):
        cells = [
            ("VALUE", row.value),
            *(("AVG", row.avg), ("50P", row.p50), ("99P", row.p99)),
            *(("MAX", row.max), ("STDV", row.stdev)),
        ]
        lines.append(
            {
                "type": row.type if row.type != before else "",
                "row": row,
                "cells": cells,
                "valid": cards[run[id(row)]].verdict.valid,
                "run": run[id(row)] + 1,
            }
        )
        before = row.type
    return lines


def _run(card: ScoreCard, place: int) -> dict[str, Any]:
    """What the template shows of one run."""
    run = card.run
    counts = asdict(card.counts)
    groups = card.curves.groups if any(any(g.counters.values()) for g in card.curves.groups) else ()
    return {
        "card": card,
        "anchor": f"run-{place + 1}",
        "title": name(run.case.upper()),
        "broker": name(_broker(run.broker)),
        "counts": [
            (key.replace("_", " "), value, bool(key in _WRONG_ABOVE_ZERO and value))
            for key, value in counts.items()
        ],
        "network": [(key.replace("_", " "), count) for key, count in card.network.items() if count],
        "charts": [page_figure(chart) for chart in charts_of(card)],
        "group_columns": _GROUP_COLUMNS,
        "groups": [
            (g.name, g.devices, *(g.counters[column] for column in _GROUP_COLUMNS[1:]))
            for g in groups
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
    ratio = check.broker / check.ours if check.ours else None
    return {
        "count": _COUNTS.get(check.count, check.count),
        "check": check,
        "ratio": "" if ratio is None else f"{ratio:.3f} times ours",
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
                        "stdev": None
                        if cell is None or cell.stdev is None
                        else f"± {number(cell.stdev)}",
                        "values": []
                        if cell is None or len(cell.values) < 2
                        else _listed(cell.values),
                        "difference": difference,
                        "share": None
                        if difference is None
                        else number(difference.absolute)
                        if difference.share is None
                        else f"{100 * difference.share:+.1f} %",
                        "spread": None if difference is None else SPREAD[difference.exceeds],
                    }
                    for cell, difference in zip(line.cells, (None, *line.differences), strict=True)
                ],
            }
            for line in comparison.lines
        ],
        "chart": None if chart is None else page_figure(chart),
    }


def _listed(values: Sequence[float]) -> list[str]:
    shown = [number(value) for value in values[:_LONGEST_LIST]]
    return [*shown, "…"] if len(values) > _LONGEST_LIST else shown


def _broker(broker: Mapping[str, Any]) -> str:
    return " ".join(str(broker[key]) for key in ("name", "version") if broker.get(key)) or "broker"


def _flat(prefix: str, value: object) -> Iterator[tuple[str, str]]:
    """A nested object as lines of (path, value)."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(f"{prefix}.{key}" if prefix else str(key), item)
    elif isinstance(value, (list, tuple)):
        yield prefix, ", ".join(_words(value))
    elif value is not None:
        yield prefix, str(value)


def _words(values: Iterable[object]) -> Iterator[str]:
    return (str(value) for value in values)


def page_figure(chart: Chart) -> dict[str, Any]:
    """A chart with its data and its download as the template puts them in."""
    return {
        "title": chart.title,
        "note": chart.note,
        "height": chart.height,
        "slug": re.sub(r"[^a-z0-9]+", "-", chart.title.lower()).strip("-"),
        "href": f"data:text/csv;charset=utf-8,{quote(chart.table)}",
        "data": Markup(_json(chart.figure)),
    }


_UNSAFE_IN_SCRIPT = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def _json(value: object) -> str:
    """JSON for a script element: nothing in it can close the element or begin a comment."""
    text = orjson.dumps(value).decode()
    for character, escaped in _UNSAFE_IN_SCRIPT.items():
        text = text.replace(character, escaped)
    return text
