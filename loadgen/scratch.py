"""Temporary directories that do not stay after `kill -9`.

A process locks a file in each of its directories. The kernel releases the lock when the process
ends in any way, so that the next one can find and remove an abandoned directory.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PREFIX = "loadgen-"
_LOCK = ".loadgen-lock"
"""File that marks a directory as one of this module; no other is ever removed."""


@contextmanager
def scratch_directory(purpose: str) -> Iterator[Path]:
    """Make a directory with mode 0700, and remove it at the end of the block."""
    remove_abandoned(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(
        prefix=f"{_PREFIX}{purpose}-", ignore_cleanup_errors=True
    ) as name:
        unlocked = Path(name, f"{_LOCK}.new")
        with unlocked.open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            # The file must not be there before it is locked.
            unlocked.rename(Path(name, _LOCK))
            yield Path(name)


def memory_directory() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary directory in memory if possible, so that nothing in it waits for a disk."""
    memory = "/dev/shm"
    return tempfile.TemporaryDirectory(
        prefix=_PREFIX, dir=memory if os.access(memory, os.W_OK) else None
    )


def remove_abandoned(parent: Path) -> None:
    """Remove the directories of this user's processes that have ended."""
    for directory in parent.glob(f"{_PREFIX}*"):
        # Another process may do the same at this moment.
        with suppress(OSError):
            if directory.is_symlink() or directory.stat().st_uid != os.getuid():
                continue
            with (directory / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(directory)
