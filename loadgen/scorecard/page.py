"""Pages as one file that opens offline, in light and dark, on a phone and on paper.

Whatever a run, a broker or a scenario brought along is text: jinja2 escapes it, data for charts
is JSON without a `<`, and the page's own policy lets nothing run but its two scripts (named by
their hash) and nothing be fetched. A page holds no time of making: the same run gives the same
bytes.
"""

import re
from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files
from urllib.parse import quote

import orjson
from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from loadgen.scorecard.text import name, number, text_of

PLOTLY = "plotly-basic.min.js"
"""plotly.js-basic-dist-min 4.1.1 of npm, unchanged: a quarter of the whole library, with the traces
that the charts use. Its first lines name its licence, MIT."""


def render(template: str, **values: object) -> bytes:
    """The page of a template that extends base.html.j2."""
    plotly, script = _resource(PLOTLY), _resource("page.js")
    policy = (
        f"default-src 'none'; script-src {_hash(plotly)} {_hash(script)}; "
        "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    page = (
        _environment()
        .get_template(template)
        .render(
            policy=policy,
            css=Markup(_resource("page.css")),
            plotly=Markup(plotly),
            script=Markup(script),
            **values,
        )
    )
    return page.encode()


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {"shown": name, "number": number, "text": text_of}
    environment.filters |= {"slug": _slug, "json": _json, "quote": quote}
    return environment


def _resource(file: str) -> str:
    """Text of a file that comes with the package."""
    return files("loadgen.scorecard").joinpath(file).read_text("utf-8")


def _hash(script: str) -> str:
    """A script as a Content-Security-Policy names it."""
    return f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'"


def _slug(title: str) -> str:
    """A title as part of a file's name."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _json(value: object) -> Markup:
    """JSON for a script element: nothing in it can close the element or begin a comment."""
    text = orjson.dumps(value).decode()
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)
