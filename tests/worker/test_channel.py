"""The worker's end of its channel: commands, signs of life, the end."""

import asyncio
import socket
from pathlib import Path
from typing import Any, cast

import pytest

from loadgen.worker import worker as worker_module
from loadgen.worker.channel import Channel
from tests.worker.harness import HANG_S, Driver, StartBroker, one_worker_plan, publishers, until


@pytest.mark.parametrize("when", ["at once", "configured", "running"])
async def test_a_worker_ends_when_its_channel_closes(driver: Driver, when: str) -> None:
    broker = await driver.broker()
    if when != "at once":
        await driver.connect(one_worker_plan(publishers(3), port=broker.port))
    if when == "running":
        await driver.start()
    await driver.close()  # the fixture waits for the process and checks its status
    if when != "at once":
        await until(lambda: broker.gone == 3)


async def test_an_unknown_command_and_a_beat_are_not_answered(driver: Driver) -> None:
    broker = await driver.broker()
    driver.send("beat")
    driver.send("no such thing")
    await driver.configure(one_worker_plan(publishers(1), port=broker.port))
    await driver.stop()
    assert driver.answers == []


async def test_a_worker_that_hears_nothing_ends(
    collector: None, tmp_path: Path, start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "LEASE_S", 0.5)
    broker = await start_broker()
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(asyncio.to_thread(worker_module.run_worker, theirs))
    driver = Driver(ours, tmp_path)
    await driver.open()
    await driver.configure(one_worker_plan(publishers(1), port=broker.port))
    await asyncio.wait_for(asyncio.shield(serving), HANG_S)
    await driver.close()


async def test_a_worker_that_stalled_hears_before_it_gives_up() -> None:
    """Stall for longer than the lease, with a sign of life waiting each time."""
    loop = _Stalled()
    channel = Channel(cast(Any, loop))
    for _ in range(3):
        loop.now_s += 25.0
        assert not channel.lease_is_over()  # timers come first in a turn of the loop
        channel.handle({"op": "beat"})
    loop.now_s += 25.0
    assert not channel.lease_is_over()
    loop.now_s += 1.0
    assert channel.lease_is_over()


class _Stalled:
    """A loop that only has a time and makes futures."""

    now_s = 0.0

    def time(self) -> float:
        return self.now_s

    def create_future(self) -> "asyncio.Future[None]":
        return asyncio.get_running_loop().create_future()
