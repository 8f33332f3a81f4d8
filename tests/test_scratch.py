"""Directories of killed processes are removed, and no others."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from loadgen.scratch import remove_abandoned, scratch_directory

HOLD = """
import sys
from loadgen.scratch import scratch_directory
with scratch_directory("test") as directory:
    (directory / "secret").write_text("x")
    print(directory, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_a_directory_is_private_and_ends_with_its_block(temporary: Path) -> None:
    with scratch_directory("test") as directory:
        assert directory.parent == temporary
        assert directory.stat().st_mode & 0o777 == 0o700
        remove_abandoned(temporary)
        assert directory.exists()
    assert not list(temporary.iterdir())


def test_the_directory_of_a_killed_process_is_removed_by_the_next(temporary: Path) -> None:
    words = [sys.executable, "-c", HOLD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        directory = Path(os.fsdecode(process.stdout.readline().strip()))
        remove_abandoned(temporary)
        assert (directory / "secret").exists()
        process.kill()
    assert directory.exists()
    with scratch_directory("other"):
        assert not directory.exists()


def test_a_directory_of_another_program_stays(temporary: Path) -> None:
    (temporary / "loadgen-results").mkdir()
    (temporary / "elsewhere").mkdir()
    (temporary / "elsewhere" / ".loadgen-lock").touch()
    (temporary / "loadgen-link").symlink_to("elsewhere")
    remove_abandoned(temporary)
    assert len(list(temporary.iterdir())) == 3
