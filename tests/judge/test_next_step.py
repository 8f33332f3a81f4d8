from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from operator import attrgetter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from loadgen.judge.ledger import Ledger
from loadgen.judge.next_step import (
    CONFIRMS,
    Aim,
    Limit,
    Probe,
    Require,
    Tried,
    aim_for,
    bracket_of,
    is_requirement,
    limit_sentence,
    next_step,
    parse_share,
    requirements,
)
from loadgen.judge.verdict import Reason, Verdict
from tests.examples import examples
from tests.tables import rows_of

RATE = Aim("rate", start=500, lowest=0.001, highest=1e8)
LOST = (Reason("LOST", "3 deliveries"),)

Broker = Callable[[float], tuple[bool, float | None]]


def play(aim: Aim, broker: Broker, tried: list[Tried] | None = None) -> tuple[Limit, list[Tried]]:
    """Search on a broker that says of a load whether it held and what it served."""
    steps = list(tried or [])
    while isinstance(step := next_step(aim, steps), Probe):
        assert len(steps) < aim.most_steps
        assert aim.lowest <= step.load <= aim.highest
        valid, served = broker(step.load)
        steps.append(Tried(step.load, step.purpose, valid, () if valid else LOST, served))
    return step, steps


def ceiling(limit: float) -> Broker:
    """Serves `limit` a second and queues the rest."""
    return lambda load: (load <= limit, min(load, limit))


def silent(limit: float) -> Broker:
    """The same, of which nobody knows what it served."""
    return lambda load: (load <= limit, None)


def late(limit: float) -> Broker:
    """Serves everything, but too late above the limit."""
    return lambda load: (load <= limit, load)


def lost_its_way(limit: float) -> Broker:
    """Serves a third of its limit when it is overloaded."""
    return lambda load: (load <= limit, load if load <= limit else limit / 3)


@pytest.mark.parametrize("kind", [ceiling, silent, late, lost_its_way])
@given(limit=st.floats(1_000, 100_000))
@examples(60)
def test_finds_the_limit_within_the_precision_in_fifteen_steps(
    kind: Callable[[float], Broker], limit: float
) -> None:
    found, steps = play(RATE, kind(limit))
    assert len(steps) <= 15
    assert (found.confirmed, found.ended) == (True, "confirmed")
    assert found.load is not None and found.above is not None
    assert found.load <= limit < found.above <= found.load * 1.05
    assert found.reasons == LOST


@given(limit=st.floats(1_000, 100_000), seed=st.randoms(use_true_random=False))
@examples(60)
def test_a_broker_that_wavers_is_found_within_precision_and_wavering(
    limit: float, seed: object
) -> None:
    def wavering(load: float) -> tuple[bool, float | None]:
        now = limit * seed.uniform(0.985, 1.015)  # type: ignore[attr-defined]
        return load <= now, min(load, now)

    found, steps = play(RATE, wavering)
    assert len(steps) <= 15
    assert found.load is not None
    assert limit / 1.05 * 0.97 <= found.load <= limit * 1.02


def test_a_limit_is_confirmed_even_if_each_second_has_its_own() -> None:
    def found(seed: int) -> tuple[Limit, float]:
        draw = Random(seed)
        limit = 10 ** draw.uniform(3, 5.3)
        tried: list[Tried] = []
        while isinstance(step := next_step(RATE, tried), Probe):
            seconds = 12 if step.purpose in CONFIRMS else 1
            served = limit * min(draw.lognormvariate(0, 0.15) for _ in range(seconds))
            tried.append(Tried(step.load, step.purpose, step.load <= served, (), served))
        return step, limit

    results = [found(seed) for seed in range(200)]
    assert sum(one.confirmed for one, _ in results) >= 196
    assert sum(one.ended == "confirmed" for one, _ in results) >= 190
    shares = [(one.load or 0) / limit for one, limit in results]
    assert sum(0.6 < share <= 1.0 for share in shares) >= 190


