"""Whole runs with the options of a fleet, as the command line plays them."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import ProgramSettings
from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from loadgen.mqtt.packets import ConnAck, Publish, PubRec, PubRel
from loadgen.mqtt.properties import Properties
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.render.write import to_json
from loadgen.run.coordinator import RunResult
from tests.instruments.runs import play_checked, play_erring
from tests.refusals import refused
from tests.run_files import events, manifest, rows
from tests.schemas import errors
from tests.secured_mosquitto import run_secured
from tests.tables import rows_of
from tests.testbeds import run
from tests.verdicts import faults, without_saturation
from tests.worker.harness import FakeBroker, Session

SECRET = "correct-horse-battery"
SHORT = {"warmup": 0.1, "duration": 1.5}


async def play(tmp_path: Path, case: str, **fields: Any) -> RunResult:
    settle = {} if case == "connburst" else {"settle": 0.2}
    scenario = build_scenario(case, None, {**SHORT, **settle, **fields})
    result = await run(scenario, tmp_path / "run", command=("loadgen", case))
    record = manifest(result.directory)
    assert errors(record, "run-1.schema.json") == []
    card = json.loads(to_json(report_of([summarize_run(result.directory)])))
    assert errors(card, "scorecard-1.schema.json") == []
    files = list(result.directory.glob("intervals/*.parquet"))
    assert len(files) == 1, "a run that has ended has one interval file"
    return result


def total(result: RunResult, name: str, group: str | None = None) -> int:
    return sum(row[name] for row in rows(result.directory) if group in (None, row["group"]))


async def test_devices_subscribe_and_unsubscribe_in_turn(tmp_path: Path) -> None:
    result = await play(
        tmp_path, "fanout", topics=2, ratio=5, rate=20, resubscribe=100, mqtt="5", workers=2
    )
    assert not faults(result.verdict.reasons), result.verdict
    counts = {
        series: sum(row["count"] for row in rows(result.directory) if row["series"] == series)
        for series in ("resubscribe", "unsubscribe", "suback")
    }
    # 1.6 s of schedule, and the moment before it; each device begins with a SUBSCRIBE.
    assert 100 < counts["resubscribe"] + counts["unsubscribe"] <= 200
    assert 0 <= counts["resubscribe"] - counts["unsubscribe"] <= 10 == counts["suback"]


async def test_a_broker_that_crashes_on_request_comes_back_and_so_do_the_devices(
    tmp_path: Path,
) -> None:
    result = await play(
        tmp_path, "persistent", broker="mosquitto", pairs=5, rate=100, crash_broker=0.5, drain=3
    )
    (killed,) = events(result.directory, "broker_killed")
    (started,) = events(result.directory, "broker_started")
    assert killed["detail"] == "mosquitto was killed on request"
    assert started["detail"] == "mosquitto was started again"
    assert result.facts.connects.disconnects == result.facts.connects.reconnects == 10
    assert "DISCONNECTED" not in result.verdict.codes
    # Whatever the broker lost of it: each message was sent, and acknowledged in the end.
    assert total(result, "sent") == total(result, "acknowledged") == 160
    assert result.facts.messages.window.owed == 0
    document = manifest(result.directory)
    recovery = document["observed"]["recovery"]
    assert 0.4 < recovery["crashed_s"] < 1
    assert 0 < recovery["first_back_s"] <= recovery["all_back_s"] <= recovery["drained_s"]
    assert recovery["first_back_s"] <= recovery["first_delivery_s"]


async def test_a_command_of_ones_own_crashes_a_broker_of_ones_own(tmp_path: Path) -> None:
    async with run_mosquitto(ProgramSettings(persistence=True)) as mosquitto:
        fields = {"broker": f"mqtt://{mosquitto.endpoints[0].address}", "pairs": 3, "rate": 60}
        command = f"kill -KILL {mosquitto.pid}"
        playing = asyncio.create_task(
            play(tmp_path, "persistent", **fields, crash_broker=0.5, crash_command=command, drain=3)
        )
        while mosquitto.process.poll() is None and not playing.done():
            await asyncio.sleep(0.01)
        await mosquitto.start()
        result = await playing
    assert result.facts.connects.disconnects == result.facts.connects.reconnects == 6
    assert not result.facts.ending.crash_failure
    document = manifest(result.directory)
    assert 0.4 < document["observed"]["recovery"]["crashed_s"] < 1


async def test_a_crash_that_did_not_happen_proves_nothing(tmp_path: Path) -> None:
    async with run_mosquitto() as mosquitto:
        url = f"mqtt://{mosquitto.endpoints[0].address}"
        result = await play(
            tmp_path,
            "persistent",
            broker=url,
            crash_broker=0.5,
            crash_command="echo 'not today'; exit 3",
        )
    found = {reason.code: reason.values for reason in result.verdict.reasons}
    assert "ended with status 3: not today" in found["CRASH"]["failure"]


async def test_one_reset_and_a_command_that_does_nothing_is_no_crash(tmp_path: Path) -> None:
    fields = {"pairs": 3, "rate": 60, "reconnect": 0.1, "crash_broker": 0.3}
    result = await play_erring(
        tmp_path / "run", "persistent", "reset=400ms,seed=1", **SHORT, **fields, crash_command=":"
    )
    assert result.facts.connects.disconnects and "CRASH" in result.verdict.codes
    assert "recovery" not in manifest(result.directory)["observed"]


async def test_what_still_arrives_when_the_drain_ends_is_late_and_not_lost(tmp_path: Path) -> None:
    fields = {"devices": 5, "rate": 300, "warmup": 0.1, "duration": 1.5, "drain": 3}
    result = await play_erring(tmp_path / "run", "fanin", "ceiling=60", **fields)
    (grows,) = (one for one in result.verdict.reasons if one.code == "BACKLOG_GROWS")
    assert grows.values["drain_s"] == 3 and grows.values["waiting"] > 100
    assert "LOST" not in result.verdict.codes
    run = result.facts.messages.run
    assert run.expected == run.intact + run.unobserved and not run.lost


class Liar(FakeBroker):
    """A broker that, once it has a lie, lies about a session or in a subscriber's handshakes."""

    lie, deliveries, lies = "", 0, 0

    def __init__(self) -> None:
        super().__init__()
        self.held: list[Publish] = []

    async def talk(self, session: Session) -> None:
        expiry_s = 3 if self.lie == "expiry" else None
        await session.welcome(ConnAck(properties=Properties(session_expiry_interval=expiry_s)))
        while True:
            packet = await session.packet()
            if not (self.lie and isinstance(packet, PubRec)):
                session.respond(packet)

    def route(self, packet: Publish) -> None:
        if not self.lie:
            super().route(packet)
            return
        self.deliveries += 1
        # Of four deliveries, which have one acknowledgement, two have one identifier.
        packet_id = self.deliveries - (self.lie == "in use" and self.deliveries % 4 == 2)
        early = [PubRel(packet_id)] * (self.lie == "early")
        self.lies += len(early) + self.deliveries - packet_id
        session = [one for one in self.sessions if one.filters][-1]
        self.held.append(replace(packet, packet_id=packet_id))
        # Together: a device that waits too long for the fourth acknowledges those before.
        if self.lie != "in use" or len(self.held) == 4:
            session.send(*self.held, *early)
            self.held.clear()


