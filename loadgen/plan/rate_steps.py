"""Rate steps: shares of the target rate, played one after another and judged separately.

`50%,75%:20s,100%` is three steps of one schedule: messages that a step leaves owed are sent in the
next one. The first part of a step, except the first step, is not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.plan.units import parse_number, parse_seconds, shown

STEPS_LIMIT = 100
SHARE_LIMIT = 10.0
SECONDS_LIMIT = 86_400.0


@dataclass(frozen=True, slots=True)
class RateStep:
    """A share of the target rate, for `seconds`, of which the first `settle_s` are not judged."""

    share: float
    seconds: float
    settle_s: float


def read_steps(text: object) -> str:
    """Return the steps in canonical form; raise ValueError, with one line, if they are wrong."""
    if not isinstance(text, str):
        raise ValueError(f"{shown(text)} is not text such as 50%,75%,100%")
    parts = [_read_step(part) for part in text.split(",")]
    if len(parts) > STEPS_LIMIT:
        raise ValueError(f"{len(parts)} steps are more than {STEPS_LIMIT}")
    return ",".join(
        f"{share * 100:.6g}%" + ("" if seconds is None else f":{seconds:.6g}s")
        for share, seconds in parts
    )


def _read_step(part: str) -> tuple[float, float | None]:
    share_text, colon, time = (piece.strip() for piece in part.partition(":"))
    if not share_text.endswith("%"):
        raise ValueError(f"{shown(part)} is not a step such as 75% or 75%:20s")
    share = parse_number(share_text[:-1]) / 100
    if not 0 < share <= SHARE_LIMIT:
        raise ValueError(f"{shown(share_text)} is not a share of a rate from 0% to 1000%")
    if not colon:
        return share, None
    seconds = parse_seconds(time)
    if not 0.1 <= seconds <= SECONDS_LIMIT:
        raise ValueError(f"{shown(time)} is not a time from 100ms to a day")
    return share, seconds


def rate_steps(text: str | None, seconds: float, settle_s: float) -> tuple[RateStep, ...]:
    """Return the steps of a text; one without a time takes `seconds`, at most half to settle."""
    if text is None:
        return ()
    steps = []
    for place, part in enumerate(text.split(",")):
        share, own = _read_step(part)
        length = seconds if own is None else own
        steps.append(RateStep(share, length, min(settle_s, length / 2) if place else 0.0))
    return tuple(steps)


def mean_share(steps: Sequence[RateStep]) -> float:
    seconds = sum(step.seconds for step in steps)
    return sum(step.share * step.seconds for step in steps) / seconds if seconds else 1.0
