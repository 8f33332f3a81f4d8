"""Tables of a score card: ledger, outages, TLS, the system under test, observations of a case."""

import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import RunDirectoryError
from loadgen.judge.ledger import Ledger
from loadgen.metrics.interval import LATER
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.sut import read_description
from loadgen.plan.tables import DataTable
from loadgen.report.build import sections
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import RunRecord, parse_run
from loadgen.report.render.markdown import escape
from loadgen.report.score_card import ScoreCard
from loadgen.run.collect_facts import handshakes_of
from loadgen.sentences import REPORT_TEXT
from tests.report import fabricate as make
from tests.report.fabricate import card_of
from tests.tables import rows_of


def section(card: ScoreCard, title: str) -> DataTable:
    (found,) = [one for one in card.sections if one.title == title]
    return found


WINDOW = Ledger(
    sent=400,
    owed=3,
    acknowledged=390,
    refused=6,
    unacknowledged=4,
    expected=394,
    intact=380,
    damaged=5,
    lost=9,
    repeated_allowed=2,
    misrouted=1,
)
RUN = Ledger(sent=500, owed=3, acknowledged=494, refused=6, expected=494, intact=494, foreign=8)
OBSERVED = tomllib.loads(Path(__file__).with_name("observed.toml").read_text())
CALIBRATION, QUEUE, BRIDGE = (OBSERVED[key] for key in ("calibration", "queue", "bridge"))
REMARK = {"code": "STANDSTILL", "detail": "nothing came back <in> the *window*"}
UNVERIFIED = REPORT_TEXT.UNVERIFIED()


def closed(**changes: Any) -> dict[str, Any]:
    return {
        "window": WINDOW.document(),
        "run": RUN.document(),
        "refusals": {"Not authorized (0x87)": 6},
        "proven": True,
        "imbalances": [],
    } | changes


def states(card: ScoreCard) -> dict[str, tuple[Any, ...]]:
    return {str(row[1]): row[2:] for row in section(card, "Ledger").rows}


def test_a_ledger_of_the_run_is_in_every_rendering(tmp_path: Path) -> None:
    card = card_of(tmp_path / "run", ledger=closed(), remarks=[REMARK])
    table = states(card)
    assert table["to be sent"] == (403, 503)
    assert table["refused by the broker"] == (6, 6)
    assert table["lost"] == (9, 0) and table["damaged"] == (5, 0)
    assert table["from other clients"] == (0, 8)
    # States in which nothing ended are left out.
    assert "repeated" not in table and "not observed, because a worker ended" not in table
    assert card.counts.lost == 9
    page, text, document, _ = make.rendered(card)
    assert document["ledger"] == closed() and document["remarks"] == [REMARK]
    assert document["verdict"] == {"valid": True, "reasons": []}
    assert "refused by the broker" in page and "refused by the broker" in text
    assert "nothing came back &lt;in&gt; the *window*" in page
    assert "- remark: nothing came back \\<in\\> the \\*window\\*" in text


