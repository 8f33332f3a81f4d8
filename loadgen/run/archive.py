"""The archive of a run, its repetition and the disclosure."""

import zipfile
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import orjson

from loadgen.cases.registry import CASES
from loadgen.errors import RunDirectoryError
from loadgen.run.rundir import replacing
from loadgen.run.seal import verify
from loadgen.sentences import RUN_TEXT, printable

_DRIVER_OUTPUT = ("events.jsonl", "broker.jsonl")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same archive
_DAMAGED = (KeyError, TypeError, AttributeError, ValueError, IndexError)
"""Errors of reading a document that lacks parts: other programs can have written it."""


def write_bundle(run: Path, repeat: Path | None = None, out: Path | None = None) -> Path:
    """Write the archive (a ZIP, as a JAR is) to `out`, by default RUN.jar; return its path.

    `repeat` is the reproducibility run, by default RUN-repeat if it exists. Raise RunDirectoryError
    if a directory holds no run with a disclosure or was changed since, if the second run does not
    repeat the first, or if the archive cannot be written.
    """
    main, disclosure = read_finished(run)
    if repeat is None and repeat_directory(run).is_dir():
        repeat = repeat_directory(run)
    again = None
    if repeat is not None:
        again, _ = read_finished(repeat)
        try:
            why = disclosure.mismatch(main, again)
        except _DAMAGED:
            why = "a document of one of them is damaged"
        if why:
            reason = printable(why, 500)
            raise RunDirectoryError(RUN_TEXT.NO_REPETITION(path=repeat, run=run, reason=reason))
    try:
        texts = disclosure.disclosed_files(main, again)
        files = {name: text.encode() for name, text in texts.items()}
    except _DAMAGED:
        raise RunDirectoryError(RUN_TEXT.DAMAGED_DOCUMENTS(path=run)) from None
    scenario = orjson.dumps(main.run.get("scenario"), option=orjson.OPT_INDENT_2)
    members: list[tuple[str, bytes | Path]] = [*files.items(), ("config/scenario.json", scenario)]
    archive = _next_to(run, ".jar") if out is None else out
    for folder, directory in (("FinalRun", run), *([("RepeatRun", repeat)] if repeat else [])):
        # Hidden files are half written.
        visible = (path for path in sorted(directory.rglob("*")) if path.name[0] != ".")
        for path in filter(Path.is_file, visible):
            members.append((f"{folder}/{path.relative_to(directory).as_posix()}", path))
            if path.name in _DRIVER_OUTPUT:
                members.append((f"DriverOutput/{folder}-{path.name}", path))
        members.append((f"DriverOutput/{folder}-console.txt", _console(directory)))
    if archive.exists():
        raise RunDirectoryError(RUN_TEXT.EXISTS(path=archive))
    try:
        with replacing(archive) as hidden, zipfile.ZipFile(hidden, "w") as jar:
            for name, content in members:
                data = content.read_bytes() if isinstance(content, Path) else content
                jar.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    except OSError as error:
        if isinstance(error, FileNotFoundError) and archive.parent.is_dir():
            raise RunDirectoryError(RUN_TEXT.STILL_WRITTEN(path=run)) from None
        raise RunDirectoryError(RUN_TEXT.NOT_WRITTEN(path=archive, reason=error)) from None
    return archive


def _console(directory: Path) -> bytes:
    """Return the lines of a run on its console: phases, progress and events, with their times."""
    with suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError):
        lines = (directory / "events.jsonl").read_bytes().splitlines()
        events = [orjson.loads(line) for line in lines]
        begin_ns = events[0]["time_ns"]
        return "".join(
            f"{(event['time_ns'] - begin_ns) / 1e9:9.1f} s  {event['kind']}: {event['detail']}\n"
            for event in events
        ).encode()
    return b""


def repeat_directory(run: Path) -> Path:
    return _next_to(run, "-repeat")


def _next_to(run: Path, suffix: str) -> Path:
    """Return a path next to the run, which can be "." or ".."."""
    named = run if run.name not in ("", "..") else run.resolve()
    return named.parent / f"{named.name}{suffix}"


def compared(directory: Path, again: Path) -> str:
    """Return the comparison of a run and its repetition, or the reason why it is impossible."""
    try:
        (main, disclosure), (repeat, _) = read_finished(directory), read_finished(again)
    except RunDirectoryError as error:
        return f"Run and repetition cannot be compared: {error}"
    return str(disclosure.comparison(main, repeat))


def read_finished(directory: Path) -> tuple[Any, Any]:
    """Return a run and the disclosure of its case; raise RunDirectoryError if it was changed."""
    run = _document(directory, "run.json")
    case = CASES.get(str(run.get("case")))
    if case is None or not case.disclosure:
        cases = tuple(case.name for case in CASES.values() if case.disclosure)
        raise RunDirectoryError(RUN_TEXT.NO_DISCLOSURE(path=directory, cases=cases))
    document = _document(directory, case.document)
    integrity = verify(directory, run)
    if integrity.state == "changed":
        changes = "; ".join(integrity.changes)
        raise RunDirectoryError(RUN_TEXT.CHANGED_RUN(path=directory, changes=changes))
    disclosure = import_module(case.disclosure)
    return disclosure.FinishedRun(run, document, integrity.state == "intact"), disclosure


def _document(directory: Path, name: str) -> Mapping[str, Any]:
    try:
        document = orjson.loads((directory / name).read_bytes())
    except OSError as error:
        message = RUN_TEXT.NO_DOCUMENT(path=directory, name=name, reason=error)
        raise RunDirectoryError(message) from None
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise RunDirectoryError(RUN_TEXT.BAD_DOCUMENT(path=directory, name=name))
    return document
