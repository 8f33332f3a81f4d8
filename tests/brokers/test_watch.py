"""The watch of a broker: its process, and its counters under $SYS."""

import asyncio
import os
import subprocess
import sys
import time
from typing import Any

import aiomqtt
import pytest

from loadgen.brokers import watch
from loadgen.brokers.broker_counters import COUNTS
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.ports import free_port, listening_pids
from loadgen.brokers.process import ProgramSettings
from tests.needs import needs_mosquitto
from tests.refusals import refused
from tests.tables import rows_of


@pytest.mark.parametrize(("topic", "count"), rows_of("brokers.topics_understood"))
def test_topics_of_the_brokers_that_are_understood(topic: str, count: str | None) -> None:
    assert watch.count_of(topic) == count


def load_of(*pids: int) -> dict[str, Any] | None:
    return watch.ProcessLoad(lambda: pids).read()


def test_processor_time_and_memory_include_what_was_started() -> None:
    program = "import time; x = bytearray(30 << 20); x[::4096] = b'x' * len(x[::4096]); "
    parent = (
        "import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', "
        f'"{program}print(1, flush=True); time.sleep(60)"]); child.wait()'
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"1\n"
        load = load_of(process.pid)
        assert load is not None
        assert load["processes"] == 2
        assert load["resident_bytes"] > 30 << 20
        assert load["cpu_ns"] > 0
        # Named twice is counted once.
        both = load_of(process.pid, process.pid)
        assert both is not None and both["processes"] == 2
    finally:
        subprocess.run(["kill", *map(str, children_of(process.pid)), str(process.pid)], check=True)
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    assert load_of(process.pid) is None
    with refused("NO_PROCESS", pid=process.pid):
        watch.require_process(process.pid)


def test_processor_time_is_counted_finer_than_in_ticks() -> None:
    # A new process has no children, whose time counts as well.
    answer = "import time; input(); print(time.process_time_ns(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", answer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        before = load_of(process.pid)
        process.stdin.write("\n")
        process.stdin.flush()
        used_ns = int(process.stdout.readline())
        after = load_of(process.pid)
    assert before is not None and after is not None
    assert before["processes"] == after["processes"] == 1
    assert before["cpu_ns"] <= used_ns <= after["cpu_ns"]
    assert before["cpu_ns"] % 10_000_000 or after["cpu_ns"] % 10_000_000


def test_what_an_ended_process_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_INTERVAL_S", 0)
    burn = "import time\nwhile time.process_time() < 0.2: pass\nprint(flush=True); input()"
    pids: list[int] = []
    load = watch.ProcessLoad(lambda: pids)
    for _ in range(2):
        with subprocess.Popen(
            [sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            pids[:] = [process.pid]
            process.stdout.readline()
            seen = load.read()
            process.stdin.write("\n")
            process.stdin.flush()
    assert load.read() is None
    assert seen is not None and seen["cpu_ns"] >= 400_000_000 and seen["processes"] == 1


def children_of(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children()]


@needs_mosquitto
async def test_a_brokers_counts_and_load_are_recorded() -> None:
    """Thirty messages to a broker that tells its counts every second."""
    records: list[dict[str, Any]] = []
    settings = ProgramSettings(more_lines=("sys_interval 1",))
    async with run_mosquitto(settings) as broker:
        (endpoint,) = broker.endpoints
        assert listening_pids(endpoint.port) == (broker.pid,)
        async with watch.watching([endpoint], lambda: (broker.pid,), records.append):
            await until(lambda: any(r.get("count") == "publish_received" for r in records))
            before = last(records, "publish_received")
            async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
                for _ in range(30):
                    await client.publish("t", b"x")
            await until(lambda: last(records, "publish_received") >= before + 30)
    assert last(records, "publish_received") == before + 30
    times = [record["time_ns"] for record in records]
    assert times == sorted(times) and times[-1] <= time.monotonic_ns()
    loads = [record["process"] for record in records if "process" in record]
    assert len(loads) >= 3
    assert all(load["processes"] == 1 and load["resident_bytes"] > 1 << 20 for load in loads)
    used = [load["cpu_ns"] for load in loads]
    assert used == sorted(used)
    words = [record for record in records if "count" in record]
    assert {word["count"] for word in words} == {*COUNTS}
    assert [word["watched"] for word in words] == sorted(word["watched"] for word in words)


def last(records: list[dict[str, Any]], count: str) -> int:
    return next(int(r["value"]) for r in reversed(records) if r.get("count") == count)


async def until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.02)


async def test_a_broker_that_is_not_there_is_no_error() -> None:
    records: list[dict[str, Any]] = []
    endpoint = Endpoint("mqtt", "127.0.0.1", free_port("127.0.0.1"))
    async with watch.watching([endpoint], lambda: (), records.append):
        await until(lambda: records)
    (record,) = records
    assert record["trouble"].startswith("$SYS: ")


async def test_a_record_that_cannot_be_written_is_told() -> None:
    """The disk may be full, and the run must report it."""

    def full(_: dict[str, Any]) -> None:
        raise OSError("no space left on device")

    with pytest.raises(OSError, match="no space left"):
        async with watch.watching([], lambda: (os.getpid(),), full):
            await asyncio.sleep(0.05)


async def test_a_cancellation_that_was_lost_does_not_hold_up_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost: list[bool] = []
    records: list[dict[str, Any]] = []

    async def subscribe(*_: object) -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if lost:
                    raise
                lost.append(True)

    monkeypatch.setattr(watch, "_subscribe", subscribe)
    endpoint = Endpoint("mqtt", "127.0.0.1", 1883)
    async with asyncio.timeout(30):
        async with watch.watching([endpoint], lambda: (), records.append):
            await asyncio.sleep(0)
    assert lost
