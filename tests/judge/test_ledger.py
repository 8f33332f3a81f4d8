"""Every message in one state on each side, whatever was counted, and what does not close."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.judge.ledger import (
    Counted,
    Ledger,
    Witness,
    imbalances,
    ledger_of,
    ledgers_of,
    with_acknowledged,
    witness_of,
)
from loadgen.judge.verdict import judge
from loadgen.sentences import Text
from tests.ledgers import facts_with, with_fields

COUNTS = st.integers(0, 1000)
WHOLE = Counted(
    {
        "sent": 100,
        "acknowledged": 90,
        "refused": 4,
        "given_up": 2,
        "expected": 192,
        "received": 185,
        "corrupt": 3,
        "duplicated": 5,
        "excused": 1,
        "misrouted": 2,
        "foreign": 7,
    },
    confirmed=100,
    owed=6,
)
WITNESS = Witness(scheduled=100, in_flight=4, distinct=187, damaged=2, publishes=202)


def counted(**counts: int) -> Counted:
    return Counted(counts)


def test_states_of_both_sides() -> None:
    ledger = ledger_of(WHOLE)
    assert (ledger.intended, ledger.sent, ledger.owed) == (106, 100, 6)
    assert (ledger.acknowledged, ledger.refused, ledger.unacknowledged) == (90, 4, 6)
    assert (ledger.given_up, ledger.unfinished) == (2, 4)
    assert (ledger.intact, ledger.damaged, ledger.lost, ledger.unobserved) == (185, 3, 4, 0)
    assert (ledger.repeated_allowed, ledger.repeated) == (1, 4)
    assert (ledger.misrouted, ledger.foreign) == (2, 7)
    assert ledger.document()["intended"] == 106


@given(st.fixed_dictionaries(dict.fromkeys(WHOLE.counts, COUNTS)), COUNTS, st.booleans())
def test_nothing_is_negative_in_two_states_or_in_none(
    counts: dict[str, int], confirmed: int, observed: bool
) -> None:
    ledger = ledger_of(Counted(counts, confirmed=confirmed), observed=observed)
    assert all(value >= 0 for value in ledger.document().values() if value is not None)
    deliveries = ledger.intact + ledger.damaged + ledger.lost + ledger.unobserved
    assert deliveries == max(ledger.expected, ledger.intact)
    assert ledger.delivered_refused in (0, ledger.intact - ledger.expected)
    assert ledger.lost == 0 or ledger.unobserved == 0
    answered = counts["acknowledged"] + counts["refused"]
    states = ledger.acknowledged + ledger.refused + ledger.unacknowledged
    assert states == max(confirmed, answered)
    assert ledger.given_up <= ledger.unacknowledged
    # What arrived has a state, and no more than arrived has one.
    arrived = counts["received"] + counts["corrupt"] + counts["duplicated"]
    assert arrived == (ledger.intact + ledger.damaged + ledger.repeated + ledger.repeated_allowed)


class TestDamaged:
    def test_it_fills_its_place_and_is_not_lost(self) -> None:
        ledger = ledger_of(counted(expected=10, received=7, corrupt=2))
        assert (ledger.intact, ledger.damaged, ledger.lost) == (7, 2, 1)

    def test_more_than_were_missing_were_repeats(self) -> None:
        ledger = ledger_of(counted(expected=10, received=9, corrupt=3))
        assert (ledger.damaged, ledger.lost, ledger.repeated) == (1, 0, 2)

    def test_one_of_the_warm_up_is_no_repeat_of_the_window(self) -> None:
        # It came after the window had begun, and nobody can read when it was intended.
        window = counted(expected=10, received=10, corrupt=1)
        ledger, run = ledgers_of(window, counted(expected=15, received=14, corrupt=1))
        assert (ledger.damaged, ledger.repeated) == (0, 0)
        assert (run.damaged, run.repeated, run.lost) == (1, 0, 0)
        ledger, run = ledgers_of(window, counted(expected=15, received=15, corrupt=1))
        assert ledger.repeated == run.repeated == 1


class TestRepeats:
    def test_more_than_there_were_are_not_allowed(self) -> None:
        assert ledger_of(counted(duplicated=3, excused=5)).repeated_allowed == 3


class TestAcknowledged:
    LOST = ledger_of(counted(expected=10, received=3))

    def test_of_what_is_lost(self) -> None:
        window, run = with_acknowledged(self.LOST, self.LOST, 4)
        assert (window.lost_acknowledged, window.lost_unacknowledged) == (3, 4)
        assert run == window
        _, most = with_acknowledged(self.LOST, self.LOST, 99)
        assert (most.lost_acknowledged, most.lost_unacknowledged) == (0, 7)

    def test_where_it_is_not_known(self) -> None:
        assert with_acknowledged(self.LOST, self.LOST, None) == (self.LOST, self.LOST)
        # Some of the warm-up were lost, and some of it were not acknowledged.
        more = replace(self.LOST, lost=9, unacknowledged=2)
        window, run = with_acknowledged(self.LOST, more, 4)
        assert window.lost_acknowledged is None and run.lost_acknowledged == 5


class TestUnobserved:
    def test_what_is_missing_is_not_lost(self) -> None:
        ledger = ledger_of(counted(expected=10, received=7, corrupt=1), observed=False)
        assert (ledger.lost, ledger.unobserved, ledger.damaged) == (0, 2, 1)

    def test_a_worker_died_before_it_counted_what_it_had_sent(self) -> None:
        ledger = ledger_of(counted(expected=10, received=53), observed=False)
        assert (ledger.expected, ledger.lost, ledger.unobserved) == (53, 0, 0)


def proven(run: Counted = WHOLE, witness: Witness | None = WITNESS, **how: Any) -> tuple[Text, ...]:
    return tuple(imbalances(Counted(), run, witness, **how))


def with_counts(**counts: int) -> Counted:
    return replace(WHOLE, counts={**WHOLE.counts, **counts})


class TestProof:
    def test_all_sums_close(self) -> None:
        assert proven() == ()

    @pytest.mark.parametrize(
        ("run", "witness", "code", "values"),
        [
            (WHOLE, replace(WITNESS, scheduled=103), "SUM_SENT", {"scheduled": 103, "sent": 100}),
            (WHOLE, replace(WITNESS, in_flight=1), "SUM_ANSWERED", {"in_flight": 1}),
            (with_counts(acknowledged=91), WITNESS, "SUM_ANSWERED", {"acknowledged": 91}),
            (with_counts(given_up=3), WITNESS, "SUM_ANSWERED", {"given_up": 3}),
            (WHOLE, replace(WITNESS, distinct=184), "SUM_RECEIVED", {"distinct": 184}),
            (WHOLE, replace(WITNESS, publishes=210), "SUM_ARRIVED", {"publishes": 210}),
            (WHOLE, replace(WITNESS, discarded=8), "SUM_ARRIVED", {"counted": 210}),
            (with_counts(foreign=0), WITNESS, "SUM_ARRIVED", {"counted": 195}),
        ],
    )
    def test_each_sum_that_does_not(
        self, run: Counted, witness: Witness, code: str, values: dict[str, int]
    ) -> None:
        (found,) = proven(run, witness)
        assert found.code == code and values.items() <= found.values.items()

    def test_what_is_impossible_needs_no_witness(self) -> None:
        more = counted(expected=10, received=12)
        (found,) = proven(more, None)
        assert (found.code, found.values) == ("MORE_THAN_EXPECTED", {"more": 2, "scope": "run"})
        assert proven(counted(expected=10, received=12, refused=2, acknowledged=-2), None) == ()
        (found,) = imbalances(more, Counted({"expected": 99}), None)
        assert found.values["scope"] == "window"
        (found,) = proven(counted(acknowledged=3), None)
        assert (found.code, found.values["more"]) == ("MORE_ANSWERED", 3)
        (found,) = proven(counted(excused=2), None)
        assert (found.code, found.values["more"]) == ("MORE_ALLOWED", 2)

    def test_a_run_that_was_not_seen_to_its_end_proves_nothing(self) -> None:
        assert proven(counted(expected=10, received=12), None, observed=False) == ()
        assert proven(WHOLE, replace(WITNESS, in_flight=77), observed=False) == ()


def test_closing_statements_of_several_workers_add_up() -> None:
    witness = witness_of(
        [
            {"scheduled": 5, "in_flight": 1, "distinct": 9, "publishes": 10, "discarded": 1},
            {
                "scheduled": 7,
                "refusals": {"135": 2, "151": 3},
                "refusal": "Not authorized (0x87): " + "x" * 1000,
            },
            {"refusals": {"135": 4}, "refusal": "later", "violation": "PUBACK out of nowhere"},
        ]
    )
    assert (witness.scheduled, witness.in_flight, witness.distinct) == (12, 1, 9)
    assert witness.refusals == {"Not authorized (0x87)": 6, "Quota exceeded (0x97)": 3}
    assert witness.refusal.startswith("Not authorized (0x87): x") and len(witness.refusal) == 200
    assert witness.violation == "PUBACK out of nowhere"
    assert witness_of([]) == Witness()


def test_an_empty_ledger_has_no_message() -> None:
    assert ledger_of(Counted()) == Ledger()


def test_a_delivery_of_the_window_is_lost_only_if_the_run_lost_it() -> None:
    inside, total = ledgers_of(
        Counted({"expected": 79, "received": 77}), Counted({"expected": 90, "received": 89})
    )
    assert (inside.lost, inside.unobserved, total.lost, total.unobserved) == (1, 1, 1, 0)
    facts = with_fields(facts_with(), window=inside, run=total)
    assert {"GENERATOR_SATURATED", "LOST"} <= set(judge(facts).codes)
