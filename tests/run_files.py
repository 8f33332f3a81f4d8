"""What a run left in its directory, read as anybody would."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq


def manifest(directory: Path) -> dict[str, Any]:
    """run.json."""
    document: dict[str, Any] = json.loads((directory / "run.json").read_text())
    return document


def rows(directory: Path) -> list[dict[str, Any]]:
    """The rows of all interval files."""
    files = sorted(directory.glob("intervals/*.parquet"))
    return [row for file in files for row in pq.read_table(file).to_pylist()]


def events(directory: Path, kind: str | None = None) -> list[dict[str, Any]]:
    """The events, or those of one kind."""
    found = map(json.loads, (directory / "events.jsonl").read_text().splitlines())
    return [event for event in found if kind in (None, event["kind"])]
