"""Run directories, searches, sweeps and a history that loadgen 0.1.0 wrote, in `tests/data/v1`.

Score cards as pages and as files of histograms are left out, since they are not read back.
"""

import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest

DATA = Path(__file__).parent / "data" / "v1"
RUNS = ("plain", "again", "per-device", "connects", "specjms", "two-hosts")
"""Run directories: fanin twice, persistent with `--per-device`, connburst (INVALID), specjms, and
fanout on two hosts."""

_ROW = ("name", "unit", "value", "avg", "p50", "p99", "max", "stdev")
_PARTS = ("counts", "latency", "rates", "ledger", "digest")


def load(name: str) -> Any:
    """Return a JSON file of the data."""
    return orjson.loads((DATA / name).read_bytes())


def copy(name: str, to: Path) -> Path:
    """Copy a directory of the data to one that can be written."""
    return Path(shutil.copytree(DATA / name, to / name))


def figures(card: dict[str, Any]) -> dict[str, Any]:
    """Return what must stay in the document of a score card: its codes and its numbers."""
    return {
        "schema": card["schema"],
        "id": card["run"]["id"],
        "valid": card["verdict"]["valid"],
        "codes": [reason["code"] for reason in card["verdict"]["reasons"]],
        "rows": [{key: row[key] for key in _ROW} for row in card["rows"]],
        **{part: card[part] for part in _PARTS},
    }


def same(expected: Any, now: Any, where: str = "") -> None:
    """Assert that `now` has everything of `expected`; it may have more keys."""
    if isinstance(expected, dict):
        assert expected.keys() <= now.keys(), where
        for key, value in expected.items():
            same(value, now[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert len(expected) == len(now), where
        for place, (value, other) in enumerate(zip(expected, now, strict=True)):
            same(value, other, f"{where}/{place}")
    elif isinstance(expected, float):
        assert now == pytest.approx(expected, rel=1e-9), where
    else:
        assert now == expected, where
