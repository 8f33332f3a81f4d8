"""Becomes another program that cannot outlive the process that requested it.

Run by the interpreter with `-I -S` as `launch.py PARENT_PID PROGRAM ARGUMENT...`; the process
identifier stays the same. Unlike `preexec_fn`, it is safe in a process with threads.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, program = int(arguments[0]), arguments[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        # The parent died before the signal was armed.
        raise SystemExit(1)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    os.execv(program[0], program)


if __name__ == "__main__":
    main(sys.argv[1:])
