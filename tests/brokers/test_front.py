"""A front that forwards to backends, with real Mosquittos."""

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.front import bridge_lines, require_forwarding, routes_of, serve_bridge
from loadgen.errors import BrokerRefusedError
from tests.needs import needs_mosquitto
from tests.refusals import refused


def test_configuration_has_a_connection_for_each_backend() -> None:
    backends = [Endpoint("mqtt", "127.0.0.1", port) for port in (1001, 1002)]
    text = "\n".join(bridge_lines(routes_of(2, 1, "in", "out"), backends, 1))
    first, second = text.split("connection ")[1:]
    assert "address 127.0.0.1:1001" in first and "topic 0 out 1 in/1/ out/1/" in first
    assert "address 127.0.0.1:1002" in second and "topic 0 out 1 in/2/ out/2/" in second
    assert text.count("cleansession false") == 2
    assert "cleansession true" in "\n".join(bridge_lines((), backends, 0))


@needs_mosquitto
@pytest.mark.parametrize("qos", [0, 1])
async def test_private_bridge_forwards_every_topic(qos: int) -> None:
    routes = routes_of(2, 3, "in", "out")
    async with serve_bridge(routes, 2, qos, persistence=bool(qos)) as bridge:
        front, *backends = bridge.endpoints
        assert len({endpoint.port for endpoint in bridge.endpoints}) == 3
        await require_forwarding([front], backends, routes)


@needs_mosquitto
async def test_what_is_not_forwarded_is_named() -> None:
    async with serve_bridge(routes_of(2, 1, "in", "out"), 2, 0) as bridge:
        front, *backends = bridge.endpoints
        more = routes_of(2, 2, "in", "out")
        with pytest.raises(BrokerRefusedError) as caught:
            await require_forwarding([front], backends, more, timeout_s=0.5)
        text = str(caught.value)
        assert "in/1/1 to" in text and "in/2/1 to" in text and "in/1/0" not in text
        assert f"{backends[1].redacted} as out/2/1" in text and "\n" not in text
        bridge.brokers[2].kill()
        with refused("NOT_RUNNING", where=backends[1].redacted):
            await require_forwarding([front], backends, more, timeout_s=0.5)
