"""Counts over parts of a run. Without numpy, for modules that every command imports."""

from collections.abc import Sequence

Span = tuple[int, int]  # start and end, CLOCK_MONOTONIC in ns
Course = Sequence[tuple[int, int, int]]  # (from, until, count) of parts of a run, in the same time


def counted_in(course: Course, span: Span) -> float:
    """Return the count of a span; parts that overlap with it count in proportion."""
    shared = ((min(end, span[1]) - max(begin, span[0]), begin, end, n) for begin, end, n in course)
    return sum(count * ns / (end - begin) for ns, begin, end, count in shared if ns > 0)
