"""`loadgen scorecard RUN...`: results to one score card, by Spark."""

import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["command"]


def command(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run directories.")],
    pdu: Annotated[
        list[Path] | None,
        typer.Option("--pdu", metavar="LOG", help="Power log of one outlet; repeatable."),
    ] = None,
    pdu_timezone: Annotated[
        str | None,
        typer.Option(
            "--pdu-timezone", metavar="ZONE", help="Time zone of the logs [default: this host's]."
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

    Prints the path of the HTML page.

    Example: loadgen scorecard runs/a runs/b --pdu outlet1.csv
    """
    from loadgen.errors import ScenarioError
    from loadgen.scorecard.to_json import to_json
    from loadgen.scorecard.write import write_renderings
    from loadgen.spark.job import make_scorecards

    if rack_units is not None and not 0 < rack_units <= 10_000:
        raise ScenarioError(f"rack_units: {rack_units:g} is out of range; allowed: 0.1 to 10,000")
    cards = make_scorecards(runs, pdu or (), pdu_timezone, rack_units, spark_master)
    if out is None:
        out = runs[0] if len(runs) == 1 else Path(f"scorecard-{datetime.now(UTC):%Y%m%dT%H%M%SZ}")
    paths = write_renderings(cards, out)
    if json_:
        sys.stdout.write(to_json(cards).decode())
    else:
        print(paths["scorecard.html"])
    return 0
