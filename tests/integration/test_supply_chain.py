"""Another subscriber counts the supply chain: the rates of the run rules, and what the card has."""

import asyncio
import json
import re
from collections import Counter
from math import ceil
from pathlib import Path
from typing import Any

import aiomqtt
import pytest

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.cases.registry import build_scenario
from loadgen.plan.rehearsal import ASKED
from tests.needs import needs_mosquitto
from tests.tables import rows_of, table
from tests.testbeds import run

BASE, WARMUP_S, DURATION_S = 5, 1, 4

# Run rules, section 3.6.1, tables 1 and 2: interactions begun in a second.
HORIZONTAL = (
    *(1.539201540 * BASE, 2.133333334 * ceil(BASE / 5), 6.0, 3.378378378 * BASE),
    *(11.544011544 * BASE, 11.385199240, 9.230769230),
)
VERTICAL = tuple(
    BASE * rate
    for rate in (0.76190476, 0.213333334, 0.05, 1.62162162, 5.77200577, 0.142314991, 0.102564103)
)
FREEFORM = (20.0, 0.0, 0.0, 0.0, 0.0, 10.0, 5.0)
RATES = {"horizontal": HORIZONTAL, "vertical": VERTICAL, "freeform": FREEFORM}

DESTINATIONS: dict[int, dict[str, str]] = {
    int(number): names for number, names in table("destinations").items()
}
TYPE_AT = {place: name for of in DESTINATIONS.values() for name, place in of.items()}


def type_of(message: aiomqtt.Message) -> str:
    """Return the type by the property that selects it, or by the name of the destination."""
    for key, value in getattr(message.properties, "UserProperty", []):
        if key == "MessageType":
            return str(value)
    named = re.fullmatch(r"\w+/(SM|DC|SP|HQ)\d*[/_](\w+?)[QT]\d*", str(message.topic))
    assert named, message.topic
    return TYPE_AT["_".join(named.groups())]


@needs_mosquitto
@pytest.mark.parametrize(("fields", "rates", "topics"), rows_of("specjms.cross_checked"), ids=str)
async def test_another_subscriber_counts_what_formulas_and_card_have(
    tmp_path: Path, fields: dict[str, Any], rates: str, topics: int | None
) -> None:
    seen: Counter[str] = Counter()
    seen_topics: set[str] = set()

    async def listen(client: aiomqtt.Client) -> None:
        async for message in client.messages:
            if not bytes(message.payload).startswith(ASKED):
                seen[type_of(message)] += 1
                seen_topics.add(str(message.topic))

    async with run_mosquitto() as broker:
        endpoint = broker.endpoints[0]
        v5 = aiomqtt.ProtocolVersion.V5
        async with aiomqtt.Client(endpoint.host, endpoint.port, protocol=v5) as client:
            await client.subscribe("#", qos=1)
            listening = asyncio.create_task(listen(client))
            times = {"warmup": WARMUP_S, "duration": DURATION_S, "drain": 20, "settle": 0.2}
            url = f"mqtt://{endpoint.host}:{endpoint.port}"
            scenario = build_scenario(
                "specjms", None, {"base": BASE, "broker": url} | times | fields
            )
            result = await run(scenario, tmp_path / "run")
            await asyncio.sleep(0.5)
            listening.cancel()
    assert "LOST" not in result.verdict.codes
    document = json.loads((tmp_path / "run" / "specjms.json").read_bytes())
    card: Counter[str] = Counter()
    for row in document["destinations"]:
        card[row["message"]] += row["sent_in_all"]
    assert seen == card
    if topics is not None:
        assert len(seen_topics) == document["traffic"]["topics"] == topics
    for interaction, rate in enumerate(RATES[rates], start=1):
        due = rate * (WARMUP_S + DURATION_S)
        # Each driver begins at a moment of its first interval.
        drivers = 10 if interaction in (1, 4, 5) else 2
        begun = seen[next(iter(DESTINATIONS[interaction]))]
        assert begun == pytest.approx(due, abs=drivers if rate else 0), interaction
        for name in DESTINATIONS[interaction]:
            # Two or three suppliers offer each product family.
            most = 3 if name == "offer" else 1
            least = 2 if name == "offer" else 1
            assert least * begun <= seen[name] <= most * begun, name
