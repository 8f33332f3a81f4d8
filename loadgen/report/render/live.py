"""The page of a run in progress: `python -m loadgen.report.render.live RUN` writes it to stdout.

It runs at the kernel's idle priority, in time that no other process needs.
"""

import os
import sys
from contextlib import suppress
from dataclasses import replace
from html import escape
from pathlib import Path


def page(directory: Path) -> bytes:
    """Return the page of the run so far, or a page with the reason for its absence."""
    from loadgen.errors import RunDirectoryError
    from loadgen.judge.verdict import Reason, Verdict
    from loadgen.report.build.cards_report import report_of
    from loadgen.report.build.summary import summarize
    from loadgen.report.record import open_run
    from loadgen.report.render.html import to_html

    try:
        run = open_run(directory)
        card = summarize(run)
    except RunDirectoryError as error:
        return f"<!doctype html><p>Nothing to show yet: {escape(str(error))}</p>".encode()
    if run.record.valid is None:
        running = Reason("RUNNING", "Not judged yet; the run has measured these figures so far.")
        card = replace(card, verdict=Verdict((running,)))
    return to_html(report_of([card]))


if __name__ == "__main__":
    with suppress(OSError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    sys.stdout.buffer.write(page(Path(sys.argv[1])))
