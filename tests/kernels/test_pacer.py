"""Schedules against exact arithmetic, the heap against heapq."""

import heapq
import math
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.kernels import pacer
from loadgen.kernels.arrays import Rows
from tests.examples import examples

S = 1_000_000_000
START_NS = 500_000 * S
LATEST_NS = 1 << 62


class Publishers:
    """A schedule with its arrays."""

    def __init__(
        self,
        streams: list[int],
        period_ns: float,
        arrival: int,
        *,
        phases: list[float] | None = None,
        program: Rows[pacer.ProgramStep] | None = None,
        seed: int = 7,
    ) -> None:
        count = len(streams)
        self.seed = seed
        self.program = pacer.make_program(START_NS) if program is None else program
        self.rows = pacer.Publisher.rows(count)
        self.rows["stream"], self.rows["sequence"] = streams, -1
        self.rows["period_ns"], self.rows["arrival"] = period_ns, arrival
        if arrival == pacer.CONSTANT:
            self.rows["phase_ns"] = np.array(phases or [0.0]) * period_ns
        pacer.begin_schedule(self.rows, self.program, seed)

    def step(self, publisher: int = 0) -> int:
        return int(pacer.advance(self.rows[publisher], self.program, self.seed))

    def due(self, publisher: int = 0) -> int:
        return int(self.rows[publisher].due_ns)

    def dues(self, count: int, publisher: int = 0) -> list[int]:
        """Return the next `count` due times, beginning with the current one."""
        found = [self.due(publisher)]
        while len(found) < count:
            found.append(self.step(publisher))
        return found

    def owed(self, now_ns: int, publisher: int = 0) -> int:
        return int(pacer.owed_messages(self.rows[publisher], self.program, now_ns))


# --- arrivals -------------------------------------------------------------------------------


RATES = [(10_000, 1), (30_000, 1), (1, 1), (7, 3), (199_999, 7)]
TEN_HOURS = ((1_000_000, 1), 36 * 10**9)  # rate, and the last message


@pytest.mark.parametrize(("rate", "sequence"), [*product(RATES, [1, 999, 10**6, 10**9]), TEN_HOURS])
def test_constant_arrivals_do_not_drift(rate: tuple[int, int], sequence: int) -> None:
    exact_period = Fraction(S * rate[1], rate[0])
    one = Publishers([0], float(exact_period), pacer.CONSTANT)
    one.rows[0].sequence = sequence - 1
    due_ns = one.step()
    assert one.rows[0].sequence == sequence
    # Half a nanosecond for the floor, the rest for the precision of a float.
    load_ns = exact_period * sequence
    assert abs(due_ns - START_NS - load_ns) <= 1 + load_ns / 2**52


def test_uniform_arrivals_fall_one_into_each_period() -> None:
    dues = Publishers([5], 1e6, pacer.UNIFORM).dues(20_000)
    offsets = [due - START_NS - k * 1_000_000 for k, due in enumerate(dues)]
    assert all(0 <= offset < 1_000_000 for offset in offsets)
    mean = sum(offsets) / len(offsets)
    # Standard error of the mean of uniform numbers: period / sqrt(12 n).
    assert abs(mean - 500_000) < 5 * 1_000_000 / math.sqrt(12 * len(offsets))


def test_poisson_gaps_have_the_mean_and_the_spread_of_an_exponential() -> None:
    dues = np.array(Publishers([5], 1e6, pacer.POISSON).dues(40_001))
    gaps = np.diff(dues)
    assert (gaps >= 0).all()
    error = 1 / math.sqrt(len(gaps))
    assert abs(gaps.mean() / 1e6 - 1) < 5 * error
    assert abs(gaps.std() / 1e6 - 1) < 5 * 2 * error
    longer = (gaps > 2e6).mean()
    assert abs(longer - math.exp(-2)) < 5 * math.sqrt(math.exp(-2) / len(gaps))


def test_poisson_streams_together_have_the_rate_and_are_independent() -> None:
    streams = 400
    fleet = Publishers(list(range(streams)), float(S), pacer.POISSON)
    counts = []
    for publisher in range(streams):
        dues = fleet.dues(60, publisher)
        counts.append(sum(due < START_NS + 20 * S for due in dues))
    mean, variance = np.mean(counts), np.var(counts)
    assert abs(mean - 20) < 5 * math.sqrt(20 / streams)
    assert abs(variance / 20 - 1) < 5 * math.sqrt(2 / streams)


@pytest.mark.parametrize("arrival", [pacer.CONSTANT, pacer.UNIFORM, pacer.POISSON])
def test_a_schedule_does_not_depend_on_the_spread_over_workers(arrival: int) -> None:
    phases = [n / 6 for n in range(6)]
    together = Publishers(list(range(10, 16)), 1e7, arrival, phases=phases)
    for offset in (0, 1):
        part = Publishers(list(range(10 + offset, 16, 2)), 1e7, arrival, phases=phases[offset::2])
        for row, publisher in enumerate(range(offset, 6, 2)):
            assert part.dues(50, row) == together.dues(50, publisher)
            assert part.rows[row].stream == together.rows[publisher].stream


