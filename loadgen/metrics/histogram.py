"""A latency histogram in numpy: the HdrHistogram layout with lowest 1, one hour, three digits.

A *dense* histogram is an int64 array of `BUCKETS` counts, a *sparse* one the pair (bucket,
bucket_count) of its non-zero entries, ascending. Values below 2048 have a bucket each; above, every
power of two has 1024. With b = max(bit_length(value) - 11, 0) the bucket is (b << 10) + (value >>
b).
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from operator import mul
from urllib.parse import quote

import numpy as np
from hdrh.histogram import HdrHistogram
from numpy.typing import ArrayLike, NDArray

Int64Array = NDArray[np.int64]
Int32Array = NDArray[np.int32]
Sparse = tuple[Int32Array, Int64Array]  # (bucket, bucket_count)

LOWEST_NS = 1
HIGHEST_NS = 3_600_000_000_000  # one hour, as the encoded form declares
SIGNIFICANT_DIGITS = 3

BUCKETS = 33_792  # counts of a dense histogram
HIGHEST_RECORDABLE_NS = (1 << 42) - 1  # longer values, from 73 minutes on, count as this

HALF_BITS = 10  # 1024 buckets to each power of two
_HALF = 1 << HALF_BITS
UNIT_MASK = 2 * _HALF - 1  # values up to here have a bucket each


def lowest_values(bucket: ArrayLike) -> Int64Array:
    index = np.asarray(bucket, np.int64)
    bits = _dropped_bits(index)
    return (index - (bits << HALF_BITS)) << bits


def highest_values(bucket: ArrayLike) -> Int64Array:
    index = np.asarray(bucket, np.int64)
    return lowest_values(index) + (np.int64(1) << _dropped_bits(index)) - 1


def median_values(bucket: ArrayLike) -> Int64Array:
    """Return the values in nanoseconds that stand for the buckets in mean and deviation."""
    index = np.asarray(bucket, np.int64)
    return lowest_values(index) + ((np.int64(1) << _dropped_bits(index)) >> 1)


def _dropped_bits(index: Int64Array) -> Int64Array:
    bits: Int64Array = np.maximum((index >> HALF_BITS) - 1, 0)
    return bits


def empty() -> Int64Array:
    return np.zeros(BUCKETS, np.int64)


def sparse(counts: Int64Array) -> Sparse:
    """Return copies of (bucket, bucket_count) of a dense histogram."""
    bucket = np.flatnonzero(counts)
    return bucket.astype(np.int32), counts[bucket]


def dense(bucket: ArrayLike, bucket_count: ArrayLike) -> Int64Array:
    """Return the dense histogram of sparse entries, in any order, with buckets repeated or not."""
    counts = empty()
    np.add.at(counts, np.asarray(bucket, np.int64), np.asarray(bucket_count, np.int64))
    return counts


def merge(parts: Sequence[Sparse]) -> Sparse:
    """Return the sparse sum of sparse histograms. Dense ones are arrays: add them with `+`."""
    ends = [int(bucket[end]) for bucket, _ in parts if len(bucket) for end in (0, -1)]
    lowest = min(ends, default=0)
    # Sorting the buckets of all parts would take five times as long.
    counts = np.zeros(max(ends, default=0) + 1 - lowest, np.int64)
    for bucket, bucket_count in parts:
        counts[bucket - lowest] += bucket_count
    bucket, bucket_count = sparse(counts)
    return bucket + np.int32(lowest), bucket_count


def percentiles(
    counts: ArrayLike, ps: Sequence[float], bucket: ArrayLike | None = None
) -> list[int]:
    """Return the value in nanoseconds at each percentile of `ps` (0 to 100, in any order).

    `counts` is a dense histogram, or with `bucket` (ascending) the counts of a sparse one.
    """
    counts = np.asarray(counts, np.int64)
    buckets = np.arange(len(counts)) if bucket is None else np.asarray(bucket)
    return [int(value[0]) for value in row_percentiles(buckets, counts, counts.sum()[None], ps)]


def row_percentiles(
    bucket: Int64Array, bucket_count: Int64Array, totals: Int64Array, ps: Sequence[float]
) -> list[Int64Array]:
    """Return each percentile of `ps` for each of several sparse histograms, which are end to end.

    `totals` are their sums. A percentile is the highest value of the bucket of `rank` (for p = 0
    the lowest), as in the library; 0 for an empty histogram.
    """
    running = np.cumsum(bucket_count)
    before = np.cumsum(totals) - totals
    # The last entry is for empty histograms.
    buckets = np.append(bucket, 0)
    values = []
    for p in ps:
        place = np.searchsorted(running, before + rank(p, totals))
        index = buckets[np.where(totals, place, len(running))]
        values.append(highest_values(index) if p else lowest_values(index))
    return values


def rank(p: float, total: ArrayLike) -> Int64Array:
    """Return the place, from 1, of the percentile p (0 to 100) among `total` ascending values."""
    places = np.asarray(min(p, 100.0) * np.asarray(total) / 100 + 0.5).astype(np.int64)
    return np.maximum(places, 1)


def mean_and_stdev(bucket_count: ArrayLike, bucket: ArrayLike) -> tuple[float, float]:
    """Return the library's mean and standard deviation (of the population) in ns; 0 if empty."""
    weight, middle = np.asarray(bucket_count, np.int64), median_values(bucket)
    # Python's integers: the sum of an hour's messages in nanoseconds can pass 2^63.
    total = sum(weight.tolist())
    if not total:
        return 0.0, 0.0
    mean = float(sum(map(mul, middle.tolist(), weight.tolist()))) / total
    deviation = middle.astype(np.float64) - mean
    # cumsum adds one after the other, as the library does; np.sum would pair and round otherwise.
    return mean, math.sqrt(float(np.cumsum(deviation * deviation * weight)[-1]) / total)


