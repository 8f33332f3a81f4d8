"""The system under test on the score card."""

from pathlib import Path
from typing import Any

import orjson

from loadgen.plan.sut import read_description
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import escape, to_markdown
from loadgen.report.render.write import to_json
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make

EXAMPLE = (Path(__file__).parents[3] / "docs/examples/sut.toml").read_text("utf-8")


def card_of(where: Path, case: str = "persistent", **changes: Any) -> ScoreCard:
    document = make.run_document(case=case) | changes
    return summarize_run(make.write_run(where / "run", document, make.rows_of(case=case)))


def titles(card: ScoreCard) -> list[str]:
    return [section.title for section in card.sections]


def test_every_part_is_a_table_in_every_rendering(tmp_path: Path) -> None:
    card = card_of(tmp_path, sut=read_description(EXAMPLE))
    found = [one for one in card.sections if one.title.startswith("System under test: ")]
    assert [one.title.partition(": ")[2] for one in found] == [
        *("Broker", "Machine of the broker", "Network elements", "Power unit", "Client machines")
    ]
    assert ("Rack units", "2") in found[1].rows
    page, text = to_html(report_of([card])).decode(), to_markdown(report_of([card])).decode()
    for words in ("System under test: Power unit", "NEMA L6-30P"):
        assert words in page and escape(words) in text
    assert orjson.loads(to_json(report_of([card])))["sut"]["clients"]["count"] == 3


def test_its_rack_units_and_storage_are_used(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", sut={"machine": {"rack_units": 2}})
    (row,) = [row for row in card.rows if row.name == "PERSISTENT.MPU"]
    assert row.value == card.rates["received"] / 2
    broker = {"name": "x", "urls": ["mqtt://b"], "protocol": "MQTT 3.1.1"}
    for first, comparable in ((True, True), (False, False)):
        sut = {"broker": {"stored_first": first}}
        published = card_of(tmp_path / str(first), sut=sut, broker=broker).details["published"]
        assert published[0]["comparable"] is comparable


def test_a_private_broker_says_when_it_stores_whatever_was_described(tmp_path: Path) -> None:
    broker = make.run_document()["broker"] | {"stored_first": False, "storage": "after it answers"}
    card = card_of(tmp_path, broker=broker, sut={"broker": {"stored_first": True}})
    (section,) = [one for one in card.sections if one.title == "Storage of the broker"]
    assert section.note == "after it answers"
    assert section.rows == (("stored before it is acknowledged", "no"),)
    assert not card.details["published"][0]["comparable"]


def test_what_others_wrote_is_escaped_and_bounded(tmp_path: Path) -> None:
    hostile = {"os": "<script>alert(1)</script>|\x1b[2J", "notes": ["x" * 9_999] * 99}
    card = card_of(tmp_path, sut={"broker": hostile, "machine": 7, "unknown": {"os": "y"}})
    page, text = to_html(report_of([card])).decode(), to_markdown(report_of([card])).decode()
    assert "<script>alert" not in page and "\x1b" not in page + text
    assert "x" * 301 not in page and "x" * 301 not in text
    assert "<script>" not in text and titles(card).count("System under test: Broker") == 1


def test_without_a_description_nothing_is_shown(tmp_path: Path) -> None:
    described: list[dict[str, Any] | None] = [None, {}, {"broker": {}}]
    for number, sut in enumerate(described):
        card = card_of(tmp_path / str(number), sut=sut)
        assert not any(title.startswith("System") for title in titles(card))


def test_a_broker_with_a_user_for_each_device_is_shown(tmp_path: Path) -> None:
    broker = make.run_document()["broker"]
    for more, titles in (({"access_control": {"users": 202}}, ["Access control"]), ({}, [])):
        document = make.run_document(broker=broker | more)
        directory = make.write_run(tmp_path / str(len(more)), document, make.rows_of())
        found = [one for one in summarize_run(directory).sections if one.title == "Access control"]
        assert [one.title for one in found] == titles
        assert [one.rows for one in found] == [(("users of the broker", 202),)] * len(more)
