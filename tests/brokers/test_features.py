"""Each feature is found if a broker has it, and missed if it lacks it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from loadgen.brokers.ask import greet
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.features import QUIET_S, Feature, Trial, feature_of, features_of
from loadgen.brokers.reflector import run_reflector
from loadgen.mqtt.packets import PubAck, SubAck
from loadgen.mqtt.properties import Properties
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.needs import needs_mosquitto
from tests.secured_mosquitto import run_secured

ABLE = {
    "maximum_qos": 2,
    "payload_bytes": 256 << 10,
    "retain_available": True,
    "wildcard_subscription_available": True,
    "subscription_identifier_available": True,
    "shared_subscription_available": True,
    "session_available": True,
    "will_available": True,
}


async def tried(broker: LittleBroker, name: str) -> Feature:
    async with serving_little(broker) as endpoint:
        return await feature_of(name, Trial(await greet(endpoint), None, QUIET_S))


async def found_at(endpoint: Endpoint) -> dict[str, Feature]:
    return await features_of(await greet(endpoint), None, QUIET_S)


@needs_mosquitto
async def test_mosquitto_can_do_all() -> None:
    async with run_secured("max_inflight_messages 55", "max_keepalive 900") as broker:
        found = await found_at(broker.endpoints[0])
    assert {name: found[name].value for name in ABLE} == ABLE
    assert found["receive_maximum"] == Feature(55, "stated")
    assert found["topic_alias_maximum"] == Feature(10, "tried")
    assert found["maximum_packet_size_bytes"] == Feature(None, "default")
    assert found["server_keep_alive_s"].value == 900


async def test_the_reflector_can_do_all_but_aliases_and_identifiers() -> None:
    async with run_reflector() as broker:
        found = await found_at(broker.endpoints[0])
    assert {name: found[name].value for name in ABLE} == ABLE | {
        "subscription_identifier_available": False
    }
    assert found["topic_alias_maximum"].value == 0
    assert found["maximum_packet_size_bytes"] == Feature(16 << 20, "stated")


def saying(**properties: Any) -> Callable[[], LittleBroker]:
    return lambda: LittleBroker(connack=Properties(**properties))


@pytest.mark.parametrize(
    ("able", "name", "value", "told"),
    [
        (saying(maximum_qos=1), "maximum_qos", 1, "allows QoS 1 at most"),
        (
            lambda: LittleBroker(suback=lambda packet: SubAck(packet.packet_id, (0,))),
            "maximum_qos",
            0,
            "grants QoS 0 and not 1",
        ),
        (
            lambda: LittleBroker(acknowledgement=lambda packet: PubAck(packet.packet_id)),
            "maximum_qos",
            1,
            "answered a publication of the probe to loadgen-asks-",
        ),
        (saying(retain_available=0), "retain_available", False, "retains no messages"),
        (LittleBroker, "retain_available", False, "does not retain messages: none came to"),
        (LittleBroker, "will_available", False, "no will came when a connection was cut"),
        (
            saying(wildcard_subscription_available=0),
            "wildcard_subscription_available",
            False,
            "allows no wildcard subscription",
        ),
        (
            lambda: LittleBroker(shares=False),
            "shared_subscription_available",
            False,
            "has no shared subscriptions: a message came to 2 consumers of one",
        ),
        (
            lambda: LittleBroker(sessions=False),
            "session_available",
            False,
            "keeps no session of a client that is away",
        ),
        (
            saying(subscription_identifier_available=0),
            "subscription_identifier_available",
            False,
            "",
        ),
        (
            LittleBroker,
            "subscription_identifier_available",
            False,
            "a message came without the identifier",
        ),
        (
            saying(topic_alias_maximum=3),
            "topic_alias_maximum",
            3,
            "a message with an alias in place of its topic did not come back",
        ),
        (saying(maximum_packet_size=70_000), "payload_bytes", 64 << 10, "70,000 bytes at most"),
        (saying(maximum_packet_size=70_000), "maximum_packet_size_bytes", 70_000, ""),
        (saying(receive_maximum=7), "receive_maximum", 7, ""),
        (LittleBroker, "receive_maximum", 65_535, ""),
        (saying(server_keep_alive=30), "server_keep_alive_s", 30, ""),
        (saying(session_expiry_interval=300), "session_expiry_s", 300, ""),
        (LittleBroker, "session_expiry_s", None, "as long as a client asks for"),
    ],
)
async def test_what_a_broker_lacks(
    able: Callable[[], LittleBroker], name: str, value: Any, told: str
) -> None:
    found = await tried(able(), name)
    assert found.value == value
    assert told in found.detail
    assert "127.0.0.1" not in found.detail


async def test_a_keep_alive_that_repeats_ours_is_not_the_brokers_own() -> None:
    echoing = LittleBroker()
    echoing.greets = lambda packet: Properties(server_keep_alive=packet.keep_alive)
    found = await tried(echoing, "server_keep_alive_s")
    assert found == Feature(None, "tried", "it repeats what the client asks for")


async def test_of_3_1_1_only_what_it_has_is_tried() -> None:
    async with serving_little(replace(LittleBroker(), versions=(4,))) as endpoint:
        found = await found_at(endpoint)
    assert found["maximum_qos"].value == 2
    assert found["shared_subscription_available"].value is True
    for name in ("receive_maximum", "topic_alias_maximum", "session_expiry_s"):
        assert found[name] == Feature(None, "absent", "MQTT 5 only")
