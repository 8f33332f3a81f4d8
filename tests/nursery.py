"""Programs in Python for tests, forked from a process that has loaded the kernels.

A run starts a forkserver, and often a reflector or agents. Each takes more than a second of
processor time to import this package and to load its kernels, and tests play hundreds of runs.
`python -m tests.nursery FD` loads the kernels once, and forks each program requested on FD. An
agent has its own.
"""

import ctypes
import fcntl
import gc
import importlib
import os
import resource
import runpy
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import orjson

from loadgen.cli import main
from loadgen.plan.groups import MESSAGING
from loadgen.run.hosts import load_host

_FORKSERVER = "loadgen.run.hosts.forkserver"
_MODULES = (_FORKSERVER, "loadgen.brokers.serve_reflector", "loadgen")
_REQUEST_BYTES = 1 << 17
_NEEDS_A_START = ("NUMBA_", "LOADGEN_", "XDG_CACHE_HOME", "PYTHON")
"""Variables that are read while kernels are loaded."""
_PR_SET_PDEATHSIG = 1


class _Process:
    """The part of `Popen` that tests use, for a process that may not be a child."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        # A process that has ended already is as one whose descriptor is always readable.
        self._descriptor = os.eventfd(1)
        with suppress(ProcessLookupError):
            opened = os.pidfd_open(pid)
            os.close(self._descriptor)
            self._descriptor = opened

    def wait(self, timeout: float | None = None) -> int:
        milliseconds = None if timeout is None else timeout * 1000
        ended = select.poll()
        ended.register(self._descriptor, select.POLLIN)
        if not ended.poll(milliseconds):
            raise subprocess.TimeoutExpired("a program of the nursery", timeout or 0)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, os.WNOHANG)
        return 0

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        with suppress(OSError):
            signal.pidfd_send_signal(self._descriptor, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __del__(self) -> None:
        os.close(self._descriptor)


def _words(command: Sequence[str]) -> Sequence[str]:
    """Return the module of a command and its arguments if a nursery has it, else nothing."""
    if command[0] != sys.executable or "-m" not in command:
        return ()
    words = command[command.index("-m") + 1 :]
    return words if words[0] in _MODULES else ()


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environment.items()
        if name.startswith(_NEEDS_A_START) and name != "PYTHONPATH"
    }


def _request(
    words: Sequence[str], environment: Mapping[str, str], inherited: Sequence[int]
) -> dict[str, Any]:
    return {
        "words": words,
        "environment": environment,
        "inherited": inherited,
        "directory": str(Path.cwd()),
        "processors": [*os.sched_getaffinity(0)],
    }


class Nursery:
    """The process that forks programs; it starts with the first request."""

    def __init__(self, requests: socket.socket | None = None) -> None:
        self._requests = requests
        self._started_with = _variables(os.environ)
        self.subprocess = SimpleNamespace(**vars(subprocess) | {"Popen": self._popen})
        """The module `subprocess`, except that programs of this package come from here."""

    def close(self) -> None:
        """End the process, and with it all that it has forked."""
        if self._requests is not None:
            self._requests.close()
            self._process.wait()

    def _popen(
        self,
        command: Sequence[str],
        *,
        stdout: IO[bytes] | int,
        pass_fds: Sequence[int] = (),
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Any:
        environment = dict(os.environ if env is None else env)
        words = _words(command)
        if not words or _variables(environment) != self._started_with:
            return subprocess.Popen(
                command, stdout=stdout, pass_fds=pass_fds, cwd=cwd, env=env, **options
            )
        request = _request(words, environment, pass_fds) | {"directory": str(cwd or Path.cwd())}
        output = stdout if isinstance(stdout, int) else stdout.fileno()
        requests = self._open()
        socket.send_fds(requests, [orjson.dumps(request)], [output, *pass_fds])
        return _Process(int(requests.recv(32)))

    def _open(self) -> socket.socket:
        if self._requests is None:
            self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "tests.nursery", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
        return self._requests


def serve(requests: socket.socket) -> None:
    """Fork a program for each request, until `requests` closes."""
    sys.modules.setdefault("coverage", None)  # type: ignore[arg-type]  # numba would import it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps what has ended
    prepared: set[tuple[str, ...]] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 8)
        if not data:
            return
        request = orjson.loads(data)
        words = request["words"]
        what = (words[0], *words[2:]) if words[0] == _FORKSERVER else (words[0],)
        if what not in prepared:
            with suppress(Exception):  # the program itself shows what fails
                _prepare(words)
            prepared.add(what)
            gc.freeze()
        pid = _fork(request, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())


def _prepare(words: Sequence[str]) -> None:
    """Import what a program imports, and load a forkserver's kernels."""
    importlib.import_module(words[0])
    if words[0] == _FORKSERVER:
        _, _, entry, behaviour = words
        module = importlib.import_module(entry.partition(":")[0])
        if hasattr(module, "warm"):
            module.warm(behaviour)
    elif words[0] == "loadgen":
        importlib.import_module("loadgen.run.hosts.agent")
        _prepare((_FORKSERVER, "", load_host.WORKER_ENTRY, MESSAGING))


def _fork(request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
    """Start a program in a child, and return its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            _become(request, descriptors)
        except SystemExit as ended:
            if isinstance(ended.code, str):
                print(ended.code, file=sys.stderr, flush=True)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def _forking() -> Nursery:
    """Return the nursery of an agent, forked before its loop: uvloop does not survive a fork."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        ours.close()
        serve(theirs)
        os._exit(0)
    theirs.close()
    return Nursery(ours)


def _become(request: Mapping[str, Any], descriptors: Sequence[int]) -> None:
    """Run a program in this process as its own start would."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    targets = (1, *request["inherited"])
    moved = [fcntl.fcntl(one, fcntl.F_DUPFD, max(2, *targets) + 1) for one in descriptors]
    for number in {int(path.name) for path in Path("/proc/self/fd").iterdir()} - {0, 1, 2, *moved}:
        with suppress(OSError):  # that of the listing itself
            os.close(number)
    for source, target in zip(moved, targets, strict=True):
        os.dup2(source, target)
        os.close(source)
    os.dup2(1, 2)
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    os.sched_setaffinity(0, request["processors"])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    sys.argv = ["", *request["words"][1:]]
    module = request["words"][0]
    if module == "loadgen":
        vars(load_host)["subprocess"] = _forking().subprocess
        vars(main)["leave_plain"] = lambda: None
    else:
        del sys.modules[module]
    runpy.run_module(module, run_name="__main__")


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
