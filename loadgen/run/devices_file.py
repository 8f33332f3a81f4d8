"""devices/*.parquet: one row for each device of a run, from the workers' last answers."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.errors import RunDirectoryError
from loadgen.plan.addressing import client_id
from loadgen.plan.plan import Plan
from loadgen.run.rundir import make_folder, replacing
from loadgen.sentences import RUN_TEXT, printable
from loadgen.worker.closing import UNKNOWN
from loadgen.worker.logins import listed_clients

DEVICE_SCHEMA = pa.schema(
    [
        pa.field("worker", pa.int32(), False),
        pa.field("group", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("device", pa.int64(), False),
        pa.field("client_id", pa.string(), False),
        pa.field("broker", pa.dictionary(pa.int32(), pa.string()), False),
        pa.field("connected", pa.bool_(), False),
        *(pa.field(key, pa.int64()) for key in ("sent", "expected", "received", "lost")),
        pa.field("received_in_window", pa.int64()),
    ]
)
"""`sent`, `expected`, `received` and `lost` count messages of all phases, and are null if they do
not apply or cannot be known, such as `lost` of a device that shares a queue, or that would receive
from a lost worker. `connected` is as of the moment before the devices disconnect."""

Column = npt.NDArray[np.int64]


def device_table(plan: Plan, finals: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    """Return the rows of the workers that answered, in the order of workers (`DEVICE_SCHEMA`)."""
    answers = {row: final["devices"] for row, final in sorted(finals.items()) if "devices" in final}

    def joined(parts: Iterable[Sequence[int] | Column]) -> Column:
        return np.concatenate([np.zeros(0, np.int64), *(np.asarray(p, np.int64) for p in parts)])

    def column(name: str) -> Column:
        return joined(answer[name] for answer in answers.values())

    def or_null(values: Column, known: npt.NDArray[np.bool_]) -> pa.Array:
        return pa.array(values, pa.int64(), mask=~known)

    def named(numbers: Column, names: list[str]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), pa.array(names))

    sent, received, streams = column("sent"), column("received"), column("streams")
    expected = _expected(column("stream"), sent, column("first_stream"), streams)
    expected[received == UNKNOWN] = UNKNOWN
    received[streams == 0] = UNKNOWN
    is_known = expected != UNKNOWN
    group, device = column("group"), column("device")
    brokers = [printable(f"{target.host}:{target.port}", 300) for target in plan.targets]
    listed = listed_clients(plan)
    client_ids = [
        printable(listed[owner.name][number][0], 300)
        if (owner := plan.groups[index]).name in listed
        else client_id(plan, owner, number)
        for index, number in zip(group.tolist(), device.tolist(), strict=True)
    ]
    columns = {
        "worker": joined(np.full(len(one["device"]), row) for row, one in answers.items()),
        "group": named(group, [of.name for of in plan.groups]),
        "device": device,
        "client_id": client_ids,
        "broker": named(column("target"), brokers),
        "connected": column("connected") == 1,
        "sent": or_null(sent, sent != UNKNOWN),
        "expected": or_null(expected, is_known),
        "received": or_null(received, received != UNKNOWN),
        "lost": or_null(expected - received, is_known),
        "received_in_window": or_null(column("received_in_window"), streams > 0),
    }
    return pa.table(columns, schema=DEVICE_SCHEMA)


def write_devices(directory: Path, plan: Plan, finals: Mapping[int, Mapping[str, Any]]) -> pa.Table:
    table = device_table(plan, finals)
    folder = directory / "devices"
    make_folder(folder)
    with replacing(folder / "part-000000.parquet") as hidden:
        pq.write_table(table, hidden, compression="zstd")
    return table


def read_devices(directory: Path) -> pa.Table:
    """Read the rows of a run; raise RunDirectoryError if it has none or they are damaged."""
    found = sorted((directory / "devices").glob("part-*.parquet"))
    if not found:
        raise RunDirectoryError(RUN_TEXT.NO_DEVICES(path=directory))
    try:
        return pa.concat_tables([pq.read_table(part) for part in found])
    except (OSError, pa.ArrowInvalid) as error:
        raise RunDirectoryError(RUN_TEXT.BAD_DEVICES(path=directory, error=str(error))) from None


def _expected(stream: Column, sent: Column, first: Column, streams: Column) -> Column:
    """Return the messages sent on each device's streams, UNKNOWN without the answer of a sender."""
    publishes = stream != UNKNOWN
    length = int(max(stream.max(initial=-1) + 1, (first + streams).max(initial=0)))
    of_stream = np.zeros(length, np.int64)
    unknown = np.ones(length, np.int64)
    of_stream[stream[publishes]] = sent[publishes]
    unknown[stream[publishes]] = 0
    before = np.concatenate([[0], np.cumsum(of_stream)])
    unknown_before = np.concatenate([[0], np.cumsum(unknown)])
    expected: Column = before[first + streams] - before[first]
    missing = unknown_before[first + streams] > unknown_before[first]
    expected[missing | (streams == 0)] = UNKNOWN
    return expected
