"""Session state in arrays against a model of dictionaries (spec 4.1, 4.3, 4.4, 4.9)."""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from loadgen.kernels.in_flight import (
    AWAIT_PUBACK,
    AWAIT_PUBCOMP,
    AWAIT_PUBREC,
    FREE,
    IN_FLIGHT_DTYPE,
    RECEIVED_BYTES,
    SENDER_DTYPE,
    UNKNOWN_PACKET_ID,
    WRONG_STATE,
    accept_qos2,
    acquire,
    forget_received,
    on_puback,
    on_pubcomp,
    on_pubrec,
    redelivery_order,
    release,
    release_qos2,
    set_capacity,
)
from loadgen.kernels.packet_bytes import OK
from tests.mqtt.strategies import QUICK

_ROWS = 2
_WIDTH = 5


def _arrays(width: int = _WIDTH, rows: int = _ROWS) -> tuple[NDArray[np.void], NDArray[np.void]]:
    return np.zeros(rows, SENDER_DTYPE), np.zeros((width, rows), IN_FLIGHT_DTYPE)


def _order(senders: NDArray[np.void], window: NDArray[np.void], row: int) -> list[int]:
    return [int(slot) for slot in redelivery_order(senders, window, row)]


@dataclass
class _Message:
    state: int
    sequence: int
    sent_ns: int


_steps = st.one_of(
    st.tuples(st.just("acquire"), st.integers(0, 1), st.integers(1, 2)),
    st.tuples(
        st.sampled_from(("puback", "pubrec", "pubrec failed", "pubcomp")),
        st.integers(0, 1),
        st.integers(0, _WIDTH + 1),
    ),
    st.tuples(st.just("capacity"), st.integers(0, 1), st.integers(1, _WIDTH + 2)),
    st.tuples(st.just("release"), st.integers(0, 1), st.just(0)),
)
_WAITS_FOR = {"puback": AWAIT_PUBACK, "pubrec": AWAIT_PUBREC, "pubcomp": AWAIT_PUBCOMP}


