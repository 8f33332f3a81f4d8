"""The program `loadgen`: finds the command, and turns every error into one line and a status.

Nothing heavy is imported before a command runs: `--help` and a wrong option answer at once.
"""

import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from loadgen.cases.registry import CASES
from loadgen.cli import (
    broker,
    calibrate,
    certificates,
    demo,
    import_,
    plan,
    probe,
    scorecard,
    search,
    sweep,
    tune,
)
from loadgen.cli.cases import case_command
from loadgen.cli.variants import variants_app
from loadgen.control.redaction import printable, scrub
from loadgen.errors import LoadgenError

_MESSAGE_CHARACTERS = 1_000
_USAGE_STATUS = 2
_FAILED_STATUS = 3
_INTERRUPTED_STATUS = 130

# The base class of every usage error; where it is imported from differs between typer's versions.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    name="loadgen",
    help="MQTT load generator and broker benchmark that judges its own result.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

for _case in CASES.values():
    if _case.variants is None:
        app.command(_case.name, short_help=_case.summary)(case_command(_case))
    else:
        app.add_typer(variants_app(_case, _case.variants), name=_case.name)
app.command("demo")(demo.command)
app.command("scorecard")(scorecard.command)
app.add_typer(search.app, name="search")
app.add_typer(sweep.app, name="sweep")
app.add_typer(plan.app, name="plan")
app.command("probe")(probe.command)
app.command("broker")(broker.command)
app.add_typer(tune.app, name="tune")
app.command("certificates")(certificates.command)
app.add_typer(import_.app, name="import")
app.command("calibrate")(calibrate.command)


def _show_version(wanted: bool) -> None:
    if wanted:
        from loadgen.control.environment import program

        print(program())
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit(_USAGE_STATUS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit status; errors are one line on stderr."""
    command = typer.main.get_command(app)
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = command.main(args=words, prog_name="loadgen", standalone_mode=False)
        sys.stdout.flush()
    except LoadgenError as error:
        return _fail(str(error), error.exit_status)
    except _ClickError as error:
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        return _fail(f"{text.rstrip('. ')}; see loadgen --help", _USAGE_STATUS)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", _INTERRUPTED_STATUS)
    except BrokenPipeError:
        # The reader of stdout went away; keep the interpreter from complaining once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _FAILED_STATUS
    except Exception as error:
        return _fail(_unexpected(error), _FAILED_STATUS)
    return status if isinstance(status, int) else 0


def _fail(message: str, status: int) -> int:
    line = printable(scrub(message, ()).replace("\n", " "), _MESSAGE_CHARACTERS)
    print(f"loadgen: {line}", file=sys.stderr)
    return status


def _unexpected(error: Exception) -> str:
    """One line about a defect of this program; the traceback goes into a file."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    stamp = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"loadgen-{stamp}-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(scrub("".join(traceback.format_exception(error)), ()))
        where = f"; please report it with {Path(file.name)}"
    except OSError:
        where = ""
    return f"internal error, {what[:300]}{where}"
