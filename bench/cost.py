"""What a message costs the harness, each figure beside a C program that only makes the calls.

    python bench/cost.py                        everything, some minutes
    python bench/cost.py --only send,receive    two of them
    python bench/cost.py --repeat 5             medians of five pairs

Both sides of a pair run one after the other against the same kind of peer, so the ratio holds on
a noisy host where the absolute figures do not. Processor time is that of the process under
measurement alone, user and system.
"""

import argparse
import shutil
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import floor, player
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes

RATE = 10_000
CONNECTIONS = 1_000
BATCH_RATE = 200_000
BATCH_CONNECTIONS = 10
BATCH = 20
IDLE_CONNECTIONS = 15_000


@dataclass(frozen=True, slots=True)
class Pair:
    """One figure of ours and of the C program's, in `unit`; None where there is no C side.

    `c_checked` is that of C that also writes or compares the header with its checksum.
    """

    ours: float
    c: float | None
    unit: str
    c_checked: float | None = None


def publishers(count: int, rate: float) -> DeviceGroup:
    return DeviceGroup("publishers", count, Publishes("floor/{topic}", rate))


def _send(connections: int, rate: float, seconds: float, batch: int) -> Pair:
    tick_us = 1_000 if batch else 0
    c, c_checked = (
        floor.send_floor(
            connections=connections, rate=rate, seconds=seconds, batch=batch, stamp=stamp
        )["cpu_us_per_message"]
        for stamp in (False, True)
    )
    with floor.sink() as sink:
        groups = (publishers(connections, rate),)
        ours = player.play(groups, sink.port, seconds=seconds, tick_us=tick_us)
    if ours.sent != round(rate * seconds):
        raise SystemExit(f"sent {ours.sent} of {rate * seconds:.0f} messages: no result")
    return Pair(ours.cpu_ns / ours.sent / 1e3, c, "µs a message", c_checked)


def send(seconds: float) -> Pair:
    """1,000 connections, 10,000 messages/s, each sent alone at its own moment."""
    return _send(CONNECTIONS, RATE, seconds, 0)


def send_batched(seconds: float) -> Pair:
    """10 publishers, 200,000 messages/s, 20 a write, to a sink that discards."""
    return _send(BATCH_CONNECTIONS, BATCH_RATE, seconds, BATCH)


def _receive(connections: int, rate: float, seconds: float, burst: int) -> Pair:
    c, c_checked = (
        floor.receive_floor(
            connections=connections, rate=rate, seconds=seconds, burst=burst, check=check
        )["cpu_us_per_message"]
        for check in (False, True)
    )
    messages = round(rate * seconds)
    groups = (
        DeviceGroup("subscribers", connections, subscribes=Subscribes(("floor/{topic}",))),
        DeviceGroup("source", connections, Publishes("floor/{topic}", 1.0)),
    )
    with floor.source(
        subscribers=connections,
        rate=rate,
        seconds=seconds,
        burst=burst,
        topic="floor/{i}",
        run_tag=player.RUN_TAG,
        settle_ms=300,
    ) as source:
        ours = player.play(
            groups, source.port, seconds=seconds, external=messages, absent=("source",)
        )
    if ours.received != messages:
        raise SystemExit(f"received {ours.received} of {messages} messages: no result")
    return Pair(ours.cpu_ns / ours.received / 1e3, c, "µs a message", c_checked)


def receive(seconds: float) -> Pair:
    """1,000 subscribers, 10,000 messages/s, one a read, every one checked and timed."""
    return _receive(CONNECTIONS, RATE, seconds, 1)


def receive_batched(seconds: float) -> Pair:
    """10 subscribers, 200,000 messages/s, 20 a read, every one checked and timed."""
    return _receive(BATCH_CONNECTIONS, BATCH_RATE, seconds, BATCH)


