"""The score card job: any number of run directories and power logs in, score cards out.

A task reads and integrates each power log once, for the windows of all runs. Reading and arithmetic
are those of `report.power.power`, so that results are the same with and without Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.errors import PowerLogError
from loadgen.report.build.card import build, wall_window
from loadgen.report.build.summary import sampled_outlets
from loadgen.report.power.power import OutletPower, Window, outlets_of_log, require_usable
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.record import different, open_run
from loadgen.report.score_card import ScoreCard
from loadgen.spark.aggregate import PYTHON_SETTINGS, views_of_runs
from loadgen.spark.remote import is_url, open_remote
from loadgen.spark.session import NO_OPTIONS, Progress, open_session, silent, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_scorecards(
    run_dirs: Sequence[Path | str],
    settings: LogSettings | None = None,
    rack_units: float | None = None,
    master: str = "local[*]",
    *,
    spark: "SparkSession | Mapping[str, str]" = NO_OPTIONS,
    progress: Progress = silent,
    then: "Callable[[SparkSession, list[ScoreCard]], None] | None" = None,
) -> list[ScoreCard]:
    """Return a score card for each run directory, in the order given; nothing is written.

    A directory may be at a URL that Spark's file systems can read, as hdfs://host/runs/a.
    The power logs of `settings` must cover every run. `spark` is an existing session, or the
    settings of a new one on `master`. `progress` is called with each step, `then` with the session
    and the cards before the session ends. Errors that need no Spark are raised before it starts.
    Raise RunDirectoryError, PowerLogError, MissingProgramError and CannotRunError.
    """
    if len(run_dirs) > 1:
        progress(f"opening {len(run_dirs):,} run directories ...")
    urls = [str(run) for run in run_dirs if is_url(run)]
    local = iter([open_run(Path(run)) for run in run_dirs if not is_url(run)])
    runs = [] if urls else different(local)
    session: AbstractContextManager[SparkSession] = (
        open_session(master, options=PYTHON_SETTINGS | dict(spark))
        if isinstance(spark, Mapping)
        else nullcontext(spark)
    )
    progress("starting Spark ...")
    with session as used, watched(used, progress):
        if urls:
            far = iter(open_remote(used, urls))
            runs = different(next(far if is_url(run) else local) for run in run_dirs)
        views = views_of_runs(used, runs)
        outlets: dict[str, list[OutletPower]] = {}
        for run in runs if settings is None else ():
            sampled = sampled_outlets(run, views(run.record.id))
            if sampled is not None:
                outlets[run.record.id] = sampled
        if settings is not None:
            windows = {run.record.id: wall_window(run.record, views(run.record.id)) for run in runs}
            outlets = outlets_of_runs(used, windows, settings)
        for run_id, measured in outlets.items():
            require_usable(measured, run_id)
        progress("making the score card ...")
        cards = [
            build(run, views(run.record.id), outlets.get(run.record.id), rack_units) for run in runs
        ]
        if then is not None:
            then(used, cards)
    return cards


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