class TestWindow:
    """Spec 2.2.1, 4.3, 4.9."""

    @given(st.lists(_steps, max_size=60))
    @QUICK
    def test_against_a_model(self, steps: list[tuple[str, int, int]]) -> None:
        senders, window = _arrays()
        model: list[dict[int, _Message]] = [{}, {}]
        capacity = [0, 0]
        for row in range(_ROWS):
            capacity[row] = set_capacity(senders, window, row, 3)
        for sequence, (what, row, number) in enumerate(steps):
            known = model[row]
            if what == "acquire":
                self._acquire(senders, window, row, number, sequence, known, capacity[row])
            elif what == "capacity":
                capacity[row] = min(number, _WIDTH)
                assert set_capacity(senders, window, row, number) == capacity[row]
            elif what == "release":
                for packet_id in known:
                    release(senders, window, row, packet_id)
                known.clear()
            else:
                self._acknowledge(senders, window, row, number, what, known)
            for one in range(_ROWS):
                self._check(senders, window, one, model[one], capacity[one])

    def _acquire(
        self,
        senders: NDArray[np.void],
        window: NDArray[np.void],
        row: int,
        qos: int,
        sequence: int,
        known: dict[int, _Message],
        capacity: int,
    ) -> None:
        sent_ns = sequence * 10 + 1
        packet_id = acquire(senders, window, row, qos, sequence, -sequence, sent_ns)
        if len(known) >= capacity:
            assert packet_id == 0
            return
        assert 1 <= packet_id <= _WIDTH
        assert packet_id not in known
        assert window[packet_id - 1, row]["intended_ns"] == -sequence
        state = AWAIT_PUBACK if qos == 1 else AWAIT_PUBREC
        known[packet_id] = _Message(state, sequence, sent_ns)

    def _acknowledge(
        self,
        senders: NDArray[np.void],
        window: NDArray[np.void],
        row: int,
        packet_id: int,
        what: str,
        known: dict[int, _Message],
    ) -> None:
        if what == "puback":
            found = on_puback(senders, window, row, packet_id)
        elif what == "pubcomp":
            found = on_pubcomp(senders, window, row, packet_id)
        else:
            found = on_pubrec(senders, window, row, packet_id, 0x97 if "failed" in what else 0x10)
        message = known.get(packet_id)
        if message is None:
            assert found == (UNKNOWN_PACKET_ID, 0)
        elif message.state != _WAITS_FOR[what.split()[0]]:
            assert found == (WRONG_STATE, 0)
        else:
            assert found == (OK, message.sent_ns)
            if what == "pubrec":
                message.state = AWAIT_PUBCOMP
            else:
                del known[packet_id]

    def _check(
        self,
        senders: NDArray[np.void],
        window: NDArray[np.void],
        row: int,
        known: dict[int, _Message],
        capacity: int,
    ) -> None:
        assert senders[row]["capacity"] == capacity
        assert senders[row]["in_flight"] == len(known)
        states = {slot + 1: int(s) for slot, s in enumerate(window[:, row]["state"]) if s != FREE}
        assert states == {packet_id: message.state for packet_id, message in known.items()}
        by_age = sorted(known, key=lambda packet_id: known[packet_id].sequence)
        assert [slot + 1 for slot in _order(senders, window, row)] == by_age

    def test_long_run_with_acknowledgements_in_any_order(self) -> None:
        """The queue of free slots, long after every slot was used."""
        choice = random.Random(4)
        senders, window = _arrays(4, 1)
        capacity = set_capacity(senders, window, 0, 4)
        known: dict[int, _Message] = {}
        for sequence in range(3000):
            if choice.random() < 0.55:
                self._acquire(senders, window, 0, 1, sequence, known, capacity)
            elif known:
                packet_id = choice.choice(sorted(known))
                self._acknowledge(senders, window, 0, packet_id, "puback", known)
            self._check(senders, window, 0, known, capacity)
        assert senders[0]["cursor"] == 4

    @pytest.mark.parametrize(
        ("reason_code", "state"),
        [(0x00, AWAIT_PUBCOMP), (0x10, AWAIT_PUBCOMP), (0x7F, AWAIT_PUBCOMP), (0x80, FREE)],
    )
    def test_pubrec_fails_from_0x80_up(self, reason_code: int, state: int) -> None:
        """Spec 4.3.3."""
        senders, window = _arrays()
        set_capacity(senders, window, 0, 1)
        packet_id = acquire(senders, window, 0, 2, 0, 0, 5)
        assert on_pubrec(senders, window, 0, packet_id, reason_code) == (OK, 5)
        assert window[packet_id - 1, 0]["state"] == state

    def test_new_row_takes_nothing_before_its_capacity_is_known(self) -> None:
        senders, window = _arrays()
        assert acquire(senders, window, 0, 1, 0, 0, 0) == 0

    @pytest.mark.parametrize("receive_maximum", [1, 3, _WIDTH, 65_535])
    def test_never_more_than_receive_maximum(self, receive_maximum: int) -> None:
        """Spec 4.9."""
        senders, window = _arrays()
        set_capacity(senders, window, 1, receive_maximum)
        ids = [acquire(senders, window, 1, 1, n, 0, 0) for n in range(_WIDTH + 1)]
        allowed = min(receive_maximum, _WIDTH)
        assert sorted(ids[:allowed]) == list(range(1, allowed + 1))
        assert set(ids[allowed:]) == {0}
        assert senders[0]["in_flight"] == 0

    def test_identifier_comes_back_as_late_as_possible(self) -> None:
        senders, window = _arrays()
        set_capacity(senders, window, 0, _WIDTH)
        taken = []
        for sequence in range(3 * _WIDTH):
            taken.append(acquire(senders, window, 0, 1, sequence, 0, 0))
            assert on_puback(senders, window, 0, taken[-1])[0] == OK
        assert taken == [1, 2, 3, 4, 5] * 3

    def test_a_message_that_is_never_acknowledged_costs_one_slot(self) -> None:
        senders, window = _arrays()
        set_capacity(senders, window, 0, 2)
        stuck = acquire(senders, window, 0, 2, 0, 0, 0)
        for sequence in range(1, 50):
            packet_id = acquire(senders, window, 0, 1, sequence, 0, 0)
            assert packet_id not in (0, stuck)
            assert acquire(senders, window, 0, 1, sequence, 0, 0) == 0
            assert on_puback(senders, window, 0, packet_id)[0] == OK

    def test_widest_window(self) -> None:
        widest = 65_000  # the last identifiers stay for SUBSCRIBE and UNSUBSCRIBE
        senders, window = _arrays(widest, 1)
        assert set_capacity(senders, window, 0, 65_535) == widest
        ids = {acquire(senders, window, 0, 1, n, 0, n) for n in range(widest)}
        assert ids == set(range(1, widest + 1))
        assert acquire(senders, window, 0, 1, 0, 0, 0) == 0
        assert on_puback(senders, window, 0, 65_535) == (UNKNOWN_PACKET_ID, 0)
        assert on_puback(senders, window, 0, widest) == (OK, widest - 1)

    def test_sequence_uses_all_its_bits(self) -> None:
        senders, window = _arrays()
        set_capacity(senders, window, 0, 2)
        half: Any = np.uint64(2**63)  # numba takes a Python int for an int64
        highest: Any = np.uint64(2**64 - 1)
        assert acquire(senders, window, 0, 1, highest, 0, 0) == 1
        assert acquire(senders, window, 0, 1, half, 0, 0) == 2
        assert _order(senders, window, 0) == [1, 0]


