"""The seal of a run directory: later changes are reported, and nothing is written to find them."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.run.seal import SUMS, Integrity, record_digest, scenario_digest, seal, verify
from tests.refusals import refused
from tests.tables import rows_of

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "id": "r",
    "case": "fanin",
    "scenario": {"rate": 10.5, "devices": 3},
    "seed": 1,
    "verdict": {"valid": True, "reasons": []},
}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "intervals").mkdir()
    (tmp_path / "devices").mkdir()
    for second in range(3):
        (tmp_path / "intervals" / f"part-{second:06d}.parquet").write_bytes(bytes([second]))
    (tmp_path / "devices" / "all.parquet").write_bytes(b"d")
    (tmp_path / "events.jsonl").write_bytes(b"{}\n")
    (tmp_path / "run.json").write_bytes(orjson.dumps(DOCUMENT))
    return tmp_path


def checked(run: Path) -> Integrity:
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    found = verify(run, orjson.loads((run / "run.json").read_bytes()))
    assert before == {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    return found


def test_a_sealed_run_is_intact(run: Path) -> None:
    assert checked(run) == Integrity("unsealed", {})
    digests = seal(run)
    assert checked(run) == Integrity("intact", digests)
    assert digests["scenario"] == scenario_digest(DOCUMENT)
    assert digests["record"] == record_digest(DOCUMENT)
    assert seal(run) == digests
    said = subprocess.run(
        ["sha256sum", "--check", "--strict", SUMS], cwd=run, capture_output=True, text=True
    )
    assert (said.returncode, said.stdout.count(": OK")) == (0, 5)


def test_what_is_no_result_may_come_and_go(run: Path) -> None:
    seal(run)
    (run / "scorecard.html").write_text("")
    (run / "notes.txt").write_text("mine")
    (run / "intervals" / ".part-000009.parquet").write_bytes(b"half")
    document = orjson.loads((run / "run.json").read_bytes())
    (run / "run.json").write_bytes(orjson.dumps(document))  # other layout, same content
    assert checked(run).state == "intact"


def change(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def add(path: Path) -> None:
    path.with_name("part-000077.parquet").write_bytes(b"new")


@pytest.mark.parametrize(
    ("harm", "file", "says"),
    [
        (Path.unlink, "intervals/part-000001.parquet", "intervals/part-000001.parquet is missing"),
        (change, "intervals/part-000001.parquet", "intervals/part-000001.parquet was changed"),
        (add, "intervals/part-000001.parquet", "intervals/part-000077.parquet was added"),
        (Path.unlink, "devices/all.parquet", "devices/all.parquet is missing"),
        (change, "events.jsonl", "events.jsonl was changed"),
        (Path.unlink, SUMS, f"{SUMS} is missing"),
        (change, SUMS, f"{SUMS} was changed"),
    ],
)
def test_harm_is_told(run: Path, harm: Callable[[Path], None], file: str, says: str) -> None:
    digests = seal(run)
    harm(run / file)
    assert checked(run) == Integrity("changed", digests, (says,))


@pytest.mark.parametrize(("key", "value", "says"), rows_of("run.changed_records"))
def test_a_changed_record_is_told(
    run: Path, key: str, value: object, says: tuple[str, ...]
) -> None:
    seal(run)
    document = orjson.loads((run / "run.json").read_bytes())
    (run / "run.json").write_bytes(orjson.dumps(document | {key: value}))
    assert checked(run).changes == ("run.json was changed", *says)


def test_much_harm_is_shortened_and_hostile_names_are_escaped(run: Path) -> None:
    seal(run)
    for number in range(20):
        (run / "intervals" / f"part-{number}\x1b[31m.parquet").write_bytes(b"")
    changes = checked(run).changes
    assert len(changes) == 6 and changes[-1] == "15 more"
    assert all(change.isprintable() for change in changes)


def test_nothing_to_seal(tmp_path: Path) -> None:
    with refused("NOTHING_TO_SEAL"):
        seal(tmp_path)
    assert list(tmp_path.iterdir()) == []
