"""Each CONNACK and each SUBACK is judged, for its connection alone."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from loadgen.kernels.device import CLOSED, CONNECTED
from loadgen.mqtt import violations
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import ConnAck, Disconnect
from loadgen.mqtt.properties import Properties
from loadgen.plan.plan import PhasePlan
from tests.fuzz.sessions import START_NS, Player
from tests.tables import rows_of

PACKET_BYTES = 2 + 5 + 2 + 1 + 32
"""Size of a PUBLISH: fixed header, topic t/0, identifier, no properties, and payload."""


@pytest.fixture
def player() -> Iterator[Player]:
    found = Player(5, 1, 1, count=2)
    found.begin()
    yield found
    found.end()


def accept(player: Player, row: int, *, present: bool = False, **properties: Any) -> bytes:
    player.connect(row, START_NS)
    packet = ConnAck(present, properties=Properties(**properties))
    return player.receive(row, encode(packet, 5), START_NS)


def test_a_server_keep_alive_is_that_of_its_connection(player: Player) -> None:
    accept(player, 0, server_keep_alive=600)
    accept(player, 1)
    seconds = player.fleet.devices["keep_alive_ns"][:2] // 10**9
    assert seconds.tolist() == [600, 60]


def test_the_receive_maximum_is_that_of_its_connection(player: Player) -> None:
    accept(player, 0, receive_maximum=1)
    accept(player, 1)
    assert player.fleet.senders["capacity"][:2].tolist() == [1, 4]


@pytest.mark.parametrize(("away_s", "present", "stated_s", "wrong"), rows_of("worker.expiry"))
def test_a_session_lasts_as_long_as_its_expiry(
    player: Player, away_s: int, present: bool, stated_s: int, wrong: str
) -> None:
    accept(player, 2)
    player.lose(2)
    device = player.fleet.devices[2]
    device.due_ns, device.left_ns = 1, START_NS - away_s * 10**9
    accept(player, 2, present=present, session_expiry_interval=stated_s or None)
    found = [getattr(violations, wrong)] if wrong else []
    assert np.flatnonzero(player.fleet.violations).tolist() == found


@pytest.mark.parametrize(("given_s", "state"), [(9, CLOSED), (10, CONNECTED), (None, CONNECTED)])
def test_a_session_that_ends_before_the_run_is_refused(given_s: int | None, state: int) -> None:
    player = Player(5, 1, 1, phases=PhasePlan(warmup_s=1, duration_s=5, drain_s=4))
    player.begin()
    accept(player, 1, session_expiry_interval=given_s)
    assert player.fleet.devices["state"][1] == state
    player.end()


def test_a_publisher_may_lose_a_session_that_ends_with_its_connection() -> None:
    player = Player(5, 1, 1, clean_start=False)
    player.begin()
    for _ in range(2):
        accept(player, 0, session_expiry_interval=0)
        assert player.fleet.devices["state"][0] == CONNECTED
        player.lose(0)
        player.fleet.devices["left_ns"][0] = START_NS - 10**9
    assert not player.fleet.violations.any()
    player.end()


@pytest.mark.parametrize("limit", [{"maximum_qos": 0}, {"maximum_packet_size": PACKET_BYTES - 1}])
def test_a_device_that_may_not_do_as_planned_leaves(player: Player, limit: dict[str, Any]) -> None:
    accept(player, 0, maximum_packet_size=PACKET_BYTES)
    assert len(player.publish(START_NS)) == PACKET_BYTES
    assert accept(player, 1, **limit) == encode(Disconnect(), 5)
    assert player.fleet.devices["state"][:2].tolist() == [CONNECTED, CLOSED]
    totals = player.fleet.totals
    assert (totals.connect_failures, totals.disconnects) == (1, 0)


@pytest.mark.parametrize(("churned", "data", "wrong"), rows_of("worker.answers"))
def test_each_later_answer_is_judged(player: Player, churned: int, data: str, wrong: str) -> None:
    accept(player, 2)
    player.lifecycle.subscriptions._churned = {2} if churned else set()
    player.lifecycle.subscriptions._take_turn(2)
    player.receive(2, bytes.fromhex(data), START_NS)
    found = [getattr(violations, wrong)] if wrong else []
    assert np.flatnonzero(player.fleet.violations).tolist() == found
