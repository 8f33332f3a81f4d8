"""Stalls of a worker that wakes later than planned, and their lengths."""

from loadgen.kernels.attention import (
    NEVER_NS,
    STALL_FLOOR_NS,
    STALLS_LIMIT,
    attend,
    mostly_stalled,
    take_stalled,
    take_stalls,
    tick_or,
    wake_ns,
)
from loadgen.plan.behaviour import PlannedFleet
from tests.fleets import small_fleet

START_NS = 10**12
MS = 10**6


def attentive_fleet() -> PlannedFleet:
    """Return the fleet of a worker that looked at its sockets at START_NS."""
    fleet = small_fleet(1)
    attend(fleet, START_NS, NEVER_NS)
    return fleet


def test_a_worker_that_is_woken_in_time_did_not_stall_however_long_it_slept() -> None:
    fleet = attentive_fleet()
    asked_ns = START_NS + 10**10
    attend(fleet, asked_ns + STALL_FLOOR_NS, asked_ns)
    attend(fleet, asked_ns + 2 * STALL_FLOOR_NS, asked_ns + 10**10)
    assert (take_stalled(fleet), take_stalls(fleet)) == ((0, 0), [])


def test_a_stall_lasts_from_the_moment_asked_for() -> None:
    fleet = attentive_fleet()
    attend(fleet, START_NS + 2000 * MS, START_NS + 5 * MS)
    stall = (START_NS + 5 * MS, START_NS + 2000 * MS)
    assert (take_stalled(fleet), take_stalls(fleet)) == ((1995 * MS, 1995 * MS), [stall])
    assert (take_stalled(fleet), take_stalls(fleet)) == ((0, 0), [])


def test_what_was_done_after_the_moment_asked_for_is_a_stall_from_the_last_look() -> None:
    fleet = attentive_fleet()
    attend(fleet, START_NS + 30 * MS, START_NS - 7 * MS)
    assert take_stalls(fleet) == [(START_NS, START_NS + 30 * MS)]


def test_the_first_look_of_all_is_no_stall() -> None:
    fleet = small_fleet(1)
    attend(fleet, START_NS, wake_ns(fleet, tick_or(fleet, NEVER_NS)))
    assert (take_stalled(fleet), take_stalls(fleet)) == ((0, 0), [])


def test_the_earliest_of_tick_and_schedule_is_what_the_loop_asked_for() -> None:
    for tick_ns, alarm_ns in ((20 * MS, 40 * MS), (40 * MS, 20 * MS), (20 * MS, 0)):
        fleet = attentive_fleet()
        fleet.attention.tick_ns = START_NS + tick_ns
        fleet.attention.alarm_ns = START_NS + alarm_ns if alarm_ns else 0
        attend(fleet, START_NS + 100 * MS, wake_ns(fleet, tick_or(fleet, NEVER_NS)))
        assert take_stalled(fleet)[0] == 80 * MS


def test_a_wait_ends_with_the_schedule_if_that_comes_first() -> None:
    fleet = attentive_fleet()
    assert wake_ns(fleet, START_NS) == START_NS
    fleet.attention.alarm_ns = START_NS - 1
    assert wake_ns(fleet, START_NS) == START_NS - 1
    assert wake_ns(fleet, START_NS - 2) == START_NS - 2


def test_the_sum_holds_stalls_that_there_is_no_room_to_list() -> None:
    fleet = attentive_fleet()
    now_ns = START_NS
    for number in range(STALLS_LIMIT + 5):
        now_ns += (20 + number) * MS
        attend(fleet, now_ns, 0)
    stalled_ns, longest_ns = take_stalled(fleet)
    assert len(take_stalls(fleet)) == STALLS_LIMIT
    assert stalled_ns == now_ns - START_NS
    assert longest_ns == (20 + STALLS_LIMIT + 4) * MS


def test_only_what_is_read_right_after_a_stall_waited_for_it() -> None:
    fleet = attentive_fleet()
    attention = fleet.attention
    attend(fleet, START_NS + MS, NEVER_NS)
    assert attention.missed_ns == 0
    attend(fleet, START_NS + 60 * MS, 0)
    assert attention.missed_ns == START_NS + MS
    attend(fleet, START_NS + 61 * MS, NEVER_NS)
    assert attention.missed_ns == 0


def test_a_message_is_late_by_a_stall_that_took_most_of_its_time() -> None:
    fleet = attentive_fleet()
    assert not mostly_stalled(fleet, START_NS, START_NS + 100 * MS)
    attend(fleet, START_NS + 60 * MS, START_NS)
    assert mostly_stalled(fleet, START_NS, START_NS + 100 * MS)
    assert mostly_stalled(fleet, START_NS - 50 * MS, START_NS + 60 * MS)
    assert not mostly_stalled(fleet, START_NS - 70 * MS, START_NS + 60 * MS)
    assert not mostly_stalled(fleet, START_NS + 60 * MS, START_NS + 61 * MS)
