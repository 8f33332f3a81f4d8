"""The merged histograms of every card: as a Parquet table, and as a histogram log.

histograms.parquet has a row a run and series, with the exact count, sum, least and greatest, and
the buckets of `metrics.histogram` that are not empty; the schema's metadata says how a bucket's
number follows from a value.

histograms.hlog is a histogram log of format 1.3 with V2 compressed base64 histograms, which
HdrHistogram's own tools read: a line a run and series, tagged with the series, or with run and
series where there are several runs. Values are nanoseconds, its maxima milliseconds.
"""

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.metrics.histogram import dense, log_header, log_interval
from loadgen.scorecard.compare import Comparison
from loadgen.scorecard.model import ScoreCard
from loadgen.scorecard.text import name

HISTOGRAM_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("case", pa.string()),
        ("series", pa.string()),
        ("count", pa.int64()),
        ("sum_ns", pa.int64()),
        ("min_ns", pa.int64()),
        ("max_ns", pa.int64()),
        ("bucket", pa.list_(pa.int32())),
        ("bucket_count", pa.list_(pa.int64())),
    ],
    metadata={
        b"loadgen.histogram": b"HdrHistogram of nanoseconds, lowest 1, highest 3600000000000, "
        b"3 digits; b = max(bit_length(value) - 11, 0); bucket = (b << 10) + (value >> b)"
    },
)

_TAG_CHARACTERS = 300


def to_parquet(cards: Sequence[ScoreCard], _: Sequence[Comparison] = ()) -> bytes:
    """A table of HISTOGRAM_SCHEMA."""
    rows = [
        {**row, "run": card.run.id, "case": card.run.case, "series": series}
        for card in cards
        for series, row in card.curves.histograms.items()
    ]
    out = io.BytesIO()
    table = pa.Table.from_pylist(rows, schema=HISTOGRAM_SCHEMA)
    pq.write_table(table, out, compression="zstd")
    return out.getvalue()


def to_hlog(cards: Sequence[ScoreCard], _: Sequence[Comparison] = ()) -> bytes:
    """A histogram log; it starts where the first measurement window does."""
    starts = [card.curves.wall_start_ns for card in cards]
    base_ns = min(starts)
    lines = []
    for start_ns, place in sorted((start_ns, place) for place, start_ns in enumerate(starts)):
        card = cards[place]
        for series, row in card.curves.histograms.items():
            tag = f"{card.run.id}/{series}" if len(cards) > 1 else series
            lines.append(
                log_interval(
                    dense(row["bucket"], row["bucket_count"]),
                    start_ns - base_ns,
                    round(card.run.seconds * 1e9),
                    name(tag, _TAG_CHARACTERS),
                )
            )
    return (log_header(base_ns) + "".join(lines)).encode()