@given(limit=st.floats(500, 1e6), hints=st.lists(st.floats(0, 2e6), min_size=20, max_size=20))
@examples(60)
def test_wrong_hints_cost_steps_but_not_the_bracket(limit: float, hints: list[float]) -> None:
    served = iter(hints)
    found, steps = play(RATE, lambda load: (load <= limit, next(served)))
    assert len(steps) <= RATE.most_steps
    assert found.load is not None and found.load <= limit
    assert found.above is None or found.above > limit


def test_load_is_raised_from_below_and_never_far_above() -> None:
    _, steps = play(RATE, ceiling(20_000))
    raised = [step.load for step in steps if step.purpose in ("first", "raise")]
    assert raised == sorted(raised)
    assert all(b / a < 2.51 for a, b in pairwise(raised))
    assert max(step.load for step in steps) <= 2.5 * 20_000


def test_same_steps_same_answer_and_a_search_goes_on_where_it_stopped() -> None:
    whole, steps = play(RATE, ceiling(7_777))
    for done in range(len(steps)):
        assert play(RATE, ceiling(7_777), steps[:done]) == (whole, steps)


def test_the_limit_is_confirmed_by_a_second_run_at_it() -> None:
    found, steps = play(RATE, ceiling(4_321))
    assert steps[-1].purpose == "confirm"
    assert [step.valid for step in steps if step.load == found.load] == [True, True]


def test_failed_confirmation_takes_the_load_back_and_steps_back() -> None:
    tries: list[float] = []

    def once(load: float) -> tuple[bool, float | None]:
        tries.append(load)
        # From 3,900 to 4,100 a load holds once only.
        return load < 3_900 or (load < 4_100 and tries.count(load) == 1), None

    found, steps = play(RATE, once)
    assert "step back" in {step.purpose for step in steps}
    assert found.confirmed and found.load is not None and found.above is not None
    assert 3_900 / 1.11 < found.load < 3_900 <= found.above


def test_moment_of_disturbance_far_below_the_limit_gets_a_second_look() -> None:
    tries: list[float] = []

    def disturbed(load: float) -> tuple[bool, float | None]:
        tries.append(load)
        return (len(tries) != 3 and load <= 50_000), min(load, 50_000)

    found, steps = play(RATE, disturbed)
    assert [step.purpose for step in steps[2:4]] == ["raise", "again"]
    assert found.load is not None and found.load > 45_000


def test_failure_for_want_of_service_gets_no_second_look() -> None:
    _, steps = play(RATE, ceiling(1_000))
    assert "again" not in {step.purpose for step in steps}


def test_a_step_of_a_saturated_generator_is_repeated_once() -> None:
    aim = Aim("rate", 500, 1, 1e6)
    failed = Tried(1250, "raise", False, (Reason("GENERATOR_SATURATED", "1"),))
    tried = [Tried(500, "first", True), failed]
    assert next_step(aim, tried) == Probe(1250, "again")
    following = next_step(aim, [*tried, failed])
    assert isinstance(following, Probe) and 500 < following.load < 1250


def test_first_load_that_fails_is_lowered() -> None:
    found, steps = play(RATE, ceiling(20))
    assert [step.purpose for step in steps[:3]] == ["first", "lower", "lower"]
    assert found.confirmed and found.load is not None and 19 < found.load <= 20


def test_nothing_holds() -> None:
    aim = Aim("rate", start=100, lowest=10, highest=1_000)
    found, steps = play(aim, lambda load: (False, 0.0))
    assert (found.load, found.above, found.confirmed, found.ended) == (
        None,
        10,
        False,
        "nothing held",
    )
    text = limit_sentence(aim, found)
    assert (text.code, text.values["lowest"]) == ("NOTHING_HELD", 10)
    assert text.values["codes"] == ("LOST",)
    assert len(steps) < 6


