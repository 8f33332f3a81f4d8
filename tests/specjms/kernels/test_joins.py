"""Offers collected by call: the table against a dictionary."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.specjms.kernels.joins import COMPLETE, FULL, OPEN, join_offer, make_joins
from tests.examples import examples


@examples(150)
@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5), st.integers(0, 9)), max_size=120),
    st.integers(1, 4),
)
def test_calls_complete_with_the_best_offer(
    offers: list[tuple[int, int, int]], wanted: int
) -> None:
    joins = make_joins(20)
    held: dict[int, list[tuple[int, int]]] = {}
    for call, price, supplier in offers:
        # Numbers as drivers make them, which share their low bits.
        number = call << 32 | (call % 3)
        mine = held.setdefault(number, [])
        mine.append((price, supplier))
        outcome = join_offer(joins, number, wanted, price, supplier)
        if len(mine) < wanted:
            assert outcome == (OPEN, -1)
        else:
            assert outcome == (COMPLETE, min(mine)[1])
            del held[number]
        assert joins[-1].count == len(held)


def test_a_full_table_takes_no_new_call_and_keeps_the_others() -> None:
    joins = make_joins(3)
    numbers = list(range(100, 200))
    taken = [n for n in numbers if join_offer(joins, n, 2, 5, 1) == (OPEN, -1)]
    assert len(taken) < len(numbers)
    assert join_offer(joins, 999, 2, 5, 1) == (FULL, -1)
    assert all(join_offer(joins, n, 2, 4, 2) == (COMPLETE, 2) for n in taken)
    assert not joins["key"].any()


def test_the_lowest_price_wins_and_among_equals_the_lowest_number() -> None:
    joins = make_joins(3)
    for price, supplier in ((7, 3), (5, 4)):
        assert join_offer(joins, 1, 3, price, supplier) == (OPEN, -1)
    assert join_offer(joins, 1, 3, 5, 2) == (COMPLETE, 2)
