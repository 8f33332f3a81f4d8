"""Power logs by Spark: read and parsed a file a task, joined to the runs' windows, one mean each.

Parsing and arithmetic are `scorecard.power`'s, so that a malformed line is named the same way and
the mean is the same number with and without Spark.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pyarrow as pa

from loadgen.errors import PowerLogError
from loadgen.scorecard.power import OutletPower, distinct_logs, outlet_power, read_power_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["outlets_of_runs"]

_SAMPLES = "place int, log string, line int, wall_ns long, watts double, error string"
_WINDOWS = "run string, start_ns long, end_ns long"
_OUTLETS = (
    "run string, place int, log string, watts double, samples int, coverage double, "
    "at_s array<double>, level array<double>"
)
_SAMPLE_SCHEMA = pa.schema(
    [
        ("place", pa.int32()),
        ("log", pa.string()),
        ("line", pa.int32()),
        ("wall_ns", pa.int64()),
        ("watts", pa.float64()),
        ("error", pa.string()),
    ]
)


def outlets_of_runs(
    spark: "SparkSession",
    windows: Mapping[str, tuple[int, int]],
    logs: Sequence[Path],
    zone: ZoneInfo,
) -> dict[str, list[OutletPower]]:
    """Run id to its outlets, in the order of `logs`.

    `windows` are (start_ns, end_ns) in UTC since the epoch, by run id. Logs are read where the
    tasks run. Raises PowerLogError for the first log that cannot be used.
    """
    paths = [(place, str(path.resolve()), str(path)) for place, path in enumerate(logs)]
    distinct_logs(logs)
    named = spark.createDataFrame(paths, "place int, path string, log string")
    # A task a log, and read once for both questions that follow.
    samples = (
        named.repartition(len(paths), "place")
        .mapInArrow(lambda batches: _parse(batches, zone.key), _SAMPLES)
        .cache()
    )
    try:
        wrong = samples.where("error is not null").orderBy("place").limit(1).collect()
        if wrong:
            raise PowerLogError(wrong[0]["error"])
        spans = spark.createDataFrame([(run, *span) for run, span in windows.items()], _WINDOWS)
        means = (
            samples.crossJoin(spans)
            .groupBy("run", "place")
            .applyInArrow(_mean, _OUTLETS)
            .orderBy("run", "place")
            .collect()
        )
    finally:
        samples.unpersist()
    outlets: dict[str, list[OutletPower]] = {run: [] for run in windows}
    for row in means:
        outlets[row["run"]].append(
            OutletPower(
                log=row["log"],
                watts=row["watts"],
                samples=row["samples"],
                coverage=row["coverage"],
                curve=tuple(zip(row["at_s"], row["level"], strict=True)),
            )
        )
    return outlets


def _parse(batches: Iterable[pa.RecordBatch], zone: str) -> Iterator[pa.RecordBatch]:
    """The samples of each log that is named; one row with an error for a log that has one."""
    for batch in batches:
        for named in batch.to_pylist():
            place, log = named["place"], named["log"]
            try:
                samples = read_power_log(Path(named["path"]), ZoneInfo(zone))
            except PowerLogError as error:
                text = str(error).replace(named["path"], log)
                columns: list[list[object]] = [[place], [log], [0], [0], [0.0], [text]]
            else:
                number = len(samples)
                columns = [
                    [place] * number,
                    [log] * number,
                    list(range(number)),
                    [sample.wall_ns for sample in samples],
                    [sample.watts for sample in samples],
                    [None] * number,
                ]
            yield pa.RecordBatch.from_arrays(
                [
                    pa.array(column, kind.type)
                    for column, kind in zip(columns, _SAMPLE_SCHEMA, strict=True)
                ],
                schema=_SAMPLE_SCHEMA,
            )


def _mean(samples: pa.Table) -> pa.Table:
    """One outlet over one run's window."""
    # Not by time alone: of two samples in one second the later line holds.
    samples = samples.sort_by("line")
    first = samples.slice(0, 1).to_pylist()[0]
    outlet = outlet_power(
        first["log"],
        samples["wall_ns"].to_numpy(),
        samples["watts"].to_numpy(),
        first["start_ns"],
        first["end_ns"],
    )
    return pa.table(
        {
            "run": [first["run"]],
            "place": pa.array([first["place"]], pa.int32()),
            "log": [outlet.log],
            "watts": [outlet.watts],
            "samples": pa.array([outlet.samples], pa.int32()),
            "coverage": [outlet.coverage],
            "at_s": pa.array([[at for at, _ in outlet.curve]], pa.list_(pa.float64())),
            "level": pa.array([[level for _, level in outlet.curve]], pa.list_(pa.float64())),
        }
    )
