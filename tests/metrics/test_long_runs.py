"""Ten hours at a million messages a second overflow no counter."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from loadgen.kernels.counting import bucket_index
from loadgen.metrics.histogram import BUCKETS
from loadgen.metrics.interval import Interval, to_table
from loadgen.metrics.reducer import reduce_table
from loadgen.run.interval_files import IntervalWriter
from tests.refusals import refused

SECONDS = 10 * 3600
RATE = 1_000_000
MESSAGES = SECONDS * RATE


def test_the_buckets_of_a_second_hold_what_a_worker_counts_in_it() -> None:
    """Count a second, or the seconds of a stall: histograms begin anew after each report."""
    assert np.iinfo(np.uint32).max > RATE * 3600
    assert bucket_index(SECONDS * 10**9) < BUCKETS


def _hour(number: int, average_ns: int) -> Interval:
    count = MESSAGES // 10
    return Interval(
        run="r",
        group="g",
        phase="measure",
        series="end_to_end",
        worker=0,
        second=number * 3600,
        count=count,
        sum_ns=count * average_ns,
        min_ns=1,
        max_ns=average_ns,
        bucket=np.array([bucket_index(average_ns)], np.int32),
        bucket_count=np.array([count], np.int64),
        sent=count,
        sent_bytes=count * 1000,
    )


def test_sums_of_the_whole_run_fit_or_are_refused() -> None:
    """Average 250 ms over all messages; a larger sum is refused and does not wrap."""
    rows = [_hour(number, 250_000_000) for number in range(10)]
    (whole,) = reduce_table(to_table(rows), ("run",)).to_pylist()
    assert whole["count"] == MESSAGES
    assert whole["sum_ns"] == MESSAGES * 250_000_000
    assert whole["sent_bytes"] == MESSAGES * 1000
    late = [replace(row, sum_ns=row.sum_ns * 2) for row in rows]
    with refused("LARGE_SUM", column="sum_ns"):
        reduce_table(to_table(late), ("run",))


def test_interval_files_stay_in_order(tmp_path: Path) -> None:
    (tmp_path / "intervals").mkdir()
    writer = IntervalWriter(tmp_path, "r")
    seconds = (0, 3599, SECONDS, SECONDS + 1, 999_999)
    for second in seconds:
        writer.write(second, [Interval(run="r", second=second)])
    names = sorted(path.name for path in (tmp_path / "intervals").iterdir())
    assert names == [f"part-{second:06d}.parquet" for second in seconds]
