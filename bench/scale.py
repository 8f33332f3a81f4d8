"""What a message and a device cost, from 10 devices to a million, against C sinks here.

    python bench/scale.py                                 10,000 messages a second from ever more
    python bench/scale.py --each 0.1                      one message every 10 s from each device
    python bench/scale.py --devices 1k,10k,100k --chart scale.html
    python bench/scale.py --devices 1M --each 0.01667 --qos 1 --seconds 300    a million, a minute

With `--rate` the load stays the same and only the number of devices grows: what a message costs
more is the price of many devices. With `--each` the load grows with them. Every message is sent
alone, at its own moment, and with `--qos 1` acknowledged. The processor time is that of the
workers in the measured window, and the sinks share the host. docs/internals/measurements.md has
results.
"""

import argparse
import asyncio
import json
import os
import resource
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from bench import floor
from loadgen.errors import LoadgenError
from loadgen.metrics.reducer import reduce_table, summarize
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Target, WorkerPlan
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_count, parse_number
from loadgen.run.calibrate import play

SPARE = 300
"""Descriptors of a worker or a sink that are not devices."""
DEVICE_BYTES = 9_000
WORKER_BYTES = 60 << 20
MEMORY_SHARE = 0.8
SIZES = "10,100,1k,10k,100k,1M"


@dataclass(frozen=True, slots=True)
class Size:
    """One line of the table; `busy_cores` is of all workers together."""

    devices: int
    workers: int
    rate: float
    sent_per_s: float
    owed: int
    unacknowledged: int
    cpu_us: float
    busy_cores: float
    send_delay_p50_us: float | None
    send_delay_p99_us: float | None
    connects_per_s: float
    connect_cpu_us: float
    worker_bytes: float
    load_before: float

    @property
    def kept_up(self) -> bool:
        """Whether everything that was due was sent, and acknowledged at QoS 1."""
        return not self.owed and not self.unacknowledged and self.sent_per_s > 0.99 * self.rate


