"""From the brokers' endpoints to the plan of a run against them."""

import asyncio
import secrets
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Literal

from loadgen.brokers.endpoints import Endpoint
from loadgen.errors import BrokerUnreachableError, ScenarioError
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.run.environment import host_of

_NAME_S = 5.0
_ADDRESS_S = 2.0

_TRANSPORTS: Mapping[str, Literal["tcp", "tls", "ws", "wss"]] = {
    "mqtt": "tcp",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
}


async def plan_for(
    plan: Plan,
    endpoints: Sequence[Endpoint],
    hosts: Sequence[Host] | None = None,
    run_tag: int | None = None,
) -> Plan:
    """Return the plan against these endpoints, with a new run tag if it is None.

    `hosts` are this host, or several like it, if it is None.
    """
    logins = {(endpoint.username, endpoint.password) for endpoint in endpoints}
    if len(logins) > 1:
        raise ScenarioError("broker: the URLs have different users; allowed: the same in all")
    ((username, password),) = logins
    return fit_plan(
        plan,
        replace(host_of(), name="", addresses=()) if hosts is None else tuple(hosts),
        tuple([await _target(endpoint) for endpoint in endpoints]),
        secrets.randbits(32) if run_tag is None else run_tag,
        username=username,
        password=password,
    )


async def _target(endpoint: Endpoint) -> Target:
    """Return the endpoint with an address that answers, looked up once for all devices.

    A name that a certificate or an HTTP header must match stays a name.
    """
    host = endpoint.host
    if endpoint.scheme == "mqtt":
        where = f"no broker at {endpoint.redacted}"
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_NAME_S):
                addresses = await loop.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)
        except TimeoutError:
            raise BrokerUnreachableError(
                f"{where}: no name server answers within {_NAME_S:g} s; is the name right?"
            ) from None
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise BrokerUnreachableError(f"{where}: {reason}; is the name right?") from None
        host = str(addresses[0][4][0])
        if len(addresses) > 1:
            from loadgen.brokers.packet_stream import open_socket

            # Such as localhost, where a broker may listen at one address of the two.
            with suppress(OSError):
                async with asyncio.timeout(_ADDRESS_S):
                    reached = await open_socket(host=endpoint.host, port=endpoint.port)
                with reached:
                    host = str(reached.getpeername()[0])
    return Target(host, endpoint.port, _TRANSPORTS[endpoint.scheme], endpoint.path or "/mqtt")
