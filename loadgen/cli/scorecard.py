"""`loadgen scorecard RUN...`: results to one score card, by Spark."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer


def parse_bound(text: str) -> float:
    """A share from `5%` or `5`, both five percent; raises ScenarioError."""
    from loadgen.errors import ScenarioError
    from loadgen.workload.units import parse_number, shown

    try:
        percent = parse_number(text.strip().removesuffix("%"))
    except ValueError as error:
        raise ScenarioError(f"bound: {error}") from None
    if percent > 1000:
        raise ScenarioError(f"bound: {shown(text)} is too large; allowed: 0 to 1,000 %")
    return percent / 100


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            "--baseline",
            metavar="RUN",
            help="Run to hold the others of its case against; repeatable. Exit status 1 where "
            "one is worse by more than --bound.",
        ),
    ] = None,
    bound: Annotated[
        str,
        typer.Option(
            "--bound", metavar="PERCENT", help="How much worse than the baseline is fine."
        ),
    ] = "5%",
    pdu: Annotated[
        list[str] | None,
        typer.Option(
            "--pdu",
            metavar="LOG",
            help="Power log; NODE=FILE names the machine it feeds, FILE#OUTLET,... the outlets to "
            "take of a log of several; repeatable.",
        ),
    ] = None,
    pdu_timezone: Annotated[
        str | None,
        typer.Option(
            "--pdu-timezone", metavar="ZONE", help="Time zone of the logs [default: this host's]."
        ),
    ] = None,
    pdu_columns: Annotated[
        str | None,
        typer.Option(
            "--pdu-columns",
            metavar="NAMES",
            help="Columns of the logs, as time=NAME,watts=NAME; also date, kwh, outlet, format "
            "[default: the header tells].",
        ),
    ] = None,
    pdu_offset: Annotated[
        str | None,
        typer.Option(
            "--pdu-offset",
            metavar="TIME",
            help="How far the logs' clock is ahead of this host's, as 1.5s or -2s [default: 0].",
        ),
    ] = None,
    rack_units: Annotated[
        float | None,
        typer.Option("--rack-units", metavar="N", help="Height of the broker's machine."),
    ] = None,
    spark_master: Annotated[
        str, typer.Option("--spark-master", metavar="URL", help="Spark master.")
    ] = "local[*]",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="DIR",
            help="Where to write it [default: into the run; for several, scorecard-TIME].",
            show_default=False,
        ),
    ] = None,
    json_: Annotated[bool, typer.Option("--json", help="Score card JSON on stdout.")] = False,
) -> int:
    """Make one score card of the results of one or more runs, by Spark.

    Prints the path of the HTML page. Beside it: JSON, CSV, Markdown, histograms.parquet and
    histograms.hlog. Exit status 1: worse than the baseline, or a run was changed since it ended.

    Example: loadgen scorecard runs/a runs/b --pdu outlet1.csv

    Example: loadgen scorecard runs/new --baseline runs/old --bound 3%
    """
    from loadgen.errors import ScenarioError
    from loadgen.scorecard.compare import compare, regressions
    from loadgen.scorecard.text import name
    from loadgen.scorecard.to_json import to_json
    from loadgen.scorecard.write import write_renderings
    from loadgen.spark.job import make_scorecards

    if rack_units is not None and not 0 < rack_units <= 10_000:
        raise ScenarioError(f"rack_units: {rack_units:g} is out of range; allowed: 0.1 to 10,000")
    share = parse_bound(bound)
    olds = baseline or []
    cards = make_scorecards(
        [*olds, *runs],
        pdu or (),
        pdu_timezone,
        rack_units,
        spark_master,
        pdu_columns=pdu_columns,
        pdu_offset=pdu_offset,
    )
    comparisons = compare(cards, [place < len(olds) for place in range(len(cards))], share)
    if out is None:
        out = runs[0] if len(cards) == 1 else Path(f"scorecard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    paths = write_renderings(cards, out, comparisons)
    if json_:
        sys.stdout.write(to_json(cards, comparisons).decode())
    else:
        print(paths["scorecard.html"])
    wrong = regressions(comparisons)
    wrong += [
        f"{name(card.run.id, 80)} was changed since it ended: {'; '.join(card.integrity.changes)}"
        for card in cards
        if card.integrity.state == "changed"
    ]
    for line in wrong:
        print(f"loadgen: {line}", file=sys.stderr)
    return 1 if wrong else 0
