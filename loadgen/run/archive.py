"""The archive of a run, its repetition and the disclosure."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadgen.cases.registry import CASES
from loadgen.errors import DiskError, RunDirectoryError
from loadgen.plan.disclosure import Disclosure, FinishedRun
from loadgen.run.disk import disk_errors
from loadgen.run.redaction import printable
from loadgen.run.seal import verify

_DRIVER_OUTPUT = ("events.jsonl", "broker.jsonl")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same archive
_DAMAGED = (KeyError, TypeError, AttributeError, ValueError, IndexError)
"""Errors of reading a document that lacks parts: other programs can have written it."""


def write_bundle(run: Path, repeat: Path | None = None, out: Path | None = None) -> Path:
    """Write the archive (a ZIP, as a JAR is) and return its path.

    `repeat` is the reproducibility run, RUN-repeat where that is a directory; `out` is
    RUN.jar. Raises RunDirectoryError if a directory holds no run with a disclosure or was changed
    since the run ended, if the second run does not repeat the first, or if the archive exists or
    cannot be written.
    """
    main, disclosure = read_finished(run)
    if repeat is None:
        beside = repeat_directory(run)
        repeat = beside if beside.is_dir() else None
    again = None
    if repeat is not None:
        again, _ = read_finished(repeat)
        _require_repetition(disclosure, run, main, repeat, again)
    named = _named(run)
    archive = named.parent / f"{named.name}.jar" if out is None else out
    members: list[tuple[str, bytes | Path]] = [*_texts(disclosure, run, main, again).items()]
    # Before there is an archive, which may be in the directory that it is made of.
    for folder, directory in (("FinalRun", run), *([("RepeatRun", repeat)] if repeat else [])):
        for path in _files(directory):
            members.append((f"{folder}/{path.relative_to(directory).as_posix()}", path))
            if path.name in _DRIVER_OUTPUT:
                members.append((f"DriverOutput/{folder}-{path.name}", path))
    try:
        with disk_errors(archive):
            jar = zipfile.ZipFile(archive, "x", zipfile.ZIP_DEFLATED)
    except FileExistsError:
        raise RunDirectoryError(f"{_shown(archive)} exists; name another with --out") from None
    except OSError as error:
        raise _unwritten(archive, error) from None
    try:
        with disk_errors(archive), jar:
            for name, content in members:
                data = content.read_bytes() if isinstance(content, Path) else content
                jar.writestr(zipfile.ZipInfo(name, _EPOCH), data, zipfile.ZIP_DEFLATED)
    except (OSError, DiskError) as error:
        # Half an archive would pass for a whole one, and stand in the way of the next.
        archive.unlink(missing_ok=True)
        if isinstance(error, DiskError):
            raise
        raise _unwritten(archive, error) from None
    return archive


def repeat_directory(run: Path) -> Path:
    named = _named(run)
    return named.parent / f"{named.name}-repeat"


def compared(directory: Path, again: Path) -> str:
    """Return the comparison of a run and its repetition, or the reason without one."""
    try:
        (main, disclosure), (repeat, _) = read_finished(directory), read_finished(again)
    except RunDirectoryError as error:
        return f"Run and repetition cannot be compared: {error}"
    return disclosure.comparison(main, repeat)


def read_finished(directory: Path) -> tuple[FinishedRun, Disclosure]:
    """Return the run in a directory and the disclosure of its case; raises RunDirectoryError.

    Every file of results is checked against the run's seal: a run that was changed since it ended
    is refused, because it would be disclosed as measured.
    """
    run = _document(directory, "run.json")
    case = CASES.get(str(run.get("case")))
    if case is None or case.disclosure is None:
        names = ", ".join(case.name for case in CASES.values() if case.disclosure)
        raise RunDirectoryError(f"{_shown(directory)} has no disclosure; name a run of {names}")
    document = _document(directory, case.document)
    integrity = verify(directory, run)
    if integrity.state == "changed":
        raise RunDirectoryError(
            f"{_shown(directory)} was changed since the run ended: "
            f"{'; '.join(integrity.changes)}; name the directory as the run left it"
        )
    return FinishedRun(run, document, integrity.state == "intact"), case.disclosure


def _named(run: Path) -> Path:
    """Return the run by a name that a file next to it can have, unlike "." and ".."."""
    return run if run.name not in ("", "..") else run.resolve()


def _require_repetition(
    disclosure: Disclosure, run: Path, main: FinishedRun, repeat: Path, again: FinishedRun
) -> None:
    try:
        why = disclosure.mismatch(main, again)
    except _DAMAGED:
        why = "a document of one of them is damaged"
    if why:
        raise RunDirectoryError(
            f"{_shown(repeat)} does not repeat {_shown(run)}: {printable(why, 500)}; "
            "name one with --repeat-run"
        )


def _texts(
    disclosure: Disclosure, run: Path, main: FinishedRun, again: FinishedRun | None
) -> dict[str, bytes]:
    try:
        files = {name: text.encode() for name, text in disclosure.files(main, again).items()}
    except _DAMAGED:
        raise RunDirectoryError(
            f"{_shown(run)}: a document of it or of its repetition is damaged"
        ) from None
    scenario = orjson.dumps(main.run.get("scenario"), option=orjson.OPT_INDENT_2)
    return files | {"config/scenario.json": scenario}


def _unwritten(archive: Path, error: OSError) -> RunDirectoryError:
    return RunDirectoryError(f"{_shown(archive)} cannot be written: {error.strerror or error}")


def _files(directory: Path) -> Iterator[Path]:
    """Yield every file of a run directory except hidden ones, which are half written."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _document(directory: Path, name: str) -> Mapping[str, Any]:
    try:
        document = orjson.loads((directory / name).read_bytes())
    except OSError as error:
        raise RunDirectoryError(
            f"{_shown(directory)} has no {name} ({error.strerror}); name a run directory"
        ) from None
    except orjson.JSONDecodeError:
        raise RunDirectoryError(f"{_shown(directory)}: {name} is damaged") from None
    if not isinstance(document, dict) or document.get("schema") != 1:
        raise RunDirectoryError(f"{_shown(directory)}: {name} is of another version")
    return document


def _shown(path: Path) -> str:
    return printable(str(path), 200)
