"""The result of a run in a terminal."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.cli.result_text import Paper, aligned, paper_of, result_lines, two_lines
from loadgen.judge.verdict import Reason, Verdict
from loadgen.report.build.summary import summarize_run
from loadgen.report.score_card import ScoreCard
from tests.report.fabricate import fabricate
from tests.terminal import Terminal


@pytest.fixture
def card(tmp_path: Path) -> ScoreCard:
    return summarize_run(fabricate(tmp_path / "run"))


def test_colour_is_for_terminals_without_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert paper_of(io.StringIO()) == Paper()
    assert paper_of(Terminal()).colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert paper_of(Terminal()).terminal and not paper_of(Terminal()).colour


def test_verdict_and_headline_come_first(card: ScoreCard) -> None:
    verdict, headline = two_lines(card)
    assert verdict.startswith("VALID  fanin · ")
    assert " msg/s " in headline and " lost of " in headline
    assert result_lines(card, Path("r"))[:2] == [verdict, headline]
    wrong = replace(card, verdict=Verdict((Reason("LOST", "3 messages were lost"),)))
    assert two_lines(wrong)[0].startswith("INVALID LOST  fanin · ")
    assert "3 messages were lost" in "\n".join(result_lines(wrong, Path("r")))
    assert two_lines(wrong, Paper(80, terminal=True, colour=True))[0].startswith(
        "\x1b[1;31mINVALID"
    )


@pytest.mark.parametrize(("width", "most"), [(40, 30), (80, 14), (120, 14)])
def test_a_result_has_twelve_lines_that_fit_a_terminal(
    card: ScoreCard, width: int, most: int
) -> None:
    lines = result_lines(card, Path("runs/x"), Paper(width, terminal=True))
    assert len(lines) <= most and max(map(len, lines)) <= width
    assert [line.split()[0] for line in lines if line.split()[0] in ("processor", "files")]
    assert any(line.startswith("latency ") and "█" in line for line in lines)


def test_a_pipe_gets_no_charts_and_unbroken_lines(tmp_path: Path) -> None:
    card = summarize_run(fabricate(tmp_path, observed={"own_delay": {"p99_us": 5_800.0}}))
    lines = result_lines(card, Path("runs/x"))
    assert len(lines) <= 12 and "█" not in "\n".join(lines) and "\x1b" not in "\n".join(lines)
    assert any(" workers · its own delay up to 5.8 ms" in line for line in lines)


def test_all_figures_follow_on_request(card: ScoreCard) -> None:
    brief, long = (result_lines(card, Path("r"), long=wanted) for wanted in (False, True))
    assert long[: len(brief)] == brief
    text = "\n".join(long[len(brief) :])
    assert "p99" in text and "published" in text and "end_to_end" in text
    assert aligned([("test", ""), ("pacing", "")], left=(0, 1)) == ["test", "pacing"]


def test_the_next_command_searches_with_the_same_options(card: ScoreCard) -> None:
    words = ("loadgen", "fanin", "-d", "5", "--rate", "9", "--out=x", "--json", "--broker=nats")
    card = replace(card, run=replace(card.run, command=words))
    assert result_lines(card, Path("r"))[-1].split()[1:] == [
        *("loadgen", "search", "fanin", "-d", "5", "--broker=nats", "--for", "rate")
    ]
