import pytest

from loadgen.cases.registry import build_scenario
from loadgen.judge.facts import RunFacts
from loadgen.judge.verdict import Reason, Verdict, judge_rate_step, with_rate_steps
from loadgen.plan.rate_steps import RateStep, mean_share, rate_steps, read_steps
from loadgen.plan.scenario import read_toml, toml_lines
from tests.ledgers import facts_with
from tests.refusals import refused

NS = 1_000_000_000


def test_steps_have_one_way_to_be_written() -> None:
    assert read_steps(" 50% , 75%:20 ,85%:500ms,  110%: 1m") == "50%,75%:20s,85%:0.5s,110%:60s"
    assert read_steps("0.5%") == "0.5%"


@pytest.mark.parametrize(
    "text",
    ["", "50", "50%,", "0%", "-5%", "1001%", "50%:", "50%:fast", "50%:0", "x%", 50, "5%," * 200],
)
def test_what_is_no_steps_is_refused_in_one_line(text: object) -> None:
    with pytest.raises(ValueError, match=r"\w") as caught:
        read_steps(text)
    assert "\n" not in str(caught.value)


def test_steps_settle_after_the_first_for_at_most_half_their_time() -> None:
    assert rate_steps("50%,75%:4s,100%:20s", 10.0, 3.0) == (
        RateStep(0.5, 10.0, 0.0),
        RateStep(0.75, 4.0, 2.0),
        RateStep(1.0, 20.0, 3.0),
    )
    assert rate_steps(None, 10.0, 3.0) == ()


def test_mean_share_weighs_by_time() -> None:
    assert mean_share(rate_steps("50%:10s,100%:30s", 1.0, 0.0)) == pytest.approx(0.875)
    assert mean_share(()) == 1.0


def test_field_of_the_scenario() -> None:
    scenario = build_scenario("fanin", None, {"steps": "50%,75%:20,100%"})
    assert scenario.steps == "50%,75%:20s,100%"
    assert build_scenario("fanin", read_toml(toml_lines(scenario.plain())), {}) == scenario
    assert build_scenario("fanin", None, {}).steps is None
    with refused("VALUE", option="--steps"):
        build_scenario("fanin", None, {"steps": "75"})
    with refused("NOT_OF_CASE", case="connburst"):
        build_scenario("connburst", None, {"steps": "75%"})


STEP = RateStep(0.5, 10.0, 0.0)


def facts(**changed: object) -> RunFacts:
    values = {"window_s": 10.0, "target_rate": 100.0, "publishers": 1}
    counts = {"sent": 1000, "expected": 1000, "received": 1000}
    return facts_with(**(values | counts | changed))


def test_step_that_sent_too_little_says_what_it_left() -> None:
    assert judge_rate_step(STEP, facts(), 3).verdict.valid
    found = judge_rate_step(STEP, facts(sent=900, expected=900, received=900), 101)
    (reason,) = found.verdict.reasons
    assert reason.code == "RATE_MISSED"
    assert reason.values == {"sent": 900, "target": 1000, "unsent": 101}


def test_step_that_catches_up_with_what_was_owed_is_valid() -> None:
    assert judge_rate_step(STEP, facts(sent=1300, expected=1300, received=1300), 0).verdict.valid


def test_run_is_told_what_failed_in_a_step_once_by_the_first() -> None:
    growing = tuple((second * NS, 0, second * 200) for second in range(10))
    steps = [
        judge_rate_step(STEP, facts(), 0),
        judge_rate_step(RateStep(0.9, 10, 1), facts(backlog=growing), 0),
        judge_rate_step(RateStep(1.0, 10, 1), facts(backlog=growing, received=990), 0),
    ]
    assert with_rate_steps(Verdict(), steps[:1]).valid
    whole = with_rate_steps(Verdict((Reason("CORRUPT", "c"),)), steps)
    assert whole.codes == ("CORRUPT", "LOST", "BACKLOG_GROWS")
    growing_step = whole.reasons[2].values
    assert (growing_step["number"], growing_step["share"]) == (2, 90)
    assert growing_step["detail"].values["growth"] == 1400
    kept = with_rate_steps(Verdict((Reason("LOST", "10 in all"),)), steps)
    assert kept.reasons[0] == Reason("LOST", "10 in all")
