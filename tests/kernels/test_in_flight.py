"""Session state in arrays against a model of dictionaries (spec 4.1, 4.3, 4.4, 4.9)."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.kernels import in_flight
from loadgen.mqtt.constants import PUBACK, PUBCOMP, PUBREC
from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker import messaging
from loadgen.worker.build_fleet import build_fleet
from tests.mqtt.strategies import QUICK

_ROWS = 2
_WIDTH = 5
_PLAN = messaging.tiny_plan()


def _fleet(width: int = _WIDTH, capacity: int = 0) -> PlannedFleet:
    fleet = build_fleet(_PLAN, _PLAN.workers[0])
    window = in_flight.InFlight.grid(width, _ROWS)
    fleet.replace(senders=in_flight.Sender.rows(_ROWS), window=window)
    for row in range(_ROWS):
        in_flight.set_capacity(fleet, row, capacity)
    return fleet


@dataclass
class _Message:
    awaits: int
    sequence: int


_steps = st.one_of(
    st.tuples(st.just(0), st.integers(0, 1), st.integers(1, 2)),
    st.tuples(
        st.sampled_from((PUBACK, PUBREC, -PUBREC, PUBCOMP)),
        st.integers(0, 1),
        st.integers(0, _WIDTH + 1),
    ),
    st.tuples(st.just(1), st.integers(0, 1), st.integers(1, _WIDTH + 2)),
    st.tuples(st.just(2), st.integers(0, 1), st.just(0)),
)


@given(st.lists(_steps, max_size=60))
@QUICK
def test_a_window_against_a_model(steps: list[tuple[int, int, int]]) -> None:
    """Spec 2.2.1, 4.3, 4.9; a step is 0 acquire, 1 set capacity, 2 release all, or an answer."""
    fleet = _fleet(capacity=3)
    model: list[dict[int, _Message]] = [{}, {}]
    capacity = [3, 3]
    for sequence, (step, row, number) in enumerate(steps):
        known = model[row]
        if step == 0:
            packet_id = in_flight.acquire(fleet, row, number, sequence, -sequence, sequence * 10)
            assert (packet_id == 0) == (len(known) >= capacity[row])
            if packet_id:
                assert 1 <= packet_id <= _WIDTH
                assert packet_id not in known
                assert fleet.window[packet_id - 1, row].intended_ns == -sequence
                known[packet_id] = _Message(PUBACK if number == 1 else PUBREC, sequence)
        elif step == 1:
            capacity[row] = min(number, _WIDTH)
            assert in_flight.set_capacity(fleet, row, number) == capacity[row]
        elif step == 2:
            for packet_id in known:
                in_flight.release(fleet, row, packet_id)
            known.clear()
        else:
            message = known.get(number)
            awaited = in_flight.awaited_answer(fleet, row, number)
            assert awaited == (message.awaits if message else in_flight.FREE)
            if message and awaited == abs(step):
                in_flight.answer(fleet, row, number, step < 0)
                message.awaits = PUBCOMP
                if step != PUBREC:
                    del known[number]
        for one in range(_ROWS):
            _check(fleet, one, model[one], capacity[one])


def _check(fleet: PlannedFleet, row: int, known: dict[int, _Message], capacity: int) -> None:
    assert fleet.senders[row].capacity == capacity
    assert fleet.senders[row].in_flight == len(known)
    awaits = fleet.window[:, row]["awaits"].tolist()
    states = {slot + 1: awaited for slot, awaited in enumerate(awaits) if awaited != in_flight.FREE}
    assert states == {packet_id: message.awaits for packet_id, message in known.items()}
    by_age = sorted(known, key=lambda packet_id: known[packet_id].sequence)
    assert (in_flight.redelivery_order(fleet, row) + 1).tolist() == by_age


def test_identifier_comes_back_as_late_as_possible() -> None:
    fleet = _fleet(capacity=_WIDTH)
    taken = []
    for sequence in range(3 * _WIDTH):
        taken.append(in_flight.acquire(fleet, 0, 1, sequence, 0, 0))
        in_flight.answer(fleet, 0, taken[-1], False)
    assert taken == [1, 2, 3, 4, 5] * 3


@pytest.mark.compiled
def test_widest_window() -> None:
    widest = 65_000  # the last identifiers stay for SUBSCRIBE and UNSUBSCRIBE
    fleet = _fleet(widest, capacity=65_535)
    assert fleet.senders[0].capacity == widest
    ids = {in_flight.acquire(fleet, 0, 1, n, 0, n) for n in range(widest)}
    assert ids == set(range(1, widest + 1))
    assert in_flight.acquire(fleet, 0, 1, 0, 0, 0) == 0
    assert in_flight.awaited_answer(fleet, 0, 65_535) == in_flight.FREE
    assert in_flight.awaited_answer(fleet, 0, widest) == PUBACK
    assert fleet.window[widest - 1, 0].sent_ns == widest - 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(("publish", "pubrel", "forget")),
            st.integers(0, 1),
            st.sampled_from((1, 2, 7, 8, 9, 255, 256, 65_528, 65_534, 65_535)),
        ),
        max_size=60,
    )
)
@QUICK
def test_received_identifiers_against_a_model(steps: list[tuple[str, int, int]]) -> None:
    """Spec 4.3.3, receiver."""
    received = np.zeros((_ROWS, in_flight.RECEIVED_BYTES), np.uint8)
    model: list[set[int]] = [set(), set()]
    for what, row, packet_id in steps:
        if what == "publish":
            assert in_flight.accept_qos2(received, row, packet_id) is (packet_id not in model[row])
            model[row].add(packet_id)
        elif what == "pubrel":
            assert in_flight.release_qos2(received, row, packet_id) is (packet_id in model[row])
            model[row].discard(packet_id)
        else:
            assert in_flight.forget_received(received, row) == len(model[row])
            model[row].clear()
        for one in range(_ROWS):
            bits = np.unpackbits(received[one], bitorder="little")
            assert set(np.flatnonzero(bits)) == model[one]
