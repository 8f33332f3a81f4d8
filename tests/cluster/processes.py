"""Processes that a test has started, wherever they went: a mark in their environment tells them."""

import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

MARK = "LOADGEN_TEST_MARK"


def new_mark() -> str:
    return uuid.uuid4().hex


def processes(mark: str, holds: Callable[[str], bool] = lambda command: True) -> dict[int, str]:
    """Command lines of the processes with this mark that still run, by process id."""
    found: dict[int, str] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                command = (
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
                if command and holds(command):
                    found[int(entry.name)] = command
    return found
