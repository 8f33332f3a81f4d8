"""The meaning of each code of the verdict, and the next step, for readers.

`python -m loadgen.report.codes` prints docs/codes.md.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from loadgen.judge.codes import CODES, REMARKS
from loadgen.mqtt.violations import VIOLATIONS

_HEAD = ("", "| code | what was seen | what it means | what to do next |", "|---|---|---|---|")
_PAGE = """\
# Codes of the verdict

<!-- Made by `python -m loadgen.report.codes > docs/codes.md`; a test compares it. -->

A run is VALID exactly if there is no reason against it. The score card lists reasons with
causes before their effects; this table begins with the most important code."""

_REMARKS = """
## Remarks

A remark does not affect the verdict."""
_VIOLATIONS = """
## Violations of the specification

Each is counted. It is a reason, `PROTOCOL`, if it can change a figure or break a client, and
otherwise a remark. Numbers in brackets are statements or sections of MQTT 5.

| the broker sent | counts as |
|---|---|"""


def advice_of(code: str) -> str:
    """Return the next step for readers of a reason."""
    advice: str = _texts()["reasons"][code]["next"]
    return advice


def _texts() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_suffix(".toml").read_text())


def markdown() -> str:
    """Return docs/codes.md, with the texts of codes.toml."""
    texts = _texts()

    def rows(kind: str, codes: Sequence[str]) -> tuple[str, ...]:
        found = ((code, texts[kind][code]) for code in codes)
        columns = ("seen", "meaning", "next")
        return (*_HEAD, *(f"| `{c}` | {' | '.join(map(t.get, columns))} |" for c, t in found))

    first = "GENERATOR_SATURATED"
    reasons = rows("reasons", (first, *(code for code in CODES if code != first)))
    remarks = rows("remarks", [row.code for row in REMARKS])
    kinds = (f"| {one.words} | {'reason' if one.is_judged else 'remark'} |" for one in VIOLATIONS)
    return "\n".join((_PAGE, *reasons, _REMARKS, *remarks, _VIOLATIONS, *kinds, ""))


if __name__ == "__main__":
    print(markdown(), end="")
