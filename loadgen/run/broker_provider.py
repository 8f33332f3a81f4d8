"""The brokers of a run, started here or only named, and the plan of a run against them."""

import asyncio
import re
import secrets
import socket
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal

from loadgen.brokers.endpoints import INSTRUMENTS, Endpoint, parse_broker
from loadgen.brokers.front import serve_bridge
from loadgen.brokers.ports import open_socket
from loadgen.brokers.process import ServedBroker
from loadgen.brokers.start import serve
from loadgen.errors import BrokerUnreachableError, ScenarioError
from loadgen.plan.accounts import Account, Login, accounts
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.run.environment import host_of
from loadgen.sentences import RUN_TEXT
from loadgen.worker.logins import listed_clients

_NAME_S = 5.0
_ADDRESS_S = 2.0

_TRANSPORTS: Mapping[str, Literal["tcp", "tls", "ws", "wss"]] = {
    "mqtt": "tcp",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
}


@asynccontextmanager
async def provided(plan: Plan) -> AsyncIterator[ServedBroker]:
    """Provide the brokers of a plan, a bridge's front first; start them unless URLs name them."""
    wanted, bridge = plan.brokers, plan.brokers.bridge
    if bridge is not None and bridge.urls:
        parsed = [parse_broker(url) for url in (*wanted.names, *bridge.urls)]
        endpoints = tuple(endpoint for endpoint in parsed if isinstance(endpoint, Endpoint))
        if len({endpoint.scheme for endpoint in endpoints}) > 1:
            raise ScenarioError(RUN_TEXT.OTHER_SCHEME())
        yield ServedBroker.at(endpoints)
        return
    started: AbstractAsyncContextManager[ServedBroker]
    if bridge is not None:
        started = serve_bridge(bridge)
    else:
        storing = wanted.storage != "none" and wanted.private
        started = serve(
            wanted.names,
            instances=wanted.instances,
            persistence=storing and wanted.names[0] not in INSTRUMENTS,
            save_each=wanted.storage == "each change",
            encrypted=wanted.encrypted,
            accounts=accounts_of(plan),
        )
    async with started as served:
        yield served


def accounts_of(plan: Plan) -> tuple[Account, ...]:
    """Return the users of a private broker with access control; () without it."""
    if not plan.scenario.access_control:
        return ()
    listed: defaultdict[str, list[Login]] = defaultdict(list)
    for name, clients in listed_clients(plan).items():
        for _, user, password in clients:
            if not user or not password or not re.fullmatch(r"[^:\s#+]{1,200}", user):
                raise ScenarioError(RUN_TEXT.USERNAMES())
            listed[name].append((user, password))
    return tuple(accounts(plan, secrets.token_hex(16), listed))


def trusting(plan: Plan, authority: Path | None) -> Plan:
    """Return the plan with devices that trust the certificate of a private broker."""
    if authority is None or plan.tls.ca_file is not None:
        return plan
    return replace(plan, tls=replace(plan.tls, ca_file=str(authority)))


async def plan_for(
    plan: Plan,
    endpoints: Sequence[Endpoint],
    hosts: Sequence[Host] | None = None,
    run_tag: int | None = None,
) -> Plan:
    """Return the plan against these endpoints; without `hosts`, for hosts like this one."""
    logins = {(endpoint.username, endpoint.password) for endpoint in endpoints}
    if len(logins) > 1:
        raise ScenarioError(RUN_TEXT.OTHER_USERS())
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
    """Return the endpoint with an address that answers, unless TLS or HTTP must see the name."""
    host = endpoint.host
    if endpoint.scheme == "mqtt":
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_NAME_S):
                addresses = await loop.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            reason = (error.strerror or f"no name server answers within {_NAME_S:g} s").lower()
            text = RUN_TEXT.NO_SUCH_NAME(broker=endpoint.redacted, reason=reason)
            raise BrokerUnreachableError(text) from None
        host = str(addresses[0][4][0])
        if len(addresses) > 1:
            # Such as localhost, where a broker may listen at one address of the two.
            with suppress(OSError):
                async with asyncio.timeout(_ADDRESS_S):
                    reached = await open_socket(host=endpoint.host, port=endpoint.port)
                with reached:
                    host = str(reached.getpeername()[0])
    return Target(host, endpoint.port, _TRANSPORTS[endpoint.scheme], endpoint.path or "/mqtt")
