"""Schedules are drawn as promised, and the few that together have every fault are played."""

from pathlib import Path

import pytest

from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.cases.registry import build_scenario, resolve
from tests.faults.expected import differences, expected
from tests.faults.play import play
from tests.faults.schedules import BRIDGED, CLIENT_ID, KINDS, MESSAGING, Action, Schedule, draw
from tests.instruments.faults import COUNTED_AS, parse_faults
from tests.needs import needs_mosquitto

SEEDS = range(1, 101)
FLEET = {
    "workers": 2,
    "client_id": CLIENT_ID,
    "duration": 2.0,
    "warmup": 0.2,
    "drain": 4.0,
    "connect_timeout": 10.0,
}


GROUPS = [
    {"name": "sensors", "count": 4, "topic": "$run/plant/{device}"},
    {"name": "boards", "count": 1, "subscribe": ["$run/plant/+"]},
    {"name": "archive", "count": 2, "subscribe": ["$share/archive/$run/#"]},
]


def _schedule(kind: str, case: str, qos: int, version: str, **more: object) -> Schedule:
    """One of those that are played here; what is no field of a schedule is one of the scenario."""
    names = ("transport", "broker", "liar", "faults", "actions")
    own = {name: more.pop(name) for name in names if name in more}
    fields = {**FLEET, **more, "qos": qos, "mqtt": version}
    return Schedule(0, kind, case, fields, qos, version, **own)  # type: ignore[arg-type]


PLAYED = [
    _schedule(
        "deliveries", "fanout", 1, "5", topics=2, ratio=2, rate=120.0, liar="broker",
        size="40-200",
        faults="lose=1/40,repeat=1/37,reorder=1/35,corrupt=1/33,misroute=1/31,mislabel=1/30,"
        "foreign=1/29,downgrade=1/28,alias=1/27,seed=5",
    ),
    _schedule(
        "messages", "persistent", 2, "5", pairs=3, rate=120.0, transport="tls",
        broker="mosquitto", max_unacknowledged=1_000,
        faults="reject=0x97@1/20,withhold=1/15,unsolicited=1/12,delay=50ms@1/10,seed=6",
    ),
    _schedule(
        "connections", "connburst", 1, "5", devices=40, subscribe=True, warmup=0.0, duration=0.5,
        transport="ws",
        faults="refuse=0x89@1/7,close=1/9,session=1/6,subrefuse=0x87@1/5,subgrant=0@1/3,seed=7",
    ),
    _schedule(
        "kill", "persistent", 1, "3.1.1", pairs=2, rate=80.0, broker="mosquitto",
        reconnect=0.1, reconnect_max=0.2, actions=(Action(0.6, "kill broker", 0.3),),
    ),
    _schedule(
        "return", "fanin", 1, "5", devices=5, rate=100.0, reconnect=0.1, reconnect_max=0.2,
        transport="ws",
        actions=(
            Action(0.4, "faults", "reset=200ms,drop=1/40,seed=3"),
            Action(1.4, "faults", "none"),
        ),
    ),
    _schedule("absent", "fanin", 0, "5", devices=12, rate=100.0, transport="tls", churn=8.0,
              away=0.2, actions=(Action(0.5, "faults", "refuse=0x89"), Action(0.8, "cut", 2))),
    _schedule("stall", "request", 2, "5", devices=4, responders=2, rate=80.0,
              faults="unreleased=1/9", actions=(Action(0.5, "stall", 0.5),)),
    # Messages that still arrive when the drain ends are late, and not lost.
    _schedule("late", "run", 0, "5", group=GROUPS, rate=200.0, drain=1.5, transport="wss",
              actions=(Action(0.2, "faults", "ceiling=60"),)),
    _schedule("stands", "fanin", 1, "3.1.1", devices=8, rate=400.0,
              actions=(Action(1.0, "freeze broker", 1.5),), broker="mosquitto"),
    _schedule("kill worker", "fanin", 1, "5", devices=6, rate=100.0,
              actions=(Action(0.8, "kill worker"),)),
    _schedule("freeze worker", "fanin", 1, "5", devices=6, rate=100.0,
              actions=(Action(0.5, "freeze worker", 1.0),)),
    _schedule("bridge", "bridge", 1, "3.1.1", devices=4, topics=2, rate=100.0, **BRIDGED,
              broker="mosquitto", faults="lose=1/30,repeat=1/20,seed=4"),
    _schedule("kill coordinator", "persistent", 1, "5", pairs=2, rate=80.0,
              actions=(Action(1.2, "kill coordinator"),)),
    _schedule("interrupt", "fanout", 2, "5", topics=2, ratio=2, rate=80.0,
              actions=(Action(1.0, "interrupt"),)),
    _schedule("freeze coordinator", "fanin", 1, "5", devices=6, rate=100.0,
              actions=(Action(1.5, "freeze coordinator", (1.0, 1.0)),)),
]  # fmt: skip


def test_the_seed_decides() -> None:
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    assert [draw(seed).kind for seed in range(1, len(KINDS) + 1)] == list(KINDS)


def test_a_hundred_seeds_have_every_case_qos_version_transport_and_broker() -> None:
    drawn = [draw(seed) for seed in SEEDS]
    assert {one.case for one in drawn} == {*MESSAGING, "connburst", "specjms"}
    assert {(one.qos, one.version) for one in drawn} == {
        (qos, version) for qos in (0, 1, 2) for version in ("3.1.1", "5")
    }
    assert {(one.transport, one.broker) for one in drawn} == {
        (transport, broker)
        for transport in ("tcp", "tls", "ws", "wss")
        for broker in ("reflector", "mosquitto")
    }
    assert {one.kind for one in drawn} == set(KINDS)


@pytest.mark.parametrize("schedule", [*map(draw, SEEDS), *PLAYED], ids=lambda one: str(one)[:60])
def test_every_schedule_can_be_played(schedule: Schedule) -> None:
    parse_faults(schedule.faults)
    resolve(build_scenario(schedule.case, None, schedule.fields))
    assert str(schedule).isprintable()


def test_what_is_played_here_has_every_fault() -> None:
    played = [parse_faults(one.faults) for one in PLAYED]
    played += [
        parse_faults(action.value)
        for one in PLAYED
        for action in one.actions
        if action.name == "faults"
    ]
    had = {name for name in COUNTED_AS for faults in played if faults.chance(name)}
    assert had == set(COUNTED_AS)
    kinds = {action.name for one in PLAYED for action in one.actions}
    drawn = {action.name for seed in SEEDS for action in draw(seed).actions}
    # Agents may have to compile their kernels; `python -m tests.faults --only` plays these.
    assert drawn - kinds == {"quota", "freeze agent", "kill agent"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    made = tmp_path_factory.mktemp("certificates") / "made"
    return make_certificates(made, ["127.0.0.1"], clients=0, key="ecdsa")


@needs_mosquitto
@pytest.mark.parametrize("schedule", PLAYED, ids=lambda one: one.kind)
async def test_a_run_says_what_really_happened(
    schedule: Schedule, tmp_path: Path, certificates: CertificateFiles
) -> None:
    played = await play(schedule, tmp_path, certificates)
    found = differences(expected(schedule, played.truth), played.codes, played.ledger)
    assert found == [], "\n".join(played.reasons)
    wanted = parse_faults(schedule.faults)
    missing = {n for n in COUNTED_AS if wanted.chance(n) and not played.truth.faults.get(n)}
    assert not missing, "a fault never happened"
