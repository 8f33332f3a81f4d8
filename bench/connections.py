"""Memory, processor time and connect rate by number of devices, against C sinks on this host.

    python bench/connections.py                                1,000, 10,000 and 100,000 devices
    python bench/connections.py --devices 100k,1M --hold 60    the published headline, twice
    python bench/connections.py --chart connections.html

Each size is a run of CONNBURST as `loadgen connburst` plays it, against as many sinks
(bench/floor/sink.c: CONNECT and PINGREQ are answered) as the limit of open files asks for. The
devices are held with a keep-alive that makes each of them ping, and the sinks count the pings.

Memory is what the host has less of while the devices are held: workers, sinks and the kernel's
sockets together. `worker` and `sink` are the processes' proportional shares of it by device, the
interpreter's share included, and `kernel` is what its slabs grew by. A host that does something
else at the same time spoils the total first.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from bench import floor
from loadgen.cases.registry import build_scenario
from loadgen.errors import LoadgenError
from loadgen.plan.units import parse_count
from loadgen.run.progress import Snapshot
from loadgen.run.testbed import Testbed

SINK_SPARE = 200
"""Descriptors of a sink that are not devices: its own files, and the probe before the run."""
FIRST_PORT = 10_000
MEMORY_LIMIT = 0.8
"""Share of what is available that a size may take by estimate, else it is left out."""
ESTIMATE_BYTES = 12_000


@dataclass(slots=True)
class Sample:
    """What the host and our processes take; bytes and ns."""

    unused: int
    slab: int
    workers: int
    sinks: int
    load: float


@dataclass(frozen=True, slots=True)
class Size:
    """One line of the table."""

    devices: int
    workers: int
    sinks: int
    valid: bool
    reasons: list[str]
    connected: int
    connect_s: float
    connects_per_s: float
    connect_cpu_us: float
    sink_cpu_us: float
    total_bytes: int
    worker_bytes: float
    sink_bytes: float
    kernel_bytes: float
    total_bytes_each: float
    hold_s: float
    hold_cpu_us_per_device_s: float
    pings: int
    p50_ms: float | None
    p99_ms: float | None
    max_ms: float | None
    retransmits: int
    load_before: float
    run_s: float


def _meminfo() -> dict[str, int]:
    lines = Path("/proc/meminfo").read_text("ascii").splitlines()
    return {name: int(rest.split()[0]) << 10 for name, rest in (line.split(":") for line in lines)}


def _proportional_bytes(pid: int) -> int:
    """What a process would free by ending: shared pages count by their share."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text("ascii")
    except OSError:
        return 0
    return next(int(ln.split()[1]) << 10 for ln in text.splitlines() if ln.startswith("Pss:"))


def _sample(sinks: Sequence[floor.Server]) -> Sample:
    info = _meminfo()
    own = psutil.Process().children(recursive=True)
    sink_pids = {server.process.pid for server in sinks}
    return Sample(
        # Not MemAvailable: that counts half of the sockets' slabs as if they could be reclaimed.
        unused=info["MemFree"] + info["Buffers"] + info["Cached"] - info["Shmem"],
        slab=info["Slab"],
        workers=sum(_proportional_bytes(p.pid) for p in own if p.pid not in sink_pids),
        sinks=sum(map(_proportional_bytes, sink_pids)),
        load=os.getloadavg()[0],
    )


def _cpu_ns(table: Any, before_ns: int | None, after_ns: int | None) -> int:
    """Processor time of the workers in rows that began before, or from, a moment."""
    total = 0
    columns = (table[name].to_pylist() for name in ("group", "time_ns", "cpu_ns"))
    for group, start_ns, cpu_ns in zip(*columns, strict=True):
        if group == "" and (before_ns is None or start_ns < before_ns):
            total += cpu_ns if after_ns is None or start_ns >= after_ns else 0
    return total


