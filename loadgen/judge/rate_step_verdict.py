"""The verdict over each rate step of a run, and its part in the verdict over the run."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.judge.facts import RunFacts
from loadgen.judge.verdict import Reason, Verdict, judge
from loadgen.plan.rate_steps import RateStep
from loadgen.sentences import JUDGE_TEXT


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
