"""The program `loadgen`: runs the command, and turns every error into one line and a status."""

import atexit
import io
import logging
import os
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NoReturn

from loadgen.cases.registry import CASES
from loadgen.cli.app import Aborted, WrongUsage, case_first, program
from loadgen.cli.options import command_options
from loadgen.errors import LoadgenError, UsageError
from loadgen.kernels.compiled import leave_plain
from loadgen.plan.fields import option_of
from loadgen.plan.removed import removal
from loadgen.run.redaction import HIDDEN, redact_command, scrub
from loadgen.run.rundir import disk_errors
from loadgen.sentences import CLI_TEXT, printable, read_table

_MESSAGE_CHARACTERS = 1_000
_REWORDED = read_table("loadgen.cli", "usage.toml")
"""Sentences for those of the library that reads options, and advice for secrets."""
_USAGE_STATUS = 2
_FAILED_STATUS = 3
_INTERRUPTED_STATUS = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line, by default that of the program; return the exit status."""
    if arguments is None:
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, _interrupted)
        for stream in (sys.stdout, sys.stderr):
            # A stream whose descriptor became a pipe cannot be changed.
            if isinstance(stream, io.TextIOWrapper):
                with suppress(OSError):
                    stream.reconfigure(errors="replace")
        leave_plain()  # kernels are for workers
        # Nothing multiplies matrices, for which numpy would start a thread for each processor.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        # It warns of writes after the end of a connection, which is reported elsewhere.
        logging.getLogger("asyncio").setLevel(logging.ERROR)
        _leave(main(sys.argv[1:]))
    words = _spelled_out(list(arguments))
    try:
        with disk_errors():
            _require_no_secret(words)
            _require_values(words)
            status = program().main(args=words, prog_name="loadgen", standalone_mode=False)
            sys.stdout.flush()
    except LoadgenError as error:
        _let_go_of_stdout()
        return _fail(_with_options(str(error)), error.exit_status)
    except WrongUsage as error:
        option = getattr(error, "option_name", "")
        if removed := removal(
            option.removeprefix("--").replace("-", "_"), "field", "argument", "command"
        ):
            return _fail(f"{option}: {removed}", _USAGE_STATUS)
        text = error.format_message() if hasattr(error, "format_message") else str(error)
        for theirs, ours in _REWORDED["bounds"].items():
            text = re.sub(theirs, ours, text)
        named = " ".join(["loadgen", *(word for word in words[:1] if word[:1] != "-")])
        command = getattr(getattr(error, "ctx", None), "command_path", named)
        link = " See" if text.endswith("?") else "; see"
        return _fail(f"{text.rstrip('. ')}{link} {command} --help", _USAGE_STATUS)
    except (KeyboardInterrupt, Aborted):
        return _fail("interrupted", _INTERRUPTED_STATUS)
    except BrokenPipeError:
        _let_go_of_stdout()
        return _FAILED_STATUS
    except SystemExit as ended:
        # If the reader of stdout has gone, click exits with 1, which means an INVALID run here.
        if not isinstance(ended.__context__, BrokenPipeError):
            raise
        return _FAILED_STATUS
    except Exception as error:
        return _fail(_unexpected(error), _FAILED_STATUS)
    return status if isinstance(status, int) else 0


def _with_options(text: str) -> str:
    """Return an error's message; a field's name at its beginning becomes that of the option."""
    name, colon, rest = text.partition(": ")
    if name.startswith(("on host ", "side ")):
        return name + colon + _with_options(rest)
    names = command_options().union(*(case.scenario.fields() for case in CASES.values()))
    names -= {"case", "group", "history", "plan", "search"}  # keys of a scenario file, and commands
    return (option_of(name) if name.replace("-", "_") in names else name) + colon + rest


def _require_no_secret(words: Sequence[str]) -> None:
    """Refuse secrets on the command line, which every user of this host can read."""
    shown = redact_command(words)
    for place, (given, kept) in enumerate(zip(words, shown, strict=True)):
        if given != kept:
            what = f"{shown[place - 1]} {kept}" if kept == HIDDEN else kept
            option = (kept if kept[:1] == "-" else shown[place - 1]).partition("=")[0]
            advice = _REWORDED["secrets"].get(option, _REWORDED["secrets"]["other"])
            raise UsageError(CLI_TEXT.SECRET_SHOWN(option=what, advice=advice))


def _require_values(words: Sequence[str]) -> None:
    """Refuse empty words: an unset variable of a script must not name this directory."""
    for before, word in pairwise(["loadgen", *words]):
        if not word or re.fullmatch("--[a-z-]+=", word):
            raise UsageError(CLI_TEXT.NO_WORD(option=word[:-1] or before))


def _interrupted(_number: int, _frame: object) -> NoReturn:
    """Handle a signal like Ctrl-C: clean up and end with one line."""
    from loadgen.run.interrupt import leave_terminal

    leave_terminal()
    raise KeyboardInterrupt


def _spelled_out(arguments: Sequence[str]) -> list[str]:
    """Return the words with one `--place` for each group, and the case of `compare` first."""
    words: list[str] = []
    if arguments[:1] == ["compare"]:
        arguments = ["compare", *case_first(arguments[1:])]
    placing = False
    for word in arguments:
        if placing and words[-1] != "--place" and "=" in word and word[:1] != "-":
            words.append("--place")
        placing = word == "--place" or (placing and word[:1] != "-")
        words.append(word)
    return words


def _let_go_of_stdout() -> None:
    """Keep the interpreter from reporting a closed pipe or a full disk again at exit."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _leave(status: int) -> NoReturn:
    """End the process as the interpreter would, without the 0.3 s in which it frees all modules."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _fail(message: str, status: int) -> int:
    line = printable(_scrubbed(message).replace("\n", " "), _MESSAGE_CHARACTERS)
    with suppress(OSError):
        print(f"loadgen: {line}", file=sys.stderr)
    return status


def _scrubbed(text: str) -> str:
    read = sys.modules.get("loadgen.run.secrets")  # which few commands need
    return scrub(text, () if read is None else read.known_secrets())


def _unexpected(error: Exception) -> str:
    """Describe a defect of this program in one line; write the traceback to a file."""
    summary = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix=f"loadgen-{stamp}-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(_scrubbed("".join(traceback.format_exception(error))))
        where = f"; please report it with {file.name}"
    except OSError:
        where = ""
    return f"internal error, {summary[:300]}{where}"
