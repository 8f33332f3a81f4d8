"""`loadgen history`: score cards over weeks, as a table that Spark keeps and asks."""

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cli.help import add_plain_command
from loadgen.cli.options import AsJson, require_command
from loadgen.errors import UsageError

app = typer.Typer(
    help="Keep score cards over weeks and follow their rows.\n\n"
    "Example: loadgen history add runs/* --to history\n\n"
    "Example: loadgen scorecard runs/new --history history",
    short_help="Keep score cards over weeks and follow their rows.",
    add_completion=False,
)
require_command(app, "history: what? allowed: add, show")

_Where = Annotated[
    str,
    typer.Option(
        "--in",
        "--to",
        metavar="DIR",
        help="The history: a directory, or a URL that Spark can write, as hdfs://host/dir.",
    ),
]
_Master = Annotated[str, typer.Option("--spark-master", metavar="URL", help="Spark master.")]
_Conf = Annotated[
    list[str] | None,
    typer.Option(
        "--spark-conf",
        metavar="NAME=VALUE",
        help="Any setting of Spark, as spark.executor.cores=16.",
    ),
]


def add(
    cards: Annotated[
        list[Path], typer.Argument(metavar="RUN|CARD", help="Run directories or scorecard.json.")
    ],
    to: _Where = "history",
    spark_master: _Master = "local[*]",
    spark_conf: _Conf = None,
) -> int:
    """Append the rows of score cards to the history, without those that it already has.

    Example: loadgen history add runs/20261120T233000Z-fanin
    """
    from loadgen.cli.cluster import spark_settings
    from loadgen.spark.history_table import add_cards
    from loadgen.spark.session import open_session

    found = [one for path in cards for one in _documents(path)]
    print("starting Spark ...", file=sys.stderr)
    with open_session(spark_master, options=spark_settings(spark_conf)) as spark:
        new = add_cards(spark, to, found)
    print(f"{new:,} added, {len(found) - new:,} already there: {to}", file=sys.stderr)
    return 0


def _documents(path: Path) -> list[tuple[str, dict[str, object]]]:
    from loadgen.errors import RunDirectoryError
    from loadgen.report.history import documents_in
    from loadgen.report.record import shown

    file = path / "scorecard.json" if path.is_dir() else path
    try:
        data = file.read_bytes()
    except OSError as error:
        reason = (error.strerror or "cannot be read").lower()
        raise RunDirectoryError(
            f"{shown(file)}: {reason}; make it with loadgen scorecard"
        ) from None
    return [(shown(file), document) for document in documents_in(data, shown(file))]


def show(
    where: _Where = "history",
    case: Annotated[str, typer.Option(metavar="CASE", help="Only this case, as fanin.")] = "",
    row: Annotated[str, typer.Option(metavar="NAME", help="Only this row, as FANIN.MPC.")] = "",
    since: Annotated[
        str, typer.Option(metavar="DATE", help="Only runs since this date, as 2026-11-01.")
    ] = "",
    rolling: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Runs in the rolling mean.")
    ] = 10,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a page with one chart a row.")
    ] = None,
    json_: AsJson = False,
    spark_master: _Master = "local[*]",
    spark_conf: _Conf = None,
) -> int:
    """Show the rows of VALID runs over weeks.

    LOAD is different for each scenario and load host.

    Example: loadgen history show --in history --case fanin --since 2026-10-01 --html trend.html
    """
    _require_usable(where, case, since)
    from loadgen.cli.cluster import spark_settings
    from loadgen.report.build.history_report import history_report
    from loadgen.report.build.rows import FIGURES
    from loadgen.report.history import weeks_of
    from loadgen.report.render.html import to_html
    from loadgen.report.render.text import name, number
    from loadgen.report.render.write import to_json, write_files
    from loadgen.spark.history_table import courses_of
    from loadgen.spark.session import open_session

    print("starting Spark ...", file=sys.stderr)
    with open_session(spark_master, options=spark_settings(spark_conf)) as spark:
        courses = courses_of(spark, where, case, row, since, rolling)
    report = history_report(courses, rolling)
    if html is not None:
        write_files("history", html.parent, {html.name: to_html(report)})
    if json_:
        sys.stdout.write(to_json(report).decode())
        return 0
    print(
        f"{'ROW':<26} {'UNIT':<12} {'LOAD':<6} {'WEEK OF':<10} {'RUNS':>5} {'MEAN':>10} "
        f"{'LEAST-MOST':<21} DESCRIPTION"
    )
    for course in courses:
        label = f"{name(course.name, 26)} {FIGURES[course.column]}"
        for week, runs, mean, least, most in weeks_of(course):
            print(
                f"{label:<26} {name(course.unit, 12):<12} {course.load[:6]} {week:<10} {runs:>5} "
                f"{number(mean):>10} {f'{number(least)}-{number(most)}':<21} "
                f"{name(course.description, 60)}"
            )
    return 0


def _require_usable(where: str, case: str, since: str) -> None:
    """Refuse what needs no Spark to be refused."""
    from loadgen.cases.registry import case_of
    from loadgen.errors import RunDirectoryError
    from loadgen.report.record import shown
    from loadgen.spark.remote import is_url

    if case:
        case_of(case.lower())
    try:
        if since:
            datetime.fromisoformat(since)
    except ValueError:
        raise UsageError(f"--since {since[:40]!a}: use a date, as 2026-11-01") from None
    if not is_url(where) and not Path(where).is_dir():
        raise RunDirectoryError(
            f"{shown(Path(where))} holds no history; begin one with loadgen history add"
        )


add_plain_command(app, "add", add)
add_plain_command(app, "show", show)
