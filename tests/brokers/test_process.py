import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from loadgen.brokers import process
from loadgen.brokers.process import ProgramSettings
from loadgen.brokers.reflector import run_reflector
from tests.refusals import refused

_SLEEP = [sys.executable, "-c", "import time; time.sleep(3600)"]
_DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print('ready', flush=True); time.sleep(3600)",
]


def _alive(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_stop_ends_it() -> None:
    running = process.spawn(_SLEEP, output=subprocess.DEVNULL)
    assert _alive(running.pid)
    await process.stop(running)
    assert not _alive(running.pid)
    # Again does no harm.
    await process.stop(running)
    process.kill(running)


async def test_stop_ends_also_who_does_not_listen(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as output:
        running = process.spawn(_DEAF, output=output)
    while not (tmp_path / "out").read_bytes():
        await asyncio.sleep(0.01)
    await process.stop(running, patience_s=0.1)
    assert running.returncode == -signal.SIGKILL


def test_descriptors_and_group() -> None:
    report = (
        "import os, resource; "
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE), os.getpid(), os.getpgid(0))"
    )
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb") as output:
        process.spawn([sys.executable, "-c", report], output=output).wait()
    with os.fdopen(read_end) as source:
        soft, hard, pid, group = source.read().split()
    assert soft == hard
    assert pid == group


@pytest.mark.parametrize("kind", ["mosquitto", "reflector", "sink", "nats"])
def test_dies_with_its_parent(kind: str, tmp_path: Path) -> None:
    """A parent that is killed cannot clean up, so the kernel must."""
    if kind == "mosquitto":
        from loadgen.brokers.mosquitto import find_mosquitto

        if find_mosquitto() is None:
            pytest.skip("mosquitto is not installed")
    script = (
        "import asyncio\n"
        "from loadgen.brokers.start import serve\n"
        "async def main():\n"
        f"    async with serve({kind!r}) as served:\n"
        "        print(served.pids[0], flush=True)\n"
        "        await asyncio.sleep(3600)\n"
        "asyncio.run(main())\n"
    )
    root = str(Path(__file__).parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        # Nobody is left to remove the directory of a broker.
        env={**os.environ, "PYTHONPATH": root, "TMPDIR": str(tmp_path)},
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            assert _alive(pid)
        finally:
            parent.kill()
    for _ in range(3000):
        if not _alive(pid):
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    pytest.fail(f"{kind} outlived its parent")


async def test_a_program_that_fails_leaves_nothing_open() -> None:
    seen = []
    for _ in range(3):  # the first one may start the process that forks the others
        with refused("ENDED_AT_START"):
            await run_reflector(ProgramSettings("no such host", 1)).__aenter__()
        seen.append((set(psutil.Process().children()), _descriptors()))
    assert seen[2] == seen[1] == seen[0]
