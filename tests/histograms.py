"""Histograms of given latencies."""

from collections.abc import Sequence

import numpy as np

from loadgen.kernels.counting import bucket_index
from loadgen.metrics.histogram import Int64Array, dense


def histogram_of(values_ns: Sequence[int]) -> Int64Array:
    """Dense histogram of these latencies."""
    return dense([bucket_index(value) for value in values_ns], np.ones(len(values_ns), np.int64))
