"""A sink: takes every message and delivers none, as cheaply as Python can.

It answers CONNECT, SUBSCRIBE, UNSUBSCRIBE, PINGREQ and acknowledged PUBLISH, so that a harness can
be calibrated against something that costs next to nothing. Run as a module it is its own child.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from typing import Final, cast

import numpy as np

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child, running
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


class _Drain:
    """What all connections of a sink share."""

    __slots__ = ("buffer", "connections", "out", "received", "view")

    def __init__(self) -> None:
        self.buffer = np.zeros(_BUFFER_BYTES, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]
        self.out = np.zeros(_ANSWER_BYTES, np.uint8)
        self.received = 0
        self.connections: set[_Connection] = set()


class _Connection(asyncio.BufferedProtocol):
    __slots__ = ("closed", "connected", "drain", "partial", "transport", "version")

    def __init__(self, drain: _Drain) -> None:
        self.drain = drain
        self.transport: asyncio.Transport
        self.version = MQTT_5
        self.connected = False
        self.closed = False
        self.partial = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop transports are no subclass of asyncio.Transport.
        self.transport = cast(asyncio.Transport, transport)
        self.drain.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        self.drain.connections.discard(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        view, partial = self.drain.view, self.partial
        if not partial:
            return view
        view[: len(partial)] = partial
        return view[len(partial) :]

    def buffer_updated(self, nbytes: int) -> None:
        end = len(self.partial) + nbytes
        self.partial = b""
        try:
            position = self._swallow(end)
        except RemoteProtocolError:
            self.close()
            return
        if position < end and not self.closed:
            self.partial = bytes(self.drain.view[position:end])

    def close(self) -> None:
        self.closed = True
        self.transport.close()

    def _swallow(self, end: int) -> int:
        drain, position = self.drain, 0
        while position < end and not self.closed:
            if self.connected:
                kind, stop, written, messages = sink_items(
                    drain.buffer, position, end, self.version, _LIMIT_BYTES, drain.out
                )
                drain.received += messages
                if written:
                    self.transport.write(drain.out[:written].tobytes())
                if kind != OTHER:
                    if stop == position or not written:
                        return stop
                    position = stop
                    continue
                position = stop
            decoded = decode(drain.view, position, end, self.version, _LIMIT_BYTES)
            if decoded is None:
                return position
            packet, position = decoded
            self._answer(packet)
        return position

    def _answer(self, packet: Packet) -> None:
        if isinstance(packet, Connect) and not self.connected:
            self.version = packet.protocol_version
            self.connected = True
            # A session cannot be kept, so any identifier will do for a client without one.
            properties = NO_PROPERTIES
            if self.version == MQTT_5:
                name = None if packet.client_id else f"sink-{id(self):x}"
                properties = Properties(
                    assigned_client_identifier=name, maximum_packet_size=_LIMIT_BYTES
                )
            answer: Packet = ConnAck(False, 0, properties)
        elif isinstance(packet, Subscribe) and self.connected:
            granted = tuple(subscription.qos for subscription in packet.subscriptions)
            answer = SubAck(packet.packet_id, granted)
        elif isinstance(packet, Unsubscribe) and self.connected:
            codes = (0,) * len(packet.topic_filters) if self.version == MQTT_5 else ()
            answer = UnsubAck(packet.packet_id, codes)
        elif isinstance(packet, Disconnect) and self.connected:
            self.close()
            return
        else:
            raise RemoteProtocolError(
                f"unexpected {type(packet).__name__}", ReasonCode.PROTOCOL_ERROR
            )
        self.transport.write(encode(answer, self.version))


async def serve(config: Json) -> Serving:
    """The child: what `run_child` wants."""
    drain = _Drain()
    sink_items(drain.buffer, 0, 0, MQTT_5, _LIMIT_BYTES, drain.out)
    listener = listen(config["host"], config["port"], _BACKLOG)
    server = await asyncio.get_running_loop().create_server(
        lambda: _Connection(drain), sock=listener, backlog=_BACKLOG
    )

    async def close() -> None:
        server.close()
        for connection in list(drain.connections):
            connection.transport.abort()

    port = listener.getsockname()[1]
    return Serving({"port": port}, lambda question: {"received": drain.received}, close)


if __name__ == "__main__":
    run_child(serve)
