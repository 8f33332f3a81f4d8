"""A sink: takes every message and delivers none, as cheaply as Python can.

It answers CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ and acknowledged PUBLISH, so that a harness can
be calibrated against something that costs next to nothing. Run as a module it is its own child.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final

import numpy as np

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child, running
from loadgen.brokers.clients import Connection, Ledger
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import listen
from loadgen.brokers.scan import OTHER, sink_items
from loadgen.errors import RemoteProtocolError
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

_BUFFER_BYTES: Final = 1 << 20
_ANSWER_BYTES: Final = 1 << 16
_LIMIT_BYTES: Final = _BUFFER_BYTES // 2
_BACKLOG: Final = 4096


class Sink(ChildBroker):
    """A running sink; made by `run_sink`."""

    def __init__(self, host: str, port: int) -> None:
        endpoint = Endpoint("mqtt", host, port)
        super().__init__("sink", "loadgen sink", "loadgen.brokers.sink", endpoint)

    async def received(self) -> int:
        """PUBLISH packets swallowed since it started."""
        number: int = (await self.ask())["received"]
        return number


def run_sink(*, host: str = "127.0.0.1", port: int = 0) -> AbstractAsyncContextManager[Sink]:
    """A sink for the length of the block; `port` 0 chooses one."""
    return running(Sink(host, port))


class _Client(Connection):
    connected = False


class _Drain:
    """Swallows what comes; what the connections share, as `clients.Host` says."""

    stalled = False
    tick = 0

    def __init__(self) -> None:
        self.connections: set[Connection] = set()
        self.ledger = Ledger()
        self.out = np.zeros(_ANSWER_BYTES, np.uint8)
        self.received = 0
        self.grow_buffer(_BUFFER_BYTES)

    def grow_buffer(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    def detach(self, connection: Connection, *, clean: bool) -> None:
        """Nothing is kept for a client."""

    def consume(self, connection: Connection, end: int) -> int:
        """Swallow the packets in `view[:end]`; where the first incomplete one begins."""
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
    """The child: what `run_child` wants."""
    drain = _Drain()
    sink_items(drain.buffer, 0, 0, MQTT_5, _LIMIT_BYTES, drain.out)
    listener = listen(config["host"], config["port"], _BACKLOG)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Client(drain), sock=listener, backlog=_BACKLOG
    )

    async def close() -> None:
        server.close()
        for connection in list(drain.connections):
            connection.cut()

    port = listener.getsockname()[1]
    return Serving({"port": port}, lambda question: {"received": drain.received}, close)


if __name__ == "__main__":
    run_child(serve)
