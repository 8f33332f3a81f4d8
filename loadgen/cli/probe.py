"""`loadgen probe`: what a broker can do."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from loadgen.cli.options import AsJson
from loadgen.mqtt.constants import MQTT_3_1, MQTT_3_1_1, VERSION_NAMES

if TYPE_CHECKING:
    from loadgen.brokers.probe import BrokerFacts


def command(
    broker: Annotated[
        str,
        typer.Option("--broker", metavar="URL", help="Broker URL, or the name of one to start."),
    ] = "auto",
    json_: AsJson = False,
) -> int:
    """Ask a broker which protocol versions and features it offers.

    Example: loadgen probe --broker mqtt://broker.example:1883
    """
    import asyncio

    facts = asyncio.run(_probed(broker))
    shown = asdict(facts)
    del shown["endpoint"], shown["versions"]
    shown = {
        "broker": facts.endpoint.redacted,
        "version": shown.pop("version"),
        "mqtt": [VERSION_NAMES[version] for version in facts.versions],
        **shown,
    }
    if json_:
        print(json.dumps(shown, indent=2))
        return 0
    width = max(map(len, shown))
    for name, value in shown.items():
        print(f"{name.replace('_', ' '):<{width}}  {_shown(value)}")
    return 0


def _shown(value: object) -> str:
    if value is None:
        return "not stated"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)


async def _probed(broker: str) -> "BrokerFacts":
    from loadgen.brokers.probe import probe
    from loadgen.brokers.start import serve

    async with serve(broker) as served:
        return await probe(served.endpoints[0], older=(MQTT_3_1_1, MQTT_3_1))
