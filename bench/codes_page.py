"""The page of codes, which `python -m bench.codes_page` prints."""

from collections.abc import Iterable

from loadgen.judge.codes import REASONS, REMARKS, Code
from loadgen.mqtt.violations import VIOLATIONS, WRONG_ACKNOWLEDGEMENT

_HEAD = ("", "| code | what was seen | what it means | what to do next |", "|---|---|---|---|")
_PAGE = """\
# Codes of the verdict

<!-- Made by `python -m bench.codes_page > docs/codes.md`; a test compares it. -->

A run is VALID if and only if there is no reason against it. The table begins with the
most important code; the others are in the order of the score card, causes before effects."""

_REMARKS = """
## Remarks

A remark does not affect the verdict."""
_VIOLATIONS = """
## Violations of the specification

Each violation is counted. Brackets name the statement or section of MQTT 5 that is
violated. These violations can change a figure or break a client, so they are reasons (`PROTOCOL`):
"""
_HARMLESS = """
These are remarks:
"""
_WRONG_ANSWER = "- an answer other than the PUBACK, PUBREC or PUBCOMP that was due [4.3]"


def markdown() -> str:
    def rows(codes: Iterable[Code]) -> tuple[str, ...]:
        return (
            *_HEAD,
            *(f"| `{row.code}` | {row.seen} | {row.meaning} | {row.next} |" for row in codes),
        )

    reasons = rows(sorted(REASONS, key=lambda row: row.code != "GENERATOR_SATURATED"))
    kinds = VIOLATIONS[:WRONG_ACKNOWLEDGEMENT]
    judged = [f"- {kind.words}" for kind in kinds if kind.is_judged]
    harmless = [f"- {kind.words}" for kind in kinds if not kind.is_judged]
    violations = (_VIOLATIONS, *judged, _WRONG_ANSWER, _HARMLESS, *harmless)
    return "\n".join((_PAGE, *reasons, _REMARKS, *rows(REMARKS), *violations, ""))


if __name__ == "__main__":
    print(markdown(), end="")
