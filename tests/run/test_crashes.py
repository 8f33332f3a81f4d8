"""A user's own command that kills a broker."""

import os
from pathlib import Path

import psutil
import pytest

from loadgen.run import crashes
from loadgen.run.crashes import run_crash_command
from loadgen.run.rundir import EventLog
from tests.refusals import refused


async def said_by(directory: Path, command: str) -> str:
    """The events of a command that does not fail."""
    events = EventLog(directory, ())
    try:
        await run_crash_command(command, events)
    finally:
        events.close(0)
    return (directory / "events.jsonl").read_text()


async def test_its_last_words_are_kept_short_and_harmless(tmp_path: Path) -> None:
    said = await said_by(tmp_path, r"printf 'first\n\033[2J%0999d' 1")
    assert r"the command has ended: \\x1b[2J000" in said and "first" not in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    ("command", "ended"),
    [
        ("echo why >&2; exit 7", "with status 7"),
        ("kill -TERM $$", "by signal 15"),
        ("no-such-program-here", "with status 127"),
    ],
)
async def test_its_failure_is_one_line(tmp_path: Path, command: str, ended: str) -> None:
    with refused("CRASH_FAILED") as error:
        await said_by(tmp_path, command)
    assert error.value.values["ended"] == ended and "\n" not in str(error.value)


async def test_it_may_leave_a_broker_behind_and_may_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await said_by(tmp_path, f"sleep 60 & echo $! > {tmp_path}/left")
    left = int((tmp_path / "left").read_text())
    os.kill(left, 0)
    os.kill(left, 9)
    monkeypatch.setattr(crashes, "COMMAND_LIMIT_S", 0.3)
    with refused("CRASH_SLOW"):
        await said_by(tmp_path, f"echo $$ > {tmp_path}/hung; sleep 60")
    hung = int((tmp_path / "hung").read_text())
    assert not psutil.pid_exists(hung)
