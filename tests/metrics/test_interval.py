"""Rows of the interval table: their schema, and that they add up in any order."""

from dataclasses import fields, replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.metrics.histogram import dense, sparse
from loadgen.metrics.interval import (
    COUNTERS,
    DIMENSIONS,
    GAUGES,
    HISTOGRAM,
    INTERVAL_SCHEMA,
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
    SPAN,
    Interval,
    plus,
    to_table,
)
from tests.histograms import histogram_of

small = st.integers(0, 5)


@st.composite
def intervals(draw: st.DrawFn, series: str | None = None) -> Interval:
    """Any row that a worker could write; few distinct keys, so that rows meet."""
    sample = draw(st.lists(st.integers(0, 1 << 41), max_size=4))
    bucket, bucket_count = sparse(histogram_of(sample))
    numbers = (*COUNTERS, *GAUGES, *PROCESS_COUNTERS, *PROCESS_GAUGES)
    return Interval(
        run=draw(st.sampled_from(["r1", "r2"])),
        host=draw(st.integers(0, 1)),
        worker=draw(st.integers(0, 1)),
        second=draw(small),
        time_ns=draw(st.integers(0, 10**12)),
        span_ns=draw(st.integers(0, 10**9)),
        group=draw(st.sampled_from(["", "pub", "sub"])),
        phase=draw(st.sampled_from(["warmup", "measure"])),
        series=draw(st.sampled_from(["", "transit"])) if series is None else series,
        count=len(sample),
        sum_ns=sum(sample),
        min_ns=min(sample, default=0),
        max_ns=max(sample, default=0),
        bucket=bucket,
        bucket_count=bucket_count,
        **{name: draw(small) for name in numbers},
    )


def test_rows_and_table_have_the_same_columns_in_the_same_order() -> None:
    assert [f.name for f in fields(Interval)] == INTERVAL_SCHEMA.names
    named = (*DIMENSIONS, *SPAN, *COUNTERS, *GAUGES, *PROCESS_COUNTERS, *PROCESS_GAUGES, *HISTOGRAM)
    assert sorted(named) == sorted(INTERVAL_SCHEMA.names)


@given(st.lists(intervals(), max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_table_holds_every_value_of_its_rows(rows: list[Interval]) -> None:
    table = to_table(rows)
    table.validate(full=True)
    assert table.schema == INTERVAL_SCHEMA
    assert [
        Interval(
            **{
                **row,
                "bucket": np.array(row["bucket"], np.int32),
                "bucket_count": np.array(row["bucket_count"], np.int64),
            }
        )
        for row in table.to_pylist()
    ] == rows
    assert all(column.null_count == 0 for column in table.columns)


def test_an_untouched_row_is_zeros_and_empty_names() -> None:
    (row,) = to_table([Interval()]).to_pylist()
    for name, value in row.items():
        kind = INTERVAL_SCHEMA.field(name).type
        expected: object = "" if kind == pa.string() else [] if pa.types.is_list(kind) else 0
        assert value == expected


def test_rows_are_equal_by_value_and_cannot_change() -> None:
    row = Interval(sent=1, bucket=np.array([3], np.int32), bucket_count=np.array([1]))
    assert row == replace(row, bucket=row.bucket.copy())
    assert row != replace(row, bucket_count=np.array([2]))
    assert row != replace(row, sent=2)
    with pytest.raises(AttributeError):
        row.sent = 2  # type: ignore[misc]
    assert not Interval().bucket.flags.writeable
    assert not Interval().bucket_count.flags.writeable


class TestPlus:
    @given(intervals("transit"), intervals("transit"), intervals("transit"))
    @settings(max_examples=80, deadline=None)
    def test_order_and_grouping_do_not_matter(self, a: Interval, b: Interval, c: Interval) -> None:
        assert plus(a, b) == plus(b, a)
        assert plus(plus(a, b), c) == plus(a, plus(b, c))

    @given(intervals("transit"), intervals("transit"))
    @settings(max_examples=50, deadline=None)
    def test_every_column_follows_its_rule(self, a: Interval, b: Interval) -> None:
        both = plus(a, b)
        for name in (*COUNTERS, *PROCESS_COUNTERS, "count", "sum_ns"):
            assert getattr(both, name) == getattr(a, name) + getattr(b, name)
        for name in (*GAUGES, *PROCESS_GAUGES):
            assert getattr(both, name) == max(getattr(a, name), getattr(b, name))
        for name in DIMENSIONS:
            same = getattr(a, name) == getattr(b, name)
            several = "" if isinstance(getattr(a, name), str) else -1
            assert getattr(both, name) == (getattr(a, name) if same else several)
        assert both.time_ns == min(a.time_ns, b.time_ns)
        ends = (row.time_ns + row.span_ns for row in (a, b))
        assert both.time_ns + both.span_ns == max(ends)
        assert np.array_equal(
            dense(both.bucket, both.bucket_count),
            dense(a.bucket, a.bucket_count) + dense(b.bucket, b.bucket_count),
        )

    def test_a_row_without_latencies_has_no_least(self) -> None:
        some = Interval(count=1, min_ns=5, max_ns=9)
        assert (plus(some, Interval()).min_ns, plus(Interval(), some).max_ns) == (5, 9)

    def test_different_series_do_not_add_up(self) -> None:
        with pytest.raises(ValueError, match="'transit' and 'connect'"):
            plus(Interval(series="transit"), Interval(series="connect"))
