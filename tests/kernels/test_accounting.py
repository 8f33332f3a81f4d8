"""Loss, repetition and order against a model that remembers every sequence."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.kernels import accounting
from tests.examples import examples


class Book:
    """The arrays of a few pairs and their pool."""

    def __init__(self, pairs: int, gaps: int) -> None:
        self.pairs = accounting.make_pairs(pairs)
        self.gaps = accounting.Gap.rows(gaps)
        self.pool = accounting.GapPool.rows(1)[0]

    def take(self, pair: int, sequence: int) -> int:
        return int(accounting.account(self.pairs, self.gaps, self.pool, pair, sequence))

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
        """Return the sequences in the pair's gaps, ascending."""
        rows = self.gaps[self.chain(self.pairs[pair].gaps)]
        return sorted(
            number for first, last, _ in rows.tolist() for number in range(first, last + 1)
        )

    def check_pool(self) -> None:
        """Check that each gap is free or in one chain, and that gaps are disjoint and descend."""
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
    """Return the outcome by a perfect memory, and add the sequence to `seen`."""
    if sequence in seen:
        return accounting.DUPLICATE
    return accounting.LATE if seen and sequence < max(seen) else accounting.NEW


arrivals = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 25)), max_size=80)


@given(arrivals)
@examples(250)
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
        assert [
            n for n in range(30) if accounting.has_come(book.pairs, book.gaps, pair, n)
        ] == sorted(seen[pair])
    assert accounting.received_on(book.pairs, book.gaps).tolist() == [
        len(numbers) for numbers in seen
    ]
    assert book.pool.missing == sum(len(book.missing(pair)) for pair in range(3))
    assert book.pool.forgotten_gaps == 0


def test_rows_given_back_are_used_before_rows_never_used() -> None:
    book = Book(1, 100)
    for sequence in range(1, 2000, 2):
        assert book.take(0, sequence) == accounting.NEW
        assert book.pool.missing == 1
        assert book.take(0, sequence - 1) == accounting.LATE
    assert book.pool.used_gaps == 1
    assert book.pool.missing == 0


def test_a_gap_beyond_32_bits_costs_one_gap() -> None:
    book = Book(1, 3)
    far = 1 << 61
    assert book.take(0, far) == accounting.NEW
    assert book.take(0, far // 2) == accounting.LATE
    assert book.take(0, far // 2) == accounting.DUPLICATE
    assert len(book.free()) == 1
    assert book.take(0, far + 1) == accounting.NEW


def test_with_an_exhausted_pool_a_gap_is_forgotten_and_counted() -> None:
    book = Book(1, 1)
    assert book.take(0, 2) == accounting.NEW
    assert book.pool.forgotten_gaps == 0
    assert book.take(0, 5) == accounting.NEW
    assert book.pool.forgotten_gaps == 1
    assert book.take(0, 3) == accounting.DUPLICATE  # as documented: it was forgotten
    assert book.take(0, 0) == accounting.LATE
    assert book.take(0, 1) == accounting.LATE
    assert len(book.free()) == 1
    assert book.take(0, 7) == accounting.NEW
    assert book.missing(0) == [6]
    assert book.pool.forgotten_gaps == 1


def test_with_an_exhausted_pool_a_split_forgets_the_upper_part() -> None:
    book = Book(1, 1)
    assert book.take(0, 6) == accounting.NEW
    assert book.take(0, 3) == accounting.LATE
    assert book.pool.forgotten_gaps == 1
    assert book.missing(0) == [0, 1, 2]
    assert book.take(0, 4) == accounting.DUPLICATE
    book.check_pool()


@given(arrivals, st.integers(1, 4))
@examples(150)
def test_a_small_pool_never_invents_or_loses_gaps(
    messages: list[tuple[int, int]], gaps: int
) -> None:
    book = Book(3, gaps)
    seen: list[set[int]] = [set(), set(), set()]
    for pair, sequence in messages:
        truth = expected_outcome(seen[pair], sequence)
        outcome = book.take(pair, sequence)
        # Only a late message from a forgotten gap may be taken for a repeated one.
        assert outcome == truth or (truth == accounting.LATE and outcome == accounting.DUPLICATE)
        if outcome != truth:
            assert book.pool.forgotten_gaps > 0
        seen[pair].add(sequence)
        book.check_pool()
