"""A front that forwards to backends, with real Mosquittos."""

from dataclasses import replace

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.front import bridge_lines, require_forwarding, serve_bridge
from loadgen.errors import BrokerRefusedError
from loadgen.plan.plan import Bridge
from tests.needs import needs_mosquitto
from tests.refusals import refused

TWO = Bridge(2, (), topics=1, front_root="in", backend_root="out", qos=0, durable=False)


def test_configuration_has_a_connection_for_each_backend() -> None:
    backends = [Endpoint("mqtt", "127.0.0.1", port) for port in (1001, 1002)]
    text = "\n".join(bridge_lines(replace(TWO, qos=1), backends))
    first, second = text.split("connection ")[1:]
    assert "address 127.0.0.1:1001" in first and "topic 0 out 1 in/1/ out/1/" in first
    assert "address 127.0.0.1:1002" in second and "topic 0 out 1 in/2/ out/2/" in second
    assert text.count("cleansession false") == 2
    assert "cleansession true" in "\n".join(bridge_lines(TWO, backends))


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1])
async def test_private_bridge_forwards_every_topic(qos: int) -> None:
    three = replace(TWO, topics=3, qos=qos, durable=bool(qos))
    async with serve_bridge(three) as bridge:
        front, *backends = bridge.endpoints
        assert len({endpoint.port for endpoint in bridge.endpoints}) == 3
        await require_forwarding(front, backends, three)


@needs_mosquitto
async def test_what_is_not_forwarded_is_named() -> None:
    async with serve_bridge(TWO) as bridge:
        front, *backends = bridge.endpoints
        more = replace(TWO, topics=2)
        with pytest.raises(BrokerRefusedError) as caught:
            await require_forwarding(front, backends, more, timeout_s=0.5)
        text = str(caught.value)
        assert "in/1/1 to" in text and "in/2/1 to" in text and "in/1/0" not in text
        assert f"{backends[1].redacted} as out/2/1" in text and "\n" not in text
        bridge.brokers[2].kill()
        with refused("NOT_RUNNING", where=backends[1].redacted):
            await require_forwarding(front, backends, more, timeout_s=0.5)
