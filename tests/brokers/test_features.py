"""A feature is reported if a broker has it, and missed if it lacks it."""

from pathlib import Path
from typing import Any

import pytest

from loadgen.brokers.ask import greet
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.features import QUIET_S, Feature, feature_of, features_of
from loadgen.brokers.reflector import run_reflector
from loadgen.mqtt.packets import PubAck, SubAck
from loadgen.mqtt.properties import Properties
from loadgen.plan.scenario import read_toml
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
        return await feature_of(name, await greet(endpoint), None, QUIET_S)


async def found_at(endpoint: Endpoint) -> dict[str, Feature]:
    return await features_of(await greet(endpoint), None, QUIET_S)


@needs_mosquitto
async def test_mosquitto_can_do_all() -> None:
    async with run_secured("max_inflight_messages 55", "max_keepalive 900") as broker:
        found = await found_at(broker.endpoints[0])
    assert {name: found[name].value for name in ABLE} == ABLE
    assert found["receive_maximum"] == Feature(55, "stated")
    assert found["topic_alias_maximum"] == Feature(10, "tried")
    assert found["maximum_packet_size_bytes"] == Feature(None, "default", unlimited=True)
    assert found["server_keep_alive_s"].value == 900


async def test_features_that_the_reflector_lacks() -> None:
    async with run_reflector() as broker:
        found = await found_at(broker.endpoints[0])
    lacking = ("subscription_identifier", "retain", "session", "will")
    lacks = dict.fromkeys([f"{one}_available" for one in lacking], False)
    assert {name: found[name].value for name in ABLE} == ABLE | lacks
    assert found["topic_alias_maximum"].value == 0
    assert found["maximum_packet_size_bytes"] == Feature(16 << 20, "stated")


FEATURES = read_toml((Path(__file__).parent / "features.toml").read_text())["features"]


@pytest.mark.parametrize(
    ("able", "name", "value", "code"),
    [
        *FEATURES,  # type: ignore[misc]
        ({"suback": lambda p: SubAck(p.packet_id, (0,))}, "maximum_qos", 0, "QOS_GRANTED"),
        ({"acknowledgement": lambda p: PubAck(p.packet_id)}, "maximum_qos", 1, "WRONG_ANSWER"),
        ({}, "session_expiry_s", None, "ENDLESS_SESSION"),
        ({}, "server_keep_alive_s", None, "LONG_KEEP_ALIVE"),
    ],
)
async def test_a_missing_feature_is_noticed(
    able: dict[str, Any], name: str, value: Any, code: str
) -> None:
    connack = Properties(**able.get("connack", {}))
    feature = await tried(LittleBroker(**{**able, "connack": connack}), name)
    assert feature.value == value
    assert getattr(feature.detail, "code", "") == code
    assert "127.0.0.1" not in feature.detail


async def test_an_echo_of_the_keep_alive_is_no_limit() -> None:
    echoing = LittleBroker()
    echoing.greets = lambda packet: Properties(server_keep_alive=packet.keep_alive)
    feature = await tried(echoing, "server_keep_alive_s")
    assert (feature.value, feature.unlimited) == (None, True)
    assert getattr(feature.detail, "code", "") == "ECHOED_KEEP_ALIVE"


@pytest.mark.parametrize("broker", [LittleBroker(versions=(4,)), LittleBroker(lies=True)])
async def test_of_3_1_1_only_its_features_are_tried(broker: LittleBroker) -> None:
    async with serving_little(broker) as endpoint:
        features = await found_at(endpoint)
    assert features["maximum_qos"].value == 2
    assert features["shared_subscription_available"].value is True
    assert features["wildcard_subscription_available"].value is True
    for name in ("receive_maximum", "topic_alias_maximum", "session_expiry_s"):
        assert features[name] == Feature(None, "absent", "MQTT 5 only")
