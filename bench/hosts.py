"""What the coordinator of many hosts costs: real messages from stand-ins of their agents, no load.

    python bench/hosts.py                      25, 50, 100 and 200 hosts
    python bench/hosts.py --hosts 200 --workers 8

The agents are the real ones, with their channel, clock and live page, all in one process beside
the coordinator; only their workers are stand-ins that answer, count and report as real ones do.
A figure that grows as the number of hosts does is said for each host, too.
"""

import argparse
import asyncio
import json
import resource
import ssl
import sys
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import uvloop
from pyarrow.parquet import read_metadata

from loadgen.cases.registry import build_scenario
from loadgen.run.environment import environment, host_of, machine_identity, versions
from loadgen.run.host_watch import HostSample, take_sample
from loadgen.run.hosts.agent import Agent, HostedWorkers
from loadgen.run.hosts.agent_link import tls_of
from loadgen.run.hosts.load_host import Header, LocalHost, OnEvent
from loadgen.run.hosts.messages import Joined, WorkerFrame, WorkerStarted
from loadgen.run.hosts.remote_host import Hosts, listening
from loadgen.run.tasks import background, every
from loadgen.run.testbed import Testbed
from loadgen.worker.frames import FrameReader
from tests.run.fake_worker import FakeWorker

SECRET = b"of this bench alone"
TICK_S = 0.05
DIAL_S = 1.0
_DIALING = 20
"""Handshakes at a time: they share this process, and those of all agents would time out."""
WINDOW_S = 10.0
TOPICS_EACH = 10
"""Of each worker: there is no load, but all have their share of each group."""


# The agents -------------------------------------------------------------------------------------


_COUNTERS = take_sample({})


class _Channel:
    """What a stand-in believes to be its socket."""

    def __init__(self, row: int, on_event: OnEvent) -> None:
        self._row, self._on_event = row, on_event
        self._frames = FrameReader()

    def sendall(self, data: bytes) -> None:
        for header, block in self._frames.feed(data):
            self._on_event(WorkerFrame(self._row, header, block))


class StandIns(LocalHost):
    """A host whose workers are stand-ins within this process."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = rows
        self._workers: dict[int, FakeWorker] = {}

    async def start(self, on_event: OnEvent) -> None:
        for row in self.rows:
            channel: Any = _Channel(row, on_event)
            self._workers[row] = FakeWorker(channel)
            on_event(WorkerStarted(row, 1))

    def send(self, rows: Sequence[int], header: Header) -> None:
        if header.get("op") in ("beat", "clock"):
            return
        for row in rows:
            self._workers[row].command(header)

    def tick(self) -> None:
        for worker in self._workers.values():
            worker.tick()

    def sample(self) -> HostSample:
        return replace(_COUNTERS, time_ns=time.monotonic_ns())  # each would read the same ones

    async def close(self, grace_s: float, waited_for: Collection[int]) -> None:
        self._workers.clear()


class StandInAgent(Agent):
    """An agent of such a host."""

    async def check(self, fields: dict[str, Any]) -> None:
        """Each would look at the same machine."""

    async def start(self, rows: Sequence[int], behaviour: str) -> str:
        self.workers = HostedWorkers(self.link, ExitStack(), StandIns(rows))
        await self.workers.host.start(self.workers.report)
        return ""

    def tick(self) -> None:
        """Count a moment, and send the totals: nothing changes in between."""
        if self.workers is not None and isinstance(self.workers.host, StandIns):
            self.workers.host.tick()
            self.workers.send_totals()


async def _agent(
    coordinator: tuple[str, int], tls: ssl.SSLContext, joined: Joined, dialing: asyncio.Semaphore
) -> None:
    agent, loop = StandInAgent(), asyncio.get_running_loop()
    while True:
        try:
            async with dialing:
                await loop.create_connection(lambda: agent.link, *coordinator, ssl=tls)
            break
        except OSError:
            await asyncio.sleep(DIAL_S)
    agent.link.send(joined)
    samples = every(TICK_S, agent.tick), every(1.0, agent.send_counters)
    async with background(agent.ping(), *samples):
        await agent.ended
    agent.link.close()


async def _agents(settings: Mapping[str, Any]) -> None:
    """All agents, until the coordinator lets them go."""
    # Each host makes its own key and looks at its own machine, at the same time as the others.
    coordinator, tls = settings["coordinator"], tls_of(SECRET, ssl.Purpose.SERVER_AUTH)
    offer, about = host_of(), (machine_identity(), versions(), environment())
    offers = (replace(offer, name=str(number)) for number in range(settings["hosts"]))
    print("ready", flush=True)
    dialing = asyncio.Semaphore(_DIALING)
    joined = (Joined(one, *about) for one in offers)
    await asyncio.gather(*(_agent(coordinator, tls, one, dialing) for one in joined))


# The coordinator --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the table.

    Times are of the clock until all agents are there, have their plan, and are connected, and from
    the window's end to the sealed result; `cpu_before_s` and `window_cpu_share` of the
    coordinator's processor; `clock_bound_us` of the worst host.
    """

    hosts: int
    workers: int
    gather_s: float
    configure_s: float
    connect_s: float
    cpu_before_s: float
    window_cpu_share: float
    rows_per_s: float
    end_s: float
    clock_bound_us: float


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def measure(hosts: int, workers: int, window_s: float = WINDOW_S) -> Line:
    """A run with this many hosts, each with this many workers."""
    async with listening(secret=SECRET) as server:
        agents = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "bench.hosts", "--be-agents"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert agents.stdin is not None and agents.stdout is not None
        settings = {"coordinator": server.address, "hosts": hosts}
        agents.stdin.write(json.dumps(settings).encode())
        agents.stdin.close()
        await agents.stdout.readline()
        began, cpu = time.monotonic(), _cpu_s()
        found = await server.gathered(hosts, 120.0)
        gathered = time.monotonic()
        try:
            return await _played(found, hosts, workers, gathered - began, cpu, window_s)
        finally:
            server.close()
            await agents.wait()


