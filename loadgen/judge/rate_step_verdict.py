"""The verdict over each rate step of a run, and what it means for the run's own."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.judge.verdict import Reason, RunFacts, Verdict, in_order, judge
from loadgen.plan.rate_steps import RateStep


@dataclass(frozen=True, slots=True)
class RateStepVerdict:
    """What came of one step, over its judged part.

    `rate` is messages a second over all publishers, as asked for; `owed` the messages that it left
    to the next one.
    """

    step: RateStep
    rate: float
    facts: RunFacts
    owed: int
    verdict: Verdict


def judge_rate_step(step: RateStep, facts: RunFacts, owed: int) -> RateStepVerdict:
    """The verdict over a step's facts, in which nothing is owed: that is sent in the next.

    RATE_MISSED says what the step sent, BACKLOG_GROWS whether what it left owed grew.
    """
    reasons = tuple(
        reason
        if reason.code != "RATE_MISSED"
        else Reason(
            "RATE_MISSED",
            f"{facts.begun:,} of {facts.target_rate * facts.window_s:,.0f} messages were "
            f"sent within the step; {owed:,} were left to the next",
        )
        for reason in judge(facts).reasons
    )
    return RateStepVerdict(step, facts.target_rate, facts, owed, Verdict(reasons))


def with_rate_steps(verdict: Verdict, steps: Sequence[RateStepVerdict]) -> Verdict:
    """The run's verdict with what failed in a step and is not in it yet, by the first such step."""
    known = {reason.code for reason in verdict.reasons}
    added: dict[str, Reason] = {}
    for number, step in enumerate(steps, start=1):
        where = f"step {number}, {step.step.share * 100:.6g}% of the rate: "
        for reason in step.verdict.reasons:
            if reason.code not in known:
                added.setdefault(reason.code, Reason(reason.code, where + reason.detail))
    return replace(verdict, reasons=in_order((*verdict.reasons, *added.values())))
