"""Measures what it takes to compile every kernel from nothing, and to load them again.

    python bench/compile.py

Each in a process of its own, with an empty directory for compiled kernels. Ratios of two
measurements hold only if both were made on one quiet host in one sitting.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from loadgen.cases.registry import BEHAVIOURS
from loadgen.worker.warm import warm


def measure() -> dict[str, float]:
    """Compile or load what workers of every behaviour need, in this process."""
    start_s, start_cpu_s = time.perf_counter(), _processor_s()
    for behaviour in BEHAVIOURS:
        warm(behaviour)
    return {"wall_s": time.perf_counter() - start_s, "cpu_s": _processor_s() - start_cpu_s}


def _processor_s() -> float:
    """Return the processor time of this process and of the children that it waited for."""
    return sum(os.times()[:4])


def in_a_process(cache: Path) -> dict[str, Any]:
    output = subprocess.check_output(
        [sys.executable, __file__, "--here"],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
    )
    found: dict[str, Any] = json.loads(output)
    return found


def main() -> None:
    if "--here" in sys.argv:
        print(json.dumps(measure()))
        return
    with tempfile.TemporaryDirectory() as directory:
        cold, again = in_a_process(Path(directory)), in_a_process(Path(directory))
        files = [path for path in Path(directory).glob("*/*-*") if path.suffix != ".lock"]
        mib = sum(path.stat().st_size for path in files) / (1 << 20)
    print(f"compile {cold['wall_s']:8.2f} s ({cold['cpu_s']:.1f} s of processor time)")
    print(f"        {len(files)} files, {mib:.1f} MiB")
    print(f"load    {again['wall_s']:8.2f} s ({again['cpu_s']:.2f} s of processor time)")


if __name__ == "__main__":
    main()
