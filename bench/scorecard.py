"""What a score card of many runs costs: time, memory, and whether its percentiles are right.

    python bench/scorecard.py [--runs 100] [--rows 10000] [--sizes 25,50,100] [--master local[2]]

Makes up runs of a fan-in (through the schema, histogram and writer of real ones, a file a second
and the seal), and has `loadgen scorecard` make one card of the first 25, of the first 50 and of
all, each in a fresh process tree whose memory is sampled (proportional set size, so that pages
which processes share count once). Then the percentiles of two runs are held against the
hdrhistogram library with its histograms merged one by one. Takes some 3 GB of disk and about ten
minutes on two cores; what it made up is removed at the end.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

from loadgen.control.rundir import IntervalWriter, write_json
from loadgen.control.seal import seal
from loadgen.metrics.histogram import HIGHEST_NS, bucket_index, dense, lowest_values, sparse
from loadgen.metrics.interval import Interval
from loadgen.workload.groups import DeviceGroup, Publishes, Subscribes

NS = 1_000_000_000
ANCHOR_NS = 1000 * NS
WORKERS = 4
RATE = 4_000
POOL = 64
"""Different histograms, drawn from at random: making a million would measure the making."""

GROUPS = (
    DeviceGroup("publishers", RATE, Publishes("t", RATE, 0, RATE, 1, 0, size_bytes=(32, 32))),
    DeviceGroup("subscriber", 1, None, Subscribes("publishers", wildcard=True)),
)


def histograms(random: np.random.Generator, mean_us: float) -> list[dict[str, Any]]:
    """The histogram columns of a worker's second at the rate."""
    made = []
    for _ in range(POOL):
        values = (random.lognormal(np.log(mean_us), 0.6, RATE // WORKERS) * 1000).astype(np.int64)
        buckets = [bucket_index(value) for value in values.tolist()]
        bucket, bucket_count = sparse(dense(buckets, np.ones(len(buckets), np.int64)))
        made.append(
            {
                "count": len(values),
                "sum_ns": int(values.sum()),
                "min_ns": int(values.min()),
                "max_ns": int(values.max()),
                "bucket": bucket,
                "bucket_count": bucket_count,
            }
        )
    return made


def make_run(directory: Path, run: str, rows: int, seed: int) -> int:
    """A run directory of so many interval rows; returns how many buckets they have."""
    random = np.random.default_rng(seed)
    delays, latencies = histograms(random, 30), histograms(random, 120 + seed % 7)
    (directory / "intervals").mkdir(parents=True)
    writer = IntervalWriter(directory, run)
    written = second = buckets = 0
    while written < rows:
        part = []
        for worker in range(WORKERS):
            part += rows_of(run, worker, second, delays, latencies, random)
        part = part[: rows - written]
        writer.write(second, part)
        buckets += sum(len(row.bucket) for row in part)
        written += len(part)
        second += 1
    bounds = {"measure": [ANCHOR_NS, ANCHOR_NS + second * NS]}
    write_json(
        directory / "run.json",
        {
            "schema": 1,
            "id": run,
            "case": "fanin",
            "program": "loadgen bench",
            "started": "2026-01-01T00:00:00Z",
            "command": ["loadgen", "fanin"],
            "scenario": {"devices": RATE},
            "plan": {"workers": WORKERS, "hosts": 1, "groups": [asdict(g) for g in GROUPS]},
            "seed": seed,
            "environment": {},
            "broker": {"name": "none", "version": "0", "protocol": "MQTT 3.1.1"},
            "clock": {"monotonic_ns": ANCHOR_NS, "wall_ns": 1_767_225_600 * NS},
            "windows": bounds,
            "observed": {"high_water_mark": 5},
            "interrupted": False,
            "verdict": {"valid": True, "reasons": []},
        },
    )
    seal(directory)
    return buckets


def rows_of(
    run: str,
    worker: int,
    second: int,
    delays: Sequence[dict[str, Any]],
    latencies: Sequence[dict[str, Any]],
    random: np.random.Generator,
) -> list[Interval]:
    """What one worker writes in a second."""
    about: dict[str, Any] = {
        "run": run,
        "worker": worker,
        "second": second,
        "time_ns": ANCHOR_NS + second * NS,
        "span_ns": NS,
        "phase": "measure",
    }
    sent = RATE // WORKERS
    draw = random.integers(0, POOL, 3)
    publishers: dict[str, Any] = about | {"group": "publishers"}
    subscriber: dict[str, Any] = about | {"group": "subscriber"}
    return [
        Interval(**about, cpu_ns=int(random.uniform(0.2, 0.5) * NS), resident_bytes=200 << 20),
        Interval(**publishers, sent=sent, expected=sent, connected=sent),
        Interval(**subscriber, received=sent, connected=1),
        Interval(**publishers, series="send_delay", **delays[draw[0]]),
        Interval(**subscriber, series="end_to_end", **latencies[draw[1]]),
        Interval(**subscriber, series="transit", **latencies[draw[2]]),
    ]


def sample(root: psutil.Process, cpu_s: dict[int, float]) -> int:
    """Proportional set size of a process and all it started, in bytes.

    Keeps in `cpu_s` the processor time of each, by pid, also of those that have ended.
    """
    total = 0
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            times = process.cpu_times()
        except (OSError, psutil.Error):
            continue
        cpu_s[process.pid] = times.user + times.system
        total += int(text.partition("\nPss:")[2].split()[0]) * 1024 if "\nPss:" in text else 0
    return total


def measure(runs: Sequence[Path], out: Path, master: str) -> tuple[float, float, int]:
    """Seconds, processor seconds and greatest memory in bytes of one `loadgen scorecard`."""
    command = [sys.executable, "-m", "loadgen", "scorecard", *map(str, runs)]
    began = time.monotonic()
    program = subprocess.Popen(
        [*command, "--spark-master", master, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    root = psutil.Process(program.pid)
    peak = 0
    cpu_s: dict[int, float] = {}
    while program.poll() is None:
        peak = max(peak, sample(root, cpu_s))
        time.sleep(0.25)
    if program.returncode:
        raise SystemExit(f"loadgen scorecard ended with {program.returncode}")
    return time.monotonic() - began, sum(cpu_s.values()), peak


def check(run: Path, series: str, told: dict[str, float]) -> int:
    """Hold a series against the library, merged one by one; returns how many histograms."""
    whole = HdrHistogram(1, HIGHEST_NS, 3)
    merged = 0
    for part in sorted((run / "intervals").glob("*.parquet")):
        table = pq.read_table(part, columns=["series", "bucket", "bucket_count"])
        for row in table.to_pylist():
            if row["series"] == series:
                one = HdrHistogram(1, HIGHEST_NS, 3)
                for value, count in zip(
                    lowest_values(row["bucket"]).tolist(), row["bucket_count"], strict=True
                ):
                    one.record_value(value, count)
                whole.add(one)
                merged += 1
    for name, p in (("p50", 50), ("p90", 90), ("p99", 99), ("p99.9", 99.9)):
        expected = whole.get_value_at_percentile(p) / 1000
        if told[name] != expected:
            raise SystemExit(f"{run.name} {series} {name}: {told[name]}, the library {expected}")
    if told["count"] != whole.total_count:
        raise SystemExit(f"{run.name} {series}: {told['count']} of {whole.total_count} counted")
    return merged


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--sizes", default="25,50,100", help="runs in each card")
    parser.add_argument("--master", default="local[2]")
    given = parser.parse_args()
    sizes = sorted({min(int(size), given.runs) for size in given.sizes.split(",")})
    base = Path(tempfile.mkdtemp(prefix="loadgen-bench-"))
    try:
        runs = [base / f"run-{place:03d}" for place in range(given.runs)]
        began = time.monotonic()
        buckets = sum(make_run(run, run.name, given.rows, n) for n, run in enumerate(runs))
        size = sum(path.stat().st_size for path in base.rglob("*.parquet"))
        files = sum(1 for _ in base.rglob("*.parquet"))
        rows = given.runs * given.rows
        print(
            f"{rows:,} rows in {files:,} files, {size / 1e6:,.0f} MB, {buckets / rows * 2:,.0f} "
            f"buckets a histogram, written in {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for count in sizes:
            out = base / f"card-{count}"
            seconds, cpu_s, peak = measure(runs[:count], out, given.master)
            page = (out / "scorecard.html").stat().st_size
            print(
                f"{count * given.rows:>10,} rows: {seconds:6.1f} s, "
                f"processor {cpu_s:6.1f} s, {1e6 * cpu_s / (count * given.rows):5.1f} µs a row, "
                f"memory {peak / 1e9:.2f} GB, page {page / 1e6:.1f} MB",
                flush=True,
            )
        document = orjson.loads((base / f"card-{sizes[-1]}" / "scorecard.json").read_bytes())
        cards = document.get("runs", [document])
        for place in sorted({0, len(cards) - 1}):
            merged = check(runs[place], "end_to_end", cards[place]["latency"]["end_to_end"])
            print(f"{runs[place].name}: percentiles equal those of {merged:,} merged one by one")
    finally:
        shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
