"""Another MQTT client on the same broker sees what loadgen says that it sent."""

import json
import zlib
from pathlib import Path

import pytest

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.cases.registry import build_scenario
from loadgen.report.build.summary import summarize_run
from tests.integration.listener import listening
from tests.testbeds import run

WARM_UP_S, WINDOW_S = 0.5, 1.5
RATE = 200
TIMES = {"warmup": WARM_UP_S, "duration": WINDOW_S, "drain": 5, "settle": 0.2}


async def test_an_independent_subscriber_counts_the_same(tmp_path: Path) -> None:
    directory, file = tmp_path / "run", tmp_path / "payload"
    content = bytes(range(256)) + b"\0\xff" * 50
    file.write_bytes(content)
    flags = {"devices": 20, "rate": RATE, "qos": 1, "payload": str(file)}
    async with run_mosquitto() as broker, listening(broker.endpoints[0]) as heard:
        where = {"broker": broker.endpoints[0].redacted}
        await run(build_scenario("fanin", None, {**where, **flags, **TIMES}), directory)

    payloads = [payload for _, payload in heard]
    counts = summarize_run(directory).counts
    assert counts.sent == counts.received == round(RATE * WINDOW_S)
    assert len(payloads) == round(RATE * (WARM_UP_S + WINDOW_S))
    assert len(set(payloads)) == len(payloads)
    for payload in payloads:
        assert payload[32:] == content
        body = zlib.crc32(content)
        assert int.from_bytes(payload[28:32], "little") == zlib.crc32(payload[:28], body)
    intended_ns = sorted(int.from_bytes(payload[16:24], "little") for payload in payloads)
    first_of_window_ns = intended_ns[0] + int(WARM_UP_S * 1e9)
    assert sum(at >= first_of_window_ns for at in intended_ns) == counts.sent


@pytest.mark.parametrize("header", ["property", "field", "none"])
async def test_a_payload_is_the_users_to_the_byte(tmp_path: Path, header: str) -> None:
    content = b'\0{"device": "{device:02}", "header": "{loadgen}"}\xff'
    flags = {"payload_template": str(tmp_path / "payload")}
    if header != "field":
        content = content.replace(b"{device:02}", b"7").replace(b"{loadgen}", b"0" * 64)
        flags = {"payload": str(tmp_path / "payload"), "header": header}
    if header == "property":
        flags["mqtt"] = "5"
    (tmp_path / "payload").write_bytes(content)
    async with run_mosquitto() as broker, listening(broker.endpoints[0]) as heard:
        fields = {"broker": broker.endpoints[0].redacted, "devices": 20, "rate": RATE, "qos": 1}
        result = await run(build_scenario("fanin", None, fields | flags | TIMES), tmp_path / "run")
    payloads = [payload for _, payload in heard]
    window = result.facts.messages.window
    assert window.sent == window.intact == round(RATE * WINDOW_S) and not window.foreign
    assert len(payloads) == round(RATE * (WARM_UP_S + WINDOW_S))
    if header != "field":
        assert set(payloads) == {content}
    for payload in set(payloads) - {content}:
        told = json.loads(payload[1:-1])
        digits = told["header"].encode()
        assert 0 <= int(told["device"]) < 20 and len(bytes.fromhex(told["header"])) == 32
        device = told["device"].encode()
        assert payload == content.replace(b"{device:02}", device).replace(b"{loadgen}", digits)
