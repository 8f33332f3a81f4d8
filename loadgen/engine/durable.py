"""Makes the broker forget the durable sessions of a run: each client connects once more."""

import asyncio
import errno
import ssl
from pathlib import Path

from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response

from loadgen.engine.fleet import connect_packet, read_clients
from loadgen.engine.streams import Streams, websocket
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import Disconnect
from loadgen.workload.fleet import Fleet
from loadgen.workload.groups import Target

_AT_ONCE = 32
_TIMEOUT_S = 5


async def forget_sessions(fleet: Fleet, streams: Streams | None) -> int:
    """Connect every durable client with Clean Start; how many sessions may remain."""
    plan = fleet.plan
    durable = [
        connection
        for connection in range(len(fleet.devices))
        if not fleet.group_of(connection).clean_start
    ]
    listed = plan.clients_file if durable else None
    clients = None if listed is None else read_clients(Path(listed))
    free = asyncio.Semaphore(_AT_ONCE)

    async def forget(connection: int) -> None:
        async with free, asyncio.timeout(_TIMEOUT_S):
            group, device = fleet.group_of(connection), int(fleet.device[connection])
            packet = connect_packet(plan, group, device, True, clients)
            target = plan.targets[fleet.devices[connection].target]
            context = None if streams is None else streams.context_of(connection)
            await _connect_once(target, context, packet, plan.version)

    results = await asyncio.gather(*map(forget, durable), return_exceptions=True)
    return sum(isinstance(result, BaseException) for result in results)


async def _connect_once(
    target: Target, context: ssl.SSLContext | None, packet: bytes, version: int
) -> None:
    """Send CONNECT `packet`, wait for CONNACK, send DISCONNECT.

    Raises BrokerRefusedError for another answer, OSError for none.
    """
    reader, writer = await asyncio.open_connection(target.host, target.port, ssl=context)
    try:
        goodbye = encode(Disconnect(), version)
        if target.transport in ("ws", "wss"):
            framing = websocket(target)
            framing.send_request(framing.connect())
            await _framed(framing, reader, writer)
            framing.send_binary(packet)
            answer = await _framed(framing, reader, writer)
            framing.send_binary(goodbye)
            writer.write(b"".join(framing.data_to_send()))
        else:
            writer.write(packet)
            answer = await reader.readexactly(4)
            writer.write(goodbye)
        if len(answer) < 4 or answer[3] != 0:
            raise BrokerRefusedError("the broker refused a session's last CONNECT")
        await writer.drain()
    finally:
        writer.close()


async def _framed(
    framing: ClientProtocol, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> bytes:
    """Flush `framing`, then return the next frame's data; b"" for the answer to the upgrade."""
    while True:
        writer.write(b"".join(framing.data_to_send()))
        data = await reader.read(4096)
        if not data:
            raise ConnectionResetError(errno.ECONNRESET, "closed")
        framing.receive_data(data)
        for event in framing.events_received():
            if isinstance(event, Response):
                if framing.handshake_exc is not None:
                    raise BrokerRefusedError("the broker refused a session's last WebSocket")
                return b""
            if isinstance(event, Frame) and event.opcode is Opcode.BINARY:
                return bytes(event.data)
