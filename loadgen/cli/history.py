"""`loadgen history`: score cards over weeks, as a table that Spark stores and queries."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.cases.registry import case_of
from loadgen.cli.cluster import spark_settings
from loadgen.cli.options import Flags
from loadgen.cli.result_text import aligned, paper_of
from loadgen.errors import RunDirectoryError, UsageError
from loadgen.report.build.rows import FIGURES
from loadgen.report.history import documents_in, history_report, weeks_of
from loadgen.report.render.html import to_html
from loadgen.report.render.text import name, number
from loadgen.report.render.write import to_json, write_files
from loadgen.sentences import CLI_TEXT, SPARK_TEXT, printable
from loadgen.spark.history_table import add_cards, courses_of, remove_runs
from loadgen.spark.remote import is_url
from loadgen.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def _session(flags: Flags) -> "Iterator[SparkSession]":
    settings = spark_settings(flags["spark_conf"])
    print("starting Spark ...", file=sys.stderr)
    with open_session(flags["spark_master"], options=settings) as spark:
        yield spark


def add(flags: Flags) -> int:
    found = [one for path in flags["cards"] for one in _documents(path)]
    with _session(flags) as spark:
        new, replaced = add_cards(spark, flags["to"], found)
    same = len(found) - new - replaced
    counts = f"{new:,} added, {replaced:,} replaced, {same:,} already there"
    print(f"{counts}: {flags['to']}", file=sys.stderr)
    return 0


def remove(flags: Flags) -> int:
    _require_usable(flags["where"], "", "")
    with _session(flags) as spark:
        removed = remove_runs(spark, flags["where"], flags["runs"])
    missing = len(set(flags["runs"])) - removed
    print(f"{removed:,} removed, {missing:,} not there: {flags['where']}", file=sys.stderr)
    return 0


def _documents(path: Path) -> list[tuple[str, dict[str, object]]]:
    file = path / "scorecard.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        raise RunDirectoryError(CLI_TEXT.UNREADABLE_CARD(file=file, reason=error)) from None
    where = printable(str(file), 200)
    return [(where, document) for document in documents_in(data, where)]


def show(flags: Flags) -> int:
    where, case, since = flags["where"], flags["case"], flags["since"]
    html, rolling = flags["html"], flags["rolling"]
    _require_usable(where, case, since)

    with _session(flags) as spark:
        courses = courses_of(spark, where, case, flags["row"], since, rolling)
    report = history_report(courses, rolling)
    if html is not None:
        write_files("history", html.parent, {html.name: to_html(report)})
    if flags["json_"]:
        sys.stdout.write(to_json(report).decode())
        return 0
    header = ("ROW", "UNIT", "LOAD", "WEEK OF", "RUNS", "MEAN", "LEAST-MOST", "DESCRIPTION")
    rows = [
        (
            *(f"{name(course.name, 26)} {FIGURES[course.column]}", name(course.unit, 12)),
            *(course.load[:6], week, f"{runs:,}", number(mean)),
            *(f"{number(least)}-{number(most)}", name(course.description, 60)),
        )
        for course in courses
        for week, runs, mean, least, most in weeks_of(course)
    ]
    print("\n".join(aligned([header, *rows], (0, 1, 2, 3, 6, 7), paper_of(sys.stdout))))
    return 0


def _require_usable(where: str, case: str, since: str) -> None:
    """Raise the errors that can be found without Spark."""
    if case:
        case_of(case.lower())
    try:
        if since:
            datetime.fromisoformat(since)
    except ValueError:
        raise UsageError(CLI_TEXT.SINCE(since=since[:40])) from None
    require_history(where)


def require_history(where: str, *, may_be_new: bool = False) -> None:
    """Raise an error if a path is not a history or, with `may_be_new`, holds something else."""
    path = Path(where)
    is_new = may_be_new and not path.is_file() and not any(path.glob("*"))
    if not is_url(where) and not is_new and not any(path.glob("case=*")):
        raise RunDirectoryError(SPARK_TEXT.NO_HISTORY(where=printable(where, 200)))
