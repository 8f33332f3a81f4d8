"""A private reflector or sink, whose processes alone load the kernels (serve_reflector.py)."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

from loadgen import __version__
from loadgen.brokers.process import Program, ProgramBroker, ProgramSettings, run_program

_Run = Callable[..., AbstractAsyncContextManager[ProgramBroker]]


def _reflector(name: str, settings: ProgramSettings) -> Program:
    def configure(_: Path, *ports: int) -> list[str]:
        module = "loadgen.brokers.serve_reflector"
        return [sys.executable, "-m", module, name, settings.host, *map(str, ports)]

    # Compiling the kernels takes a minute on a slow host.
    return Program(name, __version__, configure, b"serving", saves=False, ready_s=300.0)


run_reflector: Final[_Run] = partial(run_program, partial(_reflector, "reflector"))
run_sink: Final[_Run] = partial(run_program, partial(_reflector, "sink"))