def memory(_seconds: float) -> Pair:
    """Resident memory of a worker for each of 15,000 connected idle devices."""
    with floor.sink() as sink:
        groups = (DeviceGroup("devices", IDLE_CONNECTIONS),)
        ours = player.play(groups, sink.port, seconds=0.5)
    grown = ours.connected_bytes - ours.unconfigured_bytes
    return Pair(grown / ours.connected, None, "bytes a device")


def connect(_seconds: float) -> Pair:
    """Processor time to connect one of 15,000 devices."""
    c = floor.connect_floor(connections=IDLE_CONNECTIONS)
    with floor.sink() as sink:
        groups = (DeviceGroup("devices", IDLE_CONNECTIONS),)
        ours = player.play(groups, sink.port, seconds=0.5)
    return Pair(
        ours.connect_cpu_ns / ours.connected / 1e3, c["cpu_us_per_connection"], "µs a connection"
    )


@contextmanager
def mosquitto(sys_interval: int = 10) -> Iterator[int]:
    """The port of a Mosquitto, which tells its counts every `sys_interval` seconds."""
    program = shutil.which("mosquitto") or shutil.which("mosquitto", path="/usr/sbin")
    if program is None:
        raise SystemExit("latency needs mosquitto on PATH; leave it out with --only")
    port = floor.free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "mosquitto.conf"
        config.write_text(
            f"listener {port} 127.0.0.1\nallow_anonymous true\nset_tcp_nodelay true\n"
            f"max_queued_messages 0\npersistence false\nsys_interval {sys_interval}\n"
        )
        process = subprocess.Popen([program, "-c", str(config)], stderr=subprocess.DEVNULL)
        try:
            for _ in range(100):
                with socket.socket() as probe:
                    if probe.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield port
        finally:
            process.terminate()
            process.wait()


def latency(seconds: float) -> Pair:
    """Median sent to received through Mosquitto at 10,000 messages/s, one pair of clients."""
    with mosquitto() as port:
        c = floor.latency_floor(host="127.0.0.1", port=port, rate=RATE, seconds=seconds)
        groups = (
            publishers(1, RATE),
            DeviceGroup("subscribers", 1, subscribes=Subscribes(("floor/{topic}",))),
        )
        ours = player.play(groups, port, seconds=seconds)
    median_us = ours.latency["subscribers", "transit"].p50_us
    if median_us is None:
        raise SystemExit("no message arrived: no result")
    return Pair(median_us, c["latency_ns"]["p50"] / 1e3, "µs")


CASES: dict[str, Callable[[float], Pair]] = {
    "send": send,
    "receive": receive,
    "send_batched": send_batched,
    "receive_batched": receive_batched,
    "memory": memory,
    "connect": connect,
    "latency": latency,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description="cost of the harness beside bare C",
        epilog="example: python bench/cost.py --only send,latency --repeat 5",
    )
    parser.add_argument("--seconds", type=float, default=5, help="length of each run (5)")
    parser.add_argument("--repeat", type=int, default=3, help="pairs of which to take medians (3)")
    parser.add_argument("--only", help="names, separated by commas: " + ", ".join(CASES))
    arguments = parser.parse_args()
    chosen = arguments.only.split(",") if arguments.only else list(CASES)
    unknown = [name for name in chosen if name not in CASES]
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(CASES)}")
    titles = f"{'loadgen':>10} {'C':>10} {'ratio':>7} {'C with CRC':>11} {'ratio':>7}"
    print(f"{'case':<16} {titles}  unit, medians of pairs")
    for name in chosen:
        pairs = [CASES[name](arguments.seconds) for _ in range(arguments.repeat)]
        ours = statistics.median(pair.ours for pair in pairs)
        line = f"{name:<16} {ours:>10.2f}"
        for field, width in (("c", 10), ("c_checked", 11)):
            beside = [(pair.ours, c) for pair in pairs if (c := getattr(pair, field)) is not None]
            if beside:
                ratio = statistics.median(own / c for own, c in beside)
                line += f" {statistics.median(c for _, c in beside):>{width}.2f} {ratio:>7.2f}"
            else:
                line += " " * (width + 9)
        print(f"{line}  {pairs[0].unit}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
