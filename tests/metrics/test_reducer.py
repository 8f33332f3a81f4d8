"""The reducer against a plain model of dictionaries and the hdrhistogram library."""

import io
import random
from dataclasses import asdict, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hdrh.histogram import HdrHistogram
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import RunDirectoryError
from loadgen.metrics import reducer
from loadgen.metrics.histogram import HIGHEST_NS, dense, sparse
from loadgen.metrics.interval import (
    COUNTERS,
    DIMENSIONS,
    GAUGES,
    INTERVAL_SCHEMA,
    PROCESS_COUNTERS,
    PROCESS_GAUGES,
    Interval,
    to_table,
)
from loadgen.metrics.reducer import LatencySummary, reduce_table, reduced_schema, summarize
from tests.examples import examples
from tests.histograms import histogram_of
from tests.refusals import refused

NUMBERS = (*COUNTERS, *GAUGES, *PROCESS_COUNTERS, *PROCESS_GAUGES)
KEYS = ("run", "group", "phase", "series")
seeds = st.integers(0, 1 << 32)


def worker_rows(seed: int, most: int = 40) -> list[Interval]:
    """Return rows such as workers write: few keys, some without latencies, random by seed."""
    rng = random.Random(seed)
    rows = []
    for _ in range(rng.randrange(most + 1)):
        sample = [rng.randrange(1 << rng.randrange(1, 42)) for _ in range(rng.choice([0, 1, 20]))]
        numbers: dict[str, Any] = {name: rng.randrange(1 << 40) for name in NUMBERS}
        rows.append(
            replace(
                latency_row(sample),
                run=rng.choice(["r1", "r2"]),
                host=rng.randrange(2),
                worker=rng.randrange(3),
                second=rng.randrange(4),
                time_ns=rng.randrange(10**12),
                span_ns=rng.randrange(10**9),
                group=rng.choice(["", "pub", "süb"]),
                phase=rng.choice(["warmup", "measure"]),
                series=rng.choice(["", "transit", "end_to_end"]),
                **numbers,
            )
        )
    return rows


def latency_row(sample: list[int]) -> Interval:
    bucket, bucket_count = sparse(histogram_of(sample))
    return Interval(
        series="transit",
        count=len(sample),
        sum_ns=sum(sample),
        min_ns=min(sample, default=0),
        max_ns=max(sample, default=0),
        bucket=bucket,
        bucket_count=bucket_count,
    )


def model(rows: list[Interval], by: tuple[str, ...]) -> list[dict[str, object]]:
    """Return the result of `reduce_table`, added row by row in a dictionary."""
    groups: dict[tuple[object, ...], list[Interval]] = {}
    for row in rows:
        groups.setdefault(tuple(getattr(row, name) for name in by), []).append(row)
    reduced = []
    for key, own in sorted(groups.items()):
        start_ns = min(row.time_ns for row in own)
        added = (*COUNTERS, *PROCESS_COUNTERS, "count", "sum_ns")
        bucket, bucket_count = sparse(
            np.sum([dense(row.bucket, row.bucket_count) for row in own], axis=0)
        )
        columns: dict[str, object] = {
            **dict(zip(by, key, strict=True)),
            "time_ns": start_ns,
            "span_ns": max(row.time_ns + row.span_ns for row in own) - start_ns,
            **{name: sum(getattr(row, name) for row in own) for name in added},
            **{n: max(getattr(row, n) for row in own) for n in (*GAUGES, *PROCESS_GAUGES)},
            "min_ns": min((row.min_ns for row in own if row.count), default=0),
            "max_ns": max((row.max_ns for row in own if row.count), default=0),
            "bucket": bucket.tolist(),
            "bucket_count": bucket_count.tolist(),
        }
        reduced.append({name: columns[name] for name in reduced_schema(by).names})
    return reduced


