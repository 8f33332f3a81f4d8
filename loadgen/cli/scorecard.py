"""`loadgen scorecard RUN...`: results to one score card, by Spark."""

import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cli.cluster import parsed, spark_settings
from loadgen.cli.history import require_history
from loadgen.cli.options import Flags
from loadgen.errors import ScenarioError
from loadgen.plan.units import parse_number, shown
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import Bounds, Check, Comparison, compare, regressions
from loadgen.report.power.log import require_files
from loadgen.report.power.settings import LOG_OPTIONS, log_settings
from loadgen.report.render.gate import to_junit
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.text import name
from loadgen.report.render.write import to_json, write_files, write_report
from loadgen.report.score_card import About, ScoreCard
from loadgen.run.rundir import disk_errors
from loadgen.sentences import CLI_TEXT, printable
from loadgen.spark.history_table import past_comparisons
from loadgen.spark.job import make_scorecards
from loadgen.spark.remote import is_url

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TELL_EVERY_S = 2.0


def parse_bounds(text: str) -> Bounds:
    """Read shares from `5%`, `p99=50%,FANIN=2%` or both; raises ScenarioError."""
    named: dict[str, float] = {}
    for part in text.split(","):
        key, equals, value = part.rpartition("=")
        percent = parsed("bound", value.strip().removesuffix("%"), parse_number)
        if 0 < percent < 1 and not value.strip().endswith("%"):
            raise ScenarioError(
                CLI_TEXT.UNCLEAR_BOUND(
                    value=shown(value), hundredfold=100 * percent, percent=percent
                )
            )
        if percent > 1000:
            raise ScenarioError(CLI_TEXT.LARGE_BOUND(value=shown(value)))
        # A column by its published title or its name in scorecard.json: 99P, p99.
        key = re.sub(r"\bp(\d+(\.\d+)?)\b", r"\1p", " ".join(key.split()).casefold())
        if equals and not key:
            raise ScenarioError(CLI_TEXT.BOUND_OF_NOTHING(part=shown(part)))
        if key in named:
            raise ScenarioError(CLI_TEXT.BOUND_TWICE(part=shown(part)))
        named[key] = percent / 100
    default = named.pop("", None)
    return Bounds(named=named) if default is None else Bounds(default, named)


def github_summary_file() -> Path:
    """Return the file of a GitHub job's summary; raises ScenarioError outside of a job."""
    named = os.environ.get("GITHUB_STEP_SUMMARY")
    if not named:
        raise ScenarioError(CLI_TEXT.NO_GITHUB_SUMMARY())
    return Path(named)


def _progress(*, quiet: bool) -> Callable[[str], None]:
    """Return a printer of progress: a step that begins ("...") at once, counts now and then."""
    told_s = -math.inf

    def tell(what: str) -> None:
        nonlocal told_s
        if not quiet and (what.endswith("...") or time.monotonic() - told_s >= _TELL_EVERY_S):
            told_s = time.monotonic()
            print(what, file=sys.stderr, flush=True)

    return tell


def make(flags: Flags) -> int:
    runs, olds, units = flags["runs"], flags["baseline"] or [], flags["rack_units"]
    if units is not None and not 0 < units <= 10_000:
        raise ScenarioError(CLI_TEXT.RACK_UNITS(units=units))
    bounds = parse_bounds(flags["bound"])
    summary = github_summary_file() if flags["github_summary"] else None
    history = flags["history"]
    if history and olds:
        raise ScenarioError(CLI_TEXT.HISTORY_AND_BASELINE())
    if history:
        require_history(history, may_be_new=True)
    past: list[Comparison] = []
    logs = log_settings(flags["pdu"] or (), *(flags[name] for name in LOG_OPTIONS))
    require_files(logs)

    def ask(spark: "SparkSession", cards: list[ScoreCard]) -> None:
        past.extend(past_comparisons(spark, history, cards, flags["history_runs"], bounds))

    cards = make_scorecards(
        [*olds, *runs],
        logs,
        units,
        flags["spark_master"],
        spark=spark_settings(flags["spark_conf"]),
        progress=_progress(quiet=flags["quiet"]),
        then=ask if history else None,
    )
    comparisons = compare(cards, [place < len(olds) for place in range(len(cards))], bounds)
    judged = past if history else comparisons
    directories = [printable(str(path), 200) for path in (*olds, *runs)]
    named = list(zip(directories, cards, strict=True))
    checked = [*_run_checks(named, len(olds))]
    if (stranger := bounds.unknown(judged)) and (judged or not history):
        raise ScenarioError(CLI_TEXT.UNKNOWN_BOUND(stranger=shown(stranger)))
    together = Path(f"scorecard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    into_run = len(cards) == 1 and not is_url(runs[0])
    out = flags["out"] or (Path(runs[0]) if into_run else together)
    about = About(flags["title"], flags["author"], flags["note"])
    report = report_of(cards, comparisons, about)
    paths = write_report(report, out)
    if flags["junit"] is not None:
        write_files(
            "JUnit XML", flags["junit"].parent, {flags["junit"].name: to_junit(judged, checked)}
        )
    if summary is not None:
        with disk_errors(summary), summary.open("ab") as file:
            file.write(to_markdown(report) + b"\n")
    if flags["json_"]:
        sys.stdout.write(to_json(report_of(cards, comparisons)).decode())
    else:
        print(paths["scorecard.html"])
    if history and not past:
        print(f"loadgen: no VALID run of this load is in {history} yet", file=sys.stderr)
    for remark in (remark for comparison in judged for remark in comparison.remarks):
        print(f"loadgen: {remark}", file=sys.stderr)
    failed = (f"{run.side} {run.text}" for run in checked if run.outcome == "failed")
    wrong = [*regressions(judged), *failed]
    for line in wrong:
        print(f"loadgen: {line}", file=sys.stderr)
    return 1 if wrong else 0


def _run_checks(named: Sequence[tuple[str, ScoreCard]], baselines: int) -> Iterator[Check]:
    """Yield a check for each run: unchanged, and VALID unless it is one of the `baselines`."""
    for place, (directory, card) in enumerate(named):
        text = ""
        if card.integrity.state == "changed":
            text = f"was changed since it ended: {'; '.join(card.integrity.changes)}"
        elif place >= baselines and not card.verdict.valid:
            codes = dict.fromkeys(name(reason.code, 40) for reason in card.verdict.reasons)
            text = f"is INVALID: {', '.join(codes)}"
        yield Check(directory, "run", "failed" if text else "passed", text)
