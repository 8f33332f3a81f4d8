"""Rows of the interval table: their schema, and sums in any order."""

from dataclasses import fields

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.metrics import interval
from loadgen.metrics.histogram import dense
from tests.examples import examples
from tests.metrics.test_reducer import latency_row, worker_rows

seeds = st.integers(0, 1 << 32)


def test_rows_and_table_have_the_same_columns_in_the_same_order() -> None:
    assert [f.name for f in fields(interval.Interval)] == interval.INTERVAL_SCHEMA.names
    kinds = ("DIMENSIONS", "SPAN", "COUNTERS", "GAUGES", "PROCESS_COUNTERS", "PROCESS_GAUGES")
    named = [name for kind in (*kinds, "HISTOGRAM") for name in getattr(interval, kind)]
    assert sorted(named) == sorted(interval.INTERVAL_SCHEMA.names)


@given(seeds)
@examples(50)
def test_a_table_holds_every_value_of_its_rows(seed: int) -> None:
    rows = worker_rows(seed)
    table = interval.to_table(rows)
    table.validate(full=True)
    assert table.schema == interval.INTERVAL_SCHEMA
    for held, row in zip(table.to_pylist(), rows, strict=True):
        assert all(np.array_equal(value, getattr(row, name)) for name, value in held.items())
    assert all(column.null_count == 0 for column in table.columns)


def test_an_untouched_row_is_zeros_and_empty_names() -> None:
    (row,) = interval.to_table([interval.Interval()]).to_pylist()
    for name, value in row.items():
        kind = interval.INTERVAL_SCHEMA.field(name).type
        expected: object = "" if kind == pa.string() else [] if pa.types.is_list(kind) else 0
        assert value == expected


def test_rows_cannot_change() -> None:
    row = interval.Interval(sent=1)
    with pytest.raises(AttributeError):
        row.sent = 2  # type: ignore[misc]
    assert not interval.Interval().bucket.flags.writeable
    assert not interval.Interval().bucket_count.flags.writeable


@given(*[st.lists(st.integers(0, 1 << 41), max_size=4)] * 2)
@examples(50)
def test_latencies_of_two_rows_add_up(first: list[int], second: list[int]) -> None:
    a, b = latency_row(first), latency_row(second)
    both, counted = interval.with_latencies(a, b), [row for row in (a, b) if row.count]
    assert (both.count, both.sum_ns) == (a.count + b.count, a.sum_ns + b.sum_ns)
    assert both.min_ns == min((row.min_ns for row in counted), default=0)
    assert both.max_ns == max((row.max_ns for row in counted), default=0)
    assert np.array_equal(
        dense(both.bucket, both.bucket_count),
        dense(a.bucket, a.bucket_count) + dense(b.bucket, b.bucket_count),
    )
