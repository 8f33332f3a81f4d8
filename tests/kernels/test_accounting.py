"""Loss, repetition and order against a model that remembers every sequence it saw."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.kernels.accounting import (
    DUPLICATE,
    LATE,
    NEW,
    Gap,
    GapPool,
    account,
    has_come,
    make_pairs,
    received_on,
)


class Book:
    """The arrays of a few pairs and their pool."""

    def __init__(self, pairs: int, gaps: int) -> None:
        self.pairs = make_pairs(pairs)
        self.gaps = Gap.rows(gaps)
        self.pool = GapPool.rows(1)[0]

    def take(self, pair: int, sequence: int) -> int:
        return int(account(self.pairs, self.gaps, self.pool, pair, sequence))

    def chain(self, gap: int) -> list[int]:
        found = []
        while gap != -1:
            assert gap not in found, "a chain of gaps runs in a circle"
            found.append(gap)
            gap = self.gaps[gap].older
        return found

    def free(self) -> list[int]:
        return self.chain(self.pool.free_gap - 1) + list(range(self.pool.used_gaps, len(self.gaps)))

    def missing(self, pair: int) -> list[int]:
        """Sequences in the pair's gaps, ascending."""
        rows = self.gaps[self.chain(self.pairs[pair].gaps)]
        return sorted(
            number for first, last, _ in rows.tolist() for number in range(first, last + 1)
        )

    def check_pool(self) -> None:
        """Every gap is free or in exactly one chain, and gaps are disjoint and descending."""
        seen = self.free()
        for pair in range(len(self.pairs)):
            chain = self.chain(self.pairs[pair].gaps)
            seen += chain
            above = self.pairs[pair].expected
            for gap in chain:
                first, last = self.gaps[gap].first, self.gaps[gap].last
                assert 0 <= first <= last < above
                above = first
        assert sorted(seen) == list(range(len(self.gaps)))


def expected_outcome(seen: set[int], sequence: int) -> int:
    """What an observer with perfect memory would say, before he adds it to `seen`."""
    if sequence in seen:
        return DUPLICATE
    return LATE if seen and sequence < max(seen) else NEW


arrivals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25)), max_size=80)


@given(arrivals)
@settings(deadline=None, max_examples=250)
def test_every_message_is_judged_as_by_perfect_memory(messages: list[tuple[int, int]]) -> None:
    book = Book(3, 100)
    seen: list[set[int]] = [set(), set(), set()]
    for pair, sequence in messages:
        assert book.take(pair, sequence) == expected_outcome(seen[pair], sequence)
        seen[pair].add(sequence)
        book.check_pool()
    for pair in range(3):
        top = max(seen[pair], default=-1)
        assert book.missing(pair) == [n for n in range(top) if n not in seen[pair]]
        assert [n for n in range(30) if has_come(book.pairs, book.gaps, pair, n)] == sorted(
            seen[pair]
        )
    assert received_on(book.pairs, book.gaps).tolist() == [len(numbers) for numbers in seen]
    assert book.pool.missing == sum(len(book.missing(pair)) for pair in range(3))
    assert book.pool.forgotten_gaps == 0


@given(st.randoms(use_true_random=False), st.integers(1, 300))
@settings(deadline=None, max_examples=40)
def test_any_order_of_all_messages_fills_every_gap(rng: random.Random, count: int) -> None:
    order = list(range(count))
    rng.shuffle(order)
    book = Book(1, count)
    outcomes = [book.take(0, sequence) for sequence in order]
    assert DUPLICATE not in outcomes
    peaks = [max(order[: i + 1]) == order[i] for i in range(count)]
    assert [outcome == NEW for outcome in outcomes] == peaks
    assert book.missing(0) == []
    assert len(book.free()) == count
    assert [book.take(0, sequence) for sequence in order] == [DUPLICATE] * count


def test_messages_in_order_need_no_gap() -> None:
    book = Book(1, 1)
    assert [book.take(0, sequence) for sequence in range(1000)] == [NEW] * 1000
    assert book.free() == [0]
    assert book.pairs[0].expected == 1000


def test_rows_given_back_are_used_before_rows_never_used() -> None:
    book = Book(1, 100)
    for sequence in range(1, 2000, 2):
        assert book.take(0, sequence) == NEW
        assert book.pool.missing == 1
        assert book.take(0, sequence - 1) == LATE
    assert book.pool.used_gaps == 1
    assert book.pool.missing == 0


def test_a_gap_is_filled_from_either_end_and_from_the_middle() -> None:
    book = Book(1, 4)
    assert book.take(0, 9) == NEW
    assert book.missing(0) == list(range(9))
    for sequence in (0, 8, 4, 4, 1, 7, 2, 3, 5, 6):
        wanted = expected_outcome(set(range(10)) - set(book.missing(0)), sequence)
        assert book.take(0, sequence) == wanted
        book.check_pool()
    assert book.missing(0) == []
    assert len(book.free()) == 4


def test_a_gap_beyond_32_bits_costs_one_gap() -> None:
    book = Book(1, 3)
    far = 1 << 61
    assert book.take(0, far) == NEW
    assert book.take(0, far // 2) == LATE
    assert book.take(0, far // 2) == DUPLICATE
    assert len(book.free()) == 1
    assert book.take(0, far + 1) == NEW


def test_pairs_do_not_know_of_each_other() -> None:
    book = Book(2, 4)
    assert book.take(0, 2) == NEW
    assert book.take(1, 0) == NEW
    assert book.take(1, 1) == NEW
    assert book.take(0, 1) == LATE
    assert book.take(1, 1) == DUPLICATE
    assert book.missing(0) == [0]


def test_with_an_exhausted_pool_a_gap_is_forgotten_and_counted() -> None:
    book = Book(1, 1)
    assert book.take(0, 2) == NEW
    assert book.pool.forgotten_gaps == 0
    assert book.take(0, 5) == NEW
    assert book.pool.forgotten_gaps == 1
    assert book.take(0, 3) == DUPLICATE  # as documented: it was forgotten
    assert book.take(0, 0) == LATE
    assert book.take(0, 1) == LATE
    assert len(book.free()) == 1
    assert book.take(0, 7) == NEW
    assert book.missing(0) == [6]
    assert book.pool.forgotten_gaps == 1


def test_with_an_exhausted_pool_a_split_forgets_the_upper_part() -> None:
    book = Book(1, 1)
    assert book.take(0, 6) == NEW
    assert book.take(0, 3) == LATE
    assert book.pool.forgotten_gaps == 1
    assert book.missing(0) == [0, 1, 2]
    assert book.take(0, 4) == DUPLICATE
    book.check_pool()


@given(arrivals, st.integers(1, 4))
@settings(deadline=None, max_examples=150)
def test_a_small_pool_never_invents_or_loses_gaps(
    messages: list[tuple[int, int]], gaps: int
) -> None:
    book = Book(3, gaps)
    seen: list[set[int]] = [set(), set(), set()]
    for pair, sequence in messages:
        truth = expected_outcome(seen[pair], sequence)
        outcome = book.take(pair, sequence)
        # Only a late message from a forgotten gap may be taken for a repeated one.
        assert outcome == truth or (truth == LATE and outcome == DUPLICATE)
        if outcome != truth:
            assert book.pool.forgotten_gaps > 0
        seen[pair].add(sequence)
        book.check_pool()
