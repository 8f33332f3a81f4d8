"""Other load generators beside loadgen, on one machine and one broker.

    python bench/peers.py peers.json              every command of the file, one after the other
    python bench/peers.py peers.json --repeat 3   medians of three rounds

The file says which commands to run (bench/peers.md); `{host}` and `{port}` in a word are the
broker's, `{seconds}` how long it is to play. What a command did is not taken from its own report:
the messages are those that the broker counted, in and out ($SYS), and the processor time is that of
all processes of its tree, read while they live. Mosquitto is started for each command anew.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import aiomqtt
import psutil

from bench import cost

SAMPLE_S = 0.05
START_S = 30.0
"""So long a command may take until its messages flow."""
STARTED_S = 2.0
"""And so long they flow before they are counted."""
FLOWING = 50
"""Messages after which the load has begun; a tool that asks the broker first sends fewer."""
TOLD_EACH_S = 1
_WIDTH = 24
COUNTERS = {
    "in": "$SYS/broker/publish/messages/received",
    "out": "$SYS/broker/publish/messages/sent",
}


class PeerError(Exception):
    """A command did not play; the text is one line."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one command did in its window."""

    seconds: float
    counted_in: int
    counted_out: int
    cpu_s: float
    broker_cpu_s: float

    @property
    def per_cpu_s(self) -> float:
        return (self.counted_in + self.counted_out) / max(self.cpu_s, 1e-9)


def cpu_s(process: psutil.Process, seen: dict[tuple[int, float], float]) -> float:
    """Processor seconds of a process and all that it ever started, those that ended included.

    `seen` keeps what each had when it was last looked at, by its number and when it was born.
    """
    try:
        tree = [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        tree = []
    for one in tree:
        try:
            times = one.cpu_times()
            seen[one.pid, one.create_time()] = times.user + times.system
        except psutil.NoSuchProcess:
            continue
    return sum(seen.values())


async def counters(port: int) -> dict[str, int]:
    """The broker's own counts when it tells them next, which it does where they have changed."""
    names = {topic: name for name, topic in COUNTERS.items()}
    found = dict.fromkeys(COUNTERS, 0)
    fresh = set[str]()
    async with aiomqtt.Client("127.0.0.1", port) as client:
        for topic in names:
            await client.subscribe(topic)
        with suppress(TimeoutError):
            async with asyncio.timeout(2.5 * TOLD_EACH_S):
                async for message in client.messages:
                    name = names[str(message.topic)]
                    if isinstance(message.payload, bytes):
                        found[name] = int(message.payload)
                    if not message.retain:
                        fresh.add(name)
                    if len(fresh) == len(COUNTERS):
                        break
    return found


def measure(command: Sequence[str], port: int, seconds: float) -> Found:
    """Run a command against the broker at `port` and see what it does for `seconds`."""
    words = {"{host}": "127.0.0.1", "{port}": str(port), "{seconds}": f"{seconds + 20:g}"}
    filled = list(command)
    for mark, value in words.items():
        filled = [word.replace(mark, value) for word in filled]
    broker = next(
        one.pid for one in psutil.net_connections("tcp")
        if one.status == psutil.CONN_LISTEN and one.laddr.port == port
    )  # fmt: skip
    serving = psutil.Process(broker)
    with subprocess.Popen(
        filled, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        tree, seen = psutil.Process(process.pid), dict[tuple[int, float], float]()
        try:
            _until_it_flows(port, filled[0])
            _watch(tree, seen, STARTED_S)
            before, began = asyncio.run(counters(port)), time.monotonic()
            cpu_before, served_before = cpu_s(tree, seen), sum(serving.cpu_times()[:2])
            _watch(tree, seen, seconds)
            after, ended = asyncio.run(counters(port)), time.monotonic()
            used = cpu_s(tree, seen) - cpu_before
            served = sum(serving.cpu_times()[:2]) - served_before
            if process.poll() is not None:
                raise PeerError(f"ended too early, with status {process.returncode}: {filled[0]}")
        finally:
            _end(tree)
    return Found(
        ended - began, after["in"] - before["in"], after["out"] - before["out"], used, served
    )


def _until_it_flows(port: int, program: str) -> None:
    end = time.monotonic() + START_S
    while asyncio.run(counters(port))["in"] < FLOWING:
        if time.monotonic() > end:
            raise PeerError(f"{program} sent nothing in {START_S:.0f} s")


def _watch(tree: psutil.Process, seen: dict[tuple[int, float], float], seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cpu_s(tree, seen)  # of processes that will have ended
        time.sleep(SAMPLE_S)


def _end(tree: psutil.Process) -> None:
    """End what was started here, and nothing else."""
    try:
        ours = [*tree.children(recursive=True), tree]
    except psutil.NoSuchProcess:
        return
    for one in ours:
        try:
            one.terminate()
        except psutil.NoSuchProcess:
            continue
    for one in psutil.wait_procs(ours, timeout=5)[1]:
        one.kill()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("file", type=Path, help="JSON: name to command, a list of words")
    parser.add_argument("--seconds", type=float, default=10, help="length of each window (10)")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of which to take medians (1)")
    given = parser.parse_args()
    commands: dict[str, list[str]] = json.loads(given.file.read_text())
    titles = ("in/s", "out/s", "cpu s/s", "broker s/s", "messages/cpu s")
    print(f"{'':<{_WIDTH}}" + "".join(f"{title:>15}" for title in titles), flush=True)
    status = 0
    for name, command in commands.items():
        rounds = []
        try:
            for _ in range(given.repeat):
                with cost.mosquitto(sys_interval=TOLD_EACH_S) as port:
                    rounds.append(measure(command, port, given.seconds))
        except (PeerError, OSError) as error:
            print(f"{name:<{_WIDTH}} {error}", flush=True)
            status = 1
            continue
        figures = (
            statistics.median(one.counted_in / one.seconds for one in rounds),
            statistics.median(one.counted_out / one.seconds for one in rounds),
            statistics.median(one.cpu_s / one.seconds for one in rounds),
            statistics.median(one.broker_cpu_s / one.seconds for one in rounds),
            statistics.median(one.per_cpu_s for one in rounds),
        )
        row = "".join(f"{figure:>15,.2f}" for figure in figures)
        print(f"{name:<{_WIDTH}}{row}", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
