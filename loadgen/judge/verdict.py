"""The verdict over a run and each of its rate steps: VALID, or INVALID with every reason.

It is a pure function of the facts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadgen.judge.codes import CODES, REASONS, REMARKS
from loadgen.judge.facts import RunFacts
from loadgen.plan.rate_steps import RateStep
from loadgen.sentences import JUDGE_TEXT


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


@dataclass(frozen=True, slots=True)
class RateStepVerdict:
    """The result of one step, over its judged part."""

    step: RateStep
    facts: RunFacts
    owed: int  # messages that were left to the next step
    verdict: Verdict


def judge_rate_step(step: RateStep, facts: RunFacts, owed: int) -> RateStepVerdict:
    """Return the verdict over a step, whose unsent messages count in the next step."""
    late = JUDGE_TEXT.SENT_WITHIN_STEP(
        sent=facts.begun, target=round(facts.schedule.target_rate * facts.window_s), unsent=owed
    )
    reasons = tuple(
        Reason(reason.code, late) if reason.code == "RATE_MISSED" else reason
        for reason in judge(facts).reasons
    )
    return RateStepVerdict(step, facts, owed, Verdict(reasons))


def with_rate_steps(verdict: Verdict, steps: Sequence[RateStepVerdict]) -> Verdict:
    """Return the run's verdict with the first reason of its steps for each new code."""
    codes = set(verdict.codes)
    added: dict[str, Reason] = {}
    for number, step in enumerate(steps, start=1):
        for reason in step.verdict.reasons:
            if reason.code not in codes:
                share = step.step.share * 100
                detail = JUDGE_TEXT.IN_STEP(number=number, share=share, detail=reason.detail)
                added.setdefault(reason.code, Reason(reason.code, detail))
    return verdict.with_reasons(*added.values())