@pytest.mark.parametrize(("changes", "words"), rows_of("report.other_counters"))
def test_the_note_says_if_the_sums_close(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    card = card_of(tmp_path / "run", ledger=closed(**changes))
    assert words in section(card, "Ledger").note


def test_a_run_without_a_ledger_has_one_by_its_rows(tmp_path: Path) -> None:
    card = card_of(tmp_path / "old")
    table = states(card)
    assert table["sent"][0] == table["intact"][0] == card.counts.received > 0
    assert table["lost"] == (0, 0) and card.counts.lost == 0
    assert card.ledger is not None and card.ledger["proven"] is False
    burst = card_of(tmp_path / "burst", "connburst")
    assert burst.ledger is None and all(one.title != "Ledger" for one in burst.sections)


def test_a_run_that_was_killed_has_lost_nothing(tmp_path: Path) -> None:
    rows = [r for r in make.rows_of() if not (r.received and r.second == 6)]
    run = make.write_run(tmp_path / "run", make.run_document(verdict=None), rows)
    card = summarize_run(run)
    assert card.counts.lost == 0
    assert states(card)["not observed, because a worker ended"][0] > 0
    assert card.verdict.codes == ("INTERRUPTED",)


def test_a_run_of_an_earlier_version_lacks_columns(tmp_path: Path) -> None:
    run = make.fabricate(tmp_path / "run")
    before = summarize_run(run)
    for path in run.glob("intervals/*.parquet"):
        pq.write_table(pq.read_table(path).drop_columns(list(LATER)), path)
    assert make.rendered(summarize_run(run)).document == make.rendered(before).document


@pytest.mark.parametrize(
    "ledger", [[], {"window": 3}, {"window": {"sent": "many"}}, {"imbalances": 5}]
)
def test_a_damaged_ledger_is_one_line(tmp_path: Path, ledger: Any) -> None:
    with pytest.raises(RunDirectoryError) as error:
        card_of(tmp_path / "run", ledger=ledger)
    assert error.value.code == "DAMAGED" and "\n" not in str(error.value)


def run_of(url: str = "mqtts://b", tls: object = None, **scenario: object) -> dict[str, Any]:
    """The parts of run.json that describe the connections of devices."""
    document = make.run_document()
    document["broker"]["urls"] = [url]
    document["plan"]["tls"] = url.startswith(("mqtts", "wss"))
    document["scenario"] |= scenario
    document["observed"]["tls"] = tls
    return {key: document[key] for key in ("broker", "plan", "scenario", "observed")}


def record_of(**changes: Any) -> Any:
    return parse_run({"schema": 1, "id": "x", "case": "fanin"} | changes, "here")


@pytest.mark.parametrize("url", ["mqtts://b", "wss://b"])
def test_an_unverified_certificate_is_before_every_figure(tmp_path: Path, url: str) -> None:
    card = card_of(tmp_path / "run", **run_of(url, tls_verify=False))
    page, text, document, _ = make.rendered(card)
    assert text.index(escape(UNVERIFIED, 2000)) < text.index("VALID")
    page = page[page.index("<body>") :]
    assert page.index(UNVERIFIED.replace("'", "&#39;")) < page.index("VALID")
    assert list(document)[:3] == ["schema", "notice", "run"]
    assert (document["notice"], document["tls"]) == (UNVERIFIED, {"verified": False})


@pytest.mark.parametrize(
    ("url", "scenario", "backend", "notice"),
    [
        ("mqtts://b", {"tls_verify": True}, False, ""),
        ("mqtts://b", {}, False, ""),
        ("mqtt://b", {"tls_verify": False}, False, ""),
        ("ws://b", {"tls_verify": False}, False, ""),
        # Only the connection to the backend is encrypted.
        ("mqtt://b", {"tls_verify": False}, True, UNVERIFIED),
    ],
)
def test_a_notice_is_for_encrypted_connections(
    url: str, scenario: dict[str, Any], backend: bool, notice: str
) -> None:
    document = run_of(url, **scenario)
    document["plan"]["tls"] |= backend
    assert sections.notice_of(record_of(**document)) == notice


def test_handshakes_are_added_up_and_shown(tmp_path: Path) -> None:
    new = {"version": "TLSv1.3", "cipher": "TLS_AES_256_GCM_SHA384", "count": 700}
    old = {"version": "TLSv1.2", "cipher": "ECDHE-RSA-AES256-GCM-SHA384", "count": 3}
    workers: dict[int, dict[str, Any]] = {
        0: {"tls": {"connections": [old, new], "resumed": 5}},
        1: {"tls": {"connections": [new], "resumed": 6}},
        2: {"tls": None},
        3: {},
    }
    found = handshakes_of(workers)
    assert found == {"connections": [new | {"count": 1400}, old], "resumed": 11}
    assert handshakes_of({0: {"tls": {"connections": [], "resumed": 0}}}) is None
    card = card_of(tmp_path / "run", **run_of(tls=found))
    assert make.rendered(card).document["tls"] == {"verified": True, **found}
    table = section(card, "TLS")
    assert table.rows[0] == (new["version"], new["cipher"], 1400)
    assert "11 of 1,403 resumed" in table.note
    assert escape("TLS_AES_256_GCM_SHA384") in make.rendered(card).text


@pytest.mark.parametrize(
    "tls", [3, {"connections": 3}, {"connections": [3, {"count": "many"}], "resumed": "x"}]
)
def test_unexpected_handshakes_are_left_out(tls: object) -> None:
    record = record_of(**run_of(tls=tls))
    assert [*sections.tls_sections(record)] == []
    assert sections.record_details(record) == {"tls": {"verified": True}}


EXAMPLE = (Path(__file__).parents[3] / "docs/examples/sut.toml").read_text("utf-8")


def test_every_described_part_is_a_table_in_every_rendering(tmp_path: Path) -> None:
    card = card_of(tmp_path / "run", sut=read_description(EXAMPLE))
    found = [one for one in card.sections if one.title.startswith("System under test: ")]
    assert [one.title.partition(": ")[2] for one in found] == [
        *("Broker", "Machine of the broker", "Network elements", "Power unit", "Client machines")
    ]
    assert ("Rack units", "2") in found[1].rows
    page, text, document, _ = make.rendered(card)
    for words in ("System under test: Power unit", "NEMA L6-30P"):
        assert words in page and escape(words) in text
    assert document["sut"]["clients"]["count"] == 3


def test_rack_units_and_storage_are_used(tmp_path: Path) -> None:
    card = card_of(tmp_path / "a", "persistent", sut={"machine": {"rack_units": 2}})
    (row,) = [row for row in card.rows if row.name == "PERSISTENT.MPU"]
    assert row.value == card.rates["received"] / 2
    broker = {"name": "x", "urls": ["mqtt://b"], "protocol": "MQTT 3.1"}
    for first in (True, False):
        sut = {"broker": {"stored_first": first}}
        card = card_of(tmp_path / str(first), "persistent", sut=sut, broker=broker)
        assert card.details["published"][0]["comparable"] is first


def test_a_private_broker_knows_its_storage_and_its_users(tmp_path: Path) -> None:
    broker = make.run_document()["broker"] | {
        "stored_first": False,
        "storage": "after it answers",
        "configuration": ["port: 1883", "  }"],
        "access_control": {"users": 202},
    }
    sut = {"broker": {"stored_first": True}}
    card = card_of(tmp_path / "run", "persistent", broker=broker, sut=sut)
    storage = section(card, "Storage of the broker")
    assert storage.note == "after it answers"
    assert storage.rows == (("stored before it is acknowledged", "no"),)
    assert not card.details["published"][0]["comparable"]
    assert section(card, "Access control").rows == (("users of the broker", 202),)
    assert section(card, "Broker configuration").rows == (("port", "1883"),)


def test_a_hostile_description_is_escaped_and_bounded(tmp_path: Path) -> None:
    hostile = {"os": "<script>alert(1)</script>|\x1b[2J", "notes": ["x" * 9_999] * 99}
    sut = {"broker": hostile, "machine": 7, "unknown": {"os": "y"}}
    card = card_of(tmp_path / "run", sut=sut)
    page, text, *_ = make.rendered(card)
    assert "<script>alert" not in page and "\x1b" not in page + text
    assert "x" * 301 not in page and "x" * 301 not in text
    assert "<script>" not in text
    assert [one.title for one in card.sections].count("System under test: Broker") == 1


@pytest.mark.parametrize("sut", [None, {}, {"broker": {}}])
def test_without_a_description_nothing_is_shown(tmp_path: Path, sut: dict[str, Any] | None) -> None:
    card = card_of(tmp_path / "run", sut=sut)
    assert not any(one.title.startswith(("System", "Access")) for one in card.sections)


def ceilings(calibration: Any) -> list[DataTable]:
    environment = {} if calibration is None else {"calibration": calibration}
    record: Any = SimpleNamespace(
        environment=environment, workers=2, connected=1_000, connect_seconds=0.5
    )
    rates = {"sent": 5_000.0, "received": 10_000.0}
    return [*sections.ceiling_of(record, rates, {"end_to_end": LatencySummary(1, p50_us=75.0)})]


def test_each_figure_is_next_to_that_of_the_harness() -> None:
    (table,) = ceilings(CALIBRATION)
    assert table.rows == (
        ("messages sent a second, per worker", 2_500.0, 60_000, 1_200_000),
        ("messages received a second, per worker", 5_000.0, 220_000, 1_900_000),
        ("connects a second", 2_000.0, 10_000, None),
        ("end_to_end p50, µs", 75.0, 50.0, None),
        ("end_to_end p99, µs", None, 700.0, None),
    )
    assert "2026-11-21T00:08:59Z, with a load average of 0.25 before it" in table.note
    (table,) = ceilings({"made": "?", "send": 7})
    assert all(row[2:] == (None, None) for row in table.rows)
    assert [ceilings(calibration) for calibration in (None, "x", 3)] == [[], [], []]


def second(
    at_s: float,
    disconnects: int = 0,
    connects: int = 0,
    connect_failures: int = 0,
    span_s: float = 1.0,
) -> dict[str, float]:
    return {
        "at_s": at_s,
        "span_s": span_s,
        "connects": connects,
        "connect_failures": connect_failures,
        "disconnects": disconnects,
    }


def test_devices_are_lost_and_come_back_over_some_seconds() -> None:
    course = [
        second(0.0),
        second(1.0, disconnects=90),
        second(2.0, disconnects=10, connect_failures=40),
        second(3.0, connects=60, connect_failures=5),
        second(4.0, connects=40, span_s=0.5),
        second(5.0),
        second(6.0, disconnects=1, connects=1),
        second(7.0, disconnects=3),
        second(8.0, connects=2),
    ]
    assert sections.outages_of(course) == (
        (1.0, 4.5, 3.5, 100, 100, 100, 45, 80.0),
        (6.0, 7.0, 1.0, 1, 0, 1, 0, 1.0),
        (7.0, None, None, 3, 3, 2, 0, 2.0),
    )


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40))
def test_every_lost_connection_is_told_once(counts: list[tuple[int, int]]) -> None:
    course = [second(float(at), lost, back) for at, (lost, back) in enumerate(counts)]
    found = sections.outages_of(course)
    assert sum(outage[3] for outage in found) == sum(lost for lost, _ in counts)
    for _, until_s, _, lost, away, returned, *_ in found:
        assert 0 <= away <= lost
        assert (returned >= lost) == (until_s is not None)
    for earlier, later in pairwise(found):
        assert earlier[1] is not None
        assert earlier[1] <= later[0]


