"""Power logs by Spark: each is read and integrated once, by a task, for the windows of all runs.

Reading and arithmetic are `report.power.power`'s, so that a malformed line is named the same way
and the mean is the same number with and without Spark.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from loadgen.errors import PowerLogError
from loadgen.report.power.power import OutletPower, Window, outlets_of_log
from loadgen.report.power.power_settings import LogSettings, PduLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def outlets_of_runs(
    spark: "SparkSession", windows: Mapping[str, Window], settings: LogSettings
) -> dict[str, list[OutletPower]]:
    """Run id to its outlets over its window, in the order of the logs and of the outlets in them.

    Logs are read where the tasks run. Raises PowerLogError for the first log that cannot be used.
    """
    spans = [*windows.values()]
    # A task may run in another directory; logs are named as they were given all the same.
    logs = [(replace(log, path=log.path.resolve()), str(log.path)) for log in settings.logs]

    def measured(given: tuple[PduLog, str]) -> list[list[OutletPower]] | str:
        """Return a log's outlets by window, or the reason why it cannot be used."""
        log, shown = given
        try:
            outlets = outlets_of_log(log, settings, spans)
        except PowerLogError as error:
            return str(error).replace(str(log.path), shown)
        return [[replace(outlet, log=shown) for outlet in own] for own in outlets]

    answers = spark.sparkContext.parallelize(logs, len(logs)).map(measured)
    outlets: dict[str, list[OutletPower]] = {run: [] for run in windows}
    for answer in answers.collect():
        if isinstance(answer, str):
            raise PowerLogError(answer)
        for own, of_window in zip(outlets.values(), answer, strict=True):
            own += of_window
    return outlets
