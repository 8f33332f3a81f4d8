"""Run directories made up for tests, through the real schema and histogram.

A fabricated run of a case has the groups, series and windows of a real one, one row a worker,
second and series, and numbers drawn from a seed.
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow.parquet as pq

from loadgen.metrics.histogram import sparse
from loadgen.metrics.interval import RUN_METADATA_KEY, Interval, to_table
from loadgen.plan.deliveries import matches_of, mean_deliveries
from loadgen.plan.fit import describe_group
from loadgen.plan.groups import DeviceGroup, Publishes, Subscribes
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import Comparison
from loadgen.report.build.summary import summarize_run
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.write import to_csv, to_json
from loadgen.report.score_card import ScoreCard
from tests.histograms import histogram_of
from tests.plans import small_plan

SECOND_NS = 1_000_000_000
ANCHOR_NS = 5_000 * SECOND_NS
WALL_NS = 1_700_000_000 * SECOND_NS


class Rendered(NamedTuple):
    """A report in its formats."""

    page: str
    text: str
    document: dict[str, Any]
    csv: str


def groups_of(case: str, devices: int = 100, size: int = 32) -> list[DeviceGroup]:
    """The groups of a case, small."""

    def publishes(rate: float, qos: int = 0, topic: str = "t/{topic}", first: int = 0) -> Publishes:
        return Publishes(topic, rate, qos, size_bytes=(size, size), first_stream=first)

    each = Subscribes(("t/{topic}",))

    match case:
        case "fanin":
            return [
                DeviceGroup("publishers", devices, publishes(devices)),
                DeviceGroup("subscriber", 1, None, Subscribes(("t/+",))),
            ]
        case "fanout":
            return [
                DeviceGroup("publishers", 10, publishes(200)),
                DeviceGroup("subscribers", 100, None, each, topics=10),
            ]
        case "persistent":
            return [
                DeviceGroup("publishers", 10, publishes(500, qos=1)),
                DeviceGroup(
                    "subscribers", 10, None, Subscribes(each.filters, 1), clean_start=False
                ),
            ]
        case "latency":
            return [
                DeviceGroup(
                    "background_publishers", devices, publishes(devices), topics=10, timed=False
                ),
                DeviceGroup("background_subscribers", 10, None, each, timed=False),
                DeviceGroup("pair_publisher", 1, publishes(1000, 0, "pair", devices)),
                DeviceGroup("pair_subscriber", 1, None, Subscribes(("pair",))),
            ]
        case "connburst":
            return [DeviceGroup("devices", devices)]
    raise ValueError(case)


def run_document(
    run: str = "run-1", case: str = "fanin", seconds: int = 4, **changes: Any
) -> dict[str, Any]:
    """run.json: connect second 0, subscribe 1, warm-up 2, then the window, then a second drain."""

    def window(first: float, last: float) -> list[int]:
        return [ANCHOR_NS + round(s * SECOND_NS) for s in (first, last)]

    windows = {"connect": window(0, 0.8)}
    observed: dict[str, Any] = {"workers_lost": [], "clock_bound_ns": 0, "busy_share_max": 0.4}
    if case != "connburst":
        windows |= {
            "subscribe": window(1, 1.5),
            "warmup": window(2, 3),
            "measure": window(3, 3 + seconds),
            "drain": window(3 + seconds, 4 + seconds),
        }
        observed |= {
            "owed_at_window_end": 0,
            "high_water_mark": 17,
            "backlog_samples": [
                [ANCHOR_NS + s * SECOND_NS, s % 3, 5 + s % 7] for s in range(2, 3 + seconds)
            ],
        }
    planned = small_plan(tuple(groups_of(case)))
    groups = [describe_group(planned, group) for group in planned.groups]
    document = tomllib.loads(Path(__file__).with_name("run.toml").read_text())
    document |= {
        "id": run,
        "case": case,
        "command": ["loadgen", case, "--devices", "100"],
        "plan": document["plan"] | {"groups": groups},
        "clock": {"monotonic_ns": ANCHOR_NS, "wall_ns": WALL_NS},
        "windows": windows,
        "observed": observed,
    }
    return document | changes


def rows_of(
    run: str = "run-1", case: str = "fanin", seconds: int = 4, seed: int = 1, workers: int = 2
) -> list[Interval]:
    """Interval rows of a whole run; every message sent arrives within its second."""
    random = np.random.default_rng(seed)
    rows: list[Interval] = []

    def row(worker: int, second: int, **columns: Any) -> None:
        rows.append(
            Interval(
                run=run,
                host=0,
                worker=worker,
                second=second,
                time_ns=ANCHOR_NS + second * SECOND_NS,
                span_ns=SECOND_NS,
                **columns,
            )
        )

    def timed(
        worker: int, second: int, series: str, count: int, mean_us: float, **more: Any
    ) -> None:
        values_ns = (random.gamma(3.0, mean_us / 3.0, count) * 1000).astype(np.int64) + 1
        bucket, bucket_count = histogram(values_ns)
        row(
            worker,
            second,
            series=series,
            count=count,
            sum_ns=int(values_ns.sum()),
            min_ns=int(values_ns.min()),
            max_ns=int(values_ns.max()),
            bucket=bucket,
            bucket_count=bucket_count,
            **more,
        )

    groups = groups_of(case)
    ends = 4 + seconds if case != "connburst" else 1
    for worker in range(workers):
        for second in range(ends):
            row(
                worker,
                second,
                phase="measure",
                cpu_ns=int(random.uniform(0.1, 0.6) * SECOND_NS),
                wait_ns=int(random.uniform(0.0, 0.1) * SECOND_NS),
                resident_bytes=150_000_000,
            )
        for group in groups:
            held = max(group.count // workers, 1)
            here = {"group": group.name, "phase": "connect"}
            row(worker, 0, connects=held, connected=held, **here)
            for series, mean_us in (
                ("connect", 400),
                ("tcp", 100),
                ("connack", 300),
                ("connected_at", 250_000),
            ):
                timed(worker, 0, series, held, mean_us, **here)
    for second in range(2, ends):
        phase = "warmup" if second < 3 else "measure" if second < 3 + seconds else "drain"
        if phase == "drain":
            continue
        for group in groups:
            if group.publishes is None:
                continue
            sent = int(group.publishes.rate) // workers
            expected = round(sent * mean_deliveries(group, tuple(groups)))
            mean_us = 120 if group.timed else 900
            to = next(m.receivers for m in matches_of(tuple(groups)) if m.source.senders == group)
            for worker in range(workers):
                row(
                    worker,
                    second,
                    group=group.name,
                    phase=phase,
                    sent=sent,
                    sent_bytes=36 * sent,
                    expected=expected,
                    acknowledged=sent if group.publishes.qos else 0,
                    connected=group.count // workers,
                    owed=worker,
                )
                row(
                    worker,
                    second,
                    group=to.name,
                    phase=phase,
                    received=expected,
                    received_bytes=36 * expected,
                    connected=max(to.count // workers, 1),
                )
                about = {"phase": phase}
                timed(worker, second, "send_delay", sent, 30, group=group.name, **about)
                timed(worker, second, "end_to_end", expected, mean_us, group=to.name, **about)
                timed(worker, second, "transit", expected, mean_us - 25, group=to.name, **about)
                if group.publishes.qos:
                    timed(worker, second, "acknowledge", sent, 70, group=group.name, **about)
    return rows


def histogram(values_ns: Any) -> tuple[Any, Any]:
    return sparse(histogram_of(values_ns))


def write_run(directory: Path, document: dict[str, Any] | None, rows: list[Interval]) -> Path:
    """A run directory with these rows; without run.json if `document` is None."""
    (directory / "intervals").mkdir(parents=True)
    if document is not None:
        (directory / "run.json").write_bytes(orjson.dumps(document))
    seconds = sorted({row.second for row in rows})
    for second in seconds:
        part = [row for row in rows if row.second == second]
        table = to_table(part).replace_schema_metadata({RUN_METADATA_KEY: part[0].run.encode()})
        pq.write_table(table, directory / "intervals" / f"part-{second:06d}.parquet")
    return directory


def rendered(*cards: ScoreCard, comparisons: Sequence[Comparison] = ()) -> Rendered:
    """The report of cards as a page, Markdown, JSON and CSV."""
    report = report_of(cards, comparisons)
    page, text = to_html(report).decode(), to_markdown(report).decode()
    return Rendered(page, text, orjson.loads(to_json(report)), to_csv(report).decode())


def card_of(
    directory: Path, case: str = "fanin", rows: list[Interval] | None = None, **changes: Any
) -> ScoreCard:
    """The score card of a run with these rows; `changes` replace keys of run.json."""
    document = run_document(case=case) | changes
    return summarize_run(write_run(directory, document, rows or rows_of(case=case)))


def fabricate(directory: Path, run: str = "run-1", case: str = "fanin", **changes: Any) -> Path:
    """A run directory; `changes` replace keys of run.json, but for `rows_seed` and `seconds`."""
    seconds = changes.pop("seconds", 4)
    seed = changes.pop("rows_seed", 1)
    document = run_document(run, case, seconds, **changes)
    return write_run(directory, document, rows_of(run, case, seconds, seed))