async def _measured(devices: int, arguments: argparse.Namespace) -> Size:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    each = min(hard, 1_000_000) - SINK_SPARE
    count = max(arguments.sinks or 0, -(-devices // each))
    began_s = time.monotonic()
    with ExitStack() as stack:
        longest = 600 + arguments.hold + devices / 1000
        sinks = [stack.enter_context(floor.sink(seconds=longest)) for _ in range(count)]
        fields: dict[str, object] = {
            "devices": devices,
            "duration": arguments.hold,
            "warmup": 0,
            "in_flight": arguments.in_flight,
            "keep_alive": arguments.keep_alive,
            "connect_timeout": 60,
            "broker": [f"mqtt://{server.host}:{server.port}" for server in sinks],
        }
        for name in ("rate", "workers", "source_address"):
            if getattr(arguments, name) is not None:
                fields[name] = getattr(arguments, name)
        scenario = build_scenario("connburst", None, fields)
        before = _sample(sinks)
        held: list[Sample] = []

        def progress(snapshot: Snapshot) -> None:
            if snapshot.phase == "hold" and not held:
                held.append(_sample(sinks))

        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            async with Testbed(lends=False) as testbed:
                result = await testbed.run(scenario, out, progress=progress)
            document = json.loads((out / "run.json").read_bytes())
            table = pq.read_table(out / "intervals")
        reports = [floor.stop(server) for server in sinks]
    windows = document["windows"]
    connect_start_ns, connect_end_ns = windows["connect"]
    hold_start_ns, hold_end_ns = windows.get("hold", (connect_end_ns, connect_end_ns))
    hold_s = (hold_end_ns - hold_start_ns) / 1e9
    seconds = (connect_end_ns - connect_start_ns) / 1e9
    # A second in which both happened counts as connecting: holding costs next to nothing.
    connect_cpu_ns = _cpu_ns(table, connect_end_ns, None)
    hold_cpu_ns = _cpu_ns(table, hold_end_ns, connect_end_ns)
    at_hold = held[0] if held else before
    used = before.unused - at_hold.unused
    connected = document["connect"]["connected"]
    latency = _latency_ms(table)
    return Size(
        devices=devices,
        workers=document["plan"]["workers"],
        sinks=count,
        valid=result.verdict.valid,
        reasons=[f"{reason.code}: {reason.detail}" for reason in result.verdict.reasons],
        connected=connected,
        connect_s=seconds,
        connects_per_s=connected / seconds,
        connect_cpu_us=connect_cpu_ns / devices / 1000,
        sink_cpu_us=sum(report["process"]["cpu_s"] for report in reports) / devices * 1e6,
        total_bytes=used,
        worker_bytes=(at_hold.workers - before.workers) / devices,
        sink_bytes=(at_hold.sinks - before.sinks) / devices,
        kernel_bytes=(at_hold.slab - before.slab) / devices,
        total_bytes_each=used / devices,
        hold_s=hold_s,
        hold_cpu_us_per_device_s=hold_cpu_ns / 1000 / devices / max(hold_s, 1e-9),
        pings=sum(report["pings"] for report in reports),
        p50_ms=latency[0],
        p99_ms=latency[1],
        max_ms=latency[2],
        retransmits=document["network"].get("syn_retransmits", 0),
        load_before=before.load,
        run_s=time.monotonic() - began_s,
    )


def _latency_ms(table: Any) -> tuple[float | None, float | None, float | None]:
    """Median, 99th percentile and maximum from the first SYN to CONNACK."""
    from loadgen.metrics.reducer import reduce_table, summarize

    for row in reduce_table(table, ("series",)).to_pylist():
        if row["series"] == "connect" and row["count"]:
            found = summarize(row)
            return tuple(  # type: ignore[return-value]
                None if us is None else us / 1000
                for us in (found.p50_us, found.p99_us, found.max_us)
            )
    return None, None, None


_COLUMNS = (
    ("devices", "{s.devices:,}"),
    ("workers", "{s.workers}"),
    ("sinks", "{s.sinks}"),
    ("seconds", "{s.connect_s:.1f}"),
    ("connects/s", "{s.connects_per_s:,.0f}"),
    ("cpu µs", "{s.connect_cpu_us:.1f}"),
    ("sink µs", "{s.sink_cpu_us:.1f}"),
    ("p99 ms", "{s.p99_ms:,.1f}"),
    ("max ms", "{s.max_ms:,.0f}"),
    ("total GB", "{gb:.2f}"),
    ("B/device", "{s.total_bytes_each:,.0f}"),
    ("worker B", "{s.worker_bytes:,.0f}"),
    ("sink B", "{s.sink_bytes:,.0f}"),
    ("kernel B", "{s.kernel_bytes:,.0f}"),
    ("hold s", "{s.hold_s:.0f}"),
    ("hold µs/s", "{s.hold_cpu_us_per_device_s:.3f}"),
    ("pings", "{s.pings:,}"),
    ("SYN again", "{s.retransmits:,}"),
    ("load", "{s.load_before:.1f}"),
)


def _table(sizes: Sequence[Size]) -> str:
    rows = [[name for name, _ in _COLUMNS]]
    rows += [
        [form.format(s=size, gb=size.total_bytes / 1e9) for _, form in _COLUMNS] for size in sizes
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )


def _chart(sizes: Sequence[Size], path: Path) -> None:
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    figure = make_subplots(
        rows=1, cols=3, subplot_titles=("connects/s", "µs of processor a connect", "bytes a device")
    )
    devices = [size.devices for size in sizes]
    series = (
        (1, "connects/s", [size.connects_per_s for size in sizes]),
        (2, "workers", [size.connect_cpu_us for size in sizes]),
        (2, "sinks", [size.sink_cpu_us for size in sizes]),
        (3, "everything", [size.total_bytes_each for size in sizes]),
        (3, "worker", [size.worker_bytes for size in sizes]),
        (3, "sink", [size.sink_bytes for size in sizes]),
        (3, "kernel", [size.kernel_bytes for size in sizes]),
    )
    for column, name, values in series:
        figure.add_scatter(x=devices, y=values, name=name, mode="lines+markers", row=1, col=column)
    figure.update_xaxes(type="log", title_text="devices")
    figure.update_yaxes(rangemode="tozero")
    figure.update_layout(title="Cost of connections by number of devices")
    go.Figure(figure).write_html(path, include_plotlyjs=True)


def _fits(devices: int) -> bool:
    return devices * ESTIMATE_BYTES < _meminfo()["MemAvailable"] * MEMORY_LIMIT


def main() -> int:
    """Measure each size and print the table; 1 when a run was not valid."""
    parser = argparse.ArgumentParser(description="cost of connections by number of devices")
    parser.add_argument("--devices", default="1k,10k,100k", metavar="N,...")
    parser.add_argument("--hold", type=float, default=10, metavar="S")
    parser.add_argument("--keep-alive", type=int, default=60, metavar="S")
    parser.add_argument("--in-flight", type=int, default=256, metavar="N")
    parser.add_argument("--rate", metavar="N", help="connects a second; as fast as it goes")
    parser.add_argument("--workers", metavar="N")
    parser.add_argument("--sinks", type=int, metavar="N", help="at least so many sinks")
    parser.add_argument("--source-address", metavar="CIDR")
    parser.add_argument("--chart", type=Path, metavar="FILE.html")
    parser.add_argument("--json", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    sizes: list[Size] = []
    try:
        for word in arguments.devices.split(","):
            devices = parse_count(word)
            if not _fits(devices):
                print(f"{devices:,} devices would not fit into the memory: left out")
                continue
            sizes.append(asyncio.run(_measured(devices, arguments)))
            print(_table(sizes[-1:]), *sizes[-1].reasons, sep="\n", flush=True)
    except (floor.FloorError, LoadgenError, ValueError) as error:
        print(f"bench/connections.py: {error}", file=sys.stderr)
        return 3
    if len(sizes) > 1:
        print("\n" + _table(sizes))
    if arguments.chart is not None and sizes:
        _chart(sizes, arguments.chart)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([asdict(size) for size in sizes], indent=2))
    return int(not all(size.valid for size in sizes))


if __name__ == "__main__":
    sys.exit(main())
