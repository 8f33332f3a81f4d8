import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.brokers import child, process
from loadgen.brokers.child import ChildBroker
from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import CannotRunError

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


def _child(module: str, **config: Any) -> contextlib.AbstractAsyncContextManager[ChildBroker]:
    endpoint = Endpoint("mqtt", "127.0.0.1", 0)
    return process.running(
        ChildBroker("thing", "1", f"loadgen.brokers.{module}", endpoint, **config)
    )


async def test_a_child_that_fails_says_why() -> None:
    with pytest.raises(CannotRunError, match="No module named"):
        await _child("no_such_module").__aenter__()


async def test_a_child_reports_its_own_error() -> None:
    with pytest.raises(CannotRunError, match="cannot listen"):
        await _child("sink", host="no such host").__aenter__()


async def test_nothing_is_left_open() -> None:
    before = _descriptors()
    children = set(psutil.Process().children())
    for _ in range(2):
        with contextlib.suppress(CannotRunError):
            await _child("no_such_module").__aenter__()
    assert set(psutil.Process().children()) == children
    assert _descriptors() == before


async def test_a_child_that_hangs_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "ANSWER_TIMEOUT_S", 0.1)
    async with asyncio.timeout(60), _child("sink") as sink:
        os.kill(sink.pid, signal.SIGSTOP)
        with pytest.raises(CannotRunError, match="did not answer and was killed"):
            await sink.ask()
        with pytest.raises(CannotRunError, match="ended unexpectedly"):
            await sink.ask()