def test_lost_messages_are_named() -> None:
    assert [*sections.lost_sections(RunRecord("run-1", "persistent"))] == []
    one = {"stream": 3, "first": 7, "last": 9, "group": "subscribers", "device": 5}
    observed = {"lost": {"named": [one] * 30, "more": 1200}}
    (table,) = sections.lost_sections(RunRecord("run-1", "persistent", observed=observed))
    assert table.rows == ((3, 7, 9, "subscribers 5"),) * 20
    assert "1,200" in table.note


def record(case: str, observed: dict[str, Any] | None = None, **scenario: object) -> RunRecord:
    document = make.run_document(case="fanout")
    document["case"] = case
    document["observed"] |= observed or {}
    document["scenario"] |= scenario
    return parse_run(document, "here")


def test_other_cases_have_no_section() -> None:
    for case in ("latency", "connburst", "nonsense"):
        assert [*sections.observed_sections(record(case))] == []
        assert case not in sections.record_details(record(case))


def test_spread_over_consumers() -> None:
    run = record("queue", {"queue": QUEUE})
    (section,) = sections.observed_sections(run)
    assert section.rows[0] == ("all", 30, 9, 11, 10.0, 0.8)
    assert section.rows[1][0] == "queue 0"
    assert "Consumer 1 was cut off in the middle of the window with 7" in section.note
    (row,) = sections.observed_rows(run)
    assert (row.name, row.value, row.avg, row.max, row.stdev) == ("QUEUE", 9, 10.0, 11, 0.8)
    assert sections.record_details(run)["queue"] == QUEUE


