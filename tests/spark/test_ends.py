"""The end of a score card in any way: one line, and nothing stays in the temporary directory."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import pytest


def scorecard(temporary: Path, arguments: Sequence[str]) -> "subprocess.Popen[str]":
    temporary.mkdir()
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen", "scorecard", *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ours_in(directory: Path, before: set[str]) -> set[str]:
    """Return the new files of this program, of Spark and of Java."""
    return {path.name for path in directory.iterdir()} - before


@pytest.mark.parametrize(
    ("number", "word", "wait_s"),
    [
        (signal.SIGTERM, "starting Spark", 0.05),
        (signal.SIGINT, "starting Spark", 0.3),
        (signal.SIGTERM, "Spark: ", 0.3),
    ],
)
def test_asked_to_end(
    number: int, word: str, wait_s: float, make: ModuleType, tmp_path: Path
) -> None:
    run = make.fabricate(tmp_path / "run")
    out = tmp_path / "card"
    process = scorecard(tmp_path / "temporary", [str(run), f"--out={out}"])
    assert process.stderr is not None
    while word not in (line := process.stderr.readline()):
        assert line, "ended before it was asked to"
    time.sleep(wait_s)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.splitlines()[-1] == "loadgen: interrupted; nothing was written"
    assert not ours_in(tmp_path / "temporary", set())
    assert not out.exists()


def test_a_master_that_is_not_there(make: ModuleType, tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    master = f"spark://127.0.0.1:{port}"
    process = scorecard(tmp_path / "temporary", [str(run), f"--spark-master={master}", "--quiet"])
    began = time.monotonic()
    out, err = process.communicate(timeout=60)
    assert time.monotonic() - began < 30
    assert (process.returncode, out) == (3, "")
    assert err.startswith(f"loadgen: no Spark master answers at {master}: ")
    assert err.count("\n") == 1
    assert not ours_in(tmp_path / "temporary", set())
