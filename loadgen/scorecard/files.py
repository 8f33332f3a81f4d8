"""Puts renderings into a directory."""

from collections.abc import Mapping
from pathlib import Path

from loadgen.control.rundir import write_atomically
from loadgen.errors import RunDirectoryError


def write_files(what: str, out_dir: Path, files: Mapping[str, bytes]) -> dict[str, Path]:
    """Write each, replacing older ones, under a hidden name that is then changed; name to path.

    Raises RunDirectoryError where the directory cannot be written.
    """
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_atomically(out_dir / name, data)
    except OSError as error:
        reason = error.strerror or error
        raise RunDirectoryError(f"{what} cannot be written to {out_dir}: {reason}") from None
    return {name: out_dir / name for name in files}
