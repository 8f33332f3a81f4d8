"""What a score card of many runs costs: time, memory, and whether its percentiles are right.

    python bench/scorecard.py [--runs 100] [--rows 10000] [--sizes 25,50,100] [--master local[2]]
                              [--in DIR]

Makes up runs of a fan-in (through the schema, histogram and writer of real ones, a file a second
and the seal), and has `loadgen scorecard` make one card of the first 25, of the first 50 and of
all, each in a fresh process tree whose memory is sampled (proportional set size, so that pages
which processes share count once). Then the percentiles of two runs are held against the
hdrhistogram library with its histograms merged one by one, and each page is opened in Chromium,
where there is one. Takes some 300 MB of disk and five minutes on two cores; --runs 1000 --sizes
10,100,1000 makes ten million rows, in ten times of both. What it made up is removed at the end,
unless it is in DIR.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from hdrh.histogram import HdrHistogram

from loadgen.kernels.counting import bucket_index
from loadgen.metrics.histogram import HIGHEST_NS, dense, lowest_values, sparse
from loadgen.metrics.interval import HISTOGRAM, INTERVAL_SCHEMA, RUN_METADATA_KEY
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.run.interval_files import ROW_GROUP_ROWS, WRITE_OPTIONS
from loadgen.run.rundir import write_json
from loadgen.run.seal import seal

NS = 1_000_000_000
ANCHOR_NS = 1000 * NS
WORKERS = 4
RATE = 4_000
POOL = 64
"""Different histograms, drawn from at random: making a million would measure the making."""

GROUPS = (
    DeviceGroup("publishers", RATE, Publishes("t/{topic}", RATE, deliveries=1)),
    DeviceGroup("subscriber", 1, None, Subscribes(("t/+",))),
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


def make_run(directory: Path, run: str, rows: int, seed: int) -> None:
    """The directory of a run that has ended, of so many interval rows."""
    random = np.random.default_rng(seed)
    pools = (histograms(random, 30), histograms(random, 120 + seed % 7))
    seconds = -(-rows // (WORKERS * len(_SECOND)))
    columns = columns_of(run, seconds, random)
    pool, place = drawn(pools, seconds, random)
    columns |= {name: pool[name].take(place) for name in HISTOGRAM}
    names = INTERVAL_SCHEMA.names
    table = pa.table([columns[name] for name in names], names=names).cast(INTERVAL_SCHEMA)
    table = table.slice(0, rows).replace_schema_metadata({RUN_METADATA_KEY: run.encode()})
    (directory / "intervals").mkdir(parents=True)
    path = directory / "intervals" / "part-000000.parquet"
    pq.write_table(table, path, row_group_size=ROW_GROUP_ROWS, **WRITE_OPTIONS)
    write_json(directory / "run.json", document_of(run, seconds, seed))
    seal(directory)


_SECOND = (
    # group, series, pool of histograms
    ("", "", None),
    ("publishers", "", None),
    ("subscriber", "", None),
    ("publishers", "send_delay", 0),
    ("subscriber", "end_to_end", 1),
    ("subscriber", "transit", 1),
)
"""The rows that one worker writes in a second."""


def columns_of(run: str, seconds: int, random: np.random.Generator) -> dict[str, Any]:
    """All columns but the histogram's: rows by second, worker and `_SECOND`."""
    kinds = len(_SECOND)
    count = seconds * WORKERS * kinds
    kind = np.arange(count) % kinds
    second = np.arange(count) // (WORKERS * kinds)
    sent = RATE // WORKERS
    columns: dict[str, Any] = {name: np.zeros(count, np.int64) for name in INTERVAL_SCHEMA.names}
    columns |= {
        "run": pa.array([run]).take(pa.array(np.zeros(count, np.int32))),
        "group": pa.array([one[0] for one in _SECOND]).take(pa.array(kind)),
        "series": pa.array([one[1] for one in _SECOND]).take(pa.array(kind)),
        "phase": pa.array(["measure"]).take(pa.array(np.zeros(count, np.int32))),
        "worker": np.arange(count) // kinds % WORKERS,
        "second": second,
        "time_ns": ANCHOR_NS + second * NS,
        "span_ns": np.full(count, NS),
        "cpu_ns": np.where(kind == 0, (random.uniform(0.2, 0.5, count) * NS).astype(np.int64), 0),
        "resident_bytes": np.where(kind == 0, 200 << 20, 0),
        "sent": np.where(kind == 1, sent, 0),
        "expected": np.where(kind == 1, sent, 0),
        "received": np.where(kind == 2, sent, 0),
        "connected": np.where(kind == 1, sent, np.where(kind == 2, 1, 0)),
    }
    return columns


