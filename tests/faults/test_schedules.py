"""Schedules are drawn as promised, and the few that together have every fault are played."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.cases.registry import build_scenario, resolve
from tests.faults.expected import differences, expected
from tests.faults.play import play
from tests.faults.schedules import KINDS, MESSAGING, Action, Schedule, draw
from tests.instruments.faults import COUNTED_AS, parse_faults
from tests.needs import needs_mosquitto
from tests.tables import table

SEEDS = range(1, 101)
TABLE = table("faults")


def _schedule(
    kind: str,
    case: str,
    qos: int,
    version: str,
    fields: dict[str, Any],
    actions: Sequence[Sequence[Any]] = (),
    **own: Any,
) -> Schedule:
    """One of those that are played here."""
    fields = {**TABLE["fields"], **fields, "qos": qos, "mqtt": version}
    done = tuple(Action(*one) for one in actions)
    return Schedule(0, kind, case, fields, qos, version, actions=done, **own)


PLAYED = [_schedule(**one) for one in TABLE["played"]]


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
