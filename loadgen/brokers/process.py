"""Starts and stops the processes that brokers run in.

`subprocess.Popen` rather than the event loop's own: it needs no child watcher, works the same
under asyncio and uvloop, and takes milliseconds. Start from a thread that lives as long as the
broker shall (the event loop's), because the parent-death signal follows the *thread*.
"""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

_LAUNCH: Final = str(Path(__file__).with_name("launch.py"))
_POLL_S: Final = 0.005


def spawn(
    program: Sequence[str],
    *,
    output: IO[bytes] | int,
    pass_fds: Sequence[int] = (),
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    """Start `program` (absolute path first), bound to the life of this process.

    Its standard output and error go to `output`, its input is empty, and its soft limit of
    descriptors is raised to the hard one.
    """
    return subprocess.Popen(
        [sys.executable, "-I", "-S", _LAUNCH, str(os.getpid()), *program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=tuple(pass_fds),
        cwd=directory,
        env=environment,
        # Ctrl-C goes to the whole foreground group; brokers are stopped by us, in our order.
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """End `process` at once, as a crash would; harmless when it has ended."""
    if process.poll() is None:
        process.send_signal(signal.SIGKILL)
    process.wait()


async def stop(process: subprocess.Popen[bytes], *, patience_s: float = 5.0) -> None:
    """Ask `process` to end, and end it after `patience_s`; also when this is cancelled."""
    try:
        if process.poll() is None:
            process.terminate()
        for _ in range(int(patience_s / _POLL_S)):
            if process.poll() is not None:
                return
            await asyncio.sleep(_POLL_S)
    finally:
        kill(process)
