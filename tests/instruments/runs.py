"""Runs on a broker that errs."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from loadgen.brokers.process import BrokerProcess
from loadgen.cases.registry import build_scenario, resolve
from loadgen.run.coordinator import RunResult, main_loop, shutdown
from loadgen.run.seal import seal
from loadgen.run.testbed import Testbed
from tests.instruments.relay import run_erring


def url_of(broker: BrokerProcess) -> str:
    """Return the URL of a broker without a login."""
    return f"mqtt://{broker.endpoints[0].address}"


async def play_erring(directory: Path, case: str, faults: str, **fields: Any) -> RunResult:
    """Play a case on a broker that errs once it was checked."""
    async with (
        run_erring() as broker,
        Testbed(command=("test",), lends=False) as testbed,
        AsyncExitStack() as stack,
    ):
        workload = resolve(build_scenario(case, None, {**fields, "broker": url_of(broker)}))
        context = await testbed.prepare(workload, directory, stack)
        await broker.set_faults(faults)
        await main_loop(context)
        result = await shutdown(context)
        await broker.set_faults("none")
    await asyncio.to_thread(seal, directory)
    return result