@pytest.mark.parametrize(("lie", "qos", "every"), [("in use", 1, 4), ("early", 2, 1)])
async def test_a_lie_in_a_handshake_is_told(tmp_path: Path, lie: str, qos: int, every: int) -> None:
    result, lies = await play_lie(tmp_path, lie, qos=qos, acknowledge_every=every)
    assert without_saturation(result.verdict.codes) == ("PROTOCOL",)
    assert result.facts.messages.run.violations == lies > 30


async def test_a_session_that_may_end_in_the_run_is_refused(tmp_path: Path) -> None:
    result, _ = await play_lie(tmp_path, "expiry", qos=1)
    reason = next(one for one in result.verdict.reasons if one.code == "CONNECT_FAILED")
    assert "Session Expiry Interval 3" in reason.detail


async def play_lie(tmp_path: Path, lie: str, **fields: Any) -> tuple[RunResult, int]:
    async with Liar() as broker:
        url, broker.behaviour = f"mqtt://127.0.0.1:{broker.port}", broker.talk
        fields |= {"broker": url, "anyway": True, "pairs": 1, "rate": 100, "mqtt": "5", **SHORT}

        async def begin() -> None:
            broker.lie = lie

        return await play_checked(tmp_path / "run", "persistent", begin, **fields), broker.lies