def drawn(
    pools: Sequence[Sequence[dict[str, Any]]], seconds: int, random: np.random.Generator
) -> tuple[dict[str, Any], pa.Array]:
    """The histogram columns of all pools, and which entry each row has; the last one is empty."""
    entries = [entry for pool in pools for entry in pool]
    entries.append(dict.fromkeys(HISTOGRAM, 0) | {"bucket": [], "bucket_count": []})
    columns = {name: pa.array([entry[name] for entry in entries]) for name in HISTOGRAM}
    first = np.array([0 if of is None else of * POOL for *_, of in _SECOND])
    empty = np.array([of is None for *_, of in _SECOND])
    rows = seconds * WORKERS
    place = first + random.integers(0, POOL, (rows, len(_SECOND)))
    return columns, pa.array(np.where(empty, len(entries) - 1, place).ravel())


def document_of(run: str, seconds: int, seed: int) -> dict[str, Any]:
    """Its run.json."""
    return {
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
        "windows": {"measure": [ANCHOR_NS, ANCHOR_NS + seconds * NS]},
        "observed": {"high_water_mark": 5},
        "interrupted": False,
        "verdict": {"valid": True, "reasons": []},
    }


KINDS = ("program", "Java", "Python in tasks")


def sample(root: psutil.Process, cpu_s: dict[int, tuple[str, float]]) -> dict[str, int]:
    """Proportional set size of a process and all it started, by kind, in bytes.

    Keeps in `cpu_s` kind and processor time of each, by pid, also of those that have ended.
    """
    found = dict.fromkeys(KINDS, 0)
    try:
        processes = [root, *root.children(recursive=True)]
    except psutil.Error:
        return found
    java: set[int] = set()
    for process in processes:
        try:
            # Below Java are the processes of its tasks.
            below, name = process.ppid() in java, process.name()
            text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
            times = process.cpu_times()
        except (OSError, psutil.Error):
            continue
        if below or name == "java":
            java.add(process.pid)
        kind = "Python in tasks" if below else "Java" if name == "java" else "program"
        cpu_s[process.pid] = kind, times.user + times.system
        found[kind] += int(text.partition("\nPss:")[2].split()[0]) * 1024 if "\nPss:" in text else 0
    return found


@dataclass(frozen=True)
class Cost:
    """Of one `loadgen scorecard`: seconds; of each kind processor seconds, and the memory of the
    moment at which all together had most, and the most that it ever had."""

    seconds: float
    cpu_s: dict[str, float]
    at_peak: dict[str, int]
    most: dict[str, int]


def measure(runs: Sequence[Path], out: Path, master: str) -> Cost:
    """What one `loadgen scorecard` costs, all its processes together."""
    command = [sys.executable, "-m", "loadgen", "scorecard", *map(str, runs)]
    began = time.monotonic()
    program = subprocess.Popen(
        [*command, "--spark-master", master, "--out", str(out)],
        stdout=subprocess.DEVNULL,
        cwd=Path(__file__).parents[1],
    )
    root = psutil.Process(program.pid)
    samples = [dict.fromkeys(KINDS, 0)]
    cpu_s: dict[int, tuple[str, float]] = {}
    while program.poll() is None:
        samples.append(sample(root, cpu_s))
        time.sleep(0.25)
    if program.returncode:
        raise SystemExit(f"loadgen scorecard ended with {program.returncode}")
    return Cost(
        time.monotonic() - began,
        {kind: sum(s for own, s in cpu_s.values() if own == kind) for kind in KINDS},
        max(samples, key=lambda one: sum(one.values())),
        {kind: max(one[kind] for one in samples) for kind in KINDS},
    )


CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

