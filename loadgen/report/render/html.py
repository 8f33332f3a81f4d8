"""A report as one page that opens offline, in light and dark, on a phone and on paper.

All data from a run, a broker or a scenario is text: jinja2 escapes it, and charts are packed. The
page's policy allows only its two scripts, by their hash, and no request. The same run gives the
same bytes.
"""

import gzip
import re
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import compress

import orjson
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from loadgen.plan.tables import DataTable, as_cell
from loadgen.report.model import Report, Section
from loadgen.report.render.text import name, number, text_of

PLOTLY = "plotly-basic.min.js"
"""plotly.js-basic-dist-min 4.1.1 of npm, unchanged: a quarter of the whole library, with the traces
that the charts use. Its first lines name its licence, MIT."""
LARGEST_BYTES = 1_500_000  # largest page: it fits in a mail
_LINKS = 2  # links to a section: in the answer and in the list of all runs


def to_html(report: Report) -> bytes:
    """Return the page, with as many folded sections as fit."""
    shown: list[Section] = []
    parts: list[Markup] = []
    room = LARGEST_BYTES - len(_page(report, [], []))
    last = ""
    for section in report.sections():
        part = Markup(_environment().get_template("section.html.j2").render(section=section))
        room -= len(part.encode()) + _LINKS * len(f'<a href="#{section.anchor}"></a>')
        if room < 0 and section.folded and shown:
            last = shown[-1].title
            break
        shown.append(section)
        parts.append(part)
    return _page(report, parts, [section.anchor for section in shown], last)


def _page(
    report: Report, sections: Sequence[Markup], anchors: Sequence[str], last: str = ""
) -> bytes:
    page = _environment().get_template("report.html.j2")
    return page.render(report=report, sections=sections, anchors=anchors, last=last).encode()


@cache
def _environment() -> Environment:
    plotly, script = _resource(PLOTLY), _resource("page.js")
    hashes = (b64encode(sha256(text.encode()).digest()).decode() for text in (plotly, script))
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.globals |= {
        "policy": f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
        "css": Markup(_resource("page.css")),
        "plotly": _packed(plotly.encode()),
        "script": Markup(script),
    }
    environment.filters |= {
        "shown": name,
        "number": number,
        "text": text_of,
        "cell": as_cell,
        "filled": _filled,
        "kind": lambda block: type(block).__name__.lower(),  # name of the block's macro
        "slug": lambda title: re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-"),
        "packed": lambda chart: _packed(orjson.dumps({**chart.figure, "table": chart.table})),
    }
    return environment


def _filled(table: DataTable) -> DataTable:
    """Return the table without columns of numbers that all rows leave empty."""
    filled = [
        place in table.texts or any(as_cell(cell).value not in (None, "") for cell in column)
        for place, column in enumerate(zip(*table.rows, strict=True))
    ]
    rows = tuple(tuple(compress(row, filled)) for row in table.rows)
    return replace(table, header=tuple(compress(table.header, filled)), rows=rows)


def _resource(file: str) -> str:
    return files("loadgen.report.render").joinpath(file).read_text("utf-8")


def _packed(text: bytes) -> Markup:
    """Return a text as page.js unpacks it: gzip in base64, which needs no escaping."""
    return Markup(b64encode(gzip.compress(text, 9, mtime=0)).decode())