async def _used(samples: list[tuple[int, float]]) -> None:
    """The processor time of this process, beside the clock, as it goes on."""
    while True:
        samples.append((time.monotonic_ns(), _cpu_s()))
        await asyncio.sleep(TICK_S / 2)


async def _played(
    hosts: Hosts, count: int, workers: int, gather_s: float, cpu: float, window_s: float
) -> Line:
    flags = {
        "topics": TOPICS_EACH * count * workers,
        "ratio": 1,
        "rate": TOPICS_EACH * count * workers,
        "hosts": count,
        "workers": count * workers,
        "broker": "reflector",
        "duration": window_s,
    }
    samples: list[tuple[int, float]] = []
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch) / "run"
        async with background(_used(samples)), Testbed(hosts=hosts, lends=False) as testbed:
            result = await testbed.run(build_scenario("fanout", None, flags), directory)
        ended_ns = time.monotonic_ns()
        rows = sum(read_metadata(f).num_rows for f in directory.glob("intervals/*.parquet"))
        document = json.loads((directory / "run.json").read_text("utf-8"))
        events = map(json.loads, (directory / "events.jsonl").read_text("utf-8").splitlines())
        at = {one["detail"]: one["time_ns"] for one in events if one["kind"] == "phase"}

    if "drain" not in at:
        raise SystemExit(f"{count} hosts: {result.verdict.reasons[0].detail}")

    def used(phase: str) -> float:
        return min(samples, key=lambda sample: abs(sample[0] - at[phase]))[1]

    measured_s = (at["drain"] - at["measure"]) / 1e9
    return Line(
        hosts=count,
        workers=count * workers,
        gather_s=gather_s,
        configure_s=(at["connect"] - at["configure"]) / 1e9,
        connect_s=(at["warm-up"] - at["connect"]) / 1e9,
        cpu_before_s=used("warm-up") - cpu,
        window_cpu_share=(used("drain") - used("measure")) / measured_s,
        rows_per_s=rows / ((at["drain"] - at["warm-up"]) / 1e9),
        end_s=(ended_ns - at["stop"]) / 1e9,
        clock_bound_us=max(one["clock"]["bound_ns"] for one in document["hosts"]) / 1000,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--hosts", default="25,50,100,200", help="how many, separated by commas")
    parser.add_argument("--workers", type=int, default=2, help="of each host [default: 2]")
    parser.add_argument("--be-agents", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.be_agents:
        uvloop.run(_agents(json.load(sys.stdin)))
        return 0
    print(_HEAD, flush=True)
    for hosts in map(int, given.hosts.split(",")):
        line = uvloop.run(measure(hosts, given.workers))
        print(_FORMAT.format(line), flush=True)
    return 0


_HEAD = (
    "hosts  workers  gathered  configured  connected  CPU before  CPU in window  rows/s   ended"
    "  clock"
)
_FORMAT = (
    "{0.hosts:>5}  {0.workers:>7}  {0.gather_s:>6.2f} s  {0.configure_s:>8.2f} s  "
    "{0.connect_s:>7.2f} s  {0.cpu_before_s:>8.2f} s  {0.window_cpu_share:>13.1%}  "
    "{0.rows_per_s:>6,.0f}  {0.end_s:>4.1f} s  {0.clock_bound_us:>3.0f} µs"
)


if __name__ == "__main__":
    raise SystemExit(main())
