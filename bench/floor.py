"""The floor: what the same socket calls cost in C, so that loadgen's cost can be shown as a ratio.

The programs of ``bench/floor/*.c`` do nothing but the socket calls of a load generator and print
one JSON object each; this module compiles them, starts them and reads their reports::

    with sink() as target:                                   # discards what it is sent
        report = run("send", port=target.port, connections=1000, rate=10_000, seconds=3)
    report["cpu_us_per_message"]

    with source(subscribers=10, rate=200_000, burst=20, seconds=3) as target:
        ...                                                  # receive with whatever is measured
        target_report = wait(target)

Every report has ``window`` (seconds, cpu_s, user_s and system_s of the part that is compared,
without connecting), ``process`` (the same of its whole life) and ``rss_bytes``. Compare like
with like: on a virtual machine waking up for every message (``tick_us`` 0) can cost several
times the send itself, so both sides must pace the same way.

``python bench/floor.py`` runs the C side by itself.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = ("sink", "source", "send", "recv", "latency", "connect")
SOURCES = Path(__file__).resolve().parent / "floor"
BUILD = Path(__file__).resolve().parent / "build"
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
LOWEST_PORT = 10_000

Report = dict[str, Any]
Option = str | int | float | bool | None


class FloorError(Exception):
    """A program could not be built, or ended with an error; the text is one line."""


def build() -> Path:
    """Compile what is older than its sources; return the folder of the programs.

    Raises FloorError without a compiler or when one of them does not compile.
    """
    compiler = shutil.which("gcc") or shutil.which("cc")
    headers = [path.stat().st_mtime_ns for path in SOURCES.glob("*.h")]
    BUILD.mkdir(parents=True, exist_ok=True)
    for program in PROGRAMS:
        text, target = SOURCES / f"{program}.c", BUILD / program
        newest = max(text.stat().st_mtime_ns, *headers)
        if target.exists() and target.stat().st_mtime_ns > newest:
            continue
        if compiler is None:
            raise FloorError("no C compiler: install gcc (the floor programs are C)")
        # Renamed when whole: two runs may build at the same time.
        with tempfile.TemporaryDirectory(dir=BUILD) as folder:
            made = Path(folder) / program
            done = subprocess.run(
                [compiler, *FLAGS, "-o", str(made), str(text), "-lm"],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                first = next(iter(done.stderr.splitlines()), "no message")
                raise FloorError(f"{text.name} does not compile: {first}")
            made.replace(target)
    return BUILD


def _command(program: str, options: dict[str, Option]) -> list[str]:
    """``tick_us=0`` becomes ``--tick-us 0``, True a bare flag; None and False are left out."""
    command = [str(build() / program)]
    for name, value in options.items():
        if value is None or value is False:
            continue
        command.append("--" + name.replace("_", "-"))
        if value is not True:
            command.append(str(value))
    return command


def _report(program: str, status: int, out: str, err: str) -> Report:
    if status:
        last = next(reversed(err.splitlines()), "no message")
        raise FloorError(f"{program} ended with status {status}: {last}")
    report: Report = json.loads(out)
    return report


def run(program: str, *, timeout_s: float = 300, **options: Option) -> Report:
    """Run a client program to its end and return its report."""
    done = subprocess.run(
        _command(program, options),
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    return _report(program, done.returncode, done.stdout, done.stderr)


@dataclass(frozen=True, slots=True)
class Server:
    """A sink or source that listens on ``ports`` consecutive ports of ``host``."""

    program: str
    process: subprocess.Popen[str]
    host: str
    port: int
    ports: int


def wait(server: Server, timeout_s: float = 300) -> Report:
    """Wait until the server ends by itself; return its report."""
    out, err = server.process.communicate(timeout=timeout_s)
    return _report(server.program, server.process.returncode, out, err)


def stop(server: Server) -> Report:
    """End the server now; return what it counted."""
    server.process.terminate()
    return wait(server, timeout_s=30)


def free_port(count: int = 1) -> int:
    """The first of ``count`` consecutive free ports below the range of outgoing connections."""
    text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
    beyond = max(int(text.split()[0]), LOWEST_PORT + 2 * count)
    for _ in range(100):
        first = random.randrange(LOWEST_PORT, beyond - count)
        try:
            for port in range(first, first + count):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise FloorError(f"found no {count} consecutive free ports from {LOWEST_PORT} to {beyond}")


@contextmanager
def _serve(program: str, host: str, ports: int, options: dict[str, Option]) -> Iterator[Server]:
    port = free_port(ports)
    process = subprocess.Popen(
        _command(program, {"host": host, "port": port, "ports": ports, **options}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            if "listening" not in line:
                raise FloorError(line.strip() or f"{program} ended before it listened")
            yield Server(program, process, host, port, ports)
        finally:
            if process.poll() is None:
                process.kill()


@contextmanager
def sink(*, host: str = "127.0.0.1", ports: int = 1, **options: Option) -> Iterator[Server]:
    """A broker stand-in that discards. ``walk=True`` counts PUBLISH, ``acknowledge=True`` PUBACKs.

    ``stop(server)`` returns its counts.
    """
    with _serve("sink", host, ports, options) as server:
        yield server


@contextmanager
def source(*, host: str = "127.0.0.1", ports: int = 1, **options: Option) -> Iterator[Server]:
    """A broker stand-in that sends to ``subscribers`` connections once they all subscribed.

    Options: rate, seconds, burst, tick_us, topic, run_tag, stream_base, settle_ms.
    ``wait(server)`` returns its report after the last message.
    """
    with _serve("source", host, ports, options) as server:
        yield server


def send_floor(
    *,
    connections: int,
    rate: float,
    seconds: float,
    batch: int = 0,
    tick_us: int = -1,
    stamp: bool = False,
) -> Report:
    """C client to C sink: singly for ``batch`` 0, else so many messages a send.

    With ``stamp`` each message gets loadgen's header and its checksum.
    """
    with sink() as target:
        return run(
            "send",
            port=target.port,
            connections=connections,
            rate=rate,
            seconds=seconds,
            tick_us=tick_us,
            mode="batch" if batch else "single",
            batch=batch or None,
            stamp=stamp,
        )


def receive_floor(
    *, connections: int, rate: float, seconds: float, burst: int = 1, check: bool = False
) -> Report:
    """C source to C client, ``burst`` messages a write; only the client is reported.

    With ``check`` it compares the checksum of each message.
    """
    with source(subscribers=connections, rate=rate, seconds=seconds, burst=burst) as target:
        report = run(
            "recv",
            port=target.port,
            connections=connections,
            seconds=2 * seconds + 5,
            check=check,
        )
        wait(target)
        return report


def latency_floor(*, host: str, port: int, rate: float, seconds: float) -> Report:
    """One C publisher and subscriber through the broker at ``host:port``; ``latency_ns``."""
    return run("latency", host=host, port=port, rate=rate, seconds=seconds)


def connect_floor(*, connections: int, in_flight: int = 64, hold: float = 0) -> Report:
    """C client to C sink, as fast as it goes."""
    with sink() as target:
        return run(
            "connect",
            port=target.port,
            connections=connections,
            in_flight=in_flight,
            hold=hold,
        )


def main() -> int:
    """Print the C side's costs, one line each."""
    parser = argparse.ArgumentParser(description="cost of bare socket calls in C on this host")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--broker", metavar="HOST:PORT", help="time messages through this broker")
    parser.add_argument("--json", action="store_true", help="whole reports instead of lines")
    arguments = parser.parse_args()
    seconds = arguments.seconds
    cases: list[tuple[str, str, Report]] = []
    try:
        for text, tick_us in (("a wake-up each", 0), ("1 ms ticks", 1000)):
            report = send_floor(connections=1000, rate=10_000, seconds=seconds, tick_us=tick_us)
            cases.append((f"send singly, 10,000/s, {text}", "cpu_us_per_message", report))
        report = send_floor(connections=10, rate=200_000, seconds=seconds, batch=20)
        cases.append(("send in batches of 20, 200,000/s", "cpu_us_per_message", report))
        report = receive_floor(connections=1000, rate=10_000, seconds=seconds)
        cases.append(("receive singly, 10,000/s", "cpu_us_per_message", report))
        report = receive_floor(connections=10, rate=200_000, seconds=seconds, burst=20)
        cases.append(("receive 20 a read, 200,000/s", "cpu_us_per_message", report))
        report = connect_floor(connections=10_000)
        cases.append(("connect 10,000, 64 in flight", "cpu_us_per_connection", report))
        if arguments.broker:
            host, _, port = arguments.broker.rpartition(":")
            report = latency_floor(host=host, port=int(port), rate=10_000, seconds=seconds)
            cases.append(("latency, 10,000/s", "cpu_us_per_message", report))
    except (FloorError, ValueError) as error:
        print(f"floor: {error}", file=sys.stderr)
        return 3
    if arguments.json:
        print(json.dumps({name: report for name, _, report in cases}))
        return 0
    for name, cost, report in cases:
        line = f"{name:40} {report[cost]:8.2f} µs of processor time"
        if "latency_ns" in report:
            latency = report["latency_ns"]
            line += f", p50 {latency['p50'] / 1000:.1f} µs, p99 {latency['p99'] / 1000:.1f} µs"
        print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
