"""`loadgen probe`: what a broker can do, and which cases it can play."""

import asyncio
import json
import textwrap
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any, Final

from loadgen.brokers.features import Feature, anonymous
from loadgen.brokers.rehearsal import folded
from loadgen.brokers.start import serve
from loadgen.cli.app import PROBE_FIELDS
from loadgen.cli.options import Flags
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.run.survey import Survey, survey

SCHEMA: Final = 1
_WIDTH: Final = 100
YES: Final = "✓"
NO: Final = "✗"
UNKNOWN: Final = "?"


def probe(flags: Flags) -> int:
    since = time.monotonic()
    chosen = {name: flags[name] for name in PROBE_FIELDS if flags[name] not in (None, [])}
    survey = asyncio.run(_survey(chosen))
    seconds = time.monotonic() - since
    as_json = flags["json_"]
    print(json.dumps(_plain(survey, seconds), indent=2) if as_json else "\n".join(_lines(survey)))
    return 0


async def _survey(flags: dict[str, Any]) -> Survey:
    async with serve(flags.get("broker", "auto")) as served:
        return await survey(flags, served)


def _plain(survey: Survey, seconds: float) -> dict[str, Any]:
    """Return the result as JSON values. Names may be added, but never change."""
    return {
        "schema": SCHEMA,
        "broker": survey.greeting.endpoint.redacted,
        "version": survey.version,
        "mqtt": [VERSION_NAMES[version] for version in survey.greeting.versions],
        **{name: feature.value for name, feature in survey.features.items()},
        "known_by": {
            name: {"basis": feature.basis, "detail": feature.detail}
            for name, feature in survey.features.items()
        },
        "cases": {name: asdict(answer) for name, answer in survey.cases.items()},
        "seconds": round(seconds, 3),
    }


def _lines(survey: Survey) -> Iterator[str]:
    """Yield a line for each feature and case, and the footnotes to which their numbers refer."""
    greeting = survey.greeting
    texts: list[str] = []

    def marks(sentences: Iterable[str]) -> str:
        """Return the numbers of these sentences, of those that are alike one number."""
        alike = folded(anonymous(one) for one in sentences if one)
        texts.extend([text for text in dict.fromkeys(alike) if text not in texts])
        return "".join(f" [{texts.index(text) + 1}]" for text in alike)

    versions = ", ".join(VERSION_NAMES[version] for version in greeting.versions)
    refusals = marks(error.args[0] for error in greeting.refusals)
    version = survey.version if survey.version != "unknown" else "does not report its name"
    yield f"{greeting.endpoint.redacted}  {version}, MQTT {versions}{refusals}"
    yield ""
    for name, feature in survey.features.items():
        yield _row(_title(name), _value(feature), marks([feature.detail]))
    yield ""
    for name, answer in survey.cases.items():
        mark = {True: YES, False: NO, None: UNKNOWN}[answer.runs]
        mqtt = f" MQTT {answer.mqtt}" if answer.runs else ""
        yield _row(name, mark, mqtt + marks((*answer.lacks, *answer.remarks)))
    if texts:
        yield ""
    for number, text in enumerate(texts, 1):
        indent = f"{number:>3} "
        yield from textwrap.wrap(
            text, _WIDTH, initial_indent=indent, subsequent_indent="    ", break_on_hyphens=False
        )


def _row(name: str, value: str, marks: str) -> str:
    return f"{name:<32} {value:>9}{marks}"


def _title(name: str) -> str:
    for end, unit in (("_bytes", ", bytes"), ("_s", ", s"), ("_available", "")):
        if name.endswith(end):
            return name.removesuffix(end).replace("_", " ") + unit
    return name.replace("_", " ")


def _value(feature: Feature) -> str:
    if isinstance(feature.value, bool):
        return YES if feature.value else NO
    if feature.value is not None:
        return f"{feature.value:,}"
    if feature.basis == "absent":
        return NO
    return "none" if feature.unlimited else UNKNOWN
