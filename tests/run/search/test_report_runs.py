from pathlib import Path
from types import SimpleNamespace

import pytest

from loadgen.errors import BrokerUnreachableError, RunDirectoryError
from loadgen.judge.verdict import Verdict
from loadgen.plan.scenario import Scenario
from loadgen.run.search import search
from loadgen.run.search.report_plan import ReportBroker, ReportPlan, report_plan
from loadgen.run.search.report_runs import (
    ReportResult,
    ReportState,
    begun_plan,
    play_report,
    request_digest,
)
from loadgen.run.testbed import Testbed
from tests.run.search.fake_runs import FakeRuns

BROKERS = (ReportBroker("A", ("mqtt://a",)), ReportBroker("B", ("mqtt://b",)))
ITEMS = ("connburst", "latency-by-background")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> FakeRuns:
    fake = FakeRuns()
    monkeypatch.setattr(Testbed, "run", fake.run)
    monkeypatch.setattr(search, "_RECOVERY_S", 0.1)
    return fake


async def play(
    plan: ReportPlan, directory: Path, restart: str = "", states: list[ReportState] | None = None
) -> ReportResult:
    watch = (lambda _state: None) if states is None else states.append
    async with Testbed() as testbed:
        return await play_report(
            plan, directory, testbed, "digest", restart_command=restart, watch=watch
        )


async def test_every_measurement_is_a_sweep(runs: FakeRuns, tmp_path: Path) -> None:
    plan = report_plan(BROKERS, {}, only=["connburst"])
    states: list[ReportState] = []
    result = await play(plan, tmp_path / "r", states=states)
    assert [(one.measurement.item.name, one.measurement.broker) for one in result.measured] == [
        ("connburst", 1),
        ("connburst", 2),
    ]
    assert [scenario.broker[0][-1] for scenario in runs.played] == [*"aaabbb"]
    assert (tmp_path / "r" / "measured" / "connburst" / "broker-2" / "sweep.json").exists()
    assert {(state.number, state.total) for state in states} == {(1, 2), (2, 2)}
    assert states[0].left_s == plan.seconds > states[-1].left_s


async def test_an_interrupted_report_goes_on(runs: FakeRuns, tmp_path: Path) -> None:
    runs.cut_at = 4
    plan = report_plan(BROKERS, {}, only=["connburst"])
    first = await play(plan, tmp_path / "r")
    assert first.interrupted and len(first.measured) == 2
    runs.cut_at = 0
    second = await play(plan, tmp_path / "r")
    assert not second.interrupted
    # The interrupted run is played again, the others are not.
    assert len(runs.played) == 4 + 3
    assert begun_plan(tmp_path / "r", "digest") is not None
    with pytest.raises(RunDirectoryError) as refused:
        begun_plan(tmp_path / "r", "another")
    assert refused.value.code == "OTHER_REPORT"


async def test_rows_of_a_broker_that_went_away_are_left_out(runs: FakeRuns, tmp_path: Path) -> None:
    def gone(scenario: Scenario) -> Verdict:
        if scenario.broker == ("mqtt://a",):
            raise BrokerUnreachableError("nothing listens at mqtt://a")
        return Verdict()

    runs.says = gone
    result = await play(report_plan(BROKERS, {}, only=ITEMS), tmp_path / "r")
    assert [(one.measurement.item.name, one.measurement.broker) for one in result.measured] == [
        ("connburst", 1),
        ("connburst", 2),
        ("latency-by-background", 2),
    ]
    assert [one.sweep.exit_status for one in result.measured] == [3, 0, 0]
    assert [(one.item.name, one.broker) for one in result.left_out] == [
        ("latency-by-background", 1)
    ]
    assert "nothing listens" in result.left_out[0].reason


async def test_a_broker_is_restarted_by_the_command(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    marker = tmp_path / "restarted"

    def gone(_scenario: Scenario) -> Verdict:
        if not marker.exists():
            raise BrokerUnreachableError("nothing listens")
        return Verdict()

    async def answers(_endpoint: object, _plan: object) -> bool:
        return True

    runs.says = gone
    monkeypatch.setattr(search, "_answers", answers)
    command = f"""sh -c 'echo "$LOADGEN_BROKER" > {marker}'"""
    brokers = (ReportBroker("A", ("mqtt://user:secret@a",)),)
    plan = report_plan(brokers, {}, only=["connburst"])
    result = await play(plan, tmp_path / "r", restart=command)
    assert result.left_out == () and len(result.measured) == 1
    assert "secret" not in marker.read_text() and "mqtt://" in marker.read_text()


async def test_a_used_budget_leaves_out_the_rest(
    runs: FakeRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = report_plan(BROKERS, {}, only=["connburst"], budget_s=600)
    hours = iter(range(0, 1_000_000, 3_600))
    # Only the sweep's clock: the event loop reads time.monotonic, too.
    clock = SimpleNamespace(monotonic=lambda: float(next(hours)))
    monkeypatch.setattr("loadgen.run.search.sweep.time", clock)
    result = await play(plan, tmp_path / "r")
    assert [one.measurement.broker for one in result.measured] == [1]
    assert [one.broker for one in result.left_out] == [2]


def test_a_request_is_the_same_with_another_password() -> None:
    def digest(url: str, **fields: str) -> str:
        return request_digest([(url,)], fields, ("fanin",), 60.0)

    assert digest("mqtt://u:one@a") == digest("mqtt://u:two@a")
    assert digest("mqtt://u:one@a") != digest("mqtt://u:one@b")
    assert digest("mqtt://a") != digest("mqtt://a", workers="2")
