"""The score card of one run without Spark: what a run prints when it ends."""

from collections.abc import Sequence
from pathlib import Path

from loadgen.scorecard.model import ScoreCard, build, wall_window
from loadgen.scorecard.power import (
    distinct_logs,
    outlet_power,
    read_power_log,
    require_coverage,
    time_zone,
)
from loadgen.scorecard.record import load_intervals, open_run
from loadgen.scorecard.views import views_of

__all__ = ["summarize_run"]


def summarize_run(
    run_dir: Path,
    pdu_logs: Sequence[Path] = (),
    pdu_timezone: str | None = None,
    rack_units: float | None = None,
) -> ScoreCard:
    """Read a run directory and make its score card; nothing is written.

    `pdu_logs` are one outlet each, `pdu_timezone` the IANA name of the zone they are written in
    (None: this host's). Raises RunDirectoryError and PowerLogError.
    """
    run = open_run(run_dir)
    views = views_of(load_intervals(run), {run.record.id: run.record.background})
    outlets = None
    if pdu_logs:
        start_ns, end_ns = wall_window(run.record, views)
        zone = time_zone(pdu_timezone)
        outlets = []
        for path in distinct_logs(pdu_logs):
            samples = read_power_log(path, zone)
            outlets.append(
                outlet_power(
                    str(path),
                    [sample.wall_ns for sample in samples],
                    [sample.watts for sample in samples],
                    start_ns,
                    end_ns,
                )
            )
        require_coverage(outlets, run.record.id)
    return build(run.record, views, outlets, rack_units)
