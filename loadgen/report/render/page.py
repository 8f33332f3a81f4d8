"""Pages as one file that opens offline, in light and dark, on a phone and on paper.

Whatever a run, a broker or a scenario brought along is text: jinja2 escapes it, what charts draw is
packed, and the page's own policy lets nothing run but its two scripts (named by their hash) and
nothing be fetched. A page holds no time of making: the same run gives the same bytes.
"""

import gzip
import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

import orjson
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from loadgen.report.render.figures import Chart
from loadgen.report.render.text import counted, name, number, text_of

PLOTLY = "plotly-basic.min.js"
"""plotly.js-basic-dist-min 4.1.1 of npm, unchanged: a quarter of the whole library, with the traces
that the charts use. Its first lines name its licence, MIT."""


LARGEST_BYTES = 1_500_000
"""A page fits in a mail."""


def render(template: str, **values: object) -> bytes:
    """The page of a template that extends base.html.j2."""
    plotly, script = _resource(PLOTLY), _resource("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(plotly)} {_hash(script)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return part(
        template,
        policy=policy,
        css=Markup(_resource("page.css")),
        plotly=_packed_resource(PLOTLY),
        script=Markup(script),
        **values,
    ).encode()


def part(template: str, **values: object) -> Markup:
    """A piece of a page."""
    return Markup(_environment().get_template(template).render(**values))


def packed(text: str) -> Markup:
    """A text as page.js unpacks it: gzip in base64, which no markup and no quote is part of."""
    return Markup(b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode())


_packed_resource = cache(lambda file: packed(_resource(file)))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"shown": name, "number": number, "text": text_of, "counted": counted}
    environment.filters |= {"slug": _slug, "packed": _packed_chart}
    return environment


def _resource(file: str) -> str:
    """Text of a file that comes with the package."""
    return files("loadgen.report.render").joinpath(file).read_text("utf-8")


def _hash(script: str) -> str:
    """A script as a Content-Security-Policy names it."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _slug(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _packed_chart(chart: Chart) -> Markup:
    """What a chart draws, and its numbers."""
    return packed(orjson.dumps({**chart.figure, "table": chart.table}).decode())
