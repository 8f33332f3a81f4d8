"""Power logs by Spark: read and parsed a file a task, joined to the runs' windows, one mean each.

Parsing and arithmetic are `scorecard.power`'s, so that a malformed line is named the same way and
the mean is the same number with and without Spark.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa

from loadgen.errors import PowerLogError
from loadgen.scorecard.power import EnergyCheck, LogSettings, OutletPower, outlet_power, read_log

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["outlets_of_runs"]

_SAMPLES = (
    "place int, log string, node string, outlet string, line int, wall_ns long, watts double, "
    "kwh double, error string"
)
_WINDOWS = "run string, start_ns long, end_ns long"
_ENERGY = "struct<watts_kwh:double,counter_kwh:double,resolution_kwh:double,result:string>"
_OUTLETS = (
    "run string, place int, line int, log string, node string, outlet string, watts double, "
    f"samples int, coverage double, curve array<array<double>>, energy {_ENERGY}"
)
_SAMPLE_SCHEMA = pa.schema(
    [
        ("place", pa.int32()),
        ("log", pa.string()),
        ("node", pa.string()),
        ("outlet", pa.string()),
        ("line", pa.int32()),
        ("wall_ns", pa.int64()),
        ("watts", pa.float64()),
        ("kwh", pa.float64()),
        ("error", pa.string()),
    ]
)
_OUTLET_SCHEMA = pa.schema(
    [
        ("run", pa.string()),
        ("place", pa.int32()),
        ("line", pa.int32()),
        ("log", pa.string()),
        ("node", pa.string()),
        ("outlet", pa.string()),
        ("watts", pa.float64()),
        ("samples", pa.int32()),
        ("coverage", pa.float64()),
        ("curve", pa.list_(pa.list_(pa.float64()))),
        (
            "energy",
            pa.struct(
                [
                    ("watts_kwh", pa.float64()),
                    ("counter_kwh", pa.float64()),
                    ("resolution_kwh", pa.float64()),
                    ("result", pa.string()),
                ]
            ),
        ),
    ]
)


def outlets_of_runs(
    spark: "SparkSession", windows: Mapping[str, tuple[int, int]], settings: LogSettings
) -> dict[str, list[OutletPower]]:
    """Run id to its outlets, in the order of the logs and of the outlets in them.

    `windows` are (start_ns, end_ns) in UTC since the epoch, by run id. Logs are read where the
    tasks run. Raises PowerLogError for the first log that cannot be used.
    """
    places = [(place,) for place in range(len(settings.logs))]
    resolved = replace(
        settings, logs=tuple(replace(log, path=log.path.resolve()) for log in settings.logs)
    )
    shown = [str(log.path) for log in settings.logs]
    # A task a log, and read once for both questions that follow.
    samples = (
        spark.createDataFrame(places, "place int")
        .repartition(len(places), "place")
        .mapInArrow(lambda batches: _parse(batches, resolved, shown), _SAMPLES)
        .cache()
    )
    try:
        wrong = samples.where("error is not null").orderBy("place").limit(1).collect()
        if wrong:
            raise PowerLogError(wrong[0]["error"])
        spans = spark.createDataFrame([(run, *span) for run, span in windows.items()], _WINDOWS)
        means = (
            samples.crossJoin(spans)
            .groupBy("run", "place", "outlet")
            .applyInArrow(_mean, _OUTLETS)
            .orderBy("run", "place", "line")
            .collect()
        )
    finally:
        samples.unpersist()
    outlets: dict[str, list[OutletPower]] = {run: [] for run in windows}
    for row in means:
        energy = row["energy"]
        outlets[row["run"]].append(
            OutletPower(
                log=row["log"],
                watts=row["watts"],
                samples=row["samples"],
                coverage=row["coverage"],
                curve=tuple((since, until, watts) for since, until, watts in row["curve"]),
                outlet=row["outlet"],
                node=row["node"],
                energy=None if energy is None else EnergyCheck(**energy.asDict()),
            )
        )
    return outlets


def _parse(
    batches: Iterable[pa.RecordBatch], settings: LogSettings, shown: list[str]
) -> Iterator[pa.RecordBatch]:
    """The samples of each log that is named; one row with an error for a log that has one."""
    for batch in batches:
        for place in batch.column(0).to_pylist():
            log, name = settings.logs[place], shown[place]
            try:
                samples = read_log(log, settings)
            except PowerLogError as error:
                text = str(error).replace(str(log.path), name)
                columns: list[list[object]] = [
                    [place], [name], [""], [""], [0], [0], [0.0], [None], [text]
                ]  # fmt: skip
            else:
                number = len(samples)
                columns = [
                    [place] * number,
                    [name] * number,
                    [log.node] * number,
                    [sample.outlet for sample in samples],
                    list(range(number)),
                    [sample.wall_ns for sample in samples],
                    [sample.watts for sample in samples],
                    [sample.kilowatt_hours for sample in samples],
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
        kilowatt_hours=samples["kwh"].to_pylist(),
        outlet=first["outlet"],
        node=first["node"],
    )
    energy = outlet.energy
    row = {
        "run": first["run"],
        "place": first["place"],
        "line": first["line"],
        "log": outlet.log,
        "node": outlet.node,
        "outlet": outlet.outlet,
        "watts": outlet.watts,
        "samples": outlet.samples,
        "coverage": outlet.coverage,
        "curve": [list(step) for step in outlet.curve],
        "energy": None
        if energy is None
        else {
            "watts_kwh": energy.watts_kwh,
            "counter_kwh": energy.counter_kwh,
            "resolution_kwh": energy.resolution_kwh,
            "result": energy.result,
        },
    }
    return pa.Table.from_pylist([row], schema=_OUTLET_SCHEMA)
