"""Verdicts of real runs on a host that others use, too.

There a run may rightly say that its host took the processor away: no mistake of the program,
and no test of anything else.
"""

from collections.abc import Iterable

from loadgen.judge.verdict import Reason

HOST = "GENERATOR_SATURATED"


def without_saturation(codes: Iterable[str]) -> tuple[str, ...]:
    """The codes that are not the host's."""
    return tuple(code for code in codes if code != HOST)


def faults(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    """The reasons that are not the host's; empty for a sound run."""
    return tuple(reason for reason in reasons if reason.code != HOST)
