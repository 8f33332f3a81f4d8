"""The views of the interval table: what adds up, and what must not."""

from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from loadgen.metrics.interval import Interval, to_table
from loadgen.report import views
from tests.report import fabricate as make

ROW = Interval(run="r", second=5, time_ns=5_000, span_ns=10**9, group="g", phase="measure")


def only(table: pa.Table) -> dict[str, object]:
    (row,) = table.to_pylist()
    return dict(row)


def test_the_parts_of_pieces_joined_are_those_of_all_rows() -> None:
    rows = make.rows_of(case="latency")
    background = frozenset({"background_publishers", "background_subscribers"})
    whole = views.parts_of(to_table(rows), background)
    pieces = [views.parts_of(to_table(rows[start::3]), background) for start in range(3)]
    assert views.joined(pieces) == whole
    assert views.joined([whole]) == whole


def test_a_worker_that_was_held_up_does_not_slow_down_the_others() -> None:
    """100 messages in one second by one worker, 300 in three by another: 200 a second."""
    rows = [
        replace(ROW, worker=0, sent=100, received=50),
        replace(ROW, worker=1, sent=300, span_ns=3 * 10**9),
    ]
    row = only(views.views_of(to_table(rows), ()).course)
    assert row["sent_per_s"] == pytest.approx(200.0)
    assert row["received_per_s"] == pytest.approx(50.0)
    assert row["sent"] == 400


def test_gauges_add_over_workers_but_not_over_phases() -> None:
    rows = [
        replace(ROW, worker=worker, phase=phase, connected=10 + worker, owed=worker)
        for worker in (0, 1)
        for phase in ("measure", "drain")
    ]
    row = only(views.views_of(to_table(rows), ()).course)
    assert (row["connected"], row["owed"]) == (21, 1)


def test_groups_are_timed_or_background() -> None:
    bucket, bucket_count = make.histogram([1000, 2000])
    timed = replace(
        ROW, series="end_to_end", count=2, sum_ns=3000, min_ns=1000, max_ns=2000,
        bucket=bucket, bucket_count=bucket_count,
    )  # fmt: skip
    rows = [timed, replace(timed, group="h"), replace(timed, group="i")]
    course = views.views_of(to_table(rows), frozenset({"g", "j"})).course
    assert course.schema == views.COURSE_SCHEMA
    found = [(row["run"], row["group"], row["count"]) for row in course.to_pylist()]
    assert found == [("r", views.BACKGROUND, 2), ("r", views.TIMED, 4)]
    assert set(course["p50_ns"].to_pylist()) == {1000}


def test_series_that_are_not_drawn_are_left_out() -> None:
    course = views.views_of(to_table(make.rows_of()), ()).course
    assert set(course["series"].to_pylist()) == {"", "end_to_end", "connect"}


def test_processes_are_one_row_a_worker_and_second() -> None:
    processes = views.views_of(to_table(make.rows_of(seconds=4)), ()).processes
    assert processes.schema == views.PROCESS_SCHEMA
    assert processes.num_rows == 2 * 8
    assert pc.min(processes["cpu_ns"]).as_py() > 0


def test_nothing_gives_nothing() -> None:
    nothing = views.views_of(to_table([]), ())
    assert nothing.totals.num_rows == nothing.course.num_rows == nothing.processes.num_rows == 0
