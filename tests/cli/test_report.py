"""The document of all rows, from made-up runs and from a broker."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.scenario import Scenario
from loadgen.report.build.report_document import (
    ReportFigure,
    _figures,
    _Shown,
    footnotes,
    key_results,
    report_document,
)
from loadgen.report.build.sweep_table import SweepRow
from loadgen.report.power.settings import log_settings
from loadgen.report.render.write import write_report
from loadgen.run.coordinator import RunResult
from loadgen.run.search.report_plan import (
    Measurement,
    ReportBroker,
    ReportItem,
    ReportPlan,
    ReportRow,
    report_items,
    report_plan,
)
from loadgen.run.search.report_runs import play_report
from loadgen.run.testbed import Testbed
from tests.ledgers import facts_with
from tests.needs import needs_mosquitto
from tests.report.fabricate import SECOND_NS, WALL_NS, fabricate
from tests.tables import rows_of
from tests.terminal import Captured

DIFFERENCE = {
    "name": "somaxconn",
    "wanted": "65535",
    "found": "128",
    "effect": "costs",
    "detail": "the run needs 9,000",
}
ROW = {"case", "name", "unit", "broker", "value", "spread", "within", "runs", "verdict"}


@pytest.fixture
def fabricated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of a testbed that are made up, for the broker of the scenario."""
    made = iter(range(1_000))

    async def run(_testbed: Testbed, scenario: Scenario, directory: Path, **_: Any) -> RunResult:
        name = scenario.broker[0].removeprefix("mqtt://")
        fabricate(
            directory,
            run=f"run-{next(made)}",
            case=scenario.case,
            broker={"name": name, "version": "1", "urls": [], "started_by_us": True},
            environment={
                "host": "bench",
                "tuning": {"profile": "load-host", "met": 3, "differences": [DIFFERENCE]},
            },
        )
        failed = getattr(scenario, "devices", 0) > 30_000
        code = "GENERATOR_SATURATED" if name.startswith("mqtts") else "LOST"
        verdict = Verdict((Reason(code, "1 delivery"),) if failed else ())
        return RunResult(directory, verdict, False, True, facts_with(sent=1))

    monkeypatch.setattr(Testbed, "run", run)
    monkeypatch.setattr("loadgen.run.search.search._RECOVERY_S", 0)


@pytest.mark.usefixtures("fabricated")
async def test_a_document_has_every_row_of_every_broker(tmp_path: Path) -> None:
    brokers = [
        ReportBroker("a 1", ("mqtt://a",)),
        ReportBroker("b 1", ("mqtt://b",), lacks={"connburst": "no connects"}),
    ]
    plan = report_plan(brokers, {}, only=["connburst", "latency-by-background"])
    async with Testbed() as testbed:
        result = await play_report(plan, tmp_path / "r", testbed, "digest")
    report = report_document(result, ("loadgen", "report", "--broker", "mqtt://u:secret@a"))
    paths = write_report(report, tmp_path / "r", "report")
    document = json.loads(paths["report.json"].read_bytes())
    assert document["schema"] == 1 and [one["name"] for one in document["brokers"]] == [
        "a 1",
        "b 1",
    ]
    assert "secret" not in paths["report.json"].read_text()
    rows = {(row["name"], row["broker"]): row for row in document["rows"]}
    assert all(row.keys() == ROW for row in rows.values())
    seconds = rows["Connect time", "a 1"]
    assert (seconds["case"], seconds["unit"]) == ("CONNBURST", "seconds")
    assert seconds["value"] == pytest.approx(0.8, abs=0.1)
    assert len(seconds["runs"]) == 3 and all(
        (tmp_path / "r" / run).is_dir() for run in seconds["runs"]
    )
    assert rows["Connect time", "b 1"]["value"] is None
    assert rows["Connect time", "b 1"]["verdict"] == "left out: no connects"
    text = paths["report.md"].read_text()
    assert "LATENCY by background rate" in text and "no connects" in text
    assert "| somaxconn | 65535 | 128 | the run needs 9,000 |" in text
    assert len(paths["report.csv"].read_text().splitlines()) == 1 + len(document["rows"])


