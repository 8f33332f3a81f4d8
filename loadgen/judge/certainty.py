"""A sequential test that ends a step of a search as soon as its verdict is certain.

A line is fitted to the backlog, averaged over blocks of 100 ms. The load holds if the line,
steeper by `SIGMAS` standard errors, stays within the tolerated growth until the window ends. It
fails if the backlog has grown by more than `MARGIN` times that growth and the line, flatter by as
much, still rises. All looks of a window together err in at most 0.13 % of cases. It also fails once
so many latencies are above their bound that the window's p99 will be, whatever follows.
"""

import math
from collections.abc import Sequence
from itertools import groupby
from statistics import fmean, linear_regression

from loadgen.judge.backlog import BacklogSample, backlog_growth

NS = 1_000_000_000
BLOCK_NS = 100_000_000
LEAST_BLOCKS = 10
SIGMAS = 4.0
MARGIN = 1.5
MOST_LATE = 0.01  # share of a window's latencies that may be above a bound of their p99


def certain_verdict(
    samples: Sequence[BacklogSample], window_s: float, tolerated: float, late_share: float = 0.0
) -> bool | None:
    """Return True if the load holds, False if it fails, None while that is open.

    `late_share` is the share of all latencies of the window that are known to be above their bound.
    """
    if not samples or samples[-1][0] - samples[0][0] < LEAST_BLOCKS * BLOCK_NS:
        return None
    if late_share > MOST_LATE:
        return False
    start_ns = samples[0][0]
    blocks = []
    for number, block in groupby(samples, lambda sample: (sample[0] - start_ns) // BLOCK_NS):
        level = fmean(unsent + outstanding for _, unsent, outstanding in block)
        blocks.append((number * BLOCK_NS / NS, level))
    if len(blocks) < 3:
        return None
    times, levels = zip(*blocks, strict=True)
    slope, start = linear_regression(times, levels)
    rest = sum((level - start - slope * time) ** 2 for time, level in blocks)
    mean = fmean(times)
    spread = sum((time - mean) ** 2 for time in times)
    error = math.sqrt(rest / (len(blocks) - 2) / spread)
    if (slope + SIGMAS * error) * window_s < tolerated:
        return True
    grown = backlog_growth(samples) > MARGIN * tolerated
    return False if grown and slope - SIGMAS * error > 0 else None
