"""Power logs by Spark: a task reads and integrates each log once, for the windows of all runs.

Reading and arithmetic are those of `report.power.power`, so that the messages and the means are the
same with and without Spark.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from loadgen.errors import PowerLogError
from loadgen.report.power.power import OutletPower, Window, outlets_of_log
from loadgen.report.power.settings import LogSettings, PduLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def outlets_of_runs(
    spark: "SparkSession", windows: Mapping[str, Window], settings: LogSettings
) -> dict[str, list[OutletPower]]:
    """Map each run id to the outlets over its window, in the order of logs and of their outlets.

    The hosts of the tasks read the logs. Raise PowerLogError for the first unusable log.
    """
    spans = [*windows.values()]
    # A task may run in another directory; messages show the paths as the user gave them.
    logs = [(replace(log, path=log.path.resolve()), str(log.path)) for log in settings.logs]

    def measured(named_log: tuple[PduLog, str]) -> list[list[OutletPower]] | str:
        """Return a log's outlets by window, or the reason why it cannot be used."""
        log, shown = named_log
        try:
            outlets = outlets_of_log(log, settings, spans)
        except PowerLogError as error:
            return str(error).replace(str(log.path), shown)
        return [[replace(outlet, log=shown) for outlet in of_window] for of_window in outlets]

    answers = spark.sparkContext.parallelize(logs, len(logs)).map(measured)
    outlets: dict[str, list[OutletPower]] = {run: [] for run in windows}
    for answer in answers.collect():
        if isinstance(answer, str):
            raise PowerLogError(answer)
        for of_run, of_window in zip(outlets.values(), answer, strict=True):
            of_run += of_window
    return outlets
