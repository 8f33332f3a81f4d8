"""The interval table: the measurements, one row per worker, second, group, phase and series.

A group and phase with traffic has a row with series "" for the counters, and one with a histogram
per latency series; a worker has a row with group "" for its processor time and memory. A message
belongs to the phase in which it was *intended*. All values are integers, so that rows add up to the
same result in any order (`reducer`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from loadgen.metrics.histogram import merge

PHASES = ("connect", "subscribe", "warmup", "measure", "drain", "stop")  # in the order of a run
CONNECTED_AT = "connected_at"  # CONNACK - begin of the connect phase

SERIES = (
    "end_to_end",  # received - intended
    "transit",  # received - sent
    "send_delay",  # sent - intended
    "acknowledge",  # PUBACK or PUBCOMP - sent
    "connect",  # first SYN to CONNACK, and its parts:
    "tcp",
    "tls",
    "connack",
    "suback",
    "reconnect",  # received - intended, of messages that waited for an absent device
    "own_delay",  # read - readable: what the generator itself added before it looked
    "pushed_back",  # the part of send_delay in which a publisher waited for the broker
    CONNECTED_AT,
    "resubscribe",  # SUBACK - SUBSCRIBE, of a churn of subscriptions
    "unsubscribe",  # UNSUBACK - UNSUBSCRIBE of the same
    "return",  # CONNACK - time at which a device that left on request was to return
    "catch_up",  # received - that time, of messages that waited for the device
)
"""Latency series of the contract and the parts of a connect; rows may name others."""

CONNECT_SERIES = ("connect", "tcp", "tls", "connack", "suback")  # of devices, not messages
RUN_METADATA_KEY = b"loadgen.run"  # of the run's id in the metadata of each file's schema
DIMENSIONS = ("run", "host", "worker", "second", "group", "phase", "series")
"""The dimensions of a row. `second` counts from the run's anchor."""

SPAN = ("time_ns", "span_ns")  # start (CLOCK_MONOTONIC) and length of the interval
GAUGES = ("connected", "owed", "in_flight")  # levels at the end of the interval

PROCESS_COUNTERS = ("cpu_ns", "wait_ns", "stalled_ns")
"""Time on a processor, runnable but waiting for one, and in stalls of 10 ms and more."""

PROCESS_GAUGES = ("resident_bytes", "longest_stall_ns")

LATER = (
    *("excused", "misrouted", "below_qos", "violations", "refused", "given_up"),
    *("stalled_ns", "longest_stall_ns"),
)
"""Columns that runs of earlier versions lack; they count as 0."""

HISTOGRAM = ("count", "sum_ns", "min_ns", "max_ns", "bucket", "bucket_count")
"""Latencies: count, exact sum, least and greatest, and the sparse histogram."""

_TYPES = {
    **dict.fromkeys(("run", "group", "phase", "series"), pa.string()),
    **dict.fromkeys(("host", "worker", "second"), pa.int32()),
    "bucket": pa.list_(pa.int32()),
    "bucket_count": pa.list_(pa.int64()),
}
_NO_BUCKET = np.zeros(0, np.int32)
_NO_COUNT = np.zeros(0, np.int64)
for _shared in (_NO_BUCKET, _NO_COUNT):
    _shared.flags.writeable = False  # by every row without a histogram


@dataclass(frozen=True, slots=True, eq=False)
class Interval:
    """One row of the interval table; columns as in `INTERVAL_SCHEMA`, in its order."""

    run: str = ""
    host: int = 0
    worker: int = 0
    second: int = 0
    time_ns: int = 0
    span_ns: int = 0
    group: str = ""
    phase: str = ""
    series: str = ""
    sent: int = 0
    sent_bytes: int = 0
    expected: int = 0
    received: int = 0
    received_bytes: int = 0
    duplicated: int = 0
    excused: int = 0  # of the duplicated, those that MQTT allows
    out_of_order: int = 0
    corrupt: int = 0
    misrouted: int = 0  # of this run, but not this topic's or not this subscriber's
    foreign: int = 0  # from outside of this run
    below_qos: int = 0  # received with a lower QoS than was granted
    violations: int = 0  # of the specification
    acknowledged: int = 0
    refused: int = 0
    given_up: int = 0  # sent, but their handshake was lost with the session
    connects: int = 0
    connect_failures: int = 0
    disconnects: int = 0
    connected: int = 0
    owed: int = 0
    in_flight: int = 0
    cpu_ns: int = 0
    wait_ns: int = 0
    stalled_ns: int = 0
    resident_bytes: int = 0
    longest_stall_ns: int = 0
    count: int = 0
    sum_ns: int = 0
    min_ns: int = 0
    max_ns: int = 0
    bucket: NDArray[np.int32] = field(default_factory=lambda: _NO_BUCKET)
    bucket_count: NDArray[np.int64] = field(default_factory=lambda: _NO_COUNT)


INTERVAL_SCHEMA = pa.schema(
    [(column.name, _TYPES.get(column.name, pa.int64())) for column in fields(Interval)]
)
"""Columns of intervals/*.parquet, in this order. No value is null: absent values are 0 or ""."""

_NAMES = tuple(INTERVAL_SCHEMA.names)
COUNTERS = _NAMES[_NAMES.index("sent") : _NAMES.index("connected")]
"""Counters of events within the interval."""


def with_latencies(*rows: Interval) -> Interval:
    """Return the first row with the latencies of all, which are of one series."""
    counted = [row for row in rows if row.count]
    bucket, bucket_count = merge([(row.bucket, row.bucket_count) for row in rows])
    return replace(
        rows[0],
        count=sum(row.count for row in rows),
        sum_ns=sum(row.sum_ns for row in rows),
        min_ns=min((row.min_ns for row in counted), default=0),
        max_ns=max((row.max_ns for row in counted), default=0),
        bucket=bucket,
        bucket_count=bucket_count,
    )


def to_table(rows: Sequence[Interval]) -> pa.Table:
    columns = [
        _column(column.type, [getattr(row, column.name) for row in rows])
        for column in INTERVAL_SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=INTERVAL_SCHEMA)


def completed(table: pa.Table) -> pa.Table:
    """Return the table with all columns of the schema in order; KeyError if one is missing."""
    zeros = np.zeros(table.num_rows, np.int64)
    columns = [
        _numbers(zeros, column.type)
        if column.name in LATER and column.name not in table.schema.names
        else table[column.name]
        for column in INTERVAL_SCHEMA
    ]
    return pa.Table.from_arrays(columns, names=INTERVAL_SCHEMA.names)


def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    # Not by `pa.array`: it imports pandas, which takes seconds from a cold disk.
    if pa.types.is_list(kind):
        # One copy of all entries: a list of Python integers a row would stall a worker's loop.
        entries = np.concatenate(values) if values else ()
        return pa.ListArray.from_arrays(_ends(values), _numbers(entries, kind.value_type))
    if pa.types.is_string(kind):
        words = [value.encode() for value in values]
        parts = [None, _ends(words).buffers()[1], pa.py_buffer(b"".join(words))]
        return pa.Array.from_buffers(kind, len(words), parts)
    return _numbers(values, kind)


def _ends(values: list[Any]) -> pa.Array:
    """Return the start of each array in their concatenation, and the end of the last one."""
    return _numbers(np.cumsum([0, *map(len, values)]), pa.int32())


def _numbers(values: Any, kind: pa.DataType) -> pa.Array:
    numbers = np.asarray(values, np.int32 if kind == pa.int32() else np.int64)
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