def test_random_units_are_even_and_never_zero_or_one() -> None:
    units = np.array([pacer.random_unit(9, stream, n) for stream in range(50) for n in range(400)])
    assert units.min() > 0.0
    assert units.max() < 1.0
    cells, _ = np.histogram(units, bins=20, range=(0, 1))
    expected = len(units) / 20
    chi_squared = float((((cells - expected) ** 2) / expected).sum())
    assert chi_squared < 60  # 19 degrees of freedom: one in a million
    neighbours = np.corrcoef(units[:-1], units[1:])[0, 1]
    assert abs(neighbours) < 5 / math.sqrt(len(units))


def test_another_seed_draws_other_numbers_and_not_the_same_ones_elsewhere() -> None:
    draws = [{pacer.random_unit(seed, 7, n) for n in range(256)} for seed in (1, 2, 3, 1 + 2**40)]
    for one, other in pairwise(draws):
        assert not one & other
    assert not draws[0] & {pacer.random_unit(1, 6, n) for n in range(256)}


def test_random_units_of_streams_are_not_those_of_another_shifted() -> None:
    by_stream = np.array([[pacer.random_unit(1, s, n) for n in range(200)] for s in range(40)])
    correlation = np.corrcoef(by_stream)
    np.fill_diagonal(correlation, 0)
    assert np.abs(correlation).max() < 6 / math.sqrt(200)
    assert len(np.unique(by_stream)) > by_stream.size - 5


# --- changing the rate ----------------------------------------------------------------------

programs = st.lists(
    st.tuples(
        st.integers(1, 5 * S), st.sampled_from([1e-6, 0.01, 0.5, 0.999, 1.0, 1.5, 3.0, 50.0])
    ),
    max_size=5,
)


def _program(changes: list[tuple[int, float]]) -> Rows[pacer.ProgramStep]:
    program = pacer.make_program(START_NS)
    at_ns = START_NS
    for after_ns, factor in changes:
        at_ns += after_ns
        program = pacer.with_rate(program, at_ns, factor)
    return program


def _exact_load(changes: list[tuple[int, float]], clock_ns: int) -> Fraction:
    """Return the integral of the rate factor from the start to `clock_ns`."""
    load = Fraction(0)
    at_ns, factor = START_NS, Fraction(1)
    for after_ns, following in changes:
        if at_ns + after_ns >= clock_ns:
            break
        load += factor * after_ns
        at_ns += after_ns
        factor = Fraction(round(following * 10**6), 10**6)
    return load + factor * (clock_ns - at_ns)


@given(programs, st.integers(0, 30 * S))
@examples(200)
def test_load_time_is_the_integral_of_the_rate(
    changes: list[tuple[int, float]], after_ns: int
) -> None:
    program = _program(changes)
    clock_ns = START_NS + after_ns
    exact = _exact_load(changes, clock_ns)
    # Each step begins at a whole nanosecond of load time.
    assert (
        exact - len(changes) - 1 - exact / 2**50
        <= pacer.load_time_of(program, clock_ns)
        <= exact + 1
    )


@given(programs, st.integers(0, 20 * S))
@examples(200)
def test_what_was_due_before_a_change_stays_due_at_the_same_moment(
    changes: list[tuple[int, float]], load_ns: int
) -> None:
    program = _program(changes)
    due_ns = int(pacer.clock_of(program, load_ns))
    changed = pacer.with_rate(program, due_ns + 1, 7.0)
    assert pacer.clock_of(changed, load_ns) == due_ns
    # Messages that were due later do not come before the change.
    slower = pacer.with_rate(program, due_ns, 0.5)
    assert pacer.clock_of(slower, load_ns + 1) >= due_ns


