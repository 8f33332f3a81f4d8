"""Plays device groups with one worker of the engine, without coordinator, broker or files.

For benchmarks that look at the engine alone. The worker is forked from this process, which has
the kernels compiled, and is stepped through its frames as the coordinator would.
"""

import os
import socket
import tempfile
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadgen.metrics.interval import Interval, to_table
from loadgen.metrics.reducer import LatencySummary, reduce_table, summarize
from loadgen.plan.groups import DeviceGroup, Share, Target, WorkerPlan
from loadgen.plan.plan import Plan, document_of
from loadgen.plan.scenario import Scenario
from loadgen.worker.frames import FrameReader, encode_frame
from loadgen.worker.recorder import decode_intervals
from loadgen.worker.shared_counts import SharedPage, create_live_page
from loadgen.worker.worker import run_worker, warm

__all__ = ["Played", "play"]

RUN_TAG = 0x10AD


@dataclass(frozen=True, slots=True)
class Played:
    """What one worker did between the start of the schedule and the end of the drain."""

    sent: int
    expected: int
    received: int
    cpu_ns: int
    connected: int
    connect_seconds: float
    connect_cpu_ns: int
    unconfigured_bytes: int
    connected_bytes: int
    latency: dict[tuple[str, str], LatencySummary] = field(default_factory=dict)


class _Driver:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.reader = FrameReader()
        self.rows: list[Interval] = []
        self.answers: list[dict[str, Any]] = []

    def tell(self, op: str, **fields: Any) -> None:
        self.channel.sendall(encode_frame({"op": op, **fields}))

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        self.tell(op, **fields)
        while True:
            for answer in self.answers:
                if answer.get("re") == op:
                    self.answers.remove(answer)
                    if "error" in answer:
                        raise RuntimeError(answer["error"]["message"])
                    return answer
            data = self.channel.recv(1 << 20)
            if not data:
                raise RuntimeError("the worker ended")
            for header, block in self.reader.feed(data):
                if "interval" in header:
                    self.rows += decode_intervals(header, block)
                elif "re" in header:
                    self.answers.append(header)


def _cpu_ns(pid: int) -> int:
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


def _resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def play(
    groups: tuple[DeviceGroup, ...],
    port: int,
    *,
    seconds: float,
    host: str = "127.0.0.1",
    tick_us: int = 0,
    in_flight: int = 64,
    external: int = 0,
    absent: tuple[str, ...] = (),
) -> Played:
    """Connect, subscribe, send for `seconds`, drain; figures of the worker.

    `external` is how many messages arrive from elsewhere; the drain waits for them. Groups named
    in `absent` belong to the plan but are played by somebody else.
    """
    warm()
    shares = tuple(
        Share(index, 0, group.count, 1)
        for index, group in enumerate(groups)
        if group.name not in absent
    )
    worker = WorkerPlan(0, shares)
    plan = Plan(
        scenario=Scenario(case="bench"), run_tag=RUN_TAG, groups=groups,
        targets=(Target(host, port),), workers=(worker,), send_tick_us=tick_us,
        max_packet_bytes=65_536,
    )  # fmt: skip
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        status = 1
        try:
            run_worker(theirs)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    theirs.close()
    driver = _Driver(ours)
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "live"
            live = create_live_page(path, 1, len(groups))
            return _step(driver, live, path, plan, pid, seconds, in_flight, external)
    finally:
        ours.close()
        os.waitpid(pid, 0)


def _step(
    driver: _Driver,
    live: SharedPage,
    path: Path,
    plan: Plan,
    pid: int,
    seconds: float,
    in_flight: int,
    external: int,
) -> Played:
    unconfigured_bytes = _resident_bytes(pid)
    driver.ask(
        "configure", run="bench", host=0, worker=0, workers=1, live=str(path),
        anchor_ns=time.monotonic_ns(), plan=document_of(plan),
    )  # fmt: skip
    cpu_ns = _cpu_ns(pid)
    answer = driver.ask(
        "connect", start_ns=time.monotonic_ns(), rate=None, in_flight=in_flight,
        first_in_flight=in_flight, timeout_s=10,
    )  # fmt: skip
    connect_cpu_ns = _cpu_ns(pid) - cpu_ns
    connected_bytes = _resident_bytes(pid)
    driver.ask("subscribe", timeout_s=30)
    cpu_ns = _cpu_ns(pid)
    start_ns = time.monotonic_ns() + 100_000_000
    end_ns = start_ns + int(seconds * 1e9)
    driver.ask("start", start_ns=start_ns, measure_ns=start_ns, end_ns=end_ns, rates=())
    deadline_ns = end_ns + 10_000_000_000
    while time.monotonic_ns() < deadline_ns:
        time.sleep(0.2)
        driver.tell("beat")
        if time.monotonic_ns() < end_ns or not live.total("finished"):
            continue
        if live.counted("received") >= live.counted("expected") + external:
            break
    cpu_ns = _cpu_ns(pid) - cpu_ns
    sent, expected, received = map(live.counted, ("sent", "expected", "received"))
    connected = live.total("connected")
    driver.ask("conclude")
    driver.ask("stop")
    table = reduce_table(to_table(driver.rows), ("group", "series"))
    return Played(
        sent=sent,
        expected=expected,
        received=received,
        cpu_ns=cpu_ns,
        connected=connected,
        connect_seconds=(answer["last_ns"] - answer["first_ns"]) / 1e9,
        connect_cpu_ns=connect_cpu_ns,
        unconfigured_bytes=unconfigured_bytes,
        connected_bytes=connected_bytes,
        latency={
            (row["group"], row["series"]): summarize(row)
            for row in table.to_pylist()
            if row["count"]
        },
    )
