import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import psutil
import pytest

from loadgen.errors import BrokerRefusedError, CannotRunError
from loadgen.plan.groups import MESSAGING
from loadgen.run.hosts.load_host import forkserver
from loadgen.run.hosts.worker_pool import WorkerLostError, start_workers
from tests.refusals import refused

ROOT = str(Path(__file__).parents[3])


ENTRY = "tests.run.echo_worker:run_worker"


def ignored(_row: int, _header: object, _block: bytes) -> None:
    """Drop a frame."""


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def descriptors() -> set[str]:
    found = set()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # that of the listing itself
            found.add(str(link.readlink()))
    return found


async def test_fifty_workers_start_step_and_stop() -> None:
    before = descriptors()
    async with start_workers(50, ignored, entry=ENTRY) as pool:
        pids = pool.pids
        assert len(set(pids)) == 50
        answers = await pool.ask_all("echo", text="hello")
        assert [answer["pid"] for answer in answers] == list(pids)
        assert {answer["text"] for answer in answers} == {"hello"}
        finals = await pool.ask_left("stop", timeout_s=20)
        assert sorted(finals) == list(range(50))
        assert pool.losses == []
    assert not any(running(pid) for pid in pids)
    assert descriptors() <= before


async def test_an_answer_that_waits_to_be_read_is_heard_before_a_beat_fails() -> None:
    async with start_workers(3, ignored, entry=ENTRY) as pool:
        stopping = asyncio.ensure_future(pool.ask_left("stop", timeout_s=20))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        # The coordinator is busy with something else while the workers answer, and beats first.
        time.sleep(0.5)  # noqa: ASYNC251
        pool.beat()
        assert sorted(await stopping) == [0, 1, 2]
        await asyncio.sleep(0.5)
        assert pool.losses == []


async def test_no_more_than_asked_have_a_command_at_once() -> None:
    async with start_workers(5, ignored, entry=ENTRY) as pool:
        under_way = most = 0
        order: list[int] = []
        ask = pool.ask

        async def watched(worker: int, op: str, /, **fields: object) -> dict[str, object]:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            order.append(worker)
            try:
                return await ask(worker, op, **fields)
            finally:
                under_way -= 1

        pool.ask = watched  # type: ignore[method-assign]
        each = [{"text": str(row)} for row in range(5)]
        answers = await pool.ask_all("echo", each=each, at_once=2)
        assert [answer["text"] for answer in answers] == ["0", "1", "2", "3", "4"]
        assert (most, order) == (2, [0, 1, 2, 3, 4])
        await pool.ask_all("echo", text="all")
        assert most == 5


async def test_killed_worker_is_noticed_at_once_and_fails_what_waits() -> None:
    async with start_workers(2, ignored, entry=ENTRY) as pool:
        pending = asyncio.ensure_future(pool.ask(1, "never"))
        await asyncio.sleep(0)
        os.kill(pool.pids[1], signal.SIGKILL)
        with refused("WORKER_LOST", WorkerLostError, worker=1):
            await pending
        assert pool.lost.is_set()
        assert [loss.worker for loss in pool.losses] == [1]
        assert pool.alive == (0,)
        assert (await pool.ask(0, "echo", text="on"))["text"] == "on"
        with pytest.raises(WorkerLostError):
            await pool.ask(1, "echo")


async def test_worker_that_returns_uninvited_is_lost() -> None:
    async with start_workers(1, ignored, entry=ENTRY) as pool:
        with refused("WORKER_LOST", WorkerLostError, worker=0):
            await pool.ask(0, "leave")
        assert "status 0" in pool.losses[0].detail or "closed" in pool.losses[0].detail


async def test_error_answer_becomes_the_error_of_the_tree() -> None:
    async with start_workers(1, ignored, entry=ENTRY) as pool:
        with refused("GONE", BrokerRefusedError):
            await pool.ask(0, "error", kind="BrokerRefusedError")
        with refused("GONE", CannotRunError):
            await pool.ask(0, "error", kind="SystemExit")


async def test_unsolicited_frames_reach_the_callback() -> None:
    seen: list[tuple[int, int, bytes]] = []
    async with start_workers(
        2, lambda row, header, block: seen.append((row, header["n"], block)), entry=ENTRY
    ) as pool:
        await pool.ask(1, "report", n=3)
    assert seen == [(1, 0, b"\x00" * 10), (1, 1, b"\x01" * 10), (1, 2, b"\x02" * 10)]


