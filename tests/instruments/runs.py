"""Runs on a broker that errs."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
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


async def play_checked(
    directory: Path, case: str, begin: Callable[[], Awaitable[object]], **fields: Any
) -> RunResult:
    """Play a case; `begin` makes its broker err once it was checked."""
    async with Testbed(command=("test",), lends=False) as testbed, AsyncExitStack() as stack:
        plan = resolve(build_scenario(case, None, fields))
        context = await testbed.prepare(plan, directory, stack)
        await begin()
        await main_loop(context)
        return await shutdown(context)


async def play_erring(directory: Path, case: str, faults: str, **fields: Any) -> RunResult:
    async with run_erring() as broker:
        begin = partial(broker.set_faults, faults)
        result = await play_checked(directory, case, begin, **{**fields, "broker": url_of(broker)})
    await asyncio.to_thread(seal, directory)
    return result
