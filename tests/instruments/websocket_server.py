"""The server's side of a WebSocket connection (MQTT 5, section 6), as a transport for MQTT."""

import asyncio
from http import HTTPStatus
from typing import Final, cast

from websockets.frames import Frame, Opcode
from websockets.http11 import Request, Response
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

_MQTT: Final = Subprotocol("mqtt")


class WebSocketServer(asyncio.Protocol, asyncio.Transport):
    """Between a socket's transport and the MQTT connection `inner`, whose transport it is."""

    def __init__(self, inner: asyncio.BufferedProtocol) -> None:
        super().__init__()
        self._inner = inner
        self._framing = ServerProtocol(subprotocols=[_MQTT])
        self._outer: asyncio.Transport

    # As a protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._outer = cast(asyncio.Transport, transport)
        self._inner.connection_made(self)

    def data_received(self, data: bytes) -> None:
        self._framing.receive_data(data)
        for event in self._framing.events_received():
            if isinstance(event, Request) and not self._framing.eof_sent:
                self._framing.send_response(self._answer(event))
            elif isinstance(event, Frame) and event.opcode in (Opcode.BINARY, Opcode.CONT):
                self._feed(memoryview(event.data))
        self._flush()
        if self._framing.close_expected():
            self._outer.close()

    def _answer(self, request: Request) -> Response:
        try:
            return self._framing.accept(request)
        except UnicodeError:
            # The library's refusal repeats what was asked for, which need not be text.
            return self._framing.reject(HTTPStatus.BAD_REQUEST, "")

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._inner.connection_lost(exc)

    # As a transport

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._framing.send_binary(bytes(data))
        self._flush()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._outer.set_write_buffer_limits(high, low)

    def pause_reading(self) -> None:
        self._outer.pause_reading()

    def resume_reading(self) -> None:
        self._outer.resume_reading()

    def is_closing(self) -> bool:
        return self._outer.is_closing()

    def close(self) -> None:
        self._outer.close()

    def abort(self) -> None:
        self._outer.abort()

    def _feed(self, data: memoryview) -> None:
        while data:
            room = cast(memoryview, self._inner.get_buffer(-1))
            count = min(len(room), len(data))
            room[:count] = data[:count]
            data = data[count:]
            self._inner.buffer_updated(count)

    def _flush(self) -> None:
        for data in self._framing.data_to_send():
            if data:
                self._outer.write(data)
