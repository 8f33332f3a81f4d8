"""The histogram against the hdrhistogram library: bucket for bucket, percentile for percentile."""

from pathlib import Path

import numpy as np
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.kernels.counting import bucket_index
from loadgen.metrics import histogram as h
from tests.examples import examples
from tests.histograms import histogram_of

EDGES = sorted(
    {0, 1, 2, 1023, 1024, 2047, 2048, 2049, h.HIGHEST_NS, h.HIGHEST_RECORDABLE_NS}
    | {(1 << bits) + step for bits in range(11, 42) for step in (-1, 0, 1)}
)
# Uniform below a random power of two, so that small and large values are equally likely.
values = st.integers(0, 42).flatmap(lambda bits: st.integers(0, (1 << bits) - 1))
samples = st.lists(values, max_size=60)
percents = st.one_of(
    st.sampled_from([0, 50, 90, 99, 99.9, 99.99, 100, 200, 0.0, 1e-9]), st.floats(0, 100)
)


def library(sample: list[int]) -> HdrHistogram:
    reference = HdrHistogram(1, h.HIGHEST_NS, 3)
    for value in sample:
        assert reference.record_value(value)
    return reference


REFERENCE = library([])
"""Read for its layout only, and therefore shared."""


def test_the_layout_has_the_librarys_size() -> None:
    reference = library([])
    assert reference.counts_len == h.BUCKETS
    last = reference.get_value_from_index(h.BUCKETS - 1)
    assert reference.get_highest_equivalent_value(last) == h.HIGHEST_RECORDABLE_NS


class TestBuckets:
    @given(samples)
    @example(EDGES)
    @examples(200)
    def test_any_value_falls_into_the_librarys_bucket(self, sample: list[int]) -> None:
        expected = [REFERENCE.get_counts_array_index(value) for value in sample]
        plain = getattr(bucket_index, "py_func", bucket_index)
        assert [bucket_index(value) for value in sample] == expected
        assert [plain(value) for value in sample] == expected

    @given(values)
    @examples(300)
    def test_equivalent_values_are_the_librarys(self, value: int) -> None:
        bucket = bucket_index(value)
        assert h.lowest_values(bucket) == REFERENCE.get_lowest_equivalent_value(value)
        assert h.highest_values(bucket) == REFERENCE.get_highest_equivalent_value(value)
        assert h.median_values(bucket) == REFERENCE._hdr_median_equiv_value(value)

    def test_the_buckets_tile_the_whole_range(self) -> None:
        index = np.arange(h.BUCKETS)
        lowest, highest = h.lowest_values(index), h.highest_values(index)
        assert lowest[0] == 0
        assert (lowest[1:] == highest[:-1] + 1).all()
        assert [bucket_index(value) for value in lowest] == index.tolist()
        assert [bucket_index(value) for value in highest] == index.tolist()

    @pytest.mark.parametrize(
        ("value", "counted_as"),
        [
            (-1, 0),
            (-(1 << 62), 0),
            (h.HIGHEST_RECORDABLE_NS + 1, h.HIGHEST_RECORDABLE_NS),
            ((1 << 63) - 1, h.HIGHEST_RECORDABLE_NS),
        ],
    )
    def test_what_the_library_refuses_is_clamped(self, value: int, counted_as: int) -> None:
        assert not HdrHistogram(1, h.HIGHEST_NS, 3).record_value(value)
        assert bucket_index(value) == bucket_index(counted_as)


class TestForms:
    @given(samples)
    @examples(50)
    def test_all_forms_are_the_librarys_histogram(self, sample: list[int]) -> None:
        counts = histogram_of(sample)
        assert np.array_equal(counts, np.frombuffer(library(sample).counts, np.int64))
        assert h.encode(counts) == library(sample).encode()
        bucket, bucket_count = h.sparse(counts)
        assert bucket.dtype == np.int32
        assert bucket_count.dtype == np.int64
        assert bucket.tolist() == sorted({bucket_index(value) for value in sample})
        assert bucket_count.sum() == len(sample)
        assert np.array_equal(h.dense(bucket, bucket_count), counts)
        assert np.array_equal(h.dense(bucket[::-1], bucket_count[::-1]), counts)

    @given(st.lists(samples, max_size=4))
    @examples(30)
    def test_merging_equals_the_librarys_add(self, parts: list[list[int]]) -> None:
        total = library([])
        for part in parts:
            total.add(library(part))
        expected = np.frombuffer(total.counts, np.int64)
        merged = h.merge([h.sparse(histogram_of(part)) for part in parts])
        assert np.array_equal(h.dense(*merged), expected)
        assert np.array_equal(merged[0], np.flatnonzero(expected))
        assert np.array_equal(sum((histogram_of(part) for part in parts), h.empty()), expected)


