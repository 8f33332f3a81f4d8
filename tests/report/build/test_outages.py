"""Outages from the counters of each second."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from loadgen.report.build.outages import (
    Outage,
    lost_sections,
    made_worse_remarks,
    outages_of,
    recovery_remarks,
)
from loadgen.report.record import RunRecord


def second(
    at_s: float,
    disconnects: int = 0,
    connects: int = 0,
    connect_failures: int = 0,
    span_s: float = 1.0,
) -> dict[str, float]:
    return {
        "at_s": at_s,
        "span_s": span_s,
        "connects": connects,
        "connect_failures": connect_failures,
        "disconnects": disconnects,
    }


def test_devices_are_lost_and_come_back_over_some_seconds() -> None:
    course = [
        second(0.0),
        second(1.0, disconnects=90),
        second(2.0, disconnects=10, connect_failures=40),
        second(3.0, connects=60, connect_failures=5),
        second(4.0, connects=40, span_s=0.5),
        second(5.0),
        second(6.0, disconnects=1, connects=1),
        second(7.0, disconnects=3),
        second(8.0, connects=2),
    ]
    assert outages_of(course) == (
        Outage(1.0, 4.5, 100, 100, 100, 45, 80.0),
        Outage(6.0, 7.0, 1, 0, 1, 0, 1.0),
        Outage(7.0, None, 3, 3, 2, 0, 2.0),
    )


def test_a_run_without_a_loss_has_none() -> None:
    assert outages_of([second(0.0, connects=5), second(1.0, connect_failures=3)]) == ()


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_every_lost_connection_is_told_once(counts: list[tuple[int, int]]) -> None:
    course = [second(float(at), lost, back) for at, (lost, back) in enumerate(counts)]
    found = outages_of(course)
    assert sum(outage.lost for outage in found) == sum(lost for lost, _ in counts)
    for outage in found:
        assert 0 <= outage.away <= outage.lost
        assert (outage.returned >= outage.lost) == (outage.until_s is not None)
    for earlier, later in pairwise(found):
        assert earlier.until_s is not None
        assert earlier.until_s <= later.from_s


def seen(**observed: object) -> RunRecord:
    return RunRecord("run-1", "persistent", observed=observed)


def test_the_way_back_from_a_crash_is_told_as_far_as_it_went() -> None:
    assert recovery_remarks(seen()) == {}
    whole = {"first_back_s": 0.1, "all_back_s": 1.26, "first_delivery_s": 0.2, "drained_s": 3}
    assert recovery_remarks(seen(recovery=whole)) == {
        "recovery_seconds": "The first device was back after 0.10 s, all devices after 1.26 s, "
        "the first message came after 0.20 s."
    }
    part = {"first_back_s": 0.1, "all_back_s": None, "first_delivery_s": None, "drained_s": None}
    assert recovery_remarks(seen(recovery=part)) == {
        "recovery_seconds": "The first device was back after 0.10 s; more waited to the end than "
        "before the crash."
    }
    nobody = {"recovery_seconds": "More waited to the end than before the crash."}
    assert recovery_remarks(seen(recovery={"drained_s": None})) == nobody
    assert recovery_remarks(seen(recovery={"drained_s": 3})) == {}


def test_what_was_made_worse_on_request_is_said_at_its_rows() -> None:
    assert made_worse_remarks(seen()) == {}
    waited = made_worse_remarks(seen(slow={"waited": 1200}))
    assert list(waited) == ["egress_rate"] and waited["egress_rate"].startswith("1,200 deliveries")


def test_lost_messages_are_named() -> None:
    assert lost_sections(seen()) == ()
    one = {"stream": 3, "first": 7, "last": 9, "group": "subscribers", "device": 5}
    (section,) = lost_sections(seen(lost={"named": [one] * 30, "more": 1200}))
    assert section.rows == ((3, 7, 9, "subscribers 5"),) * 20
    assert "1,200 messages are not among them" in section.note
