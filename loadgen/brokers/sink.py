"""The sink: a broker that takes every message and delivers none, as cheaply as Python can.

It answers CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ and acknowledged PUBLISH, so that a harness can
be calibrated against something that costs next to nothing. Run as a module it is its own child.
"""

from contextlib import AbstractAsyncContextManager
from typing import Final

import numpy as np

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import running
from loadgen.brokers.reflector_clients import BUFFER_BYTES, Connection, Host
from loadgen.errors import RemoteProtocolError
from loadgen.kernels.scan import OTHER, sink_items
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.packets import (
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import ReasonCode

_ANSWER_BYTES: Final = 1 << 16
_LIMIT_BYTES: Final = BUFFER_BYTES // 2


class Sink(ChildBroker):
    """A running sink; made by `run_sink`."""

    async def received(self) -> int:
        """Return the number of PUBLISH packets since its start."""
        number: int = (await self.ask())["received"]
        return number


def run_sink(*, host: str = "127.0.0.1", port: int = 0) -> AbstractAsyncContextManager[Sink]:
    """Run a sink for the length of the block; `port` 0 chooses one."""
    endpoint = Endpoint("mqtt", host, port)
    return running(Sink("sink", "loadgen sink", "loadgen.brokers.sink", endpoint))


class _Client(Connection):
    connected = False


class _Drain(Host):
    """Discards all messages."""

    def __init__(self) -> None:
        super().__init__()
        self.out = np.zeros(_ANSWER_BYTES, np.uint8)
        self.received = 0

    def detach(self, connection: Connection, *, clean: bool) -> None:
        """Keep nothing: a client has no session."""

    def consume(self, connection: Connection, end: int) -> int:
        """Discard the packets in `view[:end]` and return where the first incomplete one begins."""
        assert isinstance(connection, _Client)
        position = 0
        while position < end and not connection.closed:
            if connection.connected:
                kind, stop, written, messages = sink_items(
                    self.buffer, position, end, connection.version, _LIMIT_BYTES, self.out
                )
                self.received += messages
                if written:
                    connection.write(self.out[:written].tobytes())
                if kind != OTHER:
                    if stop == position or not written:
                        return stop
                    position = stop
                    continue
                position = stop
            decoded = decode(self.view, position, end, connection.version, _LIMIT_BYTES)
            if decoded is None:
                return position
            packet, position = decoded
            _answer(connection, packet)
        return position


def _answer(client: _Client, packet: Packet) -> None:
    if isinstance(packet, Connect) and not client.connected:
        client.version = packet.protocol_version
        client.connected = True
        # A session cannot be kept, so any identifier will do for a client without one.
        properties = NO_PROPERTIES
        if client.version == MQTT_5:
            name = None if packet.client_id else f"sink-{id(client):x}"
            properties = Properties(
                assigned_client_identifier=name, maximum_packet_size=_LIMIT_BYTES
            )
        answer: Packet = ConnAck(False, 0, properties)
    elif isinstance(packet, Subscribe) and client.connected:
        granted = tuple(subscription.qos for subscription in packet.subscriptions)
        answer = SubAck(packet.packet_id, granted)
    elif isinstance(packet, Unsubscribe) and client.connected:
        codes = (0,) * len(packet.topic_filters) if client.version == MQTT_5 else ()
        answer = UnsubAck(packet.packet_id, codes)
    elif isinstance(packet, Disconnect) and client.connected:
        client.end(None)
        return
    else:
        raise RemoteProtocolError(f"unexpected {type(packet).__name__}", ReasonCode.PROTOCOL_ERROR)
    client.write(encode(answer, client.version))


async def serve(config: Json) -> Serving:
    """Serve as a child process, for `run_child`."""
    drain = _Drain()
    sink_items(drain.buffer, 0, 0, MQTT_5, _LIMIT_BYTES, drain.out)
    return await drain.listen(
        config, lambda: _Client(drain), lambda question: {"received": drain.received}
    )


if __name__ == "__main__":
    run_child(serve)
