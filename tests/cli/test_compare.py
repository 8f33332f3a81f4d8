"""Brokers or finished runs side by side."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli import compare
from loadgen.cli.app import case_first
from loadgen.cli.main import main
from loadgen.cli.sweep import played
from loadgen.run.search.sweep import SweepResult
from tests.needs import needs_mosquitto
from tests.report.fabricate import fabricate
from tests.tables import rows_of
from tests.terminal import Captured

SUPPLY = Path(__file__).parents[1] / "data" / "v1" / "specjms"
BROKERS = ("mosquitto", "nats")


@pytest.mark.parametrize(("words", "sorted_words"), rows_of("cli.case_first"))
def test_the_case_moves_to_the_front(words: str, sorted_words: str) -> None:
    assert case_first(words.split()) == sorted_words.split()


@pytest.fixture
def sides(tmp_path: Path) -> list[Path]:
    """Two directories with three runs each, of different brokers."""
    for number, broker in enumerate(BROKERS):
        for run in range(3):
            fabricate(
                tmp_path / broker / f"run-{run}",
                run=f"run-{number}-{run}",
                broker={"name": broker, "version": "1", "urls": [], "started_by_us": True},
            )
    return [tmp_path / broker for broker in BROKERS]


def test_two_directories_are_compared(sides: list[Path], capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert main(["compare", *map(str, sides), "--json", "--quiet", f"--out={out}"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.keys() == {"schema", "sides", "rows", "verdict"}
    assert [len(side["runs"]) for side in document["sides"]] == [3, 3]
    assert document["verdict"] == {"valid": True, "reasons": []}
    rates = [row for row in document["rows"] if row["unit"] == "msgs/sec"]
    assert rates and all(row["differences"] == [{"ratio": 1.0, "certain": False}] for row in rates)
    assert json.loads((out / "comparison.json").read_text()) == document
    assert (out / "scorecard.html").exists()
    assert main(["compare", *map(str, sides)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith("VALID 3 runs  ") for line in (lines[0], lines[1]))
    assert any("equal" in line for line in lines[3:])
    assert main(["compare", *map(str, sides), "--quiet"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_invalid_run_is_status_1(sides: list[Path], capsys: Captured) -> None:
    manifest = sides[0] / "run-0" / "run.json"
    document = json.loads(manifest.read_text())
    document["verdict"] = {"valid": False, "reasons": [{"code": "LOST", "detail": "3 were lost"}]}
    manifest.write_text(json.dumps(document))
    assert main(["compare", *map(str, sides), "--quiet"]) == 1
    assert "INVALID LOST, 1 of 3 runs" in capsys.readouterr().out


@needs_mosquitto
@pytest.mark.usefixtures("stand_in_workers")
def test_brokers_take_turns(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(*grid: Any) -> SweepResult:
        result = played(*grid)
        return replace(result, measured=tuple(replace(one, spoiled=4) for one in result.measured))

    monkeypatch.setattr(compare, "played", spoiled)
    load = ("-n", "1", "fanin", "-d", "10", "-r", "100", "-t", "0.5", "--warmup", "0")
    assert main(["compare", *BROKERS, *load, "--broker-name", "A"]) == 2
    status = main(["compare", *BROKERS, *load, "--json", "--quiet", f"--out={tmp_path / 'out'}"])
    document = json.loads(capsys.readouterr().out)
    assert status == (0 if document["verdict"]["valid"] else 1)
    assert [side["broker"].split()[0] for side in document["sides"]] == list(BROKERS)
    assert (tmp_path / "out" / "side-2" / "run-1" / "run.json").exists()
    assert "8 attempts were" in (tmp_path / "out" / "scorecard.html").read_text()


def test_topologies_are_not_compared(tmp_path: Path, capsys: Captured) -> None:
    for name, topology in (("a", "horizontal"), ("b", "horizontal"), ("c", "vertical")):
        shutil.copytree(SUPPLY, tmp_path / name)
        manifest = tmp_path / name / "run.json"
        document = json.loads(manifest.read_text())
        document["scenario"]["topology"] = topology
        manifest.write_text(json.dumps(document))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c")]) == 2
    assert capsys.readouterr().out == ""
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().out.startswith("SPECjms2007 is a trademark")
