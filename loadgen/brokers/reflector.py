"""A private reflector or sink, whose processes alone load the kernels (serve_reflector.py)."""

import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path
from typing import Final

from loadgen import __version__
from loadgen.brokers.ports import free_ports
from loadgen.brokers.process import Program, ProgramBroker, ProgramSettings, run_program

_Run = Callable[..., AbstractAsyncContextManager[ProgramBroker]]


def _reflector(name: str, settings: ProgramSettings) -> Program:
    more = free_ports(settings.host, settings.instances - 1)

    def configure(_: Path, port: int) -> list[str]:
        module = "loadgen.brokers.serve_reflector"
        return [sys.executable, "-m", module, name, settings.host, *map(str, (port, *more))]

    # Compiling the kernels takes a minute on a slow host.
    return Program(
        name, __version__, configure, b"serving", saves=False, ready_s=300.0, more_ports=more
    )


run_reflector: Final[_Run] = partial(run_program, partial(_reflector, "reflector"))
run_sink: Final[_Run] = partial(run_program, partial(_reflector, "sink"))
