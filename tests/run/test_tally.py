from typing import Any

import pytest

from loadgen.metrics.interval import Interval
from loadgen.run.tally import Tally, p99_us
from tests.histograms import latency_row


def test_series_of_timed_groups_are_merged_and_others_are_not() -> None:
    tally = Tally(["pair_subscriber"], ["measure"])
    for row in (
        latency_row("end_to_end", *[1_000] * 90, group="pair_subscriber"),
        latency_row("end_to_end", *[5_000] * 10, group="pair_subscriber"),
        latency_row("end_to_end", *[900_000] * 10, group="pair_subscriber", phase="warmup"),
        latency_row("end_to_end", *[900_000] * 10, group="background_subscribers"),
    ):
        tally.add(row)
    assert tally.series["measure", "end_to_end"].count == 100
    assert tally.p99_us("measure", "end_to_end") == pytest.approx(5, rel=0.01)
    assert tally.p99_us("measure", "transit") is None
    above = [tally.above("measure", "end_to_end", bound_ns) for bound_ns in (900, 1_100, 6_000)]
    assert above == [100, 10, 0] and tally.above("measure", "transit", 0) == 0


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
