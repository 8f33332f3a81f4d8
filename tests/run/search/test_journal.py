import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadgen.run.search.journal import Journal
from tests.refusals import refused


@dataclass(frozen=True)
class Part:
    number: int


def journal(directory: Path) -> Journal[Part]:
    return Journal(directory, "hunt", "parts", "places", Part)


def test_what_was_begun_and_done_is_read_back(tmp_path: Path) -> None:
    first = journal(tmp_path / "new")
    assert first.begun() is None
    document = first.begin({"for": "rate"}, ("loadgen", "--password", "hush"))
    assert first.entries() == ()
    first.write([Part(1), Part(2)])
    again = journal(tmp_path / "new")
    assert again.begun() == document
    assert again.entries() == (Part(1), Part(2))
    assert (document["schema"], document["kind"], document["for"]) == (1, "hunt", "rate")
    assert "hush" not in (tmp_path / "new" / "hunt.json").read_text()


def test_a_part_that_was_cut_off_keeps_its_directory(tmp_path: Path) -> None:
    one = journal(tmp_path)
    one.begin({}, ())
    first = one.new_part("01-500")
    first.mkdir(parents=True)
    assert first == tmp_path / "places" / "01-500"
    assert one.new_part("01-500") == tmp_path / "places" / "01-500-2"


@pytest.mark.parametrize("kept", [False, True])
def test_a_start_that_came_to_nothing_leaves_no_file(tmp_path: Path, kept: bool) -> None:
    one = journal(tmp_path / "s")
    with pytest.raises(ZeroDivisionError), one.opened():
        one.begin({}, ())
        part = one.new_part("01-500") / "intervals"
        part.mkdir(parents=True)
        if kept:
            (part / "1.parquet").touch()
        raise ZeroDivisionError
    assert (tmp_path / "s" / "hunt.json").exists() == (tmp_path / "s").exists() == kept


@pytest.mark.parametrize("text", ["{", "[]", json.dumps("hunt")])
def test_a_damaged_document_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "hunt.json").write_text(text)
    with refused("NOT_A_JOURNAL"):
        journal(tmp_path).begun()


@pytest.mark.parametrize("text", ["x", "[]", '{"place": 1}'])
def test_damaged_entries_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "parts.jsonl").write_text(text + "\n")
    with refused("DAMAGED"):
        journal(tmp_path).entries()


def test_a_directory_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with refused("NOT_EMPTY"):
        journal(tmp_path).begun()
