"""Silences of a broker and of the path to it, with a broker that stands still."""

import asyncio
import socket
import time

import pytest

from loadgen.run.hosts import path_watch
from loadgen.run.hosts.agent import Agent
from loadgen.run.hosts.clocks import RoundTrip
from loadgen.run.hosts.path_watch import PathWatch

NOWHERE = ("192.0.2.1", 1883)
"""No packet to this network is answered (RFC 5737)."""


async def silences(target: tuple[str, int], silent_s: float, a_second: int = 200) -> list[float]:
    """Return the silences in seconds that are found while nothing is answered for so long."""
    answers = 0
    watch = PathWatch(lambda: answers)
    watch.use([target], 0.0)
    watching = asyncio.create_task(watch.watch())
    for times in (0.5, 0.2):
        for _ in range(int(times * 50)):
            answers += a_second // 50
            await asyncio.sleep(0.02)
        await asyncio.sleep(silent_s if times == 0.5 else 0.0)
    watching.cancel()
    return [(end_ns - start_ns) / 1e9 for start_ns, end_ns in watch.silences]


async def test_a_silence_is_of_the_path_if_no_connection_is_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def lost(*_: object) -> None:
        await asyncio.sleep(60)

    with socket.create_server(("127.0.0.1", 0)) as still:
        there = still.getsockname()
        assert await silences(there, 0.8) == []
    assert await silences(there, 0.8) == []  # refused: its host answers
    monkeypatch.setattr(path_watch, "open_socket", lost)
    monkeypatch.setattr(path_watch, "retransmitted_data", lambda: 7)
    (seconds,) = await silences(NOWHERE, 0.8)
    assert 0.6 < seconds < 2
    assert await silences(NOWHERE, 0.0) == []
    assert await silences(NOWHERE, 0.8, a_second=0) == []
    # A host that only sends has no answers, but retransmits.
    looks = iter((7, 7))
    monkeypatch.setattr(path_watch, "retransmitted_data", lambda: next(looks, 9))
    (seconds,) = await silences(NOWHERE, 0.8, a_second=0)
    assert 0.6 < seconds < 2


@pytest.mark.parametrize(("round_trip_s", "found"), [(0.05, False), (0.25, True)])
async def test_a_slow_link_to_the_coordinator_is_a_silence(
    monkeypatch: pytest.MonkeyPatch, round_trip_s: float, found: bool
) -> None:
    agent, now_ns = Agent(), time.monotonic_ns()
    agent.clock.add(RoundTrip(now_ns, now_ns, now_ns))
    monkeypatch.setattr(agent.link, "round_trip_ns", lambda: int(round_trip_s * 1e9))
    pinging = asyncio.create_task(agent.ping())
    await asyncio.sleep(0.3)
    pinging.cancel()
    assert len(agent.path.silences) == found
