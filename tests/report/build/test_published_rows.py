"""The published rows beside ours, as a score card shows them."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadgen.report.build.published_rows import conditions_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import parse_run
from loadgen.report.render.markdown import escape
from loadgen.report.score_card import ScoreCard
from loadgen.sentences import REPORT_TEXT
from tests.report import fabricate as make

TITLE = "Next to the published score card"
SECURE_BROKER = {"name": "x", "urls": ["mqtts://b:8883"], "protocol": "MQTT 3.1"}

SMALLER = REPORT_TEXT.SMALLER_LOAD()


def card_of(where: Path, case: str, tls: object = None, **changes: Any) -> ScoreCard:
    document = make.run_document(case=case)
    parts = {
        "broker": document["broker"] | {"protocol": "MQTT 3.1"},
        "observed": document["observed"] | ({} if tls is None else {"tls": tls}),
    }
    return make.card_of(where / "run", case, **(parts | changes))


def lines_of(card: ScoreCard) -> list[tuple[Any, ...]]:
    (section,) = [one for one in card.sections if one.title == TITLE]
    assert all(len(row) == len(section.header) for row in section.rows)
    return list(section.rows)


def test_the_row_its_figures_and_its_high_water_mark(tmp_path: Path) -> None:
    producers, mark = lines_of(card_of(tmp_path, "fanin"))
    assert producers == ("FANIN", "producers", 400_000, 100, SMALLER)
    assert mark[:4] == ("FANIN", "high-water mark, messages", 277, 17)
    # What is under way depends on the load.
    told = "no; 100 producers (published: 400,000 producers)"
    assert mark[4] == f"{told}; {REPORT_TEXT.UPPER_BOUND()}"


def secured(version: str, cipher: str) -> dict[str, Any]:
    entry = {"version": version, "cipher": cipher, "count": 1}
    return {"connections": [entry], "resumed": 0}


DIFFERENCES = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())["run"]


@pytest.mark.parametrize("run", DIFFERENCES)
def test_a_difference_makes_a_row_not_comparable(tmp_path: Path, run: dict[str, Any]) -> None:
    broker = {"name": "x", "urls": ["mqtt://b"], "protocol": "MQTT 3.1"} | run.get("broker", {})
    row, said, case = (run[key] for key in ("row", "said", "case"))
    changes = {key: run[key] for key in ("verdict", "scenario", "tls") if key in run}
    line = lines_of(card_of(tmp_path, case, broker=broker, **changes))[0]
    assert line[0] == row
    assert str(line[4]).startswith(said)


def test_a_secured_run_is_next_to_the_secured_row(tmp_path: Path) -> None:
    tls = secured("TLSv1.2", "ECDHE-RSA-AES256-GCM-SHA384")
    card = card_of(tmp_path, "fanout", tls, broker=SECURE_BROKER)
    assert [(line[0], line[2], line[4]) for line in lines_of(card)] == [
        ("FANOUT.SEC", 330_000, SMALLER),
        ("FANOUT.SEC", 3_300_000, SMALLER),
    ]


def test_every_statistic_of_latency(tmp_path: Path) -> None:
    lines = lines_of(card_of(tmp_path, "latency"))
    assert [line[1:3] for line in lines] == [
        *(
            ("latency AVG, microseconds", 84),
            ("latency 50P, microseconds", 83),
            ("latency 99P, microseconds", 144),
        ),
        *(("latency MAX, microseconds", 427), ("latency STDV, microseconds", 25)),
    ]
    assert all(line[3] > 0 for line in lines)
    for what in (
        "load of 100 producers (published: load of 150,000 producers)",
        "timed pair at 10,000",
    ):
        assert what in lines[0][4]


def test_connections_have_their_mean_latency(tmp_path: Path) -> None:
    card = card_of(tmp_path, "connburst")
    seconds, latency = lines_of(card)
    assert seconds[:4] == ("CONNBURST", "seconds to connect all", 65, 0.8)
    assert latency[:3] == ("CONNBURST", "connect latency AVG, microseconds", "<270")
    assert latency[3] == card.latency["connect"].avg_us
    assert "100 devices (published: 1,000,000 devices)" in latency[4]
    row = card.rows[1]
    assert (row.name, row.unit, row.value) == ("CONNBURST", "microseconds", None)
    assert row.avg == latency[3] and row.p99 and row.max


def test_efficiency_without_watts_and_rack_units(tmp_path: Path) -> None:
    lines = {line[0]: line for line in lines_of(card_of(tmp_path, "persistent"))[2:]}
    assert lines["PERSISTENT.MPW"][2:4] == (1_523, None)
    assert "--pdu" in lines["PERSISTENT.MPW"][4]
    assert lines["PERSISTENT.MPU"][2:4] == (230_000, None)
    assert "--rack-units, --sut" in lines["PERSISTENT.MPU"][4]


def test_a_row_over_jms_says_so(tmp_path: Path) -> None:
    card = card_of(tmp_path, "fanout", scenario={"published": "JMSPUBSUB"})
    (line,) = lines_of(card)
    assert line[:3] == ("JMSPUBSUB", "egress rate, msgs/sec", 1_400_000)
    assert "MQTT 3.1 (published: JMS)" in line[4]
    (section,) = [one for one in card.sections if one.title == TITLE]
    assert "asynchronous sends" in section.note


def test_every_rendering_has_them(tmp_path: Path) -> None:
    card = card_of(tmp_path, "connburst")
    page, text, document, _ = make.rendered(card)
    assert "&lt;270" in page and escape("<270") in text
    published = document["published"]
    assert [one["comparable"] for one in published] == [False, False]
    seconds, latency = published
    assert seconds["value"] == 0.8 and seconds["published"]["value"] == 65
    assert latency["published"]["less_than"] == ["avg"] and latency["avg"] > 0
    assert seconds["differences"] == [
        "not recorded for this run (published: QoS 0)",
        "100 devices (published: 1,000,000 devices)",
        "not recorded for this run (published: each device subscribes)",
        "1 endpoint (published: 17 endpoints)",
    ]


def test_the_burst_is_compared_by_subscription_and_the_pair_by_its_time(tmp_path: Path) -> None:
    burst = card_of(tmp_path / "a", "connburst", scenario={"subscribe": True, "qos": 1})
    seconds, _ = lines_of(burst)
    assert "QoS 1 (published: QoS 0" in seconds[4] and "subscribes" not in seconds[4]
    silent = card_of(tmp_path / "b", "connburst", scenario={"subscribe": False, "qos": 0})
    assert "no device subscribes (published: each" in lines_of(silent)[0][4]
    pair = card_of(tmp_path / "c", "latency", scenario={"duration": 20.0})
    assert "timed for 20 s (published: timed for 300 s" in lines_of(pair)[0][4]


def test_a_case_without_a_published_row_has_no_section(tmp_path: Path) -> None:
    document = make.run_document() | {"case": "novel"}
    card = summarize_run(make.write_run(tmp_path / "run", document, make.rows_of()))
    assert TITLE not in [section.title for section in card.sections]
    assert "published" not in make.rendered(card).document


def test_conditions_of_a_run_that_was_killed_early_are_not_known() -> None:
    document = {"schema": 1, "id": "x", "case": "fanin", "broker": {"urls": ["mqtts://b"]}}
    ours = conditions_of(parse_run(document, "here"))
    assert (ours.qos, ours.size_bytes, ours.handshakes) == (None, None, None)
