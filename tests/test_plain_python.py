"""Kernels as plain Python: the pure tests of kernels again, with numba switched off."""

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
KERNELS = (
    *("test_packet_bytes.py", "test_in_flight.py", "test_accounting.py"),
    *("test_pacer.py", "test_payload.py", "test_traffic.py", "test_receiver.py", "test_arrays.py"),
)
"""Tests of single kernels. `python3 bootstrap.py quick` runs all pure tests so."""


def test_the_same_holds_with_numba_switched_off() -> None:
    files = [str(HERE / "kernels" / name) for name in KERNELS]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--pure", *files],
        cwd=HERE.parent,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