class TestStatistics:
    @given(samples, st.lists(percents, min_size=1, max_size=4))
    @example([], [0, 50, 100])
    @example([0, 0, 5], [0, 50, 100])
    @example([2048, 2049], [0, 50, 100])
    @example([1, 2, 3, 4], [12.5, 37.5, 62.5, 87.5])  # ranks exactly on a half
    @example([1, 2, 3, 4], [200, 1e9])
    @examples(60)
    def test_percentiles_are_the_librarys(self, sample: list[int], ps: list[float]) -> None:
        reference = library(sample)
        expected = [reference.get_value_at_percentile(p) for p in ps]
        counts = histogram_of(sample)
        bucket, bucket_count = h.sparse(counts)
        assert h.percentiles(counts, ps) == expected
        assert h.percentiles(bucket_count, ps, bucket) == expected

    @given(st.lists(st.tuples(values, st.integers(1, 1 << 40)), max_size=20), percents)
    @examples(40)
    def test_figures_of_large_counts_are_the_librarys(
        self, entries: list[tuple[int, int]], p: float
    ) -> None:
        reference = library([])
        for value, count in entries:
            reference.record_value(value, count)
        counts = np.frombuffer(reference.counts, np.int64)
        bucket, bucket_count = h.sparse(counts)
        assert h.percentiles(counts, (p,)) == [reference.get_value_at_percentile(p)]
        wanted = reference.get_mean_value(), reference.get_stddev()
        assert h.mean_and_stdev(bucket_count, bucket) == wanted


class TestLog:
    START_NS = 1_700_000_000_123_456_789

    def test_the_librarys_reader_reads_tags_times_and_counts(self, tmp_path: Path) -> None:
        intervals = [("end_to_end", [1, 5000, 10**9]), ("", [77]), ("transit", [])]
        text = h.log_header(self.START_NS) + "".join(
            h.log_interval(histogram_of(sample), second * 10**9, 999_600_000, tag)
            for second, (tag, sample) in enumerate(intervals)
        )
        path = tmp_path / "run.hlog"
        path.write_text(text, encoding="ascii")
        reader = HistogramLogReader(str(path), library([]))
        try:
            for second, (tag, sample) in enumerate(intervals):
                read = reader.get_next_interval_histogram()
                assert read.get_tag() == (tag or None)
                assert np.array_equal(np.frombuffer(read.counts, np.int64), histogram_of(sample))
                start_ms = 1_700_000_000_123 + second * 1000
                assert read.get_start_time_stamp() == pytest.approx(start_ms, abs=0.01)
                assert read.get_end_time_stamp() == pytest.approx(start_ms + 1000, abs=0.01)
            assert reader.get_next_interval_histogram() is None
            assert reader.get_start_time_sec() == 1_700_000_000.123
        finally:
            reader.input_file.close()

    def test_the_lines_follow_format_1_3(self) -> None:
        header = h.log_header(self.START_NS).splitlines()
        assert header == [
            "#[Histogram log format version 1.3]",
            "#[StartTime: 1700000000.123 (seconds since epoch), 2023-11-14T22:13:20.123+00:00]",
            "#[BaseTime: 1700000000.123 (seconds since epoch)]",
            '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"',
        ]
        counts = histogram_of([2_500_000])
        encoded = h.encode(counts).decode()
        line = h.log_interval(counts, 127_000_000, 1_006_999_999, "A")
        # 2,500,000 lies in the bucket up to 2,500,607 ns
        assert line == f"Tag=A,0.127,1.007,2.501,{encoded}\n"

    @given(st.text(max_size=20))
    @examples(50)
    def test_no_tag_can_break_its_line(self, tag: str) -> None:
        line = h.log_interval(h.empty(), 0, 10**9, tag)
        fields = line.removesuffix("\n").split(",")
        assert len(fields) == (5 if tag else 4)
        assert " " not in line
        assert len(line.splitlines()) == 1
        assert line.isascii()
