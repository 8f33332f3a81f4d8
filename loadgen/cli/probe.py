"""`loadgen probe`: what a broker can do."""

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from loadgen.brokers.probe import BrokerFacts


def command(
    broker: Annotated[
        str,
        typer.Option("--broker", metavar="URL", help="Broker URL, or the name of one to start."),
    ] = "auto",
    json_: Annotated[bool, typer.Option("--json", help="As JSON on stdout.")] = False,
) -> int:
    """Ask a broker which protocol versions and features it offers.

    Example: loadgen probe --broker mqtt://broker.example:1883
    """
    facts = asyncio.run(_probed(broker))
    versions = {4: "3.1.1", 5: "5"}
    told = {
        "broker": facts.endpoint.redacted,
        "version": facts.version,
        "mqtt": [versions[version] for version in facts.versions],
        "receive_maximum": facts.receive_maximum,
        "maximum_qos": facts.maximum_qos,
        "maximum_packet_size_bytes": facts.maximum_packet_size_bytes,
        "topic_alias_maximum": facts.topic_alias_maximum,
        "server_keep_alive_s": facts.server_keep_alive_s,
        "retain_available": facts.retain_available,
        "wildcard_subscription_available": facts.wildcard_subscription_available,
        "subscription_identifier_available": facts.subscription_identifier_available,
        "shared_subscription_available": facts.shared_subscription_available,
    }
    if json_:
        print(json.dumps(told, indent=2))
        return 0
    width = max(map(len, told))
    for name, value in told.items():
        print(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if value is None:
        return "not told"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


async def _probed(broker: str) -> "BrokerFacts":
    from loadgen.brokers.probe import probe
    from loadgen.brokers.start import serve

    async with serve(broker) as served:
        return await probe(served.endpoints[0])
