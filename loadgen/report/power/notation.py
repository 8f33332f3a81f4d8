"""Words and expressions of the notations in power logs, from data."""

import re
from functools import cache

from loadgen.sentences import read_table

_FOLDER = "loadgen.report.power"
_SPACES = " \u00a0\u202f\u2009'\u2019"


@cache
def words(key: str) -> frozenset[str]:
    """Return the words of `words.toml` under this key."""
    value = read_table(_FOLDER, "words.toml")[key]
    return frozenset(value.split() if isinstance(value, str) else value)


@cache
def expression(key: str, mark: str = ".") -> re.Pattern[str]:
    """Return an expression of `patterns.toml`; `mark` is the decimal mark of numbers."""
    patterns = read_table(_FOLDER, "patterns.toml")
    values = {"month": patterns["month"], "space": _SPACES.replace(" ", "\\ "), "mark": mark}
    text = patterns[key]
    for name, value in (values | {"other": ",.".replace(mark, "")}).items():
        text = text.replace(f"{{{name}}}", value)
    return re.compile(text)
