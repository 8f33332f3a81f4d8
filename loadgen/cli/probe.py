"""`loadgen probe`: what a broker can do, and which cases it can play."""

import json
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from loadgen.cases.registry import CASES
from loadgen.cli.options import Flags, field_option, json_option, with_options
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.fields import Field

if TYPE_CHECKING:
    from loadgen.run.survey import Survey

SUMMARY: Final = "Try what a broker can do, and ask which cases it can play. Puts no load on it."
SCHEMA: Final = 1
_HELP: Final = f"""{SUMMARY}

Nothing stays at the broker. Of several brokers the features are those of the first; the cases are
asked of all.

Example: loadgen probe --broker mqtts://user@broker.example:8883 --password prompt"""

_OPTIONS: Final = (
    *("broker", "user", "password", "mqtt", "connect_timeout", "keep_alive"),
    *("tls_ca", "tls_certificate", "tls_key", "tls_passphrase", "tls_verify", "tls_version"),
    "tls_ciphers",
    *("client_id", "clients_file"),
)
"""The fields of a scenario that say how to connect."""
_WIDTH: Final = 100


def command() -> Callable[..., int]:
    """Return `loadgen probe` with the connection options of a case."""
    fields: dict[str, Field] = {}
    for case in CASES.values():
        fields = dict(case.scenario.fields()) | fields
    chosen = [fields[name] for name in _OPTIONS]
    versions = replace(fields["mqtt"], default=None, absent="each that the broker speaks")
    options = [
        field_option(versions if one.name == "mqtt" else one, one.panel or "Broker")
        for one in chosen
    ]
    return with_options(_probe, [*options, json_option()], _HELP)


def _probe(flags: Flags) -> int:
    import asyncio

    since = time.monotonic()
    chosen = {name: flags[name] for name in _OPTIONS if flags[name] not in (None, [])}
    survey = asyncio.run(_survey(chosen))
    shown = _plain(survey, time.monotonic() - since)
    print(json.dumps(shown, indent=2) if flags["json_"] else "\n".join(_lines(shown)))
    return 0


async def _survey(flags: dict[str, Any]) -> "Survey":
    from loadgen.brokers.start import serve
    from loadgen.run.survey import survey

    async with serve(flags.get("broker", "auto")) as served:
        return await survey(flags, served)


def _plain(survey: "Survey", seconds: float) -> dict[str, Any]:
    """Return the result for JSON; names are added and never change."""
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
        "cases": {
            name: {
                "runs": answer.runs,
                "mqtt": answer.mqtt,
                "lacks": list(answer.lacks),
                "remarks": list(answer.remarks),
            }
            for name, answer in survey.cases.items()
        },
        "seconds": round(seconds, 3),
    }


def _lines(shown: Mapping[str, Any]) -> Iterator[str]:
    yield f"{shown['broker']}  {shown['version']}, MQTT {', '.join(shown['mqtt'])}"
    yield ""
    for name, known in shown["known_by"].items():
        answer = known["detail"] if known["basis"] in ("tried", "absent") else known["basis"]
        yield from _row(_title(name), _value(shown[name], known["basis"]), answer)
    yield ""
    for name, case in shown["cases"].items():
        runs = {True: "runs", False: "no", None: "not asked"}[case["runs"]]
        answer = "; ".join((*case["lacks"], *case["remarks"])).replace(f"{shown['broker']} ", "")
        mqtt = f"MQTT {case['mqtt']}" if case["runs"] else ""
        yield from _row(name, runs, ", ".join(filter(None, (mqtt, answer))))


def _row(name: str, value: str, answer: str) -> list[str]:
    lines = textwrap.wrap(answer, _WIDTH - 44, break_on_hyphens=False) or [""]
    first = f"{name:<32}  {value:>9} {lines[0]}".rstrip()
    return [first, *(" " * 44 + line for line in lines[1:])]


def _title(name: str) -> str:
    for end, unit in (("_bytes", ", bytes"), ("_s", ", s"), ("_available", "")):
        if name.endswith(end):
            return name.removesuffix(end).replace("_", " ") + unit
    return name.replace("_", " ")


def _value(value: object, basis: str) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if basis == "absent" else "none"
