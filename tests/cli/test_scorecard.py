"""`loadgen scorecard`: what it writes, refuses, and the status it ends with.

Cards are made without Spark, which gives the same ones (tests/spark).
"""

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree as Xml

import orjson
import pytest
import typer
from typer.testing import CliRunner

from loadgen.cli.options import command
from loadgen.cli.scorecard import make, parse_bounds
from loadgen.errors import RunDirectoryError, ScenarioError
from loadgen.report.build.compare import Bounds
from loadgen.run.seal import seal
from tests.refusals import refused
from tests.tables import rows_of
from tests.terminal import Captured

PDU = Path(__file__).parents[1] / "report" / "power" / "pdu"
IN_THE_TABLES = 1_366_970_765  # 2013-04-26T10:06:05Z


@pytest.fixture(autouse=True)
def in_a_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def loadgen(*words: str | Path) -> int:
    """Exit status of `loadgen scorecard` with these words; errors are raised."""
    app = typer.Typer()
    app.command()(command("scorecard", make))
    words = ("--spark-master", "none", *words)
    result = CliRunner().invoke(app, [str(word) for word in words], standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    sys.stdout.write(result.stdout)
    sys.stderr.write(result.stderr)
    status = result.return_value
    assert isinstance(status, int)
    return status


def test_a_card_made_twice_is_the_same_and_leaves_the_seal(
    make: ModuleType, tmp_path: Path
) -> None:
    run = make.fabricate(tmp_path / "run", case="latency")
    seal(run)
    loadgen(run)
    first = {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    assert loadgen(run) == 0
    assert first == {path.name: path.read_bytes() for path in run.iterdir() if path.is_file()}
    document = orjson.loads(first["scorecard.json"])
    assert document["digest"]["state"] == "intact"
    assert document["digest"]["results"] in first["scorecard.html"].decode()
    assert document["digest"]["scenario"] in first["scorecard.csv"].decode()


def old_and_worse(make: ModuleType, directory: Path) -> list[Path]:
    """Two runs, the second of which received a tenth less."""
    rows = [
        replace(row, received=row.received * 9 // 10) if row.phase == "measure" else row
        for row in make.rows_of("new")
    ]
    new = make.write_run(directory / "new", make.run_document("new"), rows)
    return [make.fabricate(directory / "old", "old"), new]


def test_worse_than_the_baseline_is_status_1(
    make: ModuleType, tmp_path: Path, capsys: Captured
) -> None:
    old, new = old_and_worse(make, tmp_path)
    before = sorted(path.name for path in new.iterdir())
    assert loadgen(new, "--baseline", old, "--out", tmp_path / "card") == 1
    said = capsys.readouterr()
    assert (
        "FANIN, Received rate VALUE: 90 msgs/sec against 100 of the baseline, -10.0 %, a"
        in said.err
    )
    assert said.out == f"{tmp_path / 'card' / 'scorecard.html'}\n"
    assert sorted(path.name for path in new.iterdir()) == before
    assert loadgen(new, "--baseline", old, "--bound", "10.5%", "--out", tmp_path / "card") == 0
    document = orjson.loads((tmp_path / "card" / "scorecard.json").read_bytes())
    assert [run["run"]["id"] for run in document["runs"]] == ["old", "new"]
    assert document["comparison"][0]["bound"] == 0.105


def test_a_changed_run_is_status_1(make: ModuleType, tmp_path: Path, capsys: Captured) -> None:
    run = make.fabricate(tmp_path / "run")
    seal(run)
    (run / "intervals" / "part-000005.parquet").unlink()
    assert loadgen(run) == 1
    told = f"loadgen: {run} was changed since it ended: intervals/part-000005.parquet is missing\n"
    assert capsys.readouterr().err == told
    assert "CHANGED" in (run / "scorecard.md").read_text()


def test_an_invalid_run_is_status_1_unless_it_is_the_baseline(
    make: ModuleType, tmp_path: Path, capsys: Captured
) -> None:
    verdict = {"valid": False, "reasons": [{"code": "LOST", "detail": "3 messages"}]}
    document = make.run_document("bad") | {"verdict": verdict}
    bad = make.write_run(tmp_path / "bad", document, make.rows_of("bad"))
    good = make.fabricate(tmp_path / "good", "good")
    assert loadgen(bad) == 1
    assert capsys.readouterr().err == f"loadgen: {bad} is INVALID: LOST\n"
    with pytest.raises(RunDirectoryError) as refused:
        loadgen(good, "--baseline", bad)
    assert (refused.value.code, refused.value.exit_status) == ("BASELINE_INVALID", 2)
    other = make.fabricate(tmp_path / "other", "other")
    assert loadgen(good, "--baseline", bad, "--baseline", other) == 0
    assert loadgen(good) == 0


def test_power_with_an_offset(make: ModuleType, tmp_path: Path, capsys: Captured) -> None:
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": IN_THE_TABLES * make.SECOND_NS}
    run = make.fabricate(tmp_path / "run", case="persistent", clock=clock)
    log = f"broker={PDU / 'power_supply_1.log'}"
    words = (run, "--pdu", log, "--pdu-timezone", "UTC", "--pdu-offset=-60s", "--json")
    assert loadgen(*words) == 0
    power = orjson.loads(capsys.readouterr().out)["power"]
    assert (power["watts"], power["nodes"][0]["name"]) == (139.0, "broker")


@pytest.mark.parametrize(("words", "code"), rows_of("cli.scorecard_refused"))
def test_what_cannot_be_used_touches_nothing(
    make: ModuleType, tmp_path: Path, words: list[str], code: str
) -> None:
    run = make.fabricate(tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with refused(code):
        loadgen(run, *words)
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}


def test_a_bound_is_in_percent_by_default_and_by_name() -> None:
    for text in ("5%", "5", " 5 "):
        assert parse_bounds(text) == Bounds(0.05)
    assert parse_bounds("0.5%") == Bounds(0.005)
    bounds = parse_bounds("3%, 99P=50%,FANIN=2%,LATENCY p99=20%")
    assert bounds == Bounds(0.03, {"99p": 0.5, "fanin": 0.02, "latency 99p": 0.2})
    assert bounds.of("LATENCY", "99P") == 0.2
    assert bounds.of("FANOUT", "99P") == 0.5
    assert bounds.of("FANIN, Received rate", "VALUE") == 0.02
    assert bounds.of("FANOUT", "VALUE") == 0.03


@pytest.mark.parametrize(("text", "code"), rows_of("cli.bounds_refused"))
def test_a_bound_that_is_not_clear(text: str, code: str) -> None:
    with refused(code, ScenarioError):
        parse_bounds(text)


def test_a_bound_of_nothing_is_refused(make: ModuleType, tmp_path: Path) -> None:
    runs = [make.fabricate(tmp_path / name, name) for name in ("new", "old")]
    with refused("UNKNOWN_BOUND", ScenarioError, stranger="'fanuot'"):
        loadgen(runs[0], "--baseline", runs[1], "--bound", "FANUOT=3%", "--out", tmp_path / "card")


def test_what_the_baseline_decides_is_told_to_programs(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = old_and_worse(make, tmp_path)
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    places = ("--out", tmp_path / "card", "--junit", tmp_path / "j" / "a.xml")
    words = (new, "--baseline", old, *places)
    titled = ("--github-summary", "--title", "A & B", "--author", "<me>", "--note", "On a *laptop*")
    assert loadgen(*words, *titled) == 1
    suite = Xml.parse(tmp_path / "j" / "a.xml").getroot()[0]
    assert suite.get("name") == "FANIN" and suite.get("failures") == "1"
    failed = {case.get("name"): case[0].get("message") for case in suite if len(case)}
    assert failed == {
        "FANIN, Received rate VALUE": "90 msgs/sec against 100 of the baseline, -10.0 %, a "
        "regression beyond 5 %, too few runs to tell"
    }
    assert len(suite) == int(suite.get("tests", "0")) > 3
    runs = Xml.parse(tmp_path / "j" / "a.xml").getroot()[1]
    assert (runs.get("name"), runs.get("tests"), runs.get("failures")) == ("runs", "2", "0")
    text = summary.read_text()
    assert text.startswith("before\n# A \\& B\n") and "-10.0 %" in text and ", REGRESSION" in text
    assert r"On a \*laptop\*" in text
    page = (tmp_path / "card" / "scorecard.html").read_text()
    assert "<h1>A &amp; B</h1>" in page and "&lt;me&gt;" in page and "On a *laptop*" in page
    said = orjson.loads((tmp_path / "card" / "scorecard.json").read_bytes())["about"]
    assert said == {"title": "A & B", "author": "<me>", "note": "On a *laptop*"}
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    with refused("NO_GITHUB_SUMMARY", ScenarioError):
        loadgen(*words, "--github-summary")
