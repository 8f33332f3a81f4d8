"""Runs, searches and sweeps of loadgen 0.1.0 are read, and sweeps continued."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen import api
from loadgen.cli.main import main
from tests.old_runs import DATA, RUNS, copy, load, same

SEARCH = (
    *("search", "fanin", "--broker", "reflector", "--devices", "10", "--json", "--quiet"),
    *("--duration", "0.5", "--warmup", "0.2"),
    *("--for", "rate", "--from", "100", "--step-duration", "0.5s"),
)
SWEEP = (
    *("sweep", "fanin", "--broker", "reflector", "--rate", "100", "--json", "--quiet"),
    *("--duration", "0.5", "--warmup", "0.2"),
)
SERIES = {"p99_9": "p99.9"}
"""Names in scorecard.json that differ from those in Python."""


def contents(directory: Path) -> dict[str, tuple[int, bytes]]:
    """Return the time and the bytes of every file below a directory."""
    return {
        str(path.relative_to(directory)): (path.stat().st_mtime_ns, path.read_bytes())
        for path in directory.rglob("*")
        if path.is_file()
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_read_with_the_figures_that_it_had(name: str) -> None:
    card = load(f"{name}/scorecard.json")
    run = api.read(DATA / name)
    assert run.card.run.id == card["run"]["id"]
    assert run.valid == card["verdict"]["valid"]
    assert [reason.code for reason in run.reasons] == [
        reason["code"] for reason in card["verdict"]["reasons"]
    ]
    for field, count in card["counts"].items():
        assert getattr(run.counts, field) == count, field
    same(card["rates"], dict(run.rates))
    assert run.latency.keys() == card["latency"].keys()
    for series, expected in card["latency"].items():
        for figure in ("count", "avg", "p50", "p90", "p99", "p99_9", "max", "stdev"):
            value = getattr(run.latency[series], figure)
            same(expected[SERIES.get(figure, figure)], value, f"{series}/{figure}")
    # Rows are added at the end.
    for row, expected in zip(run.card.rows[: len(card["rows"])], card["rows"], strict=True):
        for figure in ("type", "name", "unit", "value", "avg", "p50", "p99", "max", "stdev"):
            same(expected[figure], getattr(row, figure), f"{expected['name']}/{figure}")


def test_the_tables_of_a_run_are_read() -> None:
    run = api.read(DATA / "per-device")
    assert run.intervals().num_rows > 0
    devices = run.devices().to_pylist()
    assert len(devices) == 10
    assert sum(device["sent"] or 0 for device in devices) == 250
    assert sum(device["received"] or 0 for device in devices) == 250
    assert {device["broker"] for device in devices} == {"127.0.0.1:31521"}


def test_a_finished_search_is_shown_and_nothing_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = copy("search-finished", tmp_path)
    before = contents(directory / "steps"), (directory / "steps.jsonl").read_bytes()
    assert main([*SEARCH, "--to", "200", "--out", str(directory)]) == 0
    limit = orjson.loads(capsys.readouterr().out)["limit"]
    assert (limit["load"], limit["confirmed"], limit["ended"]) == (200, True, "top of range")
    steps = contents(directory / "steps")
    # The card of the step at the limit is written anew.
    assert {name: steps[name] for name in before[0] if "/scorecard." not in name} == {
        name: file for name, file in before[0].items() if "/scorecard." not in name
    }
    assert (directory / "steps.jsonl").read_bytes() == before[1]


def test_a_search_with_other_steps_is_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = copy("search", tmp_path)
    before = contents(directory)
    assert main([*SEARCH, "--to", "1k", "--most-steps", "5", "--out", str(directory)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(directory) == before


def test_a_larger_grid_keeps_the_points_of_a_sweep(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = copy("sweep", tmp_path)
    table, before = load("sweep/table.json"), contents(directory / "runs")
    options = ("--set", "devices=5,10,15", "--out", str(directory))
    assert main([*SWEEP, *options]) in (0, 1)
    rows = orjson.loads(capsys.readouterr().out)["rows"]
    for row, old in zip(rows, table["rows"], strict=False):
        same({key: old[key] for key in ("key", "numbers", "figures", "valid")}, row)
    assert [row["numbers"]["devices"] for row in rows] == [5, 10, 15]
    assert before.items() <= contents(directory / "runs").items()
    assert len(lines(directory / "points.jsonl")) == 3