def test_top_of_the_range_is_confirmed_and_told_as_at_least() -> None:
    aim = Aim("rate", start=100, lowest=10, highest=1_000)
    found, steps = play(aim, ceiling(1e9))
    assert found == Limit(1_000, None, True, "top of range")
    assert steps[-1] == Tried(1_000, "confirm", True, (), 1_000)
    text = limit_sentence(aim, found)
    assert (text.code, text.values["load"]) == ("NOTHING_FAILED", 1_000)


def test_whole_loads_are_whole_and_small_ones_end_at_the_next() -> None:
    aim = Aim("pairs", start=1, lowest=1, highest=1_000_000, integral=True)
    for limit in (1, 2, 3, 7, 19, 450, 900):
        found, steps = play(aim, silent(limit))
        assert all(step.load == int(step.load) for step in steps)
        assert found.load is not None and found.above is not None
        assert found.load <= limit < found.above
        assert found.above - found.load == 1 or found.above <= found.load * 1.05


def test_too_few_steps_end_with_what_is_known() -> None:
    aim = Aim("rate", start=500, lowest=1, highest=1e8, most_steps=6)
    found, steps = play(aim, silent(10_000))
    assert len(steps) == 6
    assert (found.load, found.ended, found.confirmed) == (7_812, "out of steps", True)
    aim = Aim("rate", start=500, lowest=1, highest=1e8, most_steps=3)
    found, _ = play(aim, silent(10_000))
    assert (found.load, found.above, found.ended) == (1_250, None, "out of steps")
    assert limit_sentence(aim, found).values["ended"].code == "NO_STEP_LEFT"


@pytest.mark.parametrize("code", ["GENERATOR_SATURATED", "WORKER_LOST", "CLOCK", "HOST_LIMIT"])
def test_own_limit_is_never_told_as_the_brokers(code: Any) -> None:
    reasons = (Reason(code, "x"), Reason("LOST", "y"))
    found = Limit(1_000, 1_040, True, "confirmed", reasons)
    assert found.of_generator is attrgetter("own")(found) is True
    assert limit_sentence(RATE, found).code == "LIMIT_OF_GENERATOR"
    nothing = Limit(None, 10, False, "nothing held", reasons)
    assert limit_sentence(RATE, nothing).values["limit"] == "the generator"
    assert not Limit(1_000, 1_040, True, "confirmed", LOST).of_generator
    assert limit_sentence(RATE, Limit(1_000, 1_040, True, "confirmed", LOST)).code == "LIMIT"


def test_a_host_without_time_ends_a_search_in_a_few_steps() -> None:
    own = (Reason("GENERATOR_SATURATED", ""), Reason("RATE_MISSED", ""))
    tried: list[Tried] = []
    while isinstance(step := next_step(RATE, tried), Probe):
        tried.append(Tried(step.load, step.purpose, False, own))
    assert [step.load for step in tried] == [500, 500, 80, 80, 12.8, 12.8]
    assert (step.load, step.above, step.ended, step.of_generator) == (
        None,
        12.8,
        "nothing held",
        True,
    )
    assert limit_sentence(RATE, step).values["lowest"] == 12.8
    # A broker that is the limit is looked for further down.
    lost = [replace(one, reasons=(Reason("LOST", ""),)) for one in tried]
    assert isinstance(next_step(RATE, lost), Probe)


def test_bracket_trusts_the_latest_look() -> None:
    def tried(*steps: tuple[float, bool]) -> list[Tried]:
        return [Tried(load, "raise", valid) for load, valid in steps]

    assert bracket_of([]) == (None, None)
    assert bracket_of(tried((1, True), (4, True), (8, False))) == (4, 8)
    assert bracket_of(tried((1, True), (4, True), (8, False), (4, False))) == (1, 4)
    assert bracket_of(tried((1, True), (4, False), (4, True))) == (4, None)
    # What failed is taken to fail above, too.
    assert bracket_of(tried((1, True), (8, True), (4, False))) == (1, 4)


