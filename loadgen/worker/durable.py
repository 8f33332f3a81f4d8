"""Removal of a run's durable sessions from the broker: each client connects once more."""

import asyncio

import aiomqtt

from loadgen.plan.behaviour import PlannedFleet
from loadgen.worker.logins import connect_of, listed_clients
from loadgen.worker.streams import Streams

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
    listed = listed_clients(plan) if durable else {}
    free = asyncio.Semaphore(_AT_ONCE)

    async def forget(connection: int) -> None:
        group, device = fleet.group_of(connection), int(fleet.device[connection])
        packet = connect_of(plan, group, device, True, listed)
        target = plan.targets[fleet.devices[connection].target]
        client = aiomqtt.Client(
            target.host,
            target.port,
            identifier=packet.client_id,
            username=packet.user_name,
            password=None if packet.password is None else packet.password.decode(),
            protocol=aiomqtt.ProtocolVersion(packet.protocol_version),
            transport="websockets" if target.transport in ("ws", "wss") else "tcp",
            websocket_path=target.path,
            tls_context=None if streams is None else streams.context_of(connection),
            timeout=_TIMEOUT_S,
        )
        async with free, asyncio.timeout(_TIMEOUT_S), client:
            pass

    results = await asyncio.gather(*map(forget, durable), return_exceptions=True)
    return sum(isinstance(result, BaseException) for result in results)