def test_backends_and_the_limit() -> None:
    run = record("bridge", {"bridge": BRIDGE})
    (section,) = sections.observed_sections(run)
    assert "backend (backend 1 was full)" in section.note
    assert section.rows[0] == ("backend 1", "mqtt://b:1", 33.0, 100, 99, 6, "25 %")
    assert section.rows[-1] == ("all", "front", 66.0, 200, 198, None, "50 %")
    rates = [row for row in sections.observed_rows(run) if row.unit == "msgs/sec"]
    marks = [row for row in sections.observed_rows(run) if row.unit == "messages"]
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
        for section in sections.observed_sections(run):
            assert all(len(row) == len(section.header) for row in section.rows)
        assert all(row.unit in ("messages", "msgs/sec") for row in sections.observed_rows(run))
        sections.record_details(run)


def test_every_rendering_has_the_sections(tmp_path: Path) -> None:
    directory = make.fabricate(tmp_path / "run", case="fanout")
    path = directory / "run.json"
    document = orjson.loads(path.read_bytes())
    document["observed"]["fanout"] = QUEUE | BRIDGE
    host = {"host": 0, "name": "<i>", "sent": 4_321, "environment": {"cores": 7}}
    document["hosts"] = [host | {"clock": {"bound_ns": 8_765}}]
    path.write_bytes(orjson.dumps(document))
    card = summarize_run(directory)
    page, text, document, _ = make.rendered(card)
    for words in ("Next to the published score card", "Spread over the consumers", "Load hosts"):
        assert words in page and words in text
    assert "Load host &lt;i&gt;: 7 cores" in page
    assert "4,321" in page and "4,321" in text and "Host 0 (&lt;i&gt;)" in page
    assert "8765" in page and document["load_hosts"][0]["clock"]["bound_ns"] == 8_765
    assert "mqtt://&lt;i&gt;" in page and "mqtt://<i>" not in page
    assert document["fanout"]["limit"]["side"] == "backend"