def test_aims_of_the_cases() -> None:
    def aim(case: str, what: str, **fields: object) -> Aim:
        return aim_for(build_scenario(case, None, fields), what)

    assert (aim("fanin", "rate").field, aim("fanin", "rate").start) == ("rate", 500)
    assert aim("fanin", "devices").integral
    assert aim("fanout", "devices").field == "ratio"
    assert aim("persistent", "devices").field == "pairs"
    assert aim("fanout", "rate", ratio=100).start == 5
    assert aim("connburst", "rate").field == "rate"
    with pytest.raises(ScenarioError) as refused:
        aim("fanin", "base")
    assert refused.value.code == "TARGET_OF_OTHER_CASE"
    assert refused.value.values["targets"] == ("rate", "devices")
    with pytest.raises(ScenarioError) as refused:
        aim("fanin", "luck")
    assert refused.value.code == "UNKNOWN_TARGET"


@pytest.mark.parametrize(("wrong", "code"), rows_of("judge.aims_refused"))
def test_aim_that_leads_nowhere_is_refused(wrong: dict[str, float], code: str) -> None:
    fanin = build_scenario("fanin", None, {})
    with pytest.raises(ScenarioError) as refused:
        aim_for(fanin, "rate", **wrong)  # type: ignore[arg-type]
    assert refused.value.code == code


def test_requirements_are_the_cases_and_what_is_given() -> None:
    fanin = build_scenario("fanin", None, {})
    assert requirements(fanin, []) == Require(p99_s=0.1)
    assert requirements(build_scenario("latency", None, {}), []).p99_s == 0.01
    # Its audit has the rules' bound.
    assert requirements(build_scenario("specjms", None, {}), []).p99_s is None
    bound = build_scenario("fanin", None, {"latency_bound": "2ms"})
    assert requirements(bound, []).p99_s == 0.002
    assert requirements(bound, ["p99=off"]).p99_s is None
    given = requirements(fanin, ["lost<0.1%,backlog=off", "p99 < 50ms", "order=on"])
    assert given == Require(lost=0.001, p99_s=0.05, backlog=False)
    assert requirements(fanin, ["lost=0.1%,p99=50ms,backlog=off"]) == given  # until 1.0
    assert not is_requirement("lost==0") and not is_requirement("order<1")
    for wrong, code in (
        *((text, "UNKNOWN_REQUIREMENT") for text in ("lost", "luck=1", "")),
        *((text, "REQUIREMENT") for text in ("lost=2", "p99=fast", "backlog=maybe")),
        ("lost=1%,lost=2%", "REQUIRED_TWICE"),
    ):
        with pytest.raises(ScenarioError) as refused:
            requirements(fanin, [wrong])
        assert refused.value.code == code


def test_what_is_not_required_is_overlooked_and_nothing_else() -> None:
    verdict = Verdict(
        (Reason("LOST", "5 of 1000"), Reason("BACKLOG_GROWS", "b"), Reason("CORRUPT", "c"))
    )

    def codes(require: Require) -> list[str]:
        return [why.code for why in require.unmet(verdict, Ledger(expected=1000, lost=5))]

    assert codes(Require()) == ["LOST", "BACKLOG_GROWS", "CORRUPT"]
    assert codes(Require(lost=0.005)) == ["BACKLOG_GROWS", "CORRUPT"]
    assert codes(Require(lost=0.004, backlog=False)) == ["LOST", "CORRUPT"]


def test_a_loss_that_no_count_of_deliveries_shows_is_never_overlooked() -> None:
    verdict = Verdict((Reason("LOST", "2 of 2 messages that a consumer had not acknowledged"),))
    for require in (Require(), Require(lost=0.5)):
        assert [why.code for why in require.unmet(verdict, Ledger(expected=1000))] == ["LOST"]


def test_shares() -> None:
    assert (parse_share("5%"), parse_share("0.05"), parse_share(" 100% ")) == (0.05, 0.05, 1.0)
    for wrong in ("5", "-1%", "x%", ""):
        with pytest.raises(ValueError, match=r"\w"):
            parse_share(wrong)
