"""The bundle of a run: its content, refusals, and a run that failed."""

import json
import zipfile
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from xml.etree import ElementTree

import orjson
import pytest

from loadgen.cli.main import main
from loadgen.errors import RunDirectoryError
from loadgen.run.archive import write_bundle
from loadgen.run.seal import seal
from loadgen.specjms.audit import DestinationCount, audit
from loadgen.specjms.messages import number_of
from loadgen.specjms.report import audit_summary, report
from tests.refusals import refused
from tests.specjms.models import model_with, observed
from tests.tables import rows_of

NS = 1_000_000_000
LENGTH_S = 20
DUPLICATED = {"valid": False, "reasons": [{"code": "DUPLICATED", "detail": "3 of 900 messages"}]}


def made(
    directory: Path, at_s: int = 0, share: float = 1.0, sealed: bool = True, **changes: Any
) -> Path:
    """Make a sealed run of the supply chain whose window begins `at_s` seconds into the day."""
    base = changes.pop("base", 5)
    topology = changes.pop("topology", "horizontal")
    length_s = changes.pop("length_s", LENGTH_S)
    model = model_with(topology=topology, base=base)
    supply = observed(
        model,
        length_s,
        types=observed(model, length_s * share).types,
        destinations=[DestinationCount(number_of("offer"), 1, 10, 10, 10)],
    )
    found = audit(model, supply)
    document = report(model, supply, found)
    run = {
        "schema": 1,
        "id": directory.name,
        "case": "specjms",
        "program": "loadgen 9",
        "command": ["loadgen"],
        "scenario": {"topology": topology, "base": base, "duration": length_s, "seed": at_s},
        "seed": at_s,
        "plan": {"workers": 1},
        "environment": {"os": "Linux"},
        "broker": {"name": "b", "version": "1", "urls": ["mqtt://h:1"]},
        "clock": {"monotonic_ns": 5 * NS, "wall_ns": 1_000_000 * NS},
        "windows": {"measure": [(9 + at_s) * NS, (9 + at_s + length_s) * NS]},
        "audit": audit_summary(found),
        "interrupted": False,
        "verdict": {"valid": True, "reasons": []},
    } | changes
    directory.mkdir()
    (directory / "events.jsonl").write_text("{}\n")
    (directory / "specjms.json").write_bytes(orjson.dumps(document))
    (directory / "run.json").write_bytes(orjson.dumps(run))
    if sealed:
        seal(directory)
    return directory


def disclosed(archive: Path) -> tuple[str, str]:
    """Return result.noncompliant.reason and the notes of an archive's submission."""
    with zipfile.ZipFile(archive) as jar:
        root = ElementTree.fromstring(jar.read("submission/submission.xml"))
    values = {one.get("key"): one.text or "" for one in root.iter("property")}
    return values["result.noncompliant.reason"], values["other.info"]


def refusal(run: Path, repeat: Path | None = None) -> str:
    with pytest.raises(RunDirectoryError) as error:
        write_bundle(run, repeat)
    assert "\n" not in str(error.value)
    assert not list(run.parent.glob("*.jar"))
    return str(error.value)


def test_a_run_and_its_repetition_are_disclosed_with_their_verdicts(tmp_path: Path) -> None:
    archive = write_bundle(made(tmp_path / "r"), made(tmp_path / "again", LENGTH_S))
    why, notes = disclosed(archive)
    assert "main run: horizontal topology, BASE 5, 20 s measured, audit passed, VALID" in notes
    assert "repetition: horizontal topology, BASE 5, 20 s measured, audit passed, VALID" in notes
    assert "INVALID" not in why
    assert "repetition" not in why
    assert "seal" not in why + notes


def test_a_run_that_is_still_being_written_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, read = made(tmp_path / "r"), Path.read_bytes

    def vanish(path: Path) -> bytes:
        if path.name == "events.jsonl":
            raise FileNotFoundError(2, "merged into another file")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", vanish)
    with refused("STILL_WRITTEN"):
        write_bundle(run)
    assert not list(tmp_path.glob("*.jar"))


@pytest.mark.parametrize("name", ["specjms.json", "events.jsonl"])
def test_a_run_that_was_changed_since_it_ended_is_refused_by_file(
    tmp_path: Path, name: str
) -> None:
    run, again = made(tmp_path / "r"), made(tmp_path / "again", LENGTH_S)
    path = run / name
    path.write_bytes(path.read_bytes().replace(b'"base":5', b'"base":500') + b"\n")
    assert refusal(run).startswith(f"{run} was changed since the run ended: {name} was changed;")
    # A repetition is disclosed as well.
    assert f"{name} was changed" in refusal(again, run)


