import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario, vary
from loadgen.errors import (
    BrokerRefusedError,
    BrokerUnreachableError,
    HostLimitError,
    LoadgenError,
    ScenarioError,
)
from loadgen.judge.next_step import aim_for, requirements
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.scenario import Scenario
from loadgen.run.rundir import exclusive
from loadgen.run.search.search import Search
from loadgen.run.search.sweep import SIDES, Sweep, SweepState, journal_of, points_of, standing_of
from loadgen.run.testbed import Testbed
from loadgen.specjms.scenario import SupplyChain
from tests.refusals import refused
from tests.run.search.fake_runs import FakeRuns
from tests.testbeds import sweep

FANOUT = build_scenario("fanout", None, {"broker": "reflector"})
GRID = Sweep(FANOUT, (("ratio", ("1", "10", "100")), ("size", ("32", "64"))))


def searching(scenario: Scenario, *requires: str, **aim: Any) -> Search:
    found = aim_for(scenario, "rate", **{"start": 100} | aim)
    return Search(scenario, found, requirements(scenario, list(requires)))


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(Testbed, "run", fake.run)
    return fake


def test_every_combination_the_first_field_varying_slowest() -> None:
    points = points_of(GRID)
    combinations = [(ratio, size) for ratio in (1, 10, 100) for size in (32, 64)]
    assert [(p.scenario.ratio, p.scenario.size[0]) for p in points] == combinations
    assert points[1].values == {"ratio": "1", "size": "64"}
    assert len({point.key for point in points}) == 6


@pytest.mark.parametrize(
    ("grid", "complaint"),
    [
        (Sweep(FANOUT, (("ratio", ("1", "x")),)), "not a number"),
        (Sweep(FANOUT, (("luck", ("1",)),)), "unknown key"),
        (Sweep(FANOUT, (("ratio", ("10", "10")),)), "VALUE_TWICE"),
        (Sweep(FANOUT, (("ratio", ("1k", "1000")),)), "VALUE_TWICE"),
        (Sweep(FANOUT, (("ratio", ()),)), "NO_VALUE"),
        (Sweep(FANOUT, (("case", ("fanin",)),)), "NOT_SWEPT"),
        (Sweep(vary(FANOUT, {"broker_name": "A"}), (("broker", ("a", "b")),)), "NAME_OF_SEVERAL"),
        (Sweep(FANOUT, (("pdu", ("log.csv",)),)), "NOT_SWEPT"),
        (Sweep(SupplyChain(), (("topology", ("horizontal", "vertical")),)), "NOT_SWEPT"),
        (Sweep(FANOUT, (("ratio", tuple(map(str, range(1, 20_000)))),)), "MANY_RUNS"),
        (Sweep(FANOUT, (("rate", ("1", "2")),), search=searching), "SEARCHED"),
    ],
)
async def test_wrong_grid_is_refused_before_anything_is_run(
    runs: FakeRuns, tmp_path: Path, grid: Sweep, complaint: str
) -> None:
    with pytest.raises(ScenarioError) as error:
        await sweep(grid, tmp_path / "s")
    assert error.value.code == complaint or complaint in str(error.value)
    assert not runs.played
    assert not (tmp_path / "s").exists()


async def test_rows_are_kept_by_a_second_start_and_a_larger_grid(
    runs: FakeRuns, tmp_path: Path
) -> None:
    first = await sweep(GRID, tmp_path / "s")
    assert (len(first.measured), first.exit_status) == (6, 0)
    assert journal_of(tmp_path / "s").entries() == first.measured
    runs.played.clear()
    again = await sweep(GRID, tmp_path / "s")
    assert (again.measured, runs.played) == (first.measured, [])
    larger = Sweep(FANOUT, (("ratio", ("1", "10", "100", "300")), ("size", ("32", "64"))))
    grown = await sweep(larger, tmp_path / "s")
    assert [scenario.ratio for scenario in runs.played] == [300, 300]
    assert grown.measured[:6] == first.measured
    assert json.loads((tmp_path / "s" / "sweep.json").read_text())["axes"][0][1][-1] == "300"


