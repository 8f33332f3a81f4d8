"""What it takes to compile every kernel from nothing, and to load them again.

    python bench/compile.py               total, and the ten kernels that take longest
    python bench/compile.py --show 0      total alone

Each in a process of its own, with an empty directory for compiled kernels. A kernel's time is its
own, without that of the kernels it calls; a kernel with several argument types counts once for
each. Ratios of two measurements hold only if both were made on one quiet host in one sitting.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from numba.core import event

from loadgen.worker.warm import BEHAVIOURS, warm


class OwnTimes(event.Listener):
    """Listens to numba: seconds and compilations of each kernel, without those of its callees."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.count: defaultdict[str, int] = defaultdict(int)
        self._running: list[tuple[str, float, list[float]]] = []

    def on_start(self, event: Any) -> None:
        function = event.data["dispatcher"].py_func
        name = f"{function.__module__}.{function.__qualname__}"
        self._running.append((name, time.perf_counter(), []))

    def on_end(self, event: Any) -> None:
        name, start_s, callees = self._running.pop()
        took_s = time.perf_counter() - start_s
        self.seconds[name] += took_s - sum(callees)
        self.count[name] += 1
        if self._running:
            self._running[-1][2].append(took_s)


def measure() -> dict[str, Any]:
    """Compile or load what workers of every behaviour need, in this process.

    On one processor: on several, other processes would compile.
    """
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    own = OwnTimes()
    register: Any = event.register
    register("numba:compile", own)
    start_s, start_cpu_s = time.perf_counter(), time.process_time()
    for behaviour in BEHAVIOURS:
        warm(behaviour)
    return {
        "wall_s": time.perf_counter() - start_s,
        "cpu_s": time.process_time() - start_cpu_s,
        "kernels": {name: [own.count[name], own_s] for name, own_s in own.seconds.items()},
    }


def in_a_process(cache: Path) -> dict[str, Any]:
    output = subprocess.check_output(
        [sys.executable, __file__, "--here"],
        env=os.environ | {"NUMBA_CACHE_DIR": str(cache)},
    )
    found: dict[str, Any] = json.loads(output)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--show", type=int, default=10, help="kernels to list, slowest first")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure()))
        return
    with tempfile.TemporaryDirectory() as directory:
        cold, again = in_a_process(Path(directory)), in_a_process(Path(directory))
        mib = sum(path.stat().st_size for path in Path(directory).rglob("*.*")) / (1 << 20)
    kernels: dict[str, tuple[int, float]] = cold["kernels"]
    count = sum(times for times, _ in kernels.values())
    print(f"compile {cold['wall_s']:8.2f} s ({cold['cpu_s']:.1f} s of processor time)")
    print(f"        {len(kernels)} kernels, {count} compilations, {mib:.1f} MiB")
    print(f"load    {again['wall_s']:8.2f} s ({len(again['kernels'])} compiled again)")
    for name in sorted(kernels, key=lambda name: -kernels[name][1])[: given.show]:
        times, own_s = kernels[name]
        print(f"{own_s:16.2f} s {times:4} x  {name}")


if __name__ == "__main__":
    main()