@pytest.mark.compiled
@pytest.mark.parametrize("rate", [10_000.0, 30_000.0, 17.0])
def test_no_message_is_forgiven_or_invented_by_rate_changes(rate: float) -> None:
    changes = [(S // 3, 2.0), (S // 7, 0.25), (S // 2, 1.0), (S, 3.5), (S // 9, 0.000001)]
    one = Publishers([0], S / rate, pacer.CONSTANT)
    sent = 0
    at_ns = START_NS
    until_ns = START_NS + 4 * S
    for after_ns, factor in changes:
        at_ns += after_ns
        # The sender is behind: half of the messages are unsent at the change.
        while one.due() < at_ns - after_ns // 2:
            one.step()
            sent += 1
        one.program = pacer.with_rate(one.program, at_ns, factor)
        one.rows[0].due_ns = pacer.clock_of(one.program, one.rows[0].load_ns)
    while one.due() <= until_ns:
        one.step()
        sent += 1
    load_s = _exact_load(changes, until_ns) / S
    assert abs(sent - (math.floor(load_s * Fraction(rate)) + 1)) <= 1


def test_a_change_replaces_the_changes_planned_after_it() -> None:
    program = pacer.with_rate(pacer.make_program(START_NS), START_NS + 2 * S, 5.0)
    program = pacer.with_rate(program, START_NS + S, 2.0)
    assert pacer.load_time_of(program, START_NS + 3 * S) == 5 * S


def test_a_change_at_or_before_the_start_applies_to_the_whole_schedule() -> None:
    for at_ns in (START_NS, START_NS - S):
        program = pacer.with_rate(pacer.make_program(START_NS), at_ns, 4.0)
        assert pacer.clock_of(program, 0) == START_NS
        assert pacer.clock_of(program, S) == START_NS + S // 4


@pytest.mark.parametrize("period_s", [60, 20_000, 10**6])
def test_a_schedule_that_stands_still_is_not_due_for_any_period(period_s: int) -> None:
    program = pacer.with_rate(pacer.make_program(START_NS), START_NS + S, 1e-6)
    one = Publishers([0], float(period_s * S), pacer.CONSTANT, program=program)
    assert one.due() == START_NS
    assert one.step() > START_NS + 24 * 3600 * S
    assert one.step() <= LATEST_NS


@pytest.mark.parametrize("factor", [0.0, 1e-9])
def test_the_slowest_rate_is_a_millionth(factor: float) -> None:
    program = pacer.with_rate(pacer.make_program(START_NS), START_NS + S, factor)
    assert pacer.load_time_of(program, START_NS + 3 * S) == S + 2000
    assert pacer.clock_of(program, S + 2000) == START_NS + 3 * S


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_rate_that_is_none_is_refused(factor: float) -> None:
    with pytest.raises((ValueError, OverflowError)):
        pacer.with_rate(pacer.make_program(START_NS), START_NS + S, factor)


def test_a_publisher_falls_silent_after_its_messages() -> None:
    one = Publishers([0], S, pacer.CONSTANT)
    one.rows["messages"] = 3
    assert one.dues(3) == [START_NS, START_NS + S, START_NS + 2 * S]
    assert one.step() > LATEST_NS >> 1 and one.owed(START_NS + 9 * S) == 0


# --- what is owed ---------------------------------------------------------------------------


@pytest.mark.compiled
@given(
    programs,
    st.floats(1.5, 5e8, allow_nan=False),
    st.floats(0, 0.999),
    st.integers(0, 300),
    st.integers(0, 400),
    st.integers(-2, 2),
)
@examples(300)
def test_owed_messages_are_counted_exactly_for_constant_arrivals(
    changes: list[tuple[int, float]],
    period_ns: float,
    phase: float,
    sent: int,
    ahead: int,
    near: int,
) -> None:
    one = Publishers([0], period_ns, pacer.CONSTANT, phases=[phase], program=_program(changes))
    for _ in range(sent):
        one.step()
    standing = one.rows.copy()
    now_ns = one.dues(ahead + 1)[-1] + near
    one.rows[:] = standing
    told = one.owed(now_ns)
    true = 0
    while one.due() <= now_ns:
        one.step()
        true += 1
    assert told == true


@pytest.mark.compiled
@pytest.mark.parametrize("arrival", [pacer.UNIFORM, pacer.POISSON])
def test_owed_messages_are_right_on_average_for_random_arrivals(arrival: int) -> None:
    fleet = Publishers(list(range(300)), 1e6, arrival)
    now_ns = START_NS + 200_000_000
    told = sum(fleet.owed(now_ns, publisher) for publisher in range(300))
    true = 0
    for publisher in range(300):
        due_ns = fleet.due(publisher)
        while due_ns <= now_ns:
            true += 1
            due_ns = fleet.step(publisher)
        assert fleet.owed(now_ns, publisher) == 0
    assert abs(told / true - 1) < 0.01


# --- the heap -------------------------------------------------------------------------------

steps = st.lists(
    st.tuples(st.sampled_from(["push", "push", "replace", "pop"]), st.integers(-50, 50)),
    max_size=60,
)


@given(steps)
@examples(200)
def test_the_heap_gives_what_heapq_gives(actions: list[tuple[str, int]]) -> None:
    heap = pacer.Due.rows(64)
    model: list[int] = []
    entries: dict[int, int] = {}
    size = 0
    for number, (action, due_ns) in enumerate(actions):
        if action == "push":
            size = pacer.heap_push(heap, size, due_ns, number)
            heapq.heappush(model, due_ns)
            entries[number] = due_ns
        elif model and action == "replace":
            del entries[heap[0].publisher]
            pacer.heap_replace(heap, size, due_ns, number)
            heapq.heapreplace(model, due_ns)
            entries[number] = due_ns
        elif model:
            del entries[heap[0].publisher]
            size = pacer.heap_pop(heap, size)
            heapq.heappop(model)
        assert size == len(model)
        if model:
            assert heap[0].due_ns == model[0]
        # Every publisher is there once, with its own due time.
        assert {int(p): int(d) for d, p in heap[:size].tolist()} == entries