async def test_no_repetition_begins_when_the_time_is_up(runs: FakeRuns, tmp_path: Path) -> None:
    limited = await sweep(replace(GRID, repeat=2, limit_s=0.0), tmp_path / "s")
    assert (len(limited.measured), limited.interrupted) == (6, False)
    whole = await sweep(replace(GRID, repeat=2), tmp_path / "s")
    assert len(whole.measured) == len(runs.played) == 12


async def test_rows_of_a_smaller_grid_know_the_values_of_a_new_axis(
    runs: FakeRuns, tmp_path: Path
) -> None:
    await sweep(Sweep(FANOUT, (("size", ("32", "64")),)), tmp_path / "s")
    grown = Sweep(FANOUT, (("size", ("32", "64", "128")), ("qos", ("0", "1"))))
    result = await sweep(grown, tmp_path / "s")
    assert len(runs.played) == 2 + 4
    assert [(one.values["size"], one.values["qos"]) for one in result.measured] == [
        (size, qos) for size in ("32", "64", "128") for qos in ("0", "1")
    ]


async def test_failed_row_does_not_end_the_sweep_and_is_tried_again(
    runs: FakeRuns, tmp_path: Path
) -> None:
    def refuse(scenario: Scenario) -> Verdict:
        if scenario.ratio == 10:
            raise BrokerRefusedError("no more than 5 clients")
        return Verdict((Reason("LOST", "5"),) if scenario.ratio == 100 else ())

    runs.says = refuse
    result = await sweep(GRID, tmp_path / "s")
    assert len(runs.played) == 6
    assert [one.valid for one in result.measured] == [True, True, False, False, False, False]
    assert result.measured[2].error == "BrokerRefusedError: no more than 5 clients"
    assert result.measured[4].error == ""
    assert result.exit_status == 1
    runs.played.clear()
    runs.says = lambda scenario: Verdict()
    second = await sweep(GRID, tmp_path / "s")
    # Measured and INVALID stays; what could not be played is played.
    assert [scenario.ratio for scenario in runs.played] == [10, 10]
    assert [one.error for one in second.measured] == [""] * 6


async def test_row_whose_run_was_deleted_is_measured_again(runs: FakeRuns, tmp_path: Path) -> None:
    result = await sweep(GRID, tmp_path / "s")
    runs.played.clear()
    (tmp_path / "s" / str(result.measured[0].run)).rmdir()
    await sweep(GRID, tmp_path / "s")
    assert len(runs.played) == 1


async def test_interrupted_sweep_goes_on(runs: FakeRuns, tmp_path: Path) -> None:
    runs.cut_at = 3
    states: list[SweepState] = []
    result = await sweep(GRID, tmp_path / "s", watch=states.append)
    assert (result.interrupted, len(result.measured), result.exit_status) == (True, 2, 130)
    begun = [(state.number, state.total) for state in states if state.snapshot is None]
    assert begun == [(1, 6), (2, 6), (3, 6)]
    runs.cut_at = 0
    result = await sweep(GRID, tmp_path / "s")
    assert len(runs.played) == 3 + 4
    assert (result.interrupted, len(result.measured)) == (False, 6)


async def test_repetitions_are_runs_of_their_own(runs: FakeRuns, tmp_path: Path) -> None:
    twice = Sweep(FANOUT, (("ratio", ("1", "2")),), repeat=2)
    result = await sweep(twice, tmp_path / "s")
    assert [scenario.ratio for scenario in runs.played] == [1, 2, 2, 1]
    rows = [(one.values["ratio"], one.repetition) for one in result.measured]
    assert rows == [("1", 1), ("1", 2), ("2", 1), ("2", 2)]
    assert len({one.run for one in result.measured}) == 4
    runs.played.clear()
    await sweep(Sweep(FANOUT, twice.axes, repeat=3), tmp_path / "s")
    assert len(runs.played) == 2


