"""The worker's end of its channel to the coordinator, with the commands under way and the lease."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from typing import cast

from loadgen.errors import LoadgenError, as_header
from loadgen.worker.frames import FrameReader, Header, encode_frame

Command = Callable[[Header], Awaitable[Header]]
"""Function from a command's frame header to the fields of the answer."""

LEASE_S = 20.0


class Channel(asyncio.Protocol):
    """Commands come in; answers, rows and events go out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.ended = loop.create_future()
        self.commands: Mapping[str, Command] = {}
        self.lease_s = LEASE_S
        self._transport: asyncio.WriteTransport | None = None
        self._frames = FrameReader()
        self._heard_s = loop.time()
        self._was_silent = False

    @property
    def descriptor(self) -> int:
        assert self._transport is not None
        return int(self._transport.get_extra_info("socket").fileno())

    @property
    def is_writing(self) -> bool:
        """Return True if the loop still has to write bytes."""
        return self._transport is not None and self._transport.get_write_buffer_size() > 0

    async def obey(self, sock: socket.socket, commands: Mapping[str, Command]) -> None:
        """Execute the commands that arrive on `sock` until it closes; raise unforeseen errors."""
        self.commands = commands
        sock.setblocking(False)
        await self.loop.connect_accepted_socket(lambda: self, sock)
        await self.ended

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def data_received(self, data: bytes) -> None:
        for header, _ in self._frames.feed(data):
            self.handle(header)

    def connection_lost(self, error: Exception | None) -> None:
        self.close()

    def handle(self, header: Header) -> None:
        """Begin one command of the coordinator; any frame renews the lease."""
        self._heard_s = self.loop.time()
        self._was_silent = False
        name = header.get("op", "")
        command = self.commands.get(name)
        if command is not None:
            task = self.loop.create_task(self._answer(name, command(header)))
            task.add_done_callback(self._check)

    async def _answer(self, name: str, command: Awaitable[Header]) -> None:
        try:
            answer = await command
        except LoadgenError as error:
            answer = {"error": as_header(error)}
        self.send({"re": name, **answer})

    def _check(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or self.ended.done():
            return
        error = task.exception()
        if error is not None:
            self.ended.set_exception(error)

    def send(self, header: Header, block: bytes = b"") -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(header, block))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if not self.ended.done():
            self.ended.set_result(None)

    def lease_is_over(self) -> bool:
        """Return True if the coordinator was silent for too long at this call and the last.

        One silent call is not enough: after a stall of this process, a frame may wait to be read.
        """
        was_silent = self._was_silent
        self._was_silent = self.loop.time() - self._heard_s > self.lease_s
        return was_silent and self._was_silent