def _plan(devices: int, rate: float, qos: int, targets: Sequence[Target], each: int) -> Plan:
    count = -(-devices // each)
    publishes = Publishes("scale/{topic}", rate, qos)
    workers = tuple(
        # A source address each: one has too few ports for all of them.
        WorkerPlan(row, (Share(0, row, devices, count),), f"127.1.{row >> 8}.{(row & 255) or 254}")
        for row in range(count)
    )
    return Plan(
        run_tag=secrets.randbits(32),
        scenario=Scenario(case="bench"),
        groups=(DeviceGroup("devices", devices, publishes),),
        targets=tuple(targets),
        workers=workers,
        max_packet_bytes=1 << 16,
    )


async def _measured(devices: int, rate: float, arguments: argparse.Namespace) -> Size:
    each = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE
    load = os.getloadavg()[0]
    with ExitStack() as stack:
        qos = arguments.qos
        sinks = [
            stack.enter_context(floor.sink(seconds=arguments.seconds + 900, acknowledge=qos > 0))
            for _ in range(-(-devices // each))
        ]
        plan = _plan(devices, rate, qos, [Target(s.host, s.port) for s in sinks], each)
        phases = PhasePlan(
            arguments.warmup, arguments.seconds, 10, None, 64 * len(plan.workers), timeout_s=60
        )
        played = await play(replace(plan, phases=phases))
    table = reduce_table(played.table, ("group", "phase", "series"), gauges="max").to_pylist()
    rows = {(row["group"], row["phase"], row["series"]): row for row in table}
    window = rows["devices", "measure", ""]
    process = rows["", "measure", ""]
    delay = summarize(rows.get(("devices", "measure", "send_delay"), {"count": 0}))
    connected = played.state.connected
    if connected is None or connected.failures:
        raise floor.FloorError(f"not all of {devices} devices connected: {connected}")
    connect_ns = sum(played.cpu_ns(row, "connect") for row in range(len(plan.workers)))
    resident = sum(
        int(played.row(row, "", "measure").get("resident_bytes", 0))
        for row in range(len(plan.workers))
    )
    return Size(
        devices=devices,
        workers=len(plan.workers),
        rate=rate,
        sent_per_s=window["sent"] / arguments.seconds,
        owed=played.state.owed_at_window_end,
        unacknowledged=window["sent"] - window["acknowledged"] if arguments.qos else 0,
        cpu_us=process["cpu_ns"] / max(window["sent"], 1) / 1000,
        busy_cores=process["cpu_ns"] / (arguments.seconds * 1e9),
        send_delay_p50_us=delay.p50_us,
        send_delay_p99_us=delay.p99_us,
        connects_per_s=connected.done / max(connected.seconds, 1e-9),
        connect_cpu_us=connect_ns / devices / 1000,
        worker_bytes=resident / devices,
        load_before=load,
    )


_COLUMNS = (
    ("devices", "{s.devices:,}"),
    ("workers", "{s.workers}"),
    ("asked/s", "{s.rate:,.0f}"),
    ("sent/s", "{s.sent_per_s:,.0f}"),
    ("owed", "{s.owed:,}"),
    ("cpu µs/msg", "{s.cpu_us:.2f}"),
    ("cores", "{s.busy_cores:.2f}"),
    ("delay p50 µs", "{s.send_delay_p50_us:,.0f}"),
    ("p99 µs", "{s.send_delay_p99_us:,.0f}"),
    ("connects/s", "{s.connects_per_s:,.0f}"),
    ("cpu µs/connect", "{s.connect_cpu_us:.1f}"),
    ("bytes each", "{s.worker_bytes:,.0f}"),
    ("load", "{s.load_before:.1f}"),
)


def _table(sizes: Sequence[Size]) -> str:
    rows = [[name for name, _ in _COLUMNS]]
    rows += [[form.format(s=size) for _, form in _COLUMNS] for size in sizes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _chart(sizes: Sequence[Size], path: Path) -> None:
    from plotly.subplots import make_subplots

    titles = ("µs of processor a message", "messages/s", "send delay, µs", "µs a connect")
    figure = make_subplots(rows=2, cols=2, subplot_titles=titles)
    devices = [size.devices for size in sizes]
    series = (
        (1, 1, "workers", [size.cpu_us for size in sizes]),
        (1, 2, "asked", [size.rate for size in sizes]),
        (1, 2, "sent", [size.sent_per_s for size in sizes]),
        (2, 1, "p50", [size.send_delay_p50_us for size in sizes]),
        (2, 1, "p99", [size.send_delay_p99_us for size in sizes]),
        (2, 2, "workers", [size.connect_cpu_us for size in sizes]),
    )
    for row, column, name, values in series:
        figure.add_scatter(
            x=devices, y=values, name=name, mode="lines+markers", row=row, col=column
        )
    figure.update_xaxes(type="log", title_text="devices")
    figure.update_yaxes(rangemode="tozero")
    figure.update_yaxes(type="log", row=2, col=1)
    figure.update_layout(title="Cost of messages by number of devices")
    figure.write_html(path, include_plotlyjs=True)


def _fits(devices: int) -> bool:
    each = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    available = next(int(ln.split()[1]) << 10 for ln in lines if ln.startswith("MemAvailable"))
    needed = devices * DEVICE_BYTES + -(-devices // each) * WORKER_BYTES
    return needed < available * MEMORY_SHARE


def main() -> int:
    """Measure each size and print the table; 1 when a size did not keep up."""
    parser = argparse.ArgumentParser(description="cost of messages by number of devices")
    parser.add_argument("--devices", default=SIZES, metavar="N,...")
    parser.add_argument("--rate", default="10k", metavar="N", help="messages a second of all")
    parser.add_argument("--each", metavar="N", help="messages a second of each device instead")
    parser.add_argument("--qos", type=int, choices=(0, 1), default=0)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--warmup", type=float, default=2)
    parser.add_argument("--chart", type=Path, metavar="FILE.html")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    sizes: list[Size] = []
    try:
        for word in arguments.devices.split(","):
            devices = parse_count(word)
            rate = parse_number(arguments.rate)
            if arguments.each is not None:
                rate = devices * parse_number(arguments.each)
            if not _fits(devices):
                print(f"{devices:,} devices do not fit into the memory: left out")
                continue
            sizes.append(asyncio.run(_measured(devices, rate, arguments)))
            print(_table(sizes[-1:]), flush=True)
            time.sleep(1)
    except (floor.FloorError, LoadgenError, ValueError) as error:
        print(f"bench/scale.py: {error}", file=sys.stderr)
        return 3
    if len(sizes) > 1:
        print("\n" + _table(sizes))
    if arguments.chart is not None and sizes:
        _chart(sizes, arguments.chart)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(size) for size in sizes], indent=2))
    return int(not all(size.kept_up for size in sizes))


if __name__ == "__main__":
    sys.exit(main())
