"""Removal of a run's durable sessions from the broker: each client connects once more."""

import asyncio
import ssl
from typing import Any

from websockets.asyncio.client import connect

from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import Disconnect
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Target
from loadgen.sentences import WORKER_TEXT
from loadgen.worker.logins import connect_packet, listed_clients
from loadgen.worker.streams import MQTT, Streams, websocket_uri

_AT_ONCE = 32
_TIMEOUT_S = 5


async def forget_sessions(fleet: PlannedFleet, streams: Streams | None) -> int:
    """Connect every durable client with Clean Start; return the number of failures."""
    plan = fleet.plan
    durable = [
        connection
        for connection in range(len(fleet.devices))
        if not fleet.group_of(connection).clean_start
    ]
    clients = listed_clients(plan) if durable else None
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

    Raise BrokerRefusedError for another answer; any other error means that there was no answer.
    """
    goodbye = encode(Disconnect(), version)
    if target.transport in ("ws", "wss"):
        options: Any = {"compression": None, "proxy": None, "ssl": context}
        options |= {"host": target.host, "port": target.port}
        link = await connect(websocket_uri(target), subprotocols=[MQTT], **options)
        try:
            await link.send(packet)
            _require_connack(await link.recv(decode=False))
            await link.send(goodbye)
        finally:
            link.transport.close()  # after DISCONNECT no closing handshake is needed
        return
    name = None if context is None else target.host
    reader, writer = await asyncio.open_connection(
        target.host, target.port, ssl=context, server_hostname=name
    )
    try:
        writer.write(packet)
        _require_connack(await reader.readexactly(4))
        writer.write(goodbye)
        await writer.drain()
    finally:
        writer.close()


def _require_connack(answer: bytes) -> None:
    if len(answer) < 4 or answer[3] != 0:
        raise BrokerRefusedError(WORKER_TEXT.SESSION_REFUSED())
