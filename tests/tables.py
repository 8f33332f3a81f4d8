"""Tables of inputs, and texts that tests read: TOML files in `tests/data`."""

import tomllib
from pathlib import Path
from typing import Any

DATA = Path(__file__).parent / "data"


def table(name: str) -> dict[str, Any]:
    """The file `NAME.toml`."""
    return tomllib.loads((DATA / f"{name}.toml").read_text("utf-8"))


def rows_of(place: str) -> list[Any]:
    """The rows NAME of FILE.toml, for a place FILE.NAME; what a row lacks at its end is None."""
    file, _, name = place.partition(".")
    found: list[Any] = table(file)[name]
    width = max(len(row) if isinstance(row, list) else 0 for row in found)
    return [[*row, *[None] * (width - len(row))] if isinstance(row, list) else row for row in found]
