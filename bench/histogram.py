"""What recording one latency costs: the hdrhistogram library, and our kernel.

    python bench/histogram.py

Prints nanoseconds of processor time a value and how many times faster than the library. The
best of several rounds, because anything else on the machine only ever adds.
"""

from collections.abc import Callable
from time import process_time_ns

import numpy as np
from hdrh.histogram import HdrHistogram

from loadgen.kernels.compiled import compiled
from loadgen.kernels.counting import bucket_index
from loadgen.metrics.histogram import HIGHEST_NS, SIGNIFICANT_DIGITS, Int64Array, empty

ROUNDS = 7
VALUES = 1_000_000
LIBRARY_VALUES = 50_000


@compiled
def record_each(counts: Int64Array, values_ns: Int64Array) -> None:
    for value_ns in values_ns:
        counts[bucket_index(value_ns)] += 1


def best_ns(work: Callable[[], None], values: int) -> float:
    """Processor time of one value in the fastest round."""
    rounds = []
    for _ in range(ROUNDS):
        start_ns = process_time_ns()
        work()
        rounds.append((process_time_ns() - start_ns) / values)
    return min(rounds)


def main() -> None:
    # Median 160 µs with a long tail: what a loaded broker looks like.
    values = np.random.default_rng(1).lognormal(12, 1.5, VALUES).astype(np.int64)
    some = values[:LIBRARY_VALUES].tolist()
    library = HdrHistogram(1, HIGHEST_NS, SIGNIFICANT_DIGITS)
    compiled = empty()

    def by_library() -> None:
        for value in some:
            library.record_value(value)

    def by_kernel() -> None:
        record_each(compiled, values)

    record_each(compiled, values[:0])  # compile
    costs = {
        "hdrhistogram record_value": best_ns(by_library, LIBRARY_VALUES),
        "numba kernel": best_ns(by_kernel, VALUES),
    }
    slowest = costs["hdrhistogram record_value"]
    print(f"{'one value into a histogram':28}{'ns':>10}{'times faster':>14}")
    for name, cost in costs.items():
        print(f"{name:28}{cost:10.2f}{slowest / cost:14.1f}")


if __name__ == "__main__":
    main()
