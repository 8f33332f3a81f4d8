"""Outages from the counters of each second."""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadgen.scorecard.outages import Outage, outages_of


@dataclass(frozen=True)
class Second:
    at_s: float
    disconnects: int = 0
    connects: int = 0
    connect_failures: int = 0
    span_s: float = 1.0


def test_devices_are_lost_and_come_back_over_some_seconds() -> None:
    course = [
        Second(0.0),
        Second(1.0, disconnects=90),
        Second(2.0, disconnects=10, connect_failures=40),
        Second(3.0, connects=60, connect_failures=5),
        Second(4.0, connects=40, span_s=0.5),
        Second(5.0),
        Second(6.0, disconnects=1, connects=1),
        Second(7.0, disconnects=3),
        Second(8.0, connects=2),
    ]
    assert outages_of(course) == (
        Outage(1.0, 4.5, 100, 100, 100, 45, 80.0),
        Outage(6.0, 7.0, 1, 0, 1, 0, 1.0),
        Outage(7.0, None, 3, 3, 2, 0, 2.0),
    )


def test_a_run_without_a_loss_has_none() -> None:
    assert outages_of([Second(0.0, connects=5), Second(1.0, connect_failures=3)]) == ()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_every_lost_connection_is_told_once(counts: list[tuple[int, int]]) -> None:
    course = [Second(float(at), lost, back) for at, (lost, back) in enumerate(counts)]
    found = outages_of(course)
    assert sum(outage.lost for outage in found) == sum(lost for lost, _ in counts)
    for outage in found:
        assert 0 <= outage.away <= outage.lost
        assert (outage.returned >= outage.lost) == (outage.until_s is not None)
    for earlier, later in pairwise(found):
        assert earlier.until_s is not None
        assert earlier.until_s <= later.from_s