async def test_repetitions_have_connections_of_their_own_in_a_sweep_that_goes_on(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await sweep(Sweep(FANOUT, (("ratio", ("1",)),), repeat=2), tmp_path / "s")
    runs.played.clear()
    reset_after: list[int] = []
    reset = Testbed.reset

    async def noted(testbed: Testbed, *progress: Any) -> None:
        reset_after.append(len(runs.played))
        await reset(testbed, *progress)

    monkeypatch.setattr(Testbed, "reset", noted)
    await sweep(Sweep(FANOUT, (("ratio", ("1", "2", "3")),), repeat=2), tmp_path / "s")
    assert len(runs.played) == 4
    assert set(reset_after) == {0, 2, 4}


def up_to_500(scenario: Scenario) -> Verdict:
    return Verdict((Reason("CORRUPT", "1"),) if (scenario.rate or 0) > 500 else ())


def refusing(errors: dict[float, LoadgenError]) -> Callable[[Scenario], Verdict]:
    """Raise the error of a ratio."""

    def verdict(scenario: Scenario) -> Verdict:
        if scenario.ratio in errors:
            raise errors[scenario.ratio]
        return Verdict()

    return verdict


async def test_limit_of_each_combination(runs: FakeRuns, tmp_path: Path) -> None:
    def overload(scenario: Scenario) -> Verdict:
        deliveries = (scenario.rate or 0) * scenario.ratio
        return Verdict((Reason("CORRUPT", "1"),) if deliveries > 5000 else ())

    runs.says = overload
    what = Sweep(FANOUT, (("ratio", ("1", "10")),), search=searching)
    result = await sweep(what, tmp_path / "s")
    limits = [one.limit for one in result.measured]
    assert limits[0] is not None and limits[1] is not None
    assert 5000 / 1.05 <= limits[0]["load"] <= 5000
    assert 500 / 1.05 <= limits[1]["load"] <= 500
    assert (limits[0]["field"], limits[0]["own"], limits[0]["confirmed"]) == ("rate", False, True)
    assert all((tmp_path / "s" / str(one.run)).is_dir() for one in result.measured)
    runs.played.clear()
    await sweep(what, tmp_path / "s")
    assert not runs.played


def held(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "other",
    [
        # A run is not the search of the same scenario.
        Sweep(FANOUT, (("ratio", ("1", "10")),), 2),
        Sweep(FANOUT, (("ratio", ("1", "10", "20")),), 2, lambda s: searching(s, "p99=1")),
        Sweep(FANOUT, (("ratio", ("1", "20")),), 2, searching),
        Sweep(FANOUT, (("ratio", ("1", "10")),), 1, searching),
        Sweep(FANOUT, (("ratio", ("1", "10")), ("qos", ("1", "2"))), 2, searching),
        Sweep(
            build_scenario("fanout", None, {"broker": "reflector", "duration": 7}),
            (("ratio", ("1", "10")),),
            2,
            searching,
        ),
    ],
)
async def test_another_sweep_does_not_take_the_place_of_what_was_measured(
    runs: FakeRuns, tmp_path: Path, other: Sweep
) -> None:
    runs.says = up_to_500
    await sweep(Sweep(FANOUT, (("ratio", ("1", "10")),), 2, searching), tmp_path / "s")
    runs.played.clear()
    before = held(tmp_path)
    with refused("OTHER_SWEEP"):
        await sweep(other, tmp_path / "s")
    assert (runs.played, held(tmp_path)) == ([], before)


async def test_value_that_could_not_be_run_may_be_left_out(runs: FakeRuns, tmp_path: Path) -> None:
    runs.says = refusing({10: HostLimitError("no descriptors")})
    result = await sweep(Sweep(FANOUT, (("ratio", ("1", "10")),)), tmp_path / "s")
    assert result.exit_status == 1
    result = await sweep(Sweep(FANOUT, (("ratio", ("1", "20")),)), tmp_path / "s")
    assert [one.values["ratio"] for one in result.measured] == ["1", "20"]
    assert result.exit_status == 0


@pytest.mark.parametrize(
    ("errors", "status"),
    [
        ((BrokerUnreachableError("nothing listens"), HostLimitError("no ports")), 3),
        ((BrokerUnreachableError("nothing listens"), ScenarioError("no")), 3),
        ((ScenarioError("no"), ScenarioError("no")), 2),
        ((BrokerUnreachableError("nothing listens"), None), 1),
    ],
)
async def test_sweep_of_which_nothing_could_be_run_ends_like_such_a_run(
    runs: FakeRuns, tmp_path: Path, errors: tuple[LoadgenError | None, ...], status: int
) -> None:
    runs.says = refusing({ratio: error for ratio, error in enumerate(errors, 1) if error})
    result = await sweep(Sweep(FANOUT, (("ratio", ("1", "2")),)), tmp_path / "s")
    assert result.exit_status == status


async def test_run_that_measured_nothing_is_tried_again(runs: FakeRuns, tmp_path: Path) -> None:
    runs.measures = False
    runs.says = lambda scenario: Verdict((Reason("CONNECT_FAILED", "5 of 5"),))
    result = await sweep(GRID, tmp_path / "s")
    assert {one.error for one in result.measured} == {"CONNECT_FAILED: 5 of 5"}
    assert result.exit_status == 3
    runs.measures = True
    runs.says = lambda scenario: Verdict()
    again = await sweep(GRID, tmp_path / "s")
    assert (len(runs.played), again.exit_status) == (12, 0)


@pytest.mark.parametrize(("saturated", "spoiled", "valid"), [(1, 1, True), (3, 2, False)])
async def test_spoiled_runs_are_made_again_on_request(
    runs: FakeRuns, tmp_path: Path, saturated: int, spoiled: int, valid: bool
) -> None:
    late = Verdict((Reason("GENERATOR_SATURATED", "late"),))
    runs.says = lambda scenario: late if len(runs.played) <= saturated else Verdict()
    grid = Sweep(FANOUT, (("ratio", ("1",)),), again=True)
    states: list[SweepState] = []
    (point,) = (await sweep(grid, tmp_path / "s", watch=states.append)).measured
    assert (len(runs.played), point.spoiled, point.valid) == (spoiled + 1, spoiled, valid)
    assert {state.again for state in states} == {*range(spoiled + 1)}
    assert len([*(tmp_path / "s" / "saturated").iterdir()]) == spoiled


TURNS = Sweep(
    FANOUT, (("broker", ("mosquitto", "nats")),), 2, again=True, strict=True, folder=SIDES
)


async def test_sides_take_turns_and_go_on(runs: FakeRuns, tmp_path: Path) -> None:
    runs.cut_at = 3
    assert (await sweep(TURNS, tmp_path / "s")).interrupted
    runs.cut_at = 0
    result = await sweep(TURNS, tmp_path / "s")
    brokers = [scenario.broker[0] for scenario in runs.played]
    assert brokers == ["mosquitto", "nats", "nats", "nats", "mosquitto"]
    folders = [
        [str(path.relative_to(tmp_path)) for path in result.runs_of(p)] for p in result.points
    ]
    assert folders == [
        ["s/side-1/run-1", "s/side-1/run-2"],
        ["s/side-2/run-1", "s/side-2/run-2-2"],  # the interrupted one keeps its name
    ]


async def test_a_side_that_cannot_be_played_is_an_error(runs: FakeRuns, tmp_path: Path) -> None:
    runs.measures = False
    with refused("SIDE", side="mosquitto"):
        await sweep(TURNS, tmp_path / "s")
    runs.says = refusing({FANOUT.ratio: HostLimitError("no descriptors")})
    with pytest.raises(HostLimitError):
        await sweep(TURNS, tmp_path / "s")


async def test_search_whose_steps_cannot_be_is_refused_before_anything_is_run(
    runs: FakeRuns, tmp_path: Path
) -> None:
    grid = Sweep(FANOUT, (("ratio", ("1",)),), search=lambda one: replace(searching(one), step_s=0))
    with refused("VALUE", fault="0 is too small") as caught:
        await sweep(grid, tmp_path / "s")
    assert str(caught.value).startswith("--step-duration: ")
    assert (runs.played, held(tmp_path)) == ([], {})


@pytest.mark.parametrize(
    ("most_steps", "highest", "stands"),
    [(15, None, "closed"), (5, None, "not closed"), (3, None, "at least"), (15, 300, "at least")],
)
async def test_search_that_stopped_early_is_no_limit(
    runs: FakeRuns, tmp_path: Path, most_steps: int, highest: float | None, stands: str
) -> None:
    runs.says = up_to_500
    stopping = partial(searching, highest=highest, most_steps=most_steps)
    what = Sweep(FANOUT, (("ratio", ("1",)),), search=stopping)
    result = await sweep(what, tmp_path / "s")
    (one,) = result.measured
    assert one.limit is not None and one.limit["confirmed"]
    assert (one.limit["stands"], one.valid) == (stands, stands == "closed")
    assert result.exit_status == (0 if stands == "closed" else 1)
    wavering = {"load": 100.0, "above": 109.0, "ended": "confirmed"}
    assert standing_of(wavering, None) == "closed"


async def test_searches_that_ran_out_of_steps_go_on(runs: FakeRuns, tmp_path: Path) -> None:
    runs.says = up_to_500

    def grid(most_steps: int) -> Sweep:
        stopping = partial(searching, most_steps=most_steps)
        return Sweep(FANOUT, (("ratio", ("1", "2")),), search=stopping)

    first = await sweep(grid(5), tmp_path / "s")
    assert [one.limit["stands"] for one in first.measured if one.limit] == ["not closed"] * 2
    played = len(runs.played)
    again = await sweep(grid(5), tmp_path / "s")
    assert [one.limit for one in again.measured] == [one.limit for one in first.measured]
    assert len(runs.played) == played
    more = await sweep(grid(20), tmp_path / "s")
    assert [one.limit["stands"] for one in more.measured if one.limit] == ["closed"] * 2
    done = len(runs.played)
    kept = await sweep(grid(20), tmp_path / "s")
    assert [one.run for one in kept.measured] == [one.run for one in more.measured]
    assert len(runs.played) == done


async def test_brokers_side_by_side_keep_their_passwords_to_themselves(
    tmp_path: Path, runs: FakeRuns
) -> None:
    urls = ("mqtt://me:hush@h:1883", "mqtts://me:hush@h:8883")
    result = await sweep(Sweep(FANOUT, (("broker", urls),)), tmp_path / "s")
    assert [scenario.broker for scenario in runs.played] == [(urls[0],), (urls[1],)]
    assert [one.values["broker"] for one in result.measured] == [
        "mqtt://me@h:1883",
        "mqtts://me@h:8883",
    ]
    for file in (tmp_path / "s").rglob("*"):
        assert file.is_dir() or b"hush" not in file.read_bytes(), file
    runs.played.clear()
    await sweep(Sweep(FANOUT, (("broker", urls),)), tmp_path / "s")
    assert not runs.played


def test_a_plain_run_stands_beside_a_secured_one() -> None:
    secured = build_scenario("fanin", None, {"broker": "mqtts://h", "tls_ca": "ca", "devices": 7})
    points = points_of(Sweep(secured, (("broker", ("mqtt://h", "mqtts://h")),)))
    assert [point.scenario.tls_ca for point in points] == [None, "ca"]
    assert [point.scenario.devices for point in points] == [7, 7]


async def test_directories_of_others_are_refused(runs: FakeRuns, tmp_path: Path) -> None:
    await sweep(GRID, tmp_path / "s")
    fanin = build_scenario("fanin", None, {})
    with refused("OTHER_SWEEP"):
        await sweep(Sweep(fanin, (("rate", ("1",)),)), tmp_path / "s")
    with exclusive(tmp_path / "s"), refused("IN_USE"):
        await sweep(GRID, tmp_path / "s")
