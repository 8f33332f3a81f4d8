"""The verdict over a run: VALID, or INVALID with every reason; a pure function of its facts."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadgen.judge.codes import CODES, REASONS, REMARKS
from loadgen.judge.facts import RunFacts


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason against a run: its code in `judge.codes`, and one sentence with the numbers."""

    code: str
    detail: str

    @property
    def values(self) -> Mapping[str, Any]:
        """Values of the sentence; empty if it was read from a file."""
        return getattr(self.detail, "values", {})


@dataclass(frozen=True, slots=True)
class Remark(Reason):
    """A note for readers of the figures that does not affect the verdict."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The reasons against a run, and remarks; VALID if there are no reasons."""

    reasons: tuple[Reason, ...] = ()
    remarks: tuple[Remark, ...] = ()

    @property
    def valid(self) -> bool:
        return not self.reasons

    @property
    def word(self) -> str:
        if self.codes == ("RUNNING",):
            return "RUNNING"
        return "VALID" if self.valid else "INVALID"

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(reason.code for reason in self.reasons)

    def document(self) -> dict[str, Any]:
        return {"valid": self.valid, "reasons": [asdict(reason) for reason in self.reasons]}

    def with_reasons(self, *more: Reason) -> "Verdict":
        """Return this verdict with more reasons, all in the order of `CODES`."""
        reasons = sorted((*self.reasons, *more), key=lambda reason: CODES.index(reason.code))
        return replace(self, reasons=tuple(reasons))


def judge(facts: RunFacts) -> Verdict:
    """Return the verdict over a run, its reasons in the order of `CODES`."""
    return Verdict(
        tuple(Reason(row.code, text) for row in REASONS for text in row.sentences(facts)),
        tuple(Remark(row.code, text) for row in REMARKS for text in row.sentences(facts)),
    )
