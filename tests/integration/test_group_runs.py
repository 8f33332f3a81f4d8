"""A mix of groups through Mosquitto, counted by a subscriber that is not ours."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path

import aiomqtt

from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.plan.rehearsal import ASKED
from tests.needs import needs_mosquitto

FILE = """
mqtt = "5"
duration = 1
warmup = 0.3
qos = 1

[[group]]
name = "sensors"
count = 20
topic = "plant/{device}/temperature"
rate = 200

[[group]]
name = "meters"
count = 12
topics = 3
topic = "hall/{topic}/{device}"
rate = 60
qos = 0
size = "64-100"
subscribe = "plant/{device}/temperature"

[[group]]
name = "dashboards"
count = 4
subscribe = ["plant/+/temperature", "hall/1/#"]

[[group]]
name = "archive"
count = 3
subscribe = "$share/archive/hall/#"
"""


@needs_mosquitto
async def test_the_ledger_of_a_mix_is_what_another_subscriber_counts(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text(FILE)
    seen: Counter[str] = Counter()

    async def listen(client: aiomqtt.Client) -> None:
        async for message in client.messages:
            if not bytes(message.payload).startswith(ASKED):
                seen[str(message.topic)] += 1

    async with run_mosquitto() as broker:
        endpoint = broker.endpoints[0]
        async with aiomqtt.Client(endpoint.host, endpoint.port) as client:
            await client.subscribe("#", qos=1)
            listening = asyncio.create_task(listen(client))
            words = ("run", "mix.toml", f"--broker=mqtt://{endpoint.host}:{endpoint.port}")
            command = (sys.executable, "-m", "loadgen", *words, "--out=run", "--quiet")
            process = await asyncio.create_subprocess_exec(*command, cwd=tmp_path)
            await process.wait()
            await asyncio.sleep(0.3)
            listening.cancel()
    ledger = json.loads((tmp_path / "run" / "run.json").read_text())["ledger"]["run"]
    assert seen.total() == ledger["sent"] > 300
    assert len(seen) == 32
    plant = sum(count for topic, count in seen.items() if topic.startswith("plant/"))
    first = sum(seen[f"plant/{number}/temperature"] for number in range(12))
    halls = sum(count for topic, count in seen.items() if topic.startswith("hall/"))
    hall = sum(count for topic, count in seen.items() if topic.startswith("hall/1/"))
    assert ledger["expected"] == ledger["intact"] == first + 4 * (plant + hall) + halls
    assert not any(ledger[name] for name in ("lost", "repeated", "misrouted", "foreign", "damaged"))
