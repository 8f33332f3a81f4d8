"""The automaton of a device: its transitions, and the counts that depend on them."""

import pytest

from loadgen.kernels import device
from tests.fleets import small_fleet

LIFE = [
    (device.CONNECT, device.CONNECTING, (1, 0)),
    (device.OPEN, device.AWAIT_CONNACK, (1, 0)),
    (device.ACCEPT, device.CONNECTED, (0, 1)),
    (device.LOSE, device.CLOSED, (0, 0)),
    (device.RETRY, device.IDLE, (0, 0)),
    (device.RETRY, device.IDLE, (0, 0)),
    (device.CONNECT, device.CONNECTING, (1, 0)),
    (device.OPEN, device.AWAIT_CONNACK, (1, 0)),
    (device.REFUSE, device.REFUSED, (0, 0)),
    (device.LOSE, device.CLOSED, (0, 0)),
]


def test_a_life() -> None:
    fleet = small_fleet()
    for event, state, counts in LIFE:
        device.transition(fleet, 0, event)
        assert fleet.devices[0].state == state
        assert (fleet.totals.connecting, fleet.totals.connected) == counts
    assert fleet.devices[1].state == device.IDLE


@pytest.mark.parametrize("state", range(6))
@pytest.mark.parametrize("event", range(6))
def test_what_the_table_does_not_name_is_an_error(state: int, event: int) -> None:
    named = {
        *((device.IDLE, event) for event in (device.CONNECT, device.RETRY)),
        *(
            (device.CONNECTING, device.OPEN),
            (device.AWAIT_CONNACK, device.ACCEPT),
            (device.AWAIT_CONNACK, device.REFUSE),
            (device.CLOSED, device.RETRY),
        ),
        *((state, device.LOSE) for state in range(6) if state != device.CLOSED),
    }
    fleet = small_fleet()
    fleet.devices[0].state = state
    if (state, event) in named:
        device.transition(fleet, 0, event)
        return
    with pytest.raises(ValueError, match="cannot do this"):
        device.transition(fleet, 0, event)
    assert fleet.devices[0].state == state
    assert (fleet.totals.connecting, fleet.totals.connected) == (0, 0)
