"""The score card of one run without Spark, which a run prints at its end."""

from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import orjson

from loadgen.report.build.card import build, wall_window
from loadgen.report.power.formats import parse_columns
from loadgen.report.power.power import OutletPower, outlets_over, require_usable
from loadgen.report.power.settings import LogSettings, PduLog
from loadgen.report.record import RunFiles, load_intervals, open_run
from loadgen.report.score_card import ScoreCard
from loadgen.report.views import Views, views_of
from loadgen.run.power_log import POWER_FILE
from loadgen.sentences import POWER_TEXT, printable


def summarize_run(
    run_dir: Path, logs: LogSettings | None = None, rack_units: float | None = None
) -> ScoreCard:
    """Read a run directory and make its score card, with power logs; nothing is written.

    `rack_units` is the height of the system under test. Raise RunDirectoryError and PowerLogError.
    """
    return summarize(open_run(run_dir), logs, rack_units)


def summarize(
    run: RunFiles, settings: LogSettings | None = None, rack_units: float | None = None
) -> ScoreCard:
    """Return the score card of an opened run directory, with power logs as in `settings`."""
    views = views_of(load_intervals(run), run.record.background)
    outlets = sampled_outlets(run, views)
    if settings is not None:
        (outlets,) = outlets_over(settings, [wall_window(run.record, views)])
    require_usable(outlets or (), run.record.id)
    return build(run, views, outlets, rack_units)


def sampled_outlets(run: RunFiles, views: Views) -> list[OutletPower] | None:
    """Return the power that the run itself sampled, None if it sampled none."""
    log = run.directory / POWER_FILE
    if not log.is_file():
        return None
    settings = LogSettings((PduLog(log),), ZoneInfo("UTC"), parse_columns("time=time"))
    (outlets,) = outlets_over(settings, [wall_window(run.record, views)])
    with log.open("rb") as file:
        covers = str(orjson.loads(file.readline()).get("covers", ""))
    remark = POWER_TEXT.COVERS(log=log, covers=printable(covers, 200))
    return [replace(outlet, remarks=(remark, *outlet.remarks)) for outlet in outlets]