def encode(counts: Int64Array) -> bytes:
    """Return a dense histogram in V2 compressed form in base64, as HdrHistogram tools read it."""
    histogram = HdrHistogram(LOWEST_NS, HIGHEST_NS, SIGNIFICANT_DIGITS)
    np.frombuffer(histogram.counts, np.int64)[:] = counts
    used = np.flatnonzero(counts)
    if used.size:
        histogram.set_internal_tacking_values(int(used[0]), int(used[-1]), int(counts.sum()))
    return bytes(histogram.encode())


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def log_header(start_ns: int) -> str:
    """Return the first lines of a histogram log that starts at `start_ns` (since the epoch)."""
    start = _seconds(start_ns)
    date = (_EPOCH + timedelta(microseconds=start_ns // 1000)).isoformat(timespec="milliseconds")
    return (
        "#[Histogram log format version 1.3]\n"
        f"#[StartTime: {start} (seconds since epoch), {date}]\n"
        # Stated, so that no reader has to guess whether interval times are relative.
        f"#[BaseTime: {start} (seconds since epoch)]\n"
        '"StartTimestamp","Interval_Length","Interval_Max","Interval_Compressed_Histogram"\n'
    )


def log_interval(counts: Int64Array, offset_ns: int, span_ns: int, tag: str = "") -> str:
    """Return one line of a histogram log.

    `offset_ns` is the interval's start since the log's, `span_ns` its length. The maximum is in
    milliseconds, of the last bucket in use. Unusual characters of a tag are percent-encoded.
    """
    label = f"Tag={quote(tag, safe='/:+=@._-~')}," if tag else ""
    (highest_ns,) = percentiles(counts, (100.0,))
    return (
        f"{label}{_seconds(offset_ns)},{_seconds(span_ns)},{highest_ns / 1e6:.3f},"
        f"{encode(counts).decode('ascii')}\n"
    )


def _seconds(time_ns: int) -> str:
    """Return seconds with three decimals, rounded without a float in between."""
    milliseconds = (time_ns + 500_000) // 1_000_000
    return f"{milliseconds // 1000}.{milliseconds % 1000:03d}"
