"""Processor time of a command is that of all its processes, those that ended included."""

import subprocess
import sys
import time

import psutil

from bench.peers import cpu_s

BUSY = "import time\nwhile time.process_time() < 0.4: pass"


def test_a_process_that_ended_keeps_its_processor_time() -> None:
    script = f'"{sys.executable}" -c "{BUSY}"; exec sleep 60'
    with subprocess.Popen(["sh", "-c", script]) as process:
        tree, seen = psutil.Process(process.pid), dict[tuple[int, float], float]()
        deadline = time.monotonic() + 60
        while tree.name() != "sleep" and time.monotonic() < deadline:
            cpu_s(tree, seen)
            time.sleep(0.01)
        assert not tree.children()
        assert 0.2 < cpu_s(tree, seen) < 5
        process.kill()
