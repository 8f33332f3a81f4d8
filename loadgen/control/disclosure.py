"""Puts a run of the supply chain, its repetition and the disclosure into one archive."""

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson

from loadgen.control.redaction import printable
from loadgen.control.supply import FILE_NAME
from loadgen.errors import RunDirectoryError
from loadgen.specjms.disclosure import (
    FILL_IN,
    Disclosed,
    destination_setup,
    server_setup,
    submission,
)

__all__ = ["write_bundle"]

_DRIVER_OUTPUT = ("events.jsonl", "broker.jsonl")
_EPOCH = (1980, 1, 1, 0, 0, 0)  # so that the same run gives the same archive


def write_bundle(run: Path, repeat: Path | None = None, out: Path | None = None) -> Path:
    """Write the archive (a ZIP, as a JAR is) and return its path.

    `repeat` is the reproducibility run, RUN-repeat where that is a directory; `out` is
    RUN.jar. Raises RunDirectoryError where a directory holds no audited run of a supply chain, or
    the archive exists or cannot be written.
    """
    if repeat is None:
        beside = run.with_name(f"{run.name}-repeat")
        repeat = beside if beside.is_dir() else None
    archive = run.with_name(f"{run.name}.jar") if out is None else out
    main, supply = _document(run, "run.json"), _document(run, FILE_NAME)
    again = None if repeat is None else _document(repeat, "run.json")
    supply_again = None if repeat is None else _document(repeat, FILE_NAME)
    found = Disclosed(main, supply, again, supply_again)
    if archive.exists():
        raise RunDirectoryError(f"{_shown(archive)} exists; name another with --out")
    texts = {
        "submission/submission.xml": submission(found),
        "destinationSetup.txt": destination_setup(found),
        "config/scenario.json": orjson.dumps(
            main.get("scenario"), option=orjson.OPT_INDENT_2
        ).decode(),
        "JMSServerConfig/serverSetup.txt": server_setup(found),
        "ProviderModule/README.txt": "No provider module: the harness speaks MQTT itself.\n",
        "ConfigurationDiagram.txt": f"{FILL_IN}: a diagram of the system under test (6.3).\n",
    }
    try:
        with zipfile.ZipFile(archive, "x", zipfile.ZIP_DEFLATED) as jar:
            for name, text in texts.items():
                jar.writestr(zipfile.ZipInfo(name, _EPOCH), text.encode(), zipfile.ZIP_DEFLATED)
            for folder, directory in (("FinalRun", run), ("RepeatRun", repeat)):
                for path in _files(directory):
                    name = f"{folder}/{path.relative_to(directory or run).as_posix()}"
                    _add(jar, path, name)
                    if path.name in _DRIVER_OUTPUT:
                        _add(jar, path, f"DriverOutput/{folder}-{path.name}")
    except OSError as error:
        raise RunDirectoryError(
            f"{_shown(archive)} cannot be written: {error.strerror or error}"
        ) from None
    return archive


def _files(directory: Path | None) -> Iterator[Path]:
    """Every file of a run directory but hidden ones, which are half written."""
    if directory is None:
        return
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield path


def _add(jar: zipfile.ZipFile, path: Path, name: str) -> None:
    jar.writestr(zipfile.ZipInfo(name, _EPOCH), path.read_bytes(), zipfile.ZIP_DEFLATED)


def _document(directory: Path, name: str) -> Mapping[str, Any]:
    try:
        found = orjson.loads((directory / name).read_bytes())
    except OSError as error:
        raise RunDirectoryError(
            f"{_shown(directory)} has no {name} ({error.strerror}); name a run of loadgen specjms"
        ) from None
    except orjson.JSONDecodeError:
        raise RunDirectoryError(f"{_shown(directory)}: {name} is damaged") from None
    if not isinstance(found, dict) or found.get("schema") != 1:
        raise RunDirectoryError(f"{_shown(directory)}: {name} is of another version")
    return found


def _shown(path: Path) -> str:
    return printable(str(path), 200)
