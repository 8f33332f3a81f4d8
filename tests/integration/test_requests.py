"""Requests and responses, and payloads from a template, on real brokers."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.report.build.summary import summarize_run
from loadgen.run.coordinator import RunResult
from tests.instruments.runs import play_erring
from tests.run_files import events
from tests.tables import rows_of
from tests.testbeds import run

SHORT = {"warmup": 0.2, "duration": 1.5, "drain": 3, "settle": 0.2}


async def ask(tmp_path: Path, *, faults: str = "none", **fields: Any) -> RunResult:
    wanted = {"devices": 20, "responders": 3, "rate": 200, **SHORT, **fields}
    if faults != "none":
        return await play_erring(tmp_path / "run", "request", faults, **wanted)
    return await run(build_scenario("request", None, wanted), tmp_path / "run")


@pytest.mark.parametrize(("broker", "mqtt", "qos", "tls"), rows_of("integration.requests"))
async def test_every_request_has_its_response(
    tmp_path: Path, broker: str, mqtt: str, qos: int, tls: bool
) -> None:
    result = await ask(tmp_path, broker=broker, mqtt=mqtt, qos=qos, workers=2, tls=tls)
    assert not set(result.verdict.codes) & {"LOST", "DUPLICATED", "CORRUPT", "OUT_OF_ORDER"}
    card = summarize_run(result.directory)
    # 300 requests and as many responses.
    assert (card.counts.sent, card.counts.received, card.counts.expected) == (600, 600, 600)
    round_trip, one_way = card.latency["end_to_end"], card.latency["background.end_to_end"]
    assert round_trip.count == one_way.count == 300
    assert round_trip.avg_us is not None
    assert one_way.avg_us is not None
    assert round_trip.avg_us > one_way.avg_us
    (row, *_) = card.rows
    assert (row.name, row.avg) == ("REQUEST", round_trip.avg_us)


async def test_a_response_that_is_lost_is_told(tmp_path: Path) -> None:
    result = await ask(tmp_path, faults="lose=0.2,only=+/response/#,seed=3")
    assert "LOST" in result.verdict.codes
    card = summarize_run(result.directory)
    lost = 300 - card.latency["end_to_end"].count
    assert 30 < lost < 90
    assert card.latency["background.end_to_end"].count == 300
    assert card.counts.expected - card.counts.received == lost


async def test_a_window_too_small_for_the_responses_is_told(tmp_path: Path) -> None:
    result = await ask(tmp_path, faults="ceiling=100", responders=1, qos=1, max_unacknowledged=2)
    told = events(result.directory, "unanswered")
    assert told
    assert "--max-unacknowledged" in told[0]["detail"]
    assert summarize_run(result.directory).counts.sent < 600