async def test_worker_that_does_not_stop_is_lost_and_killed() -> None:
    async with start_workers(2, ignored, entry=ENTRY) as pool:
        pids = pool.pids
        await pool.ask(0, "deaf")
        finals = await pool.ask_left("stop", timeout_s=0.3)
        assert sorted(finals) == [1]
        assert pool.losses[0].worker == 0
        pool.close_grace_s = 0.2
    assert not any(running(pid) for pid in pids)


@pytest.mark.parametrize("error", [ValueError, asyncio.CancelledError])
async def test_nothing_is_left_after_an_error(error: type[BaseException]) -> None:
    before = descriptors()
    pids: tuple[int, ...] = ()
    with pytest.raises(error):
        async with start_workers(3, ignored, entry=ENTRY) as pool:
            pids = pool.pids
            raise error
    assert len(pids) == 3
    assert not any(running(pid) for pid in pids)
    assert descriptors() <= before


async def test_broken_worker_module_is_one_error() -> None:
    with refused("NO_WORKERS"):
        async with start_workers(1, ignored, entry="no_such_module:run"):
            pass


async def test_traceback_of_a_worker_stays_off_the_screen(
    capfd: pytest.CaptureFixture[str],
) -> None:
    async with start_workers(1, ignored, entry=ENTRY) as pool:
        with refused("WORKER_LOST", detail="ended with status 1"):
            await pool.ask(0, "raise")
        assert "nothing works" in pool.losses[0].last_words
    assert capfd.readouterr() == ("", "")


def run_script(directory: Path, *with_pool: str) -> subprocess.CompletedProcess[str]:
    script = directory / "script.py"
    lines = textwrap.indent("\n".join(with_pool), " " * 8)
    script.write_text(
        f"""
import asyncio, os, signal
from loadgen.run.hosts.worker_pool import start_workers

print("script", flush=True)

async def main():
    async with start_workers(3, print, entry="{ENTRY}") as pool:
{lines}

asyncio.run(main())
"""
    )
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": ROOT},
        check=False,
    )


def test_script_without_main_guard_runs_once(tmp_path: Path) -> None:
    done = run_script(tmp_path, 'print(len(await pool.ask_all("echo", text="x")))')
    assert (done.stdout, done.stderr, done.returncode) == ("script\n3\n", "", 0)


def test_workers_die_with_a_killed_coordinator(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        'await pool.ask(1, "deaf")',
        "print(*pool.pids, flush=True)",
        "os.kill(os.getpid(), signal.SIGKILL)",
    )
    pids = [int(pid) for pid in done.stdout.split()[1:]]
    assert len(pids) == 3
    for pid in pids:
        while running(pid):  # the suite's own limit ends a wait that never does
            pass


async def test_compiling_is_told_of_before_the_workers_are_there() -> None:
    told: list[tuple[int, int]] = []
    async with start_workers(
        1, ignored, entry=ENTRY, on_compiled=lambda *done: told.append(done)
    ) as pool:
        assert told == [(1, 2), (2, 2)]
        await pool.ask_left("stop", timeout_s=20)


def test_a_forkserver_that_nobody_heard_of_ends() -> None:
    with forkserver(MESSAGING, ENTRY) as server:
        assert server.process.poll() is None
    assert not running(server.process.pid)


async def test_workers_come_from_the_forkserver_that_is_there() -> None:
    with forkserver(MESSAGING, ENTRY) as server:
        async with start_workers(2, ignored, server=server) as pool:
            for pid in pool.pids:
                assert psutil.Process(pid).ppid() == server.process.pid
            await pool.ask_left("stop", timeout_s=20)
    assert not any(running(pid) for pid in (server.process.pid, *pool.pids))


async def test_a_forkserver_starts_the_workers_of_one_pool_after_the_other() -> None:
    """One that does not end by itself is killed."""
    with forkserver(MESSAGING, ENTRY) as server:
        pids: list[int] = []
        for _ in range(2):
            async with start_workers(2, ignored, server=server) as pool:
                pids += pool.pids
                os.kill(pool.pids[1], signal.SIGSTOP)
                pool.close_grace_s = 0.0
            assert not any(map(running, pids)) and server.is_alive
    assert len({*pids}) == 4