def test_a_verdict_that_was_edited_is_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "r", verdict=DUPLICATED)
    document = json.loads((run / "run.json").read_bytes())
    document["verdict"] = {"valid": True, "reasons": []}
    (run / "run.json").write_text(json.dumps(document))
    assert "run.json was changed" in refusal(run)


@pytest.mark.parametrize(("changes", "reason", "note"), rows_of("run.disclosed"))
def test_what_is_wrong_with_a_run_is_disclosed(
    tmp_path: Path, changes: dict[str, Any], reason: str, note: str
) -> None:
    changes = {"verdict": None} | changes if changes.pop("unjudged", False) else changes
    why, notes = disclosed(write_bundle(made(tmp_path / "r", **changes)))
    assert reason in why and note in notes
    assert "no repetition (3.4)" in why


@pytest.mark.parametrize(("changes", "why"), rows_of("run.no_repetitions"))
def test_what_is_no_repetition_is_refused(
    tmp_path: Path, changes: dict[str, Any], why: str
) -> None:
    run, again = made(tmp_path / "r"), made(tmp_path / "again", **{"at_s": 90, **changes})
    assert refusal(run, again).startswith(f"{again} ")
    assert why in refusal(run, again)


def test_another_run_beside_it_is_not_taken_for_its_repetition(tmp_path: Path) -> None:
    run = made(tmp_path / "r")
    made(tmp_path / "r-repeat", 90, base=10)
    assert "its base is 10" in refusal(run)


def test_a_repetition_that_is_worse_is_disclosed(tmp_path: Path) -> None:
    run = made(tmp_path / "r")
    again = made(tmp_path / "again", 90, verdict=DUPLICATED)
    why, notes = disclosed(write_bundle(run, again, tmp_path / "a.jar"))
    assert why.startswith("repetition INVALID: DUPLICATED (3 of 900 messages); ")
    assert "main run INVALID" not in why
    slower = made(tmp_path / "slower", 180, share=0.9)
    why, notes = disclosed(write_bundle(run, slower, tmp_path / "b.jar"))
    assert "the repetition received 10." in why
    assert "% less a second than the main run (tolerated: 5 %)" in why
    assert "repetition: horizontal" in notes


def test_the_archive_of_the_directory_that_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = made(tmp_path / "r")
    made(tmp_path / "r-repeat", LENGTH_S)
    monkeypatch.chdir(run)
    assert main(["specjms", "bundle", "."]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'r.jar'}\n"
    with zipfile.ZipFile(tmp_path / "r.jar") as jar:
        names = jar.namelist()
    for name in ("run.json", "specjms.json"):
        assert {f"FinalRun/{name}", f"RepeatRun/{name}"} <= {*names}
    assert "DriverOutput/RepeatRun-events.jsonl" in names
    assert main(["specjms", "bundle", "/"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "loadgen: / has no run.json" in err


def test_an_archive_in_the_run_does_not_hold_itself(tmp_path: Path) -> None:
    run = made(tmp_path / "r")
    with zipfile.ZipFile(write_bundle(run, out=run / "x.jar")) as jar:
        assert "FinalRun/x.jar" not in jar.namelist()


def test_half_an_archive_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(28, "No space left on device"))
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    with refused("DISK", path=str(tmp_path / "r.jar")):
        write_bundle(made(tmp_path / "r"))
    assert not (tmp_path / "r.jar").exists()


def test_documents_without_their_parts_are_refused(tmp_path: Path) -> None:
    run = made(tmp_path / "r", sealed=False)
    (run / "specjms.json").write_text('{"schema": 1}')
    assert "damaged" in refusal(run)
    assert "damaged" in refusal(made(tmp_path / "other", 90), run)


def test_a_bundle_of_something_else_is_refused(tmp_path: Path) -> None:
    with refused("NO_DOCUMENT", name="run.json"):
        write_bundle(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with refused("BAD_DOCUMENT", name="run.json"):
        write_bundle(tmp_path)
    (tmp_path / "run.json").write_text('{"schema": 1}')
    with refused("NO_DISCLOSURE"):
        write_bundle(tmp_path)