class TestReduce:
    @given(seeds, st.permutations(DIMENSIONS), st.integers(0, len(DIMENSIONS)))
    @examples(60)
    def test_it_equals_the_model_by_any_keys(self, seed: int, names: list[str], keys: int) -> None:
        by = tuple(names[:keys])
        rows = worker_rows(seed)
        reduced = reduce_table(to_table(rows), by)
        reduced.validate(full=True)
        assert reduced.schema == reduced_schema(by)
        assert reduced.to_pylist() == model(rows, by)

    @given(seeds)
    @examples(40)
    def test_the_order_of_rows_and_chunks_does_not_matter(self, seed: int) -> None:
        rows = worker_rows(seed)
        expected = reduce_table(to_table(rows), KEYS)
        rng = random.Random(seed)
        rng.shuffle(rows)
        cuts = sorted(rng.randrange(len(rows) + 1) for _ in range(3))
        table = to_table(rows)
        chunked = pa.concat_tables(
            table.slice(start, stop - start)
            for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)
        )
        assert reduce_table(chunked, KEYS).equals(expected)

    @given(seeds, st.sampled_from(["max", "sum"]))
    @examples(40)
    def test_parts_reduced_first_give_the_same(
        self, seed: int, gauges: Literal["max", "sum"]
    ) -> None:
        rows = worker_rows(seed)
        rng = random.Random(seed)
        parts: list[list[Interval]] = [[], [], []]
        for row in rows:
            rng.choice(parts).append(row)
        finer = (*KEYS, "second")
        once = [reduce_table(to_table(part), finer, gauges=gauges) for part in parts]
        twice = reduce_table(pa.concat_tables(once), KEYS, gauges=gauges)
        assert twice.equals(reduce_table(to_table(rows), KEYS, gauges=gauges))

    @given(seeds)
    @examples(20)
    def test_the_size_of_blocks_and_pieces_does_not_matter(self, seed: int) -> None:
        table = to_table(worker_rows(seed))
        expected = reduce_table(table, DIMENSIONS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(reducer, "_BLOCK_COUNTS", 3 * 2048)
            patch.setattr(reducer, "_PIECE_ENTRIES", 25)
            assert reduce_table(table, DIMENSIONS).equals(expected)
            assert reduce_table(table, ()).to_pylist() == reduce_table(expected, ()).to_pylist()

    def test_merged_percentiles_are_the_librarys_merged_one_by_one(self) -> None:
        rng = np.random.default_rng(7)
        samples = [rng.lognormal(13, 1.5, 300).astype(np.int64).tolist() for _ in range(5)]
        total = HdrHistogram(1, HIGHEST_NS, 3)
        for sample in samples:
            part = HdrHistogram(1, HIGHEST_NS, 3)
            for value in sample:
                part.record_value(value)
            total.add(part)
        (row,) = reduce_table(to_table([latency_row(s) for s in samples]), ["series"]).to_pylist()
        values = [value for sample in samples for value in sample]
        assert summarize(row) == LatencySummary(
            count=1500,
            avg_us=sum(values) / 1_500_000,
            min_us=min(values) / 1000,
            p50_us=total.get_value_at_percentile(50) / 1000,
            p90_us=total.get_value_at_percentile(90) / 1000,
            p99_us=total.get_value_at_percentile(99) / 1000,
            p99_9_us=total.get_value_at_percentile(99.9) / 1000,
            max_us=max(values) / 1000,
            stdev_us=total.get_stddev() / 1000,
        )

    def test_gauges_of_one_second_add_and_of_several_take_the_greatest(self) -> None:
        connected = {(0, 0): 10, (0, 1): 20, (1, 0): 15, (1, 1): 5}
        rows = [
            Interval(worker=worker, second=second, connected=number)
            for (second, worker), number in connected.items()
        ]
        seconds = reduce_table(to_table(rows), ("second",), gauges="sum")
        assert seconds["connected"].to_pylist() == [30, 20]
        assert reduce_table(seconds, ()).to_pylist()[0]["connected"] == 30

    def test_thousands_of_groups_come_out_whole_and_in_order(self) -> None:
        rows = [replace(latency_row([10 + n % 3, 5_000_000]), second=n % 1000) for n in range(3000)]
        reduced = reduce_table(to_table(rows), ("second",))
        assert reduced["second"].to_pylist() == list(range(1000))
        assert set(reduced["count"].to_pylist()) == {6}
        assert {tuple(bucket[:3]) for bucket in reduced["bucket"].to_pylist()} == {(10, 11, 12)}

    def test_no_rows_give_no_rows(self) -> None:
        assert reduce_table(INTERVAL_SCHEMA.empty_table(), KEYS).equals(
            reduced_schema(KEYS).empty_table()
        )


class TestWhereTablesComeFrom:
    """Engines and files have the same rows in other Arrow types."""

    ROWS = worker_rows(11)

    def test_a_parquet_file(self) -> None:
        file = io.BytesIO()
        pq.write_table(to_table(self.ROWS), file, row_group_size=7, store_schema=False)
        table = pq.read_table(file)
        assert reduce_table(table, KEYS).equals(reduce_table(to_table(self.ROWS), KEYS))

    def test_large_offsets_dictionaries_and_other_columns(self) -> None:
        table = to_table(self.ROWS)
        wide = table.set_column(
            table.column_names.index("bucket"),
            "bucket",
            table["bucket"].cast(pa.large_list(pa.int32())),
        )
        wide = wide.set_column(0, "run", table["run"].dictionary_encode())
        wide = wide.append_column("more", pa.array(["x"] * table.num_rows))
        wide = wide.select(wide.column_names[::-1])
        assert reduce_table(wide, KEYS).equals(reduce_table(table, KEYS))


class TestDamage:
    ROW = replace(latency_row([5, 5, 9000]), run="r")

    @pytest.mark.parametrize("by", [("planet",), ("sent",), ("run", "run")])
    def test_only_dimensions_are_keys(self, by: tuple[str, ...]) -> None:
        with pytest.raises(ValueError, match=by[0]):
            reduce_table(to_table([self.ROW]), by)

    @pytest.mark.parametrize(
        ("name", "column", "code", "named"),
        [
            *((name, None, "NO_COLUMN", {"column": name}) for name in ("run", "sent", "bucket")),
            ("sent", pa.array(["many"]), "COLUMN_TYPE", {}),
            *(
                (name, pa.array([None], field.type), "NO_VALUE", {"column": name})
                for name in ("run", "sent", "bucket")
                for field in [INTERVAL_SCHEMA.field(name)]
            ),
            (
                "bucket",
                pa.array([[5, None]], pa.list_(pa.int32())),
                "NO_VALUE",
                {"column": "a histogram"},
            ),
        ],
    )
    def test_a_column_that_cannot_be(
        self, name: str, column: pa.Array | None, code: str, named: dict[str, str]
    ) -> None:
        table = to_table([self.ROW])
        place = table.column_names.index(name)
        table = table.remove_column(place)
        if column is not None:
            table = table.add_column(place, name, column)
        with refused(code, RunDirectoryError, **named):
            reduce_table(table, KEYS)

    @pytest.mark.parametrize(
        ("changes", "code"),
        [
            ({"bucket": np.array([5, 33_792], np.int32)}, "HISTOGRAM_LAYOUT"),
            ({"bucket": np.array([-1, 5], np.int32)}, "HISTOGRAM_LAYOUT"),
            ({"bucket_count": np.array([4, -1])}, "HISTOGRAM_LAYOUT"),
            ({"bucket": np.array([5], np.int32)}, "BUCKET_COUNTS"),
            ({"count": 4}, "HISTOGRAM_COUNT"),
        ],
    )
    def test_a_histogram_that_cannot_be(self, changes: dict[str, Any], code: str) -> None:
        damaged = replace(self.ROW, **changes)
        with refused(code, RunDirectoryError):
            reduce_table(to_table([self.ROW, damaged, self.ROW]), KEYS)

    def test_sums_never_wrap_around(self) -> None:
        rows = [Interval(sent_bytes=1 << 62), Interval(sent_bytes=1 << 62)]
        assert reduce_table(to_table(rows[:1]), ())["sent_bytes"].to_pylist() == [1 << 62]
        with refused("LARGE_SUM", RunDirectoryError, column="sent_bytes"):
            reduce_table(to_table(rows), ())


class TestSummary:
    def test_an_empty_series_has_no_numbers(self) -> None:
        (row,) = to_table([Interval(series="transit")]).to_pylist()
        assert summarize(row) == LatencySummary(0)
        assert asdict(LatencySummary(0))["p99_9_us"] is None

    def test_microseconds_exact_where_they_can_be(self) -> None:
        (row,) = to_table([latency_row([1_234_567, 1_234_569])]).to_pylist()
        summary = summarize(row)
        assert (summary.count, summary.avg_us) == (2, 1234.568)
        assert (summary.min_us, summary.max_us) == (1234.567, 1234.569)
        # Both in the bucket of 1,233,920 to 1,234,943 ns, and no percentile is above the greatest.
        assert (summary.p50_us, summary.stdev_us) == (1234.569, 0.0)
        for name in ("p50", "stdev"):  # until 1.0
            assert getattr(summary, name) == summary.figure(name)
        with pytest.raises(AttributeError):
            getattr(summary, "p" + "51")

    @pytest.mark.parametrize(
        ("percentile", "least"), [("p50", 2), ("p90", 6), ("p99", 51), ("p99_9", 501)]
    )
    def test_a_percentile_needs_values_enough_to_differ_from_the_greatest(
        self, percentile: str, least: int
    ) -> None:
        for count, is_there in ((1, False), (least - 1, False), (least, True)):
            (row,) = to_table([latency_row(list(range(1, count + 1)))]).to_pylist()
            summary = summarize(row)
            assert (summary.figure(percentile) is not None) is is_there
            assert summary.max_us == count / 1000
        assert summary.figure(percentile) == (least - 1) / 1000

    @given(st.lists(st.integers(0, HIGHEST_NS), min_size=1, max_size=700))
    def test_figures_are_in_order(self, values: list[int]) -> None:
        (row,) = to_table([latency_row(values)]).to_pylist()
        summary = summarize(row)
        told = [summary.p50_us, summary.p90_us, summary.p99_us, summary.p99_9_us, summary.max_us]
        known = [value for value in told if value is not None]
        assert known == sorted(known)

    def test_a_row_of_arrays_is_read_the_same(self) -> None:
        interval = latency_row([3, 70_000, 10**9])
        (row,) = to_table([interval]).to_pylist()
        assert summarize(asdict(interval)) == summarize(row)
