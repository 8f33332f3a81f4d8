"""The merged histogram of each run and series, as histograms.parquet, .hlog and .hgrm.

The log has format 1.3 with V2 compressed base64 histograms, which HdrHistogram's own tools read.
Its tags are the series, or run and series. Values are nanoseconds, its maxima milliseconds.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.metrics import histogram
from loadgen.report.render.text import name
from loadgen.report.score_card import ScoreCard

HISTOGRAM_SCHEMA = pa.schema(
    [
        *((key, pa.string()) for key in ("run", "case", "series")),
        *((key, pa.int64()) for key in ("count", "sum_ns", "min_ns", "max_ns")),
        ("bucket", pa.list_(pa.int32())),
        ("bucket_count", pa.list_(pa.int64())),
    ],
    metadata={
        b"loadgen.histogram": b"HdrHistogram of nanoseconds, lowest 1, highest 3600000000000, "
        b"3 digits; b = max(bit_length(value) - 11, 0); bucket = (b << 10) + (value >> b)"
    },
)

_CARDS_AT_ONCE = 50
"""Number of runs whose histograms are unpacked at once: some 50 MB, and a row group."""
_TAG_CHARACTERS = 300
_BUCKETS, _SUB_BUCKETS = 32, 2048  # layout of the library (`metrics.histogram`)


def to_parquet(cards: Sequence[ScoreCard], path: Path) -> None:
    with pq.ParquetWriter(path, HISTOGRAM_SCHEMA, compression="zstd") as writer:
        for first in range(0, len(cards), _CARDS_AT_ONCE):
            rows = [
                dict(row)
                | {"run": card.run.id, "case": card.run.case, "series": series}
                | {name: row[name].to_numpy() for name in ("bucket", "bucket_count")}
                for card in cards[first : first + _CARDS_AT_ONCE]
                for series, row in card.curves.histograms.items()
            ]
            writer.write_table(pa.Table.from_pylist(rows, HISTOGRAM_SCHEMA))


MOST_RUNS_PLOTTED = 20
"""Maximum number of runs with .hgrm files; of more, HdrHistogram's tools make them from the log."""
_TICKS = 5  # lines for each halving of the distance to 100 %, as in the library


def to_hgrm(cards: Sequence[ScoreCard]) -> dict[str, bytes]:
    """Return text by file name; nothing for more than MOST_RUNS_PLOTTED runs."""
    if len(cards) > MOST_RUNS_PLOTTED:
        return {}
    files: dict[str, bytes] = {}
    for card in cards:
        for series, row in card.curves.histograms.items():
            label = series if len(cards) == 1 else f"{card.run.id}.{series}"
            plain = quote(name(label, _TAG_CHARACTERS), safe=".-_")
            files[f"hgrm/{plain}.hgrm"] = distribution(row).encode()
    return files


def distribution(row: Mapping[str, Any]) -> str:
    """Return the percentile distribution of a merged row in microseconds, as the library prints it.

    The standard deviation differs: the library leaves it in nanoseconds.
    """
    bucket, counts = np.asarray(row["bucket"]), np.asarray(row["bucket_count"], np.int64)
    running = np.cumsum(counts)
    total = int(running[-1])
    values_us = histogram.highest_values(bucket) / 1000
    reached = 100.0 * running / total
    lines = [f"{'Value':>12} {'Percentile':>14} {'TotalCount':>10} {'1/(1-Percentile)':>14}", ""]
    level, place = 0.0, -1
    while place < len(running) - 1:
        place = int(np.searchsorted(reached, level))
        share = level / 100
        lines.append(
            f"{values_us[place]:12.3f} {share:2.12f} {running[place]:10d} {1 / (1 - share):14.2f}"
        )
        level += (100.0 - level) / (2 * _TICKS)
    lines.append(f"{values_us[-1]:12.3f} {1:2.12f} {total:10d}")
    average_us, deviation_us = (ns / 1000 for ns in histogram.mean_and_stdev(counts, bucket))
    lines += [
        f"#[Mean    = {average_us:12.3f}, StdDeviation   = {deviation_us:12.3f}]",
        f"#[Max     = {values_us[-1]:12.3f}, TotalCount     = {total:12.3f}]",
        f"#[Buckets = {_BUCKETS:12d}, SubBuckets     = {_SUB_BUCKETS:12d}]",
        "#[Unit    = microseconds. A percentile p is the value of rank max(int(p/100 * TotalCount "
        "+ 0.5), 1), as the highest of its bucket]",
    ]
    return "\n".join(lines) + "\n"


def to_hlog(cards: Sequence[ScoreCard], path: Path) -> None:
    """Write a histogram log; it starts with the first measurement window."""
    starts = [card.curves.wall_start_ns for card in cards]
    base_ns = min(starts)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(histogram.log_header(base_ns))
        for start_ns, place in sorted((start_ns, place) for place, start_ns in enumerate(starts)):
            card = cards[place]
            for series, row in card.curves.histograms.items():
                label = f"{card.run.id}/{series}" if len(cards) > 1 else series
                tag = name(label, _TAG_CHARACTERS)
                counts = histogram.dense(row["bucket"], row["bucket_count"])
                since_ns, span_ns = start_ns - base_ns, round(card.run.seconds * 1e9)
                file.write(histogram.log_interval(counts, since_ns, span_ns, tag))
