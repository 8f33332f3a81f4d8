"""Keeps what a calibration found, for later runs of the same host, kernel and version."""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import orjson

from loadgen.errors import CannotRunError
from loadgen.run.rundir import make_folder, write_json
from loadgen.run.seal import digest_of

SCHEMA: Final = 1


def cache_path(key: Mapping[str, object]) -> Path:
    """Return the path of the result for a host with this identity."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "loadgen" / f"calibration-{digest_of(dict(key))[:16]}.json"


def keep(result: Mapping[str, Any]) -> Path:
    """Write the result where `stored` finds it; raises CannotRunError where that is impossible."""
    path = cache_path(result["key"])
    try:
        make_folder(path.parent)
        write_json(path, result)
    except OSError as error:
        raise CannotRunError(f"the calibration cannot be stored: {error.strerror}") from None
    return path


def stored(key: Mapping[str, object]) -> dict[str, Any] | None:
    """Return the stored result of this identity, else None."""
    with suppress(OSError, orjson.JSONDecodeError):
        result = orjson.loads(cache_path(key).read_bytes())
        if isinstance(result, dict) and result.get("schema") == SCHEMA:
            return result if result.get("key") == dict(key) else None
    return None
