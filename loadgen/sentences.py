"""Sentences for users as data: a code, values and a template in `sentences.toml` of each layer.

    DRAIN_SHORT = "--drain {drain}: must be at least {least}"

    raise ScenarioError(PLAN_TEXT.DRAIN_SHORT(drain="0", least="100ms"))

A template of several parts is a list: a part after the first is left out if one of its values is
None or empty. `{count:message|messages}` is a count with its noun. A tuple of values is listed.
`{p99:us}` is a time in the unit that suits it, `{bound:.4us}` one with four digits, and
`{share:.1%}` has a space before its sign. A Path is shown by `printable`, an OSError by
`system_reason`.
"""

import string
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

_DURATIONS = (("s", 1e6), ("ms", 1e3), ("µs", 1.0))
"""Units of a duration, and the microseconds of each."""

_PATH_CHARACTERS = 200  # longest path that is shown whole

Values = Mapping[str, Any]  # the values of a sentence, by their names in its template


class Text(str):
    """A sentence that was rendered, with the code and the values that it was made of."""

    code: str
    values: Values

    @classmethod
    def of(cls, words: str, code: str, values: Values) -> "Text":
        text = cls(words)
        text.code, text.values = code, values
        return text


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a package; its template is read when it is first needed."""

    package: str
    code: str

    @property
    def parts(self) -> Sequence[str]:
        return templates(self.package)[self.code]

    def __call__(self, **values: Any) -> Text:
        return render(self.code, self.parts, {name: _shown(each) for name, each in values.items()})


@dataclass(frozen=True, slots=True)
class Sentences:
    """The sentences of a package, as attributes named by their codes."""

    package: str

    def __getattr__(self, code: str) -> Sentence:
        if not code.isupper():
            raise AttributeError(code)
        return Sentence(self.package, code)

    def __contains__(self, code: str) -> bool:
        return code in templates(self.package)


METRICS_TEXT = Sentences("loadgen.metrics")
PLAN_TEXT = Sentences("loadgen.plan")
JUDGE_TEXT = Sentences("loadgen.judge")
CASE_TEXT = Sentences("loadgen.cases")
WORKER_TEXT = Sentences("loadgen.worker")
BROKER_TEXT = Sentences("loadgen.brokers")
RUN_TEXT = Sentences("loadgen.run")
REPORT_TEXT = Sentences("loadgen.report")
POWER_TEXT = Sentences("loadgen.report.power")
SPARK_TEXT = Sentences("loadgen.spark")
API_TEXT = Sentences("loadgen")
CLI_TEXT = Sentences("loadgen.cli")


def read_table(package: str, file: str) -> dict[str, Any]:
    """Return a TOML file that lies next to a package's modules."""
    return tomllib.loads(files(package).joinpath(file).read_text("utf-8"))


@cache
def templates(package: str) -> Mapping[str, Sequence[str]]:
    """Return the templates of a package's sentences by their codes."""
    rows = read_table(package, "sentences.toml")
    return {code: [row] if isinstance(row, str) else row for code, row in rows.items()}


def render(code: str, parts: Sequence[str], values: Values) -> Text:
    """Return the sentence of a template, without the parts that lack a value."""
    optional = [part for part in parts[1:] if not _is_empty(part, values)]
    words = (_FORMATTER.vformat(part, (), values) for part in (*parts[:1], *optional))
    return Text.of("".join(words), code, values)


def fields_of(part: str) -> set[str]:
    """Return the names of the values in a part of a template."""
    return {field for _, field, _, _ in string.Formatter().parse(part) if field is not None}


def counted(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun: `1 message`, `2,000 messages`."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def duration(microseconds: float, digits: int = 2) -> str:
    """Return a time in µs, ms or s, with two digits or more: 82 µs, 0.17 ms, 3.7 ms, 1.2 s."""
    unit, size = next((u for u in _DURATIONS if microseconds >= 0.1 * u[1]), _DURATIONS[-1])
    value = microseconds / size
    return f"{value:,.0f} {unit}" if value >= 99.5 else f"{value:.{digits}g} {unit}"


def percent(share: float | None, digits: int = 0) -> str:
    """Return a share as a percentage, 5 % or 99.9 %; "" for None."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def printable(text: str, limit: int) -> str:
    """Return at most `limit` characters of the text, with escapes for what is not printable."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    if short.isprintable():
        return short
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in short
    )


def system_reason(error: OSError) -> str:
    """Return the system's words for an error, begun in lower case as the rest of a sentence."""
    words = error.strerror or str(error)  # with paths, if they are a library's
    return words[:1].lower() + words[1:] if words[1:2].islower() else words


def listed(texts: Sequence[str], most: int, further: str = "more") -> str:
    """Return up to `most` of the texts with commas between, and the number of `further` ones."""
    left_out = len(texts) - most
    return ", ".join(texts[:most]) + (f" and {left_out:,} {further}" if left_out > 0 else "")


def _shown(value: Any) -> Any:
    if isinstance(value, OSError):
        return system_reason(value)
    return printable(str(value), _PATH_CHARACTERS) if hasattr(value, "__fspath__") else value


class _Formatter(string.Formatter):
    def format_field(self, value: Any, spec: str) -> str:
        if "|" in spec:
            return counted(value, *spec.split("|"))
        if isinstance(value, tuple):
            return ", ".join(str(self.format_field(part, spec)) for part in value)
        if spec.endswith("us"):
            return duration(value, int(spec[1:-2] or 2))
        text = str(super().format_field(value, spec))
        return text.replace("%", " %") if spec.endswith("%") else text


_FORMATTER = _Formatter()


def _is_empty(part: str, values: Values) -> bool:
    return any(values[field] in (None, "", ()) for field in fields_of(part))
