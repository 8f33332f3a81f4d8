"""The process that worker processes are forked from.

`python -m loadgen.run.hosts.forkserver FD MODULE:FUNCTION BEHAVIOUR` imports the worker and loads
the kernels of its behaviour once. It then forks one child for each request on FD: all workers share
the kernels, and the coordinator, which has an event loop and perhaps threads, never forks.

Messages on FD (a SOCK_SEQPACKET pair) are JSON objects:

    to the forkserver    {"start": n, "row": row}  with the end of worker n of its channel attached
                         {"kill": [n, ...]}        workers that are left
    from the forkserver  {"ready": pid}           imported and warm
                         {"compiled": n, "of": n}  kernels, where they were not there yet
                         {"started": n, "pid": pid}
                         {"exited": n, "pid": pid, "status": int}   as waitstatus_to_exitcode
                         {"failed": text}          the import failed; the forkserver ends

When FD closes, the children that are left are killed and the forkserver ends.
"""

import ctypes
import gc
import importlib
import os
import resource
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress

import orjson

MESSAGE_LIMIT_BYTES = 8192
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
Worker = Callable[[socket.socket], None]


def _child(worker: Worker, row: int, channel: socket.socket) -> None:
    status = 1
    try:
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        prctl(_PR_SET_NAME, f"loadgen-{row}".encode(), 0, 0, 0)
        worker(channel)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def serve(control: socket.socket, worker: Worker) -> None:
    """Fork on request, and report ended processes, until `control` closes."""
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    numbers: dict[int, int] = {}  # of the workers, by process id
    selector = selectors.DefaultSelector()
    selector.register(control, selectors.EVENT_READ)
    selector.register(wake_read, selectors.EVENT_READ)

    def report(**message: int) -> None:
        control.send(orjson.dumps(message))

    try:
        report(ready=os.getpid())
        while True:
            for key, _ in selector.select():
                if key.fileobj is control:
                    data, descriptors, _, _ = socket.recv_fds(control, MESSAGE_LIMIT_BYTES, 1)
                    if not data:
                        return
                    request = orjson.loads(data)
                    if "kill" in request:
                        for pid in [pid for pid, n in numbers.items() if n in request["kill"]]:
                            os.kill(pid, signal.SIGKILL)
                        continue
                    pid = os.fork()
                    if pid == 0:
                        signal.set_wakeup_fd(-1)
                        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                        control.close()
                        selector.close()
                        os.close(wake_read)
                        os.close(wake_write)
                        _child(worker, request["row"], socket.socket(fileno=descriptors[0]))
                    os.close(descriptors[0])
                    numbers[pid] = request["start"]
                    report(started=numbers[pid], pid=pid)
                else:
                    with suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                    while numbers:
                        pid, status = os.waitpid(-1, os.WNOHANG)
                        if pid == 0:
                            break
                        code = os.waitstatus_to_exitcode(status)
                        report(exited=numbers.pop(pid), pid=pid, status=code)
    except (BrokenPipeError, ConnectionResetError):
        return
    finally:
        for pid in numbers:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in numbers:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def main(arguments: list[str]) -> int:
    """Serve: the arguments are the control socket, the worker's MODULE:FUNCTION and behaviour."""
    control = socket.socket(fileno=int(arguments[0]))
    # Ctrl-C is for the coordinator, which then stops the workers in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

    def report(count: int, total: int) -> None:
        control.send(orjson.dumps({"compiled": count, "of": total}))

    sys.modules.setdefault("coverage", None)  # type: ignore[arg-type]  # numba would import it
    gc.disable()  # little of what is loaded is garbage: to look for it takes a quarter of the time
    try:
        module_name, _, function_name = arguments[1].partition(":")
        module = importlib.import_module(module_name)
        worker: Worker = getattr(module, function_name)
        if hasattr(module, "warm"):
            module.warm(arguments[2], report)
    except Exception as error:
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}"[:1000]
        control.send(orjson.dumps({"failed": text.encode("ascii", "backslashreplace").decode()}))
        return 1
    # All that exists now stays: keep the collector from touching shared pages.
    gc.freeze()
    gc.enable()
    serve(control, worker)
    return 0


if __name__ == "__main__":
    # The coordinator waits for this end; an orderly one would forget every kernel first.
    os._exit(main(sys.argv[1:]))
