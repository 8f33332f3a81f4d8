"""The brokers of a run: started here or only named, the front and the backends of a bridge too."""

import re
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.brokers.process import ServedBroker
from loadgen.errors import ScenarioError
from loadgen.plan.plan import Bridge, Brokers, Plan

if TYPE_CHECKING:
    from loadgen.brokers.front import Route
    from loadgen.plan.accounts import Account

_INSTRUMENTS = ("reflector", "sink")
"""Brokers of ours that keep nothing on disk."""


@asynccontextmanager
async def provided(plan: Plan) -> AsyncIterator[ServedBroker]:
    wanted = plan.brokers
    # Starting brokers needs the MQTT stack; a module that only reads run directories does not.
    if wanted.bridge is not None:
        async with _bridge(wanted, wanted.bridge) as bridge:
            yield bridge
        return
    from loadgen.brokers.start import serve

    storing = wanted.storage != "none" and wanted.private
    async with serve(
        wanted.names,
        instances=wanted.instances,
        persistence=storing and wanted.names[0] not in _INSTRUMENTS,
        save_each=wanted.storage == "each change",
        encrypted=wanted.encrypted,
        accounts=accounts_of(plan),
    ) as served:
        yield served


def accounts_of(plan: Plan) -> "tuple[Account, ...]":
    """Return the users of a private broker with access control; () without it."""
    if not plan.scenario.access_control:
        return ()
    from loadgen.plan.accounts import accounts
    from loadgen.worker.logins import read_clients

    file = plan.scenario.clients_file
    listed = []
    for _, user, password in () if file is None else read_clients(Path(file)):
        if not user or not password or not re.fullmatch(r"[^:\s#+]{1,200}", user):
            raise ScenarioError(
                "clients_file: access_control needs a username without blanks, colons, # and +, "
                "and a password in every row"
            )
        listed.append((user, password))
    return tuple(accounts(plan, secrets.token_hex(16), listed))


@asynccontextmanager
async def _bridge(wanted: Brokers, bridge: Bridge) -> AsyncIterator[ServedBroker]:
    """Provide front and backends, in this order; start them unless URLs name them."""
    if bridge.urls:
        parsed = [parse_broker(url) for url in (*wanted.names, *bridge.urls)]
        endpoints = tuple(endpoint for endpoint in parsed if isinstance(endpoint, Endpoint))
        if len({endpoint.scheme for endpoint in endpoints}) > 1:
            raise ScenarioError("backend: another scheme than broker; allowed: the same in all")
        yield ServedBroker("external", "unknown", endpoints)
        return
    from loadgen.brokers.front import serve_bridge

    async with serve_bridge(
        routes(bridge), bridge.backends, bridge.qos, persistence=bridge.durable
    ) as served:
        yield served


def trusting(plan: Plan, authority: Path | None) -> Plan:
    """Return the plan with devices that trust the certificate of a private broker."""
    if authority is None or plan.tls.ca_file is not None:
        return plan
    return replace(plan, tls=replace(plan.tls, ca_file=str(authority)))


def routes(bridge: Bridge) -> "tuple[Route, ...]":
    from loadgen.brokers.front import routes_of

    return routes_of(bridge.backends, bridge.topics, bridge.front_root, bridge.backend_root)
