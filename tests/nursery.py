"""Forkservers for tests, forked from a process that has loaded the kernels.

A run starts a forkserver, which takes more than a second of processor time to import the worker
and to load its kernels. Tests play hundreds of runs. `python -m tests.nursery FD` loads the kernels
once and forks each forkserver that is requested on FD; all else is as `load_host` does it.
"""

import gc
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import orjson

from loadgen.run.hosts import forkserver as servers
from loadgen.run.hosts import load_host

_ENTRY = load_host.WORKER_ENTRY
_start_afresh = load_host.forkserver
_REQUEST_BYTES = 1 << 17
_NEEDS_A_START = ("NUMBA_", "LOADGEN_", "XDG_CACHE_HOME", "PYTHON")
"""Variables that are read while kernels are loaded."""


class _Process:
    """The part of `Popen` that a run uses, for a process that is not a child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._descriptor = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> None:
        milliseconds = None if timeout is None else timeout * 1000
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if not ended.poll(milliseconds):
            raise subprocess.TimeoutExpired("forkserver", timeout or 0)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._descriptor)


class Nursery:
    """The process that forks forkservers; it starts with the first request."""

    def __init__(self) -> None:
        self._requests: socket.socket | None = None
        self._started_with = self._variables()

    @staticmethod
    def _variables() -> dict[str, str]:
        return {key: os.environ[key] for key in os.environ if key.startswith(_NEEDS_A_START)}

    def close(self) -> None:
        """End the process; forkservers end by themselves."""
        if self._requests is not None:
            self._requests.close()
            self._process.wait()

    @contextmanager
    def forkserver(self, behaviour: str) -> Iterator[load_host.Forkserver]:
        """Run a forkserver as `load_host.forkserver` does."""
        if load_host.WORKER_ENTRY != _ENTRY or self._variables() != self._started_with:
            with _start_afresh(behaviour) as server:
                yield server
            return
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with control, tempfile.TemporaryFile() as stderr:
            with theirs:
                request = {
                    "behaviour": behaviour,
                    "environment": dict(os.environ),
                    "directory": str(Path.cwd()),
                    "processors": [*os.sched_getaffinity(0)],
                }
                requests = self._open()
                descriptors = [theirs.fileno(), stderr.fileno()]
                socket.send_fds(requests, [orjson.dumps(request)], descriptors)
                process = _Process(int(requests.recv(32)))
            control.setblocking(False)
            as_started: Any = process
            try:
                yield load_host.Forkserver(as_started, control, stderr)
            finally:
                control.close()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(load_host._END_S)
                process.kill()
                process.wait()
                process.close()

    def _open(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        return self._requests


def serve(requests: socket.socket) -> None:
    """Fork a forkserver for each request, until `requests` closes."""
    from loadgen.worker.worker import run_worker, warm

    sys.modules.setdefault("coverage", None)  # type: ignore[arg-type]
    warmed: set[str] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 2)
        if not data:
            return
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        request = orjson.loads(data)
        if request["behaviour"] not in warmed:
            warm(request["behaviour"])
            warmed.add(request["behaviour"])
            gc.freeze()
        pid = os.fork()
        if pid == 0:
            requests.close()
            os.setsid()
            control, stderr = descriptors
            os.dup2(stderr, 1)
            os.dup2(stderr, 2)
            os.close(stderr)
            os.environ.clear()
            os.environ.update(request["environment"])
            os.chdir(request["directory"])
            os.sched_setaffinity(0, request["processors"])
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            try:
                servers.serve(socket.socket(fileno=control), run_worker)
            finally:
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