@pytest.mark.usefixtures("fabricated")
async def test_a_limit_is_told_with_the_load_that_failed_and_not_with_a_spread(
    tmp_path: Path,
) -> None:
    names = (("Producers", "producers", "limit"), ("99P latency", "microseconds", "p99"))
    item = ReportItem("fanin", "fanin", "devices", rows=tuple(ReportRow(*row) for row in names))
    broker = ReportBroker("a 1", ("mqtt://a",), ("mqtts://a",))
    both = Measurement(item, 1), Measurement(item, 1, secured=True)
    plan = ReportPlan((broker,), both, (), 1.0, {})
    async with Testbed() as testbed:
        result = await play_report(plan, tmp_path / "r", testbed, "digest")
    report = report_document(result)
    document = json.loads(
        write_report(report, tmp_path / "r", "report")["report.json"].read_bytes()
    )
    limit, p99, *_ = document["rows"]
    assert [text.split()[0] for text in document["limitations"]].count("fanin.SEC") == 1
    assert not any(text.startswith("fanin ") for text in document["limitations"])
    assert 30_000 / 1.05 <= limit["value"] <= 30_000
    assert limit["spread"] is None and limit["value"] * (1 + limit["within"]) > 30_000
    assert 0 < limit["within"] <= 0.05
    assert p99["spread"] is not None and p99["within"] is None


def test_a_search_in_which_nothing_held_has_no_figure() -> None:
    item = ReportItem("fanin", "fanin", "devices", rows=(ReportRow("N", "producers", "limit"),))
    limit = {
        "load": None,
        "above": 500.0,
        "stands": "nothing held",
        "own": True,
        "codes": ("LOST",),
    }
    row = SweepRow("key", {}, {}, {}, 0, None, False, limit=limit)
    (figure,) = _figures(_Shown(Measurement(item, 1), "a", row=row))
    assert (figure.value, figure.within) == (None, None)
    assert figure.verdict == "NOTHING HELD: LOST of the generator"


@pytest.mark.usefixtures("fabricated")
async def test_messages_per_watt_are_a_row_with_power_logs(tmp_path: Path) -> None:
    item = ReportItem("fanin", "fanin", rows=(ReportRow("Rate", "msgs/sec", "egress"),))
    brokers = (ReportBroker("a 1", ("mqtt://a",)),)
    plan = ReportPlan(brokers, (Measurement(item, 1),), (), 1.0, {})
    log = tmp_path / "outlet.csv"
    since_s = WALL_NS // SECOND_NS
    log.write_text("time,watts\n" + "".join(f"{since_s + s},20\n" for s in range(-5, 30)))
    async with Testbed() as testbed:
        result = await play_report(plan, tmp_path / "r", testbed, "digest")
    report = report_document(result, power={1: log_settings([log])})  # type: ignore[dict-item]
    rows = {row["name"]: row for row in report.document["rows"]}
    assert rows["MPW"]["value"] == pytest.approx(rows["Rate"]["value"] / 20)
    assert len(rows["MPW"]["runs"]) == 3


@pytest.mark.parametrize(("verdict", "shown"), rows_of("cli.key_results"))
def test_a_key_result_says_if_it_is_no_limit(verdict: str, shown: str) -> None:
    figures = [
        ReportFigure("FANIN", "Rate", "msgs/sec", broker, value, 0.03, None, (), verdict)
        for broker, value in (("A", 100.0), ("B", 300.0))
    ]
    (sentence,) = key_results(figures)
    assert sentence.startswith(f"FANIN, Rate: {shown}; B ")
    # The ratio of loads that are no limits says nothing, and each mark is explained once.
    marked = verdict not in ("CONFIRMED", "VALID")
    assert ("3 times" in sentence) != marked
    assert len([*footnotes(figures)]) == marked


@needs_mosquitto
def test_a_report_of_a_broker(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    items = tuple(replace(item, fields={}) for item in report_items() if item.name == "connburst")
    monkeypatch.setattr("loadgen.run.search.report_plan.report_items", lambda suite: items)
    out = tmp_path / "report"
    words = ["report", "--broker=mosquitto", "--only=connburst", "--budget=1m", f"--out={out}"]
    assert main([*words, "--json", "--quiet"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["name"] for row in document["rows"]} == {"Connect time", "99P connect latency"}
    assert all(row["value"] > 0 and len(row["runs"]) == 3 for row in document["rows"])

    def made() -> dict[Path, int]:
        paths = out.glob("measured/**/run.json")
        return {path: path.stat().st_mtime_ns for path in paths if "saturated" not in path.parts}

    runs = made()
    assert len(runs) == 3
    # A second start plays nothing again.
    assert main([*words, "--quiet"]) == 0
    assert capsys.readouterr().out.strip() == str(out / "report.html")
    assert made() == runs
    assert main([*words[:-2], "--budget=2m", f"--out={out}"]) == 2
