"""The score card job: any number of run directories and power logs in, score cards out.

Reading and arithmetic are those of `report`, so that results are the same without Spark.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.report.build.card import build, wall_window
from loadgen.report.build.summary import sampled_outlets, summarize
from loadgen.report.packing import Spool
from loadgen.report.power.power import OutletPower, outlets_over, require_usable
from loadgen.report.power.settings import LogSettings
from loadgen.report.record import RunFiles, compared, different, open_run
from loadgen.report.score_card import ScoreCard
from loadgen.scratch import scratch_directory
from loadgen.spark.aggregate import RunViews, views_of_runs
from loadgen.spark.remote import is_url, open_remote
from loadgen.spark.session import NO_OPTIONS, SETTINGS, Progress, open_session, watched

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def make_scorecards(
    run_dirs: Sequence[Path | str],
    settings: LogSettings | None = None,
    rack_units: float | None = None,
    master: str = "local[*]",
    *,
    spark: "SparkSession | Mapping[str, str]" = NO_OPTIONS,
    progress: Progress = lambda _text: None,
    then: "Callable[[SparkSession, list[ScoreCard]], None] | None" = None,
) -> list[ScoreCard]:
    """Return a score card for each run directory, in the order given; nothing is written.

    A directory may be at a URL that Spark's file systems can read, as hdfs://host/runs/a. The power
    logs of `settings` must cover every run. `spark` is an existing session, or the settings of a
    new one on `master`; with the master "none", cards of local runs are made without Spark.
    `progress` is called with each step, `then` with the session and the cards before the session
    ends. Raise RunDirectoryError, PowerLogError, MissingProgramError and CannotRunError, before
    Spark starts if possible.
    """
    if len(run_dirs) > 1:
        progress(f"opening {len(run_dirs):,} run directories ...")
    urls = [str(run) for run in run_dirs if is_url(run)]
    local = iter([open_run(Path(run)) for run in run_dirs if not is_url(run)])
    runs = [] if urls else different(local)
    if master == "none" and not urls and then is None:
        return [summarize(run, settings, rack_units) for run in runs]
    session: AbstractContextManager[SparkSession] = (
        open_session(master, options=SETTINGS["python"] | dict(spark))
        if isinstance(spark, Mapping)
        else nullcontext(spark)
    )
    progress("starting Spark ...")
    with scratch_directory("spark") as scratch, session as used, watched(used, progress):
        if urls:
            far = iter(open_remote(used, urls, scratch))
            runs = different(next(far if is_url(run) else local) for run in run_dirs)
        with views_of_runs(used, runs) as views:
            runs = [
                compared(run, views.digests.get(run.record.id, {})) if run.remote else run
                for run in runs
            ]
            progress("making the score card ...")
            cards = _cards(runs, views, settings, rack_units)
        if then is not None:
            then(used, cards)
    return cards


def _cards(
    runs: Sequence[RunFiles],
    views: RunViews,
    settings: LogSettings | None,
    rack_units: float | None,
) -> list[ScoreCard]:
    """Return the score card of each run; their curves are in a temporary file."""
    by_id = {run.record.id: run for run in runs}
    outlets: dict[str, list[OutletPower]] = {}
    if settings is not None:
        windows = {run: wall_window(by_id[run].record, of_run) for run, of_run in views.each()}
        ordered = outlets_over(settings, [windows[run] for run in by_id])
        outlets = dict(zip(by_id, ordered, strict=True))
    cards: dict[str, ScoreCard] = {}
    curves = Spool()
    for run, of_run in views.each():
        power = outlets[run] if settings is not None else sampled_outlets(by_id[run], of_run)
        require_usable(power or (), run)
        card = build(by_id[run], of_run, power, rack_units)
        cards[run] = replace(card, packed_curves=curves.add(bytes(card.packed_curves)))
    return [cards[run.record.id] for run in runs]
