from typing import Any

import numpy as np
import pytest

from loadgen.kernels.counting import bucket_index
from loadgen.metrics.interval import Interval
from loadgen.run.tally import Tally, p99_us


def timed(group: str, phase: str, value_ns: int, count: int) -> Interval:
    bucket, counts = np.array([bucket_index(value_ns)], np.int32), np.array([count], np.int64)
    series = {"series": "end_to_end", "min_ns": value_ns, "max_ns": value_ns}
    sums = {"count": count, "sum_ns": count * value_ns, "bucket": bucket, "bucket_count": counts}
    return Interval(group=group, phase=phase, **series, **sums)  # type: ignore[arg-type]


def test_counters_are_kept_apart_by_phase() -> None:
    tally = Tally(["publishers"], ["measure"])
    for phase, sent in (("warmup", 3), ("measure", 4), ("measure", 5)):
        tally.add(Interval(group="publishers", phase=phase, sent=sent, disconnects=1))
    assert [tally.counts(phase)["sent"] for phase in ("measure", "warmup", "drain")] == [9, 3, 0]
    assert tally.counts()["disconnects"] == 3


def test_series_of_timed_groups_are_merged_and_others_are_not() -> None:
    tally = Tally(["pair_subscriber"], ["measure"])
    for row in (
        timed("pair_subscriber", "measure", 1_000, 90),
        timed("pair_subscriber", "measure", 5_000, 10),
        timed("pair_subscriber", "warmup", 900_000, 10),
        timed("background_subscribers", "measure", 900_000, 10),
    ):
        tally.add(row)
    assert tally.series["measure", "end_to_end"].count == 100
    assert tally.p99_us("measure", "end_to_end") == pytest.approx(5, rel=0.01)
    assert tally.p99_us("measure", "transit") is None


def test_busy_share_is_of_the_busiest_worker_in_the_phases_that_matter() -> None:
    tally = Tally([], ["measure"])
    for worker, phase, cpu_ns, wait_ns in (
        (0, "measure", 100, 100),
        (0, "measure", 300, 0),
        (1, "measure", 100, 0),
        (1, "connect", 1000, 0),
    ):
        row = Interval(worker=worker, phase=phase, span_ns=1000, cpu_ns=cpu_ns, wait_ns=wait_ns)
        tally.add(row)
    assert tally.busy_share_max() == 0.25
    assert Tally([], ["measure"]).busy_share_max() == 0.0


def test_p99_of_nothing_is_none() -> None:
    assert p99_us([]) is None
    assert p99_us([Interval()]) is None


SECOND_NS = 1_000_000_000


def row(
    second: int, group: str, worker: int = 0, phase: str = "measure", **counts: int
) -> Interval:
    return Interval(
        worker=worker,
        second=second,
        time_ns=second * SECOND_NS,
        span_ns=SECOND_NS,
        group=group,
        phase=phase,
        **counts,  # type: ignore[arg-type]
    )


def test_groups_are_counted_apart() -> None:
    tally = Tally([], [])
    tally.add(row(1, "a", expected=5))
    tally.add(row(1, "a", phase="warmup", expected=2, disconnects=1))
    tally.add(row(2, "b", worker=1, received=3))
    assert tally.total("a", "expected", "measure") == 5
    assert tally.total("a", "expected") == 7
    assert tally.total("a", "disconnects") == 1
    assert tally.total("b", "received", "measure") == 3


def test_what_is_under_way_adds_up_over_seconds_and_workers() -> None:
    tally = Tally([], [])
    # Rows of a second come late and from several workers.
    counted: tuple[tuple[int, str, int, dict[str, Any]], ...] = (
        (1, "p", 0, {"expected": 10}),
        (2, "c", 1, {"received": 4}),
        (1, "p", 1, {"expected": 5}),
        (2, "p", 0, {"expected": 1}),
        (3, "c", 1, {"received": 12}),
    )
    for second, group, worker, counts in counted:
        tally.add(row(second, group, worker, **counts))
    course = [(2 * SECOND_NS, 15), (3 * SECOND_NS, 12), (4 * SECOND_NS, 0)]
    assert tally.under_way(("p", "c")) == course
    assert tally.under_way(("p",))[-1] == (4 * SECOND_NS, 16)
