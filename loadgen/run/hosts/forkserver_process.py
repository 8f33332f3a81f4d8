"""The forkserver, as the process that starts it sees it.

It takes the better part of a second to load its kernels, so a command starts it before anything
else: this module imports little.
"""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import loadgen

WORKER_ENTRY = "loadgen.worker.worker:run_worker"
"""Function that a worker process runs, with its end of the channel as the argument."""

_END_S = 5.0


@dataclass(slots=True)
class Forkserver:
    """A forkserver and the socket to ask it on; workers write their last words to `stderr`."""

    process: "subprocess.Popen[bytes]"
    control: socket.socket
    stderr: IO[bytes]
    ready: bool = False
    """True after it sent `ready`."""


@contextmanager
def forkserver(behaviour: str, entry: str | None = None) -> Iterator[Forkserver]:
    """Run a forkserver with the kernels of a behaviour during the block.

    `entry` names the function that a worker runs, None for WORKER_ENTRY.
    """
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with control, tempfile.TemporaryFile() as stderr:
        with theirs:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "loadgen.run.hosts.forkserver"),
                    *(str(theirs.fileno()), entry or WORKER_ENTRY, behaviour),
                ],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                pass_fds=(theirs.fileno(),),
                env=child_environment(),
                # A terminal's Ctrl-C goes to the foreground process group: stay out of it.
                start_new_session=True,
            )
        control.setblocking(False)
        server = Forkserver(process, control, stderr)
        try:
            yield server
        finally:
            # Its end of file makes the forkserver kill what is left and end; one that still imports
            # would not look.
            control.close()
            if server.ready:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_END_S)
            process.kill()
            process.wait()


def child_environment() -> dict[str, str]:
    """Return this process's environment with the same packages and without extra threads."""
    source = str(Path(loadgen.__file__).resolve().parent.parent)
    paths = dict.fromkeys([source, *(path for path in sys.path if path)])
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(paths),
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
    }
