"""The automaton of a device: what follows what, and the counts that depend on it."""

import pytest

from loadgen.workload.device import (
    ACCEPT,
    AWAIT_CONNACK,
    CLOSED,
    CONNECT,
    CONNECTED,
    CONNECTING,
    IDLE,
    LOSE,
    OPEN,
    REFUSE,
    REFUSED,
    RETRY,
    transition,
)
from tests.fleets import small_fleet

LIFE = [
    (CONNECT, CONNECTING, (1, 0)),
    (OPEN, AWAIT_CONNACK, (1, 0)),
    (ACCEPT, CONNECTED, (0, 1)),
    (LOSE, CLOSED, (0, 0)),
    (RETRY, IDLE, (0, 0)),
    (RETRY, IDLE, (0, 0)),
    (CONNECT, CONNECTING, (1, 0)),
    (OPEN, AWAIT_CONNACK, (1, 0)),
    (REFUSE, REFUSED, (0, 0)),
    (LOSE, CLOSED, (0, 0)),
]


def test_a_life() -> None:
    fleet = small_fleet()
    for event, state, counts in LIFE:
        transition(fleet, 0, event)
        assert fleet.devices[0].state == state
        assert (fleet.totals.connecting, fleet.totals.connected) == counts
    assert fleet.devices[1].state == IDLE


@pytest.mark.parametrize("state", range(6))
@pytest.mark.parametrize("event", range(6))
def test_what_the_table_does_not_name_is_an_error(state: int, event: int) -> None:
    named = {
        *((IDLE, event) for event in (CONNECT, RETRY)),
        *((CONNECTING, OPEN), (AWAIT_CONNACK, ACCEPT), (AWAIT_CONNACK, REFUSE), (CLOSED, RETRY)),
        *((state, LOSE) for state in range(6) if state != CLOSED),
    }
    fleet = small_fleet()
    fleet.devices[0].state = state
    if (state, event) in named:
        transition(fleet, 0, event)
        return
    with pytest.raises(ValueError, match="cannot do this"):
        transition(fleet, 0, event)
    assert fleet.devices[0].state == state
    assert (fleet.totals.connecting, fleet.totals.connected) == (0, 0)
