"""What only some cases show: the spread over consumers, the backends."""

from pathlib import Path
from typing import Any

import orjson
import pytest

from loadgen.report.build.cards_report import report_of
from loadgen.report.build.observed import observed_details, observed_rows, observed_sections
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import RunRecord, parse_run
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.write import to_json
from tests.report import fabricate as make

SPREAD = {"received": 30, "min": 9, "max": 11, "mean": 10.0, "stdev": 0.8}
QUEUE = {
    "spread": {"consumers": 3, **SPREAD, "queues": [{"queue": 0, **SPREAD}]},
    "cut_off": {"consumer": 1, "held": 7},
}
BACKEND = {
    "number": 1,
    "url": "mqtt://b:1",
    "expected": 100,
    "received": 99,
    "rate": 33.0,
    "high_water_mark": 6,
    "busy_share": 0.25,
}
BRIDGE = {
    "front_busy_share": 0.5,
    "limit": {"side": "backend", "detail": "backend 1 was full"},
    "backends": [BACKEND, BACKEND | {"number": 2, "url": "mqtt://<i>"}],
}


def record(case: str, observed: dict[str, Any] | None = None, **scenario: object) -> RunRecord:
    document = make.run_document(case="fanout")
    document["case"] = case
    document["observed"] |= observed or {}
    document["scenario"] |= scenario
    return parse_run(document, "here")


def test_other_cases_have_no_section() -> None:
    for case in ("latency", "connburst", "nonsense"):
        assert observed_sections(record(case)) == ()
        assert observed_details(record(case)) == {}


def test_spread_over_consumers() -> None:
    run = record("queue", {"queue": QUEUE})
    (section,) = observed_sections(run)
    assert section.rows[0] == ("all", 30, 9, 11, 10.0, 0.8)
    assert section.rows[1][0] == "queue 0"
    assert "Consumer 1 was cut off in the middle with 7 messages" in section.note
    (row,) = observed_rows(run)
    assert (row.name, row.value, row.avg, row.max, row.stdev) == ("QUEUE", 9, 10.0, 11, 0.8)
    assert observed_details(run)["queue"] == QUEUE


def test_backends_and_the_limit() -> None:
    run = record("bridge", {"bridge": BRIDGE})
    (section,) = observed_sections(run)
    assert "backend (backend 1 was full)" in section.note
    assert section.rows[0] == ("backend 1", "mqtt://b:1", 33.0, 100, 99, 6, "25%")
    assert section.rows[-1] == ("all", "front", 66.0, 200, 198, None, "50%")
    rates = [row for row in observed_rows(run) if row.unit == "msgs/sec"]
    marks = [row for row in observed_rows(run) if row.unit == "messages"]
    assert [row.value for row in rates] == [33.0, 33.0] and [row.value for row in marks] == [6, 6]


@pytest.mark.parametrize(
    "observed",
    [
        {"queue": None, "bridge": None},
        {"queue": "x", "bridge": 7},
        {"queue": {"spread": {"queues": "?"}, "cut_off": 3}, "bridge": {"backends": 5}},
        {"queue": {"spread": {}}, "bridge": {"backends": [7, {}], "limit": "?"}},
    ],
)
def test_what_is_not_as_expected_is_left_out(observed: dict[str, Any]) -> None:
    for case in ("queue", "bridge"):
        run = record(case, observed)
        for section in observed_sections(run):
            assert all(len(row) == len(section.header) for row in section.rows)
        observed_rows(run)
        observed_details(run)


def test_every_rendering_has_the_sections(tmp_path: Path) -> None:
    directory = make.fabricate(tmp_path / "run", case="fanout")
    path = directory / "run.json"
    document = orjson.loads(path.read_bytes())
    document["observed"]["fanout"] = QUEUE | BRIDGE
    path.write_bytes(orjson.dumps(document))
    card = summarize_run(directory)
    page, text = to_html(report_of([card])).decode(), to_markdown(report_of([card])).decode()
    for words in ("Next to the published score card", "Spread over the consumers", "Backends"):
        assert words in page and words in text
    assert "mqtt://&lt;i&gt;" in page and "mqtt://<i>" not in page
    assert orjson.loads(to_json(report_of([card])))["fanout"]["limit"]["side"] == "backend"
