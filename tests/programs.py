"""Python programs that tests run to their end."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python(*words: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python with these words and with `environment` beside that of the tests."""
    return subprocess.run(
        [sys.executable, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        check=False,
    )
