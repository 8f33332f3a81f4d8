"""`loadgen specjms --repeat`: two runs, one result."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.cli.main import main
from loadgen.errors import BrokerUnreachableError
from loadgen.run.coordinator import RunResult
from loadgen.run.testbed import Testbed
from tests.needs import needs_mosquitto
from tests.terminal import Captured

QUICK = (
    *("specjms", "horizontal", "--repeat", "--broker=mosquitto", "--base=5", "--handlers=1"),
    *("--warmup=0.1", "--duration=0.5", "--drain=0.3"),
)


_RUN = Testbed.run
_PLAYED: list[RunResult] = []
"""A run and its repetition, played once for all tests here."""


class Runs:
    """Plays with workers that need no compiled kernels; `fails_at` is the run that cannot be."""

    def __init__(self, kept: Path) -> None:
        self.kept = kept
        self.played: list[Path] = []
        self.fails_at = 0

    async def run(self, scenario: Any, directory: Path, **named: Any) -> RunResult:
        place = len(self.played)
        self.played.append(directory)
        if len(self.played) == self.fails_at:
            raise BrokerUnreachableError("nothing listens there any more")
        if place == len(_PLAYED):
            async with Testbed(lends=False) as testbed:
                played = await _RUN(testbed, scenario, self.kept / f"{place}", **named)
            _PLAYED.append(played)
        shutil.copytree(_PLAYED[place].directory, directory, dirs_exist_ok=True)
        return replace(_PLAYED[place], directory=directory)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("played")


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch, stand_in_workers: None, kept: Path) -> Runs:
    fake = Runs(kept)
    monkeypatch.setattr(Testbed, "run", fake.run)
    return fake


@needs_mosquitto
def test_both_score_cards_are_one_json_document(
    runs: Runs, tmp_path: Path, capsys: Captured
) -> None:
    main([*QUICK, "--json", f"--out={tmp_path / 'r'}"])
    out, err = capsys.readouterr()
    cards = json.loads(out)
    assert runs.played == [tmp_path / "r", tmp_path / "r-repeat"]
    assert [card["run"]["id"] for card in cards] == [
        json.loads((path / "run.json").read_bytes())["id"] for path in runs.played
    ]
    assert "Reproducibility (run rules, section 3.4)" in err


@needs_mosquitto
def test_how_the_two_compare_is_told_after_both(
    runs: Runs, tmp_path: Path, capsys: Captured
) -> None:
    main([*QUICK, "--quiet", f"--out={tmp_path / 'r'}"])
    out, err = capsys.readouterr()
    assert err == ""
    *_, last = out.split("\n\n")
    told = " ".join(last.split())
    assert told.startswith("Reproducibility (run rules, section 3.4): main run and repetition sent")
    assert "messages/s (" in told
    assert "they are " in told
    assert "equal or better" in told
    assert all(len(line) <= 100 for line in last.splitlines())


@pytest.mark.parametrize("taken", ["r", "r-repeat"])
def test_both_directories_are_checked_before_anything_is_played(
    runs: Runs, tmp_path: Path, capsys: Captured, taken: str
) -> None:
    (tmp_path / taken).mkdir()
    (tmp_path / taken / "x").touch()
    assert main([*QUICK, f"--out={tmp_path / 'r'}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert f"{taken} is not empty" in err
    assert not runs.played


@needs_mosquitto
def test_a_repetition_that_cannot_be_played_withholds_nothing(
    runs: Runs, tmp_path: Path, capsys: Captured
) -> None:
    runs.fails_at = 2
    assert main([*QUICK, "--json", "--quiet", f"--out={tmp_path / 'r'}"]) == 3
    out, err = capsys.readouterr()
    assert len(json.loads(out)) == 1
    assert "nothing listens there any more" in err
