"""Brokers with and without shared subscriptions."""

import pytest

from loadgen.brokers.mosquitto import find_mosquitto
from loadgen.brokers.shared import require_shared
from loadgen.brokers.start import serve
from loadgen.errors import BrokerRefusedError


@pytest.mark.skipif(find_mosquitto() is None, reason="the program mosquitto is not installed")
async def test_mosquitto_has_them() -> None:
    async with serve("mosquitto") as served:
        await require_shared(served.endpoints[0])


async def test_the_reflector_has_them() -> None:
    async with serve("reflector") as served:
        await require_shared(served.endpoints[0])


async def test_a_broker_without_mqtt_5_is_refused_in_one_line() -> None:
    async with serve("amqtt") as served:
        with pytest.raises(BrokerRefusedError) as caught:
            await require_shared(served.endpoints[0])
    text = str(caught.value)
    assert "does not speak MQTT 5" in text and "shared subscriptions" in text
    assert text.startswith(served.endpoints[0].redacted) and "\n" not in text


@pytest.mark.parametrize(("faults", "copies"), [("repeat=1/1", "8"), ("lose=1/1", "0")])
async def test_messages_that_come_twice_or_never_are_no_shared_subscription(
    faults: str, copies: str
) -> None:
    async with serve("reflector", faults=faults) as served:
        with pytest.raises(BrokerRefusedError, match=f"two consumers got {copies}"):
            await require_shared(served.endpoints[0])