@pytest.mark.parametrize(
    ("fault", "state"), [("lose", "lost"), ("repeat", "repeated"), ("corrupt", "damaged")]
)
async def test_faults_are_counted_without_a_header(tmp_path: Path, fault: str, state: str) -> None:
    file, text = tmp_path / "template", '{"id": {device:1}, "text": "' + 400 * "x" + '"}'
    file.write_text(text)
    fields = {"devices": 5, "rate": 300, "payload_template": str(file), "header": "none"}
    fields |= {"size": len(text) - len("{device:1}") + 1, **SHORT}
    result = await play_erring(tmp_path / "run", "fanin", f"{fault}=1/20", **fields)
    run = result.facts.messages.run
    seen = {name: getattr(run, name) for name in ("lost", "repeated", "damaged", "foreign")}
    assert run.sent == 480 and {name: n for name, n in seen.items() if n} == {state: 24}
    assert "BY_ORDER" in [remark.code for remark in result.verdict.remarks]
    assert "transit" not in summarize_run(result.directory).latency


async def test_slow_subscribers_wait_and_the_others_do_not(tmp_path: Path) -> None:
    fields = {"topics": 2, "ratio": 5, "slow_subscribers": 1, "read_rate": "2k"}
    result = await play(tmp_path, "fanout", broker="mosquitto", rate=400, size=500, **fields)
    assert not faults(result.verdict.reasons)
    slow = result.facts.slow
    assert slow is not None
    assert (slow.devices, slow.expected, slow.dropped, slow.disconnects) == (2, 600, 0, 0)
    # 2 KB a second are four messages, of 200 to each.
    assert 450 < slow.waited <= 640
    latency = summarize_run(result.directory).latency
    fast, waited = latency["end_to_end"], latency["background.end_to_end"]
    assert (fast.count, waited.count) == (2_400, 600)
    assert (waited.p50_us or 0) > 500_000 > (fast.p50_us or 0)
    (remark,) = (one.values for one in result.verdict.remarks if one.code == "SLOW")
    assert (remark["devices"], remark["bytes_per_s"]) == (2, 2_000)