class TestRedelivery:
    """Spec 4.4 and 4.6: in the order of the original."""

    @given(st.permutations(range(40)), st.sets(st.integers(1, 40)))
    @QUICK
    def test_oldest_first(self, sequences: list[int], acknowledged: set[int]) -> None:
        senders, window = _arrays(40, 1)
        set_capacity(senders, window, 0, 40)
        for sequence in sequences:
            acquire(senders, window, 0, 1, sequence, 0, 0)
        for packet_id in acknowledged:
            on_puback(senders, window, 0, packet_id)
        left = [packet_id for packet_id in range(1, 41) if packet_id not in acknowledged]
        left.sort(key=lambda packet_id: sequences[packet_id - 1])
        assert [slot + 1 for slot in _order(senders, window, 0)] == left

    def test_capacity_below_what_is_in_flight(self) -> None:
        """A broker that comes back with a smaller Receive Maximum."""
        senders, window = _arrays()
        set_capacity(senders, window, 0, 4)
        ids = [acquire(senders, window, 0, 1, n, 0, 0) for n in range(4)]
        set_capacity(senders, window, 0, 2)
        for packet_id in ids[:3]:
            assert acquire(senders, window, 0, 1, 9, 0, 0) == 0
            assert on_puback(senders, window, 0, packet_id)[0] == OK
        assert acquire(senders, window, 0, 1, 9, 0, 0) > 0

    def test_release_keeps_the_other_rows_and_the_capacity(self) -> None:
        senders, window = _arrays()
        for row in range(_ROWS):
            set_capacity(senders, window, row, 3)
            assert acquire(senders, window, row, 2, 0, 0, 0) == 1
        release(senders, window, 0, 1)
        assert on_pubrec(senders, window, 0, 1, 0) == (UNKNOWN_PACKET_ID, 0)
        assert on_pubrec(senders, window, 1, 1, 0) == (OK, 0)
        assert [acquire(senders, window, 0, 2, n, 0, 0) for n in range(4)] == [2, 3, 4, 0]


class TestReceived:
    """Spec 4.3.3, receiver."""

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
    def test_against_a_model(self, steps: list[tuple[str, int, int]]) -> None:
        received = np.zeros((_ROWS, RECEIVED_BYTES), np.uint8)
        model: list[set[int]] = [set(), set()]
        for what, row, packet_id in steps:
            if what == "publish":
                assert accept_qos2(received, row, packet_id) is (packet_id not in model[row])
                model[row].add(packet_id)
            elif what == "pubrel":
                assert release_qos2(received, row, packet_id) is (packet_id in model[row])
                model[row].discard(packet_id)
            else:
                forget_received(received, row)
                model[row].clear()
            for one in range(_ROWS):
                bits = np.unpackbits(received[one], bitorder="little")
                assert set(np.flatnonzero(bits)) == model[one]
