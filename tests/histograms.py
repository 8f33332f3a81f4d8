"""Histograms and interval rows of given latencies."""

from collections.abc import Sequence

import numpy as np

from loadgen.kernels.counting import bucket_index
from loadgen.metrics.histogram import Int64Array, dense, sparse
from loadgen.metrics.interval import Interval


def histogram_of(values_ns: Sequence[int]) -> Int64Array:
    """Dense histogram of these latencies."""
    return dense([bucket_index(value) for value in values_ns], np.ones(len(values_ns), np.int64))


def latency_row(series: str, *values_ns: int, group: str, phase: str = "measure") -> Interval:
    """A row of these latencies of a group."""
    bucket, count = sparse(histogram_of(values_ns))
    bounds = {"min_ns": min(values_ns), "max_ns": max(values_ns)}
    sums = {"count": len(values_ns), "sum_ns": sum(values_ns), "bucket_count": count}
    common = {"group": group, "phase": phase, "series": series, "bucket": bucket.astype(np.int32)}
    return Interval(**common, **bounds, **sums)  # type: ignore[arg-type]