@pytest.mark.parametrize("fault", ["none", "lose=1/20"])
async def test_each_device_has_a_row_that_tells_what_it_lost(tmp_path: Path, fault: str) -> None:
    fields = {"topics": 3, "ratio": 4, "rate": 300, "workers": 2, **SHORT, "drain": 0.3}
    result = await play_erring(tmp_path / "run", "fanout", fault, per_device=True, **fields)
    found = pq.read_table(tmp_path / "run" / "devices").to_pylist()
    assert len(found) == 3 + 12
    publishing = [row for row in found if row["group"] == "publishers"]
    receiving = [row for row in found if row["group"] == "subscribers"]
    assert sum(row["sent"] for row in publishing) == total(result, "sent", "publishers")
    sent = {row["device"]: row["sent"] for row in publishing}
    assert [row["expected"] for row in receiving] == [sent[r["device"] // 4] for r in receiving]
    assert sum(row["received"] for row in receiving) == total(result, "received", "subscribers")
    in_window = sum(row["received_in_window"] for row in receiving)
    assert in_window == result.facts.messages.window.intact
    lost = [row["lost"] for row in receiving]
    assert lost == [row["expected"] - row["received"] for row in receiving]
    if fault == "none":
        assert set(lost) == {0}
    else:
        assert sum(lost) >= result.facts.messages.window.lost > 0
    assert "devices/part-000000.parquet" in (tmp_path / "run" / "SHA256SUMS").read_text()


@pytest.mark.parametrize(("case", "fields", "message"), rows_of("integration.unusable"))
async def test_what_cannot_be_used_is_one_line_before_anything_starts(
    tmp_path: Path, case: str, fields: dict[str, Any], message: str
) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(262_145))
    clients = tmp_path / "clients.csv"
    clients.write_text("client_id,username,password\na,ann,\n")
    files = {"{large}": str(large), "{clients}": str(clients)}
    fields = {name: files.get(str(value), value) for name, value in fields.items()}
    with pytest.raises(ScenarioError) as error:
        await play(tmp_path, case, **fields)
    assert error.value.code == message or message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run").exists()


async def test_every_device_has_a_user_of_its_own_over_tls(tmp_path: Path) -> None:
    clients = tmp_path / "clients.csv"
    lines = [f"sensor-{n},user-{n},{SECRET}-{n}" for n in range(8)]
    clients.write_text("\n".join(["client_id,username,password", *lines]))
    fields = {"broker": "mosquitto", "tls": True, "access_control": True, "workers": 2}
    result = await play(
        tmp_path, "fanin", devices=8, rate=80, qos=1, clients_file=str(clients), **fields
    )
    assert total(result, "received") == total(result, "expected") > 0
    document = manifest(result.directory)
    assert document["broker"]["access_control"] == {"users": 10}
    assert document["broker"]["urls"][0].startswith("mqtts://loadgen:***@")
    assert document["observed"]["tls"]["connections"][0]["count"] == 9
    for path in result.directory.rglob("*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes()


@pytest.mark.parametrize(("mqtt", "code"), [("5", "REFUSED"), ("3.1.1", "LOST")])
async def test_what_a_device_has_no_right_to_publish_is_refused(
    tmp_path: Path, mqtt: str, code: str
) -> None:
    clients, rights = tmp_path / "clients.csv", tmp_path / "rights"
    clients.write_text("".join(["client_id,username\n", *(f"c{n},u{n}\n" for n in range(4))]))
    users = (f"user u{n}\ntopic {right} #\n" for n, right in enumerate(["write"] * 3 + ["read"]))
    rights.write_text("topic readwrite #\n" + "".join(users))
    fields = {"devices": 4, "rate": 40, "qos": 1, "mqtt": mqtt, "clients_file": str(clients)}
    async with run_secured("allow_anonymous true", f"acl_file {rights}") as broker:
        url = f"mqtt://{broker.endpoints[0].address}"
        result = await play(tmp_path, "fanin", broker=url, workers=1, **fields)
    assert without_saturation(result.verdict.codes) == (code,), result.verdict
    ledger = result.facts.messages.window
    assert {"REFUSED": ledger.refused, "LOST": ledger.lost}[code] == ledger.sent // 4 == 15


@pytest.mark.parametrize(("case", "fields", "said"), rows_of("integration.when_brokers_store"))
async def test_a_private_broker_says_when_it_stores(
    tmp_path: Path, case: str, fields: dict[str, Any], said: str
) -> None:
    result = await play(tmp_path, case, broker="mosquitto", workers=1, rate=20, **fields)
    broker = manifest(result.directory)["broker"]
    assert said in broker.get("storage", "") and broker.get("stored_first", False) is False
    assert bool(said) == ("storage" in broker)


async def test_the_system_under_test_is_described_in_the_run_and_refused_before_it(
    tmp_path: Path,
) -> None:
    sut = tmp_path / "sut.toml"
    sut.write_text('[machine]\nos = "Debian 12"\n')
    result = await play(tmp_path, "fanin", broker="reflector", devices=2, workers=1, sut=str(sut))
    document = manifest(result.directory)
    assert document["sut"] == {"machine": {"os": "Debian 12"}}
    for content, code in ((b"[machine]\nos = 3", "VALUE"), (b"\xff", "NOT_UTF_8")):
        sut.write_bytes(content)
        with refused(code, ScenarioError):
            await play(tmp_path / "other", "fanin", broker="reflector", sut=str(sut))
    sut.unlink()
    with refused("UNREADABLE", field="sut", reason="no such file or directory"):
        await play(tmp_path / "other", "fanin", broker="reflector", sut=str(sut))
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(("broker", "qos"), [("mosquitto", 0), ("mosquitto", 2), ("reflector", 1)])
async def test_mqtt_3_1_is_played(tmp_path: Path, broker: str, qos: int) -> None:
    result = await play(
        tmp_path, "fanout", broker=broker, mqtt="3.1", topics=2, ratio=3, rate=40, qos=qos
    )
    assert total(result, "received") == total(result, "expected") > 0
    document = manifest(result.directory)
    assert document["broker"]["protocol"] == "MQTT 3.1" and document["plan"]["mqtt"] == "3.1"


@pytest.mark.parametrize(("case", "fields", "code"), rows_of("integration.not_in_3_1"))
async def test_what_mqtt_3_1_cannot_do_is_refused(
    tmp_path: Path, case: str, fields: dict[str, Any], code: str
) -> None:
    with refused(code):
        await play(tmp_path, case, **({"mqtt": "3.1", "broker": "mosquitto"} | fields))


@pytest.mark.parametrize(("broker", "qos", "tls"), rows_of("integration.large"))
async def test_messages_that_no_buffer_holds(
    tmp_path: Path, broker: str, qos: int, tls: bool
) -> None:
    fields = {"qos": qos, "broker": broker, "tls": tls}
    result = await play(tmp_path, "fanout", topics=2, ratio=2, rate=10, size="32-2MB", **fields)
    assert not faults(result.verdict.reasons)
    ledger = result.facts.messages.window
    assert ledger.intact == ledger.expected == 30
    assert total(result, "received_bytes") > 5_000_000


async def test_thresholds_are_held_against_the_figures_of_the_score_card(tmp_path: Path) -> None:
    held = ("lost==0", "intact==150", "end_to_end.p50<1h", "connect.max<1h", "received_rate>99")
    missed = ("end_to_end.max<1ns", "acknowledge.p50>1h", "sent<150", "reconnect.p50<1h")
    result = await play(
        tmp_path, "fanin", broker="reflector", devices=10, rate=100, qos=1, require=[*held, *missed]
    )
    found = [
        one.values["missed"].values for one in result.verdict.reasons if one.code == "THRESHOLD"
    ]
    assert [values["threshold"] for values in found] == list(missed)
    slowest = summarize_run(result.directory).latency["end_to_end"].max_us
    assert found[0]["value"] == slowest
    assert result.exit_status == 1


async def test_a_threshold_that_cannot_hold_any_more_ends_the_run(tmp_path: Path) -> None:
    result = await play(
        tmp_path,
        "fanin",
        broker="reflector",
        devices=10,
        rate=100,
        duration=60,
        require="end_to_end.p50<1ns,lost==0",
        abort_on_fail=True,
    )
    (reason,) = (one for one in result.verdict.reasons if one.code == "THRESHOLD")
    assert reason.values["missed"].values["threshold"] == "end_to_end.p50<1ns"
    assert result.facts.service.ended_by_threshold
    assert result.exit_status == 1 and not result.interrupted
    assert 1 <= result.facts.window_s < 30
    assert result.facts.messages.window.intact > 0
