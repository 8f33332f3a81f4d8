"""Kernels as plain Python: the tests of single kernels once more with numba switched off.

Those of whole worlds are too slow for that; `specjms/test_kernels.py` compares a digest.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
QUICK = " and ".join(
    f"not {one}"
    for one in (
        "average",
        "exactly",
        "invented",
        "large_body",
        "instruction",
        "anywhere",
        "taken_back",
    )
)
"""What takes seconds in Python is left to compiled kernels."""


@pytest.mark.parametrize(
    "files",
    [
        ("kernels/test_packet_bytes.py", "kernels/test_in_flight.py"),
        (
            *("kernels/test_accounting.py", "kernels/test_pacer.py", "kernels/test_payload.py"),
            "kernels/test_traffic.py",
        ),
    ],
    ids=["packets", "messages"],
)
def test_the_same_holds_with_numba_switched_off(files: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-k", QUICK]
    done = subprocess.run(
        [*command, *(str(HERE / file) for file in files)],
        cwd=HERE.parent,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