TELL = b"""
(() => {
  const readable = performance.now();
  const root = document.documentElement;
  new MutationObserver((_, seen) => {
    seen.disconnect();
    const elements = document.getElementsByTagName("*").length;
    requestAnimationFrame(() => setTimeout(() =>
      console.log(["opened", readable, performance.now(), elements].join(" "))));
  }).observe(root, { attributes: true, attributeFilter: ["data-drawn"] });
})();
"""


def opened(page: Path) -> tuple[float, float, int] | None:
    """Milliseconds after which a page is read in and those after which its charts are drawn, the
    better of three times, and how many elements it has; None without a Chromium."""
    if CHROMIUM is None:
        return None
    told = page.read_bytes().replace(b"</main>", b"</main><script>" + TELL + b"</script>", 1)
    allowed = b"script-src 'sha256-" + b64encode(sha256(TELL).digest()) + b"' "
    found = []
    for _ in range(3):
        with tempfile.TemporaryDirectory(prefix="loadgen-bench-") as home:
            (Path(home) / "page.html").write_bytes(told.replace(b"script-src ", allowed, 1))
            options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
            address = (Path(home) / "page.html").as_uri()
            own = (f"--user-data-dir={home}/profile", "--remote-debugging-port=0", address)
            with subprocess.Popen(
                ["timeout", "60", CHROMIUM, *options, *own], stderr=subprocess.PIPE, text=True
            ) as browser:
                said = (re.search(r"opened ([\d. ]+)", line) for line in browser.stderr or ())
                found.append(next((one[1].split() for one in said if one), None))
                browser.terminate()
    if None in found:
        return None
    readable, drawn = (min(float(one[n]) for one in found if one) for n in (0, 1))
    return readable, drawn, int(found[0][2]) if found[0] else 0


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
    parser.add_argument("--in", dest="base", type=Path, help="where runs are made once and kept")
    given = parser.parse_args()
    sizes = sorted({min(int(size), given.runs) for size in given.sizes.split(",")})
    base = given.base or Path(tempfile.mkdtemp(prefix="loadgen-bench-"))
    try:
        runs = [base / f"run-{place:04d}" for place in range(given.runs)]
        began = time.monotonic()
        for number, run in enumerate(runs):
            if not (run / "run.json").exists():
                make_run(run, run.name, given.rows, number)
        size = sum(path.stat().st_size for path in base.rglob("*.parquet"))
        files = sum(1 for _ in base.rglob("*.parquet"))
        rows = given.runs * given.rows
        print(
            f"{rows:,} rows in {files:,} files, {size / 1e6:,.0f} MB, "
            f"written in {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for count in sizes:
            out = base / f"card-{count}"
            cost = measure(runs[:count], out, given.master)
            cpu_s, peak = sum(cost.cpu_s.values()), sum(cost.at_peak.values())
            page = (out / "scorecard.html").stat().st_size
            shown = opened(out / "scorecard.html")
            print(
                f"{count * given.rows:>10,} rows: {cost.seconds:6.1f} s, "
                f"processor {cpu_s:6.1f} s, {1e6 * cpu_s / (count * given.rows):5.1f} µs a row, "
                f"memory {peak / 1e9:.2f} GB, page {page / 1e6:.1f} MB",
                *(
                    f"  {kind}: processor {cost.cpu_s[kind]:.1f} s, "
                    f"{cost.at_peak[kind] / 1e9:.2f} GB of it, most {cost.most[kind] / 1e9:.2f} GB"
                    for kind in KINDS
                ),
                f"  page: read in {shown[0]:.0f} ms, its charts drawn after {shown[1]:.0f} ms, "
                f"{shown[2]:,} elements"
                if shown
                else "  page: no Chromium opened it",
                sep="\n",
                flush=True,
            )
        document = orjson.loads((base / f"card-{sizes[-1]}" / "scorecard.json").read_bytes())
        cards = document.get("runs", [document])
        for place in sorted({0, len(cards) - 1}):
            merged = check(runs[place], "end_to_end", cards[place]["latency"]["end_to_end"])
            print(f"{runs[place].name}: percentiles equal those of {merged:,} merged one by one")
    finally:
        if given.base is None:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
