import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.cli.main import main
from loadgen.cli.search_view import bracket_line, progress_of, rate_step_lines, step_line
from loadgen.judge.next_step import Limit, Probe, Tried, aim_for, requirements
from loadgen.judge.verdict import Reason, judge_rate_step
from loadgen.plan.rate_steps import RateStep
from loadgen.run.progress import Snapshot
from loadgen.run.search.search import Search, SearchState, SearchStep
from loadgen.run.search.sweep import SweepPoint, SweepState
from loadgen.specjms.chain_model import NOTICE
from tests.ledgers import facts_with
from tests.needs import needs_mosquitto
from tests.terminal import Captured, Terminal

HOSTILE = "[red]x[/red]"
FANIN = build_scenario("fanin", None, {})
SEARCH = Search(FANIN, aim_for(FANIN, "rate"), requirements(FANIN, []))
HELD = SearchStep(1, Tried(500, "first", True), "steps/01-500", 4.0, 500.0, 500.0, 0, 1_500.0, 0.2)
WHY = (Reason("LOST", f"9 of 10 {HOSTILE}"),)
FAILED = SearchStep(2, Tried(1250, "raise", False, WHY), None, 4.0, 1250.0, 900.0, 5, 2e6, 0.3)
STATE = SearchState(SEARCH, (HELD, FAILED), Probe(875.5, "close in"))


def test_lines_of_a_search() -> None:
    assert bracket_line(STATE) == (
        "fanin rate: 500 held, 1,250 failed; step 3 of at most 20: 875.5 (close in)"
    )
    assert step_line(HELD) == " 1 held   500 (first), out 500/s, in 500/s, p99 1.5 ms"
    assert step_line(FAILED).endswith(f"p99 2 s; LOST: 9 of 10 {HOSTILE}")
    assert "none held yet, none failed yet" in bracket_line(SearchState(SEARCH, (), None))


def test_each_step_is_a_line_on_stderr(capsys: Captured) -> None:
    state = SweepState(SweepPoint({"size": "32"}, FANIN, SEARCH, ""), 1, 3, 1)
    with progress_of(notice="Not reviewed.") as show:
        show(state)
        for searching in (
            SearchState(SEARCH, (), Probe(500, "first")),
            SearchState(SEARCH, (), Probe(500, "first"), Snapshot("measure", devices=5)),
            SearchState(SEARCH, (HELD,), Probe(1250, "raise")),
            SearchState(SEARCH, (HELD, FAILED), None, limit=Limit(500, 1250, True, "confirmed")),
        ):
            show(replace(state, searching=searching))
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Not reviewed." and len(lines) == 6
    assert lines[2].startswith("1 of 3: size=32: fanin rate: none held yet")
    assert (lines[3], lines[5]) == (step_line(HELD), step_line(FAILED))


def test_terminal_shows_steps_and_the_run_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", stream := Terminal())
    with progress_of() as show:
        show(STATE)
        running = Snapshot("measure", devices=5, connected=4)
        show(SearchState(SEARCH, (HELD, FAILED), STATE.probe, running))
    shown = stream.getvalue()
    assert "500 held, 1,250 failed" in shown
    assert "4/5 connected" in shown
    # A broker's text is no markup.
    assert f"LOST: 9 of 10 {HOSTILE}" in shown


def test_quiet_shows_nothing(capsys: Captured) -> None:
    with progress_of(quiet=True, notice="Not reviewed.") as show:
        show(STATE)
    assert capsys.readouterr().err == ""


def test_rate_steps_of_a_run_are_a_line_each() -> None:
    facts = facts_with(window_s=10, target_rate=100, publishers=1, sent=900)
    steps = [judge_rate_step(RateStep(0.5, 10, 0), facts, 100)]
    (line,) = rate_step_lines(steps)
    assert line.startswith("step 1: 50% 100/s  INVALID, sent 90/s, unsent 100; RATE_MISSED: 900 of")
    assert rate_step_lines(()) == []


QUICK = ("--broker=reflector", "--devices=20", "--warmup=0.1", "--duration=0.5", "--drain=0.3")


