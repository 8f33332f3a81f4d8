"""Becomes another program that cannot outlive the process that asked for it.

Run as a script with the interpreter's `-I -S`, so it imports nothing of this package:
`launch.py PARENT_PID PROGRAM ARGUMENT...`. The process identifier stays the same over `exec`, and
so does the parent-death signal. Doing this in the child, after exec, keeps the parent free of
`preexec_fn`, which is unsafe where threads run.
"""

import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Bind this process to its parent, raise its descriptor limit, and become the program."""
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
