"""A private reflector, whose process alone loads the kernels (serve_reflector.py)."""

import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from loadgen import __version__
from loadgen.brokers.process import Program, ProgramBroker, ProgramSettings, run_program


def run_reflector(
    settings: ProgramSettings | None = None, *, discards: bool = False
) -> AbstractAsyncContextManager[ProgramBroker]:
    """Run a reflector for the length of the block; it heeds host and port of the settings."""
    name, chosen = "sink" if discards else "reflector", settings or ProgramSettings()

    def configure(_: Path, port: int) -> list[str]:
        module = "loadgen.brokers.serve_reflector"
        return [sys.executable, "-m", module, name, chosen.host, str(port)]

    # Compiling the kernels takes a minute on a slow host.
    program = Program(name, __version__, configure, b"serving", saves=False, ready_s=300.0)
    return run_program(program, chosen)