@pytest.mark.usefixtures("stand_in_workers")
def test_search_prints_the_limit_and_a_second_start_knows_it(
    capsys: Captured, tmp_path: Path
) -> None:
    out = tmp_path / "s"
    words = ["search", "fanin", "--for=rate", "--from=1k", "--to=1500", *QUICK, f"--out={out}"]
    assert main(words) == 0
    shown, told = capsys.readouterr()
    verdict, headline, *steps = shown.splitlines()
    assert (
        verdict.startswith("VALID  search fanin · ") and "highest rate: at least 1,500" in verdict
    )
    assert " lost of " in headline
    tried = [json.loads(line)["tried"] for line in (out / "steps.jsonl").read_text().splitlines()]
    assert "\n".join(steps).count(" held ") == sum(one["valid"] for one in tried) >= 3
    assert ": 1,500 (raise)" in told
    assert main([*words, "--json", "--quiet"]) == 0
    shown, told = capsys.readouterr()
    document = json.loads(shown)
    assert (document["limit"]["load"], document["limit"]["confirmed"]) == (1500, True)
    assert told == ""
    assert (out / document["limit"]["run"] / "scorecard.html").exists()
    assert main([*words, "--precision=2%"]) == 2
    assert "another search" in capsys.readouterr().err


@pytest.mark.usefixtures("stand_in_workers")
def test_sweep_prints_a_table_and_leaves_its_renderings(capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "s"
    words = ["sweep", "fanin", "--set", "rate=500,1k", *QUICK, f"--out={out}"]
    assert main([*words, "--quiet"]) == 0
    first, told = capsys.readouterr()
    assert told == ""
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert first.splitlines() == lines[:2]
    assert lines[0].startswith("VALID 2 rows  sweep fanin by rate · ")
    assert " msg/s in · " in lines[1] and " · p99 " in lines[1]
    assert lines[3].split()[:2] == ["rate", "verdict"]
    assert [line.split()[:2] for line in lines[4:6]] == [["500", "VALID"], ["1k", "VALID"]]
    assert {path.name for path in out.glob("table.*")} == {
        "table.json",
        "table.csv",
        "table.md",
        "table.html",
    }
    assert main([*words, "--json"]) == 0
    shown, told = capsys.readouterr()
    assert len(json.loads(shown)["rows"]) == 2
    assert told.startswith("VALID 2 rows") and "table.html" in told


SUPPLY_QUICK = (
    *("--broker=mosquitto", "--handlers=1", "--warmup=0.1", "--duration=0.5", "--drain=0.3"),
)


def one_line(text: str) -> str:
    return " ".join(text.split())


@needs_mosquitto
@pytest.mark.usefixtures("stand_in_workers")
def test_a_search_of_the_supply_chain_tells_its_notice_before_every_figure(
    capsys: Captured, tmp_path: Path
) -> None:
    words = ["search", "specjms", "--for=base", "--from=5", "--most-steps=3", *SUPPLY_QUICK]
    main([*words, f"--out={tmp_path / 's'}"])
    shown, told = capsys.readouterr()
    for text in (shown, told):
        assert one_line(text).startswith(NOTICE)
        assert one_line(text).count(NOTICE) == 1
    main([*words, f"--out={tmp_path / 's'}", "--json", "--quiet"])
    shown, told = capsys.readouterr()
    document = json.loads(shown)
    assert (next(iter(document)), document["notice"], told) == ("notice", NOTICE, "")
    assert document["limit"] is not None


@pytest.mark.usefixtures("stand_in_workers")
@pytest.mark.parametrize(
    "searching", [(), ("--search", "--for=base", "--from=5", "--most-steps=3")]
)
def test_a_sweep_of_the_supply_chain_tells_its_notice_before_every_figure(
    capsys: Captured, tmp_path: Path, searching: tuple[str, ...]
) -> None:
    words = ["sweep", "specjms", "--set", "drivers=1,2", *searching, *SUPPLY_QUICK]
    main([*words, f"--out={tmp_path / 's'}"])
    shown, told = capsys.readouterr()
    for text in (shown, told):
        assert one_line(text).startswith(NOTICE)
        assert one_line(text).count(NOTICE) == 1
    assert any(line.split()[:1] == ["drivers"] for line in shown.splitlines())


def test_a_search_that_is_refused_is_told_in_one_line(capsys: Captured, tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    assert main(["search", "specjms", "--for=base", *SUPPLY_QUICK, f"--out={tmp_path}"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
