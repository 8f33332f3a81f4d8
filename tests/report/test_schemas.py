"""The schemas in the package describe the files."""

from pathlib import Path

import orjson
import pytest

from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.compare import compare
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.settings import log_settings
from loadgen.report.render.write import to_json
from loadgen.report.score_card import CSV_HEADER, About
from tests.report import fabricate as make
from tests.schemas import errors, schema

CASES = ("fanin", "fanout", "persistent", "latency", "connburst")
PDU = Path(__file__).parent / "power" / "pdu" / "power_supply_1.log"
IN_THE_TABLES = 1_366_970_765  # 2013-04-26T10:06:05Z


@pytest.mark.parametrize("case", CASES)
def test_a_card_and_its_record(tmp_path: Path, case: str) -> None:
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": IN_THE_TABLES * make.SECOND_NS}
    run = make.fabricate(tmp_path / "run", case=case, clock=clock)
    card = summarize_run(run, log_settings([PDU], "UTC"), 2)
    document = orjson.loads(to_json(report_of([card], about=About("t", "a", "n"))))
    assert errors(document, "scorecard-1.schema.json") == []
    record = orjson.loads((run / "run.json").read_bytes())
    assert errors(record, "run-1.schema.json") == []
    # What is not described is found, and what is of another kind.
    document["counts"]["new"] = 1
    document["run"]["seconds"] = "4 s"
    del document["rates"]["sent"]
    assert len(errors(document, "scorecard-1.schema.json")) == 3


def test_several_cards(tmp_path: Path) -> None:
    cards = [summarize_run(make.fabricate(tmp_path / name, name)) for name in "ab"]
    document = orjson.loads(to_json(report_of(cards, compare(cards))))
    assert errors(document, "scorecard-1.schema.json") == []


def test_the_columns_of_both_tables() -> None:
    rows = schema("intervals-1.table.json")["fields"]
    types = [str(field.type).replace("element: ", "item: ") for field in INTERVAL_SCHEMA]
    assert [(f["name"], f["type"]) for f in rows] == list(
        zip(INTERVAL_SCHEMA.names, types, strict=True)
    )
    lines = schema("scorecard-csv-1.table.json")["fields"]
    assert [field["name"] for field in lines] == [*CSV_HEADER]
    assert all(field["description"] for field in (*rows, *lines))


def test_every_number_has_its_unit_or_what_it_counts() -> None:
    def numbers(given: object) -> list[dict[str, object]]:
        if isinstance(given, list):
            return [one for part in given for one in numbers(part)]
        if not isinstance(given, dict):
            return []
        types = given.get("type")
        names = [types] if isinstance(types, str) else types if isinstance(types, list) else ()
        own = [given] if {"number", "integer"} & {*names} else []
        return own + [one for part in given.values() for one in numbers(part)]

    for name in ("scorecard-1.schema.json", "run-1.schema.json"):
        found = numbers(schema(name))
        assert found
        assert [one for one in found if not one.get("description")] == []
