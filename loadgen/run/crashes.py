"""Crashes on request within the window: of the brokers, or of one consumer."""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any

from loadgen.errors import CannotRunError
from loadgen.plan.plan import Plan
from loadgen.run.hosts.worker_pool import WorkerPool
from loadgen.run.redaction import printable
from loadgen.run.rundir import EventLog
from loadgen.sentences import RUN_TEXT

if TYPE_CHECKING:
    from loadgen.brokers.process import BrokerProcess

COMMAND_LIMIT_S = 120.0
"""Longest time of a user's command that kills and restarts a broker."""
_SAID_BYTES = 4096
_SAID_CHARACTERS = 200


async def crash_brokers(brokers: Sequence["BrokerProcess"], events: EventLog) -> None:
    """Kill the private brokers and start them again.

    Raises CannotRunError where one does not come up.
    """
    for broker in brokers:
        events.write(time.monotonic_ns(), "broker_killed", f"{broker.name} was killed on request")
        broker.kill()
    for broker in brokers:
        await broker.start()
        events.write(time.monotonic_ns(), "broker_started", f"{broker.name} was started again")


async def run_crash_command(command: str, events: EventLog) -> None:
    """Run a user's command, which kills and restarts a broker that is not ours.

    Raises CannotRunError, with the last that it said, where it fails or takes too long.
    """
    events.write(time.monotonic_ns(), "crash_command", "the command was started on request")
    with TemporaryFile() as output:
        child = await asyncio.create_subprocess_shell(
            command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(COMMAND_LIMIT_S):
                status = await child.wait()
        except TimeoutError:
            raise CannotRunError(RUN_TEXT.CRASH_SLOW(seconds=COMMAND_LIMIT_S)) from None
        finally:
            # What it started goes on where it ended: that may be the broker.
            if child.returncode is None:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                await child.wait()
        output.seek(max(0, output.seek(0, os.SEEK_END) - _SAID_BYTES))
        lines = output.read().decode("utf-8", "replace").strip().splitlines()
    last_line = printable(lines[-1], _SAID_CHARACTERS) if lines else ""
    if status:
        ended = f"with status {status}" if status > 0 else f"by signal {-status}"
        raise CannotRunError(RUN_TEXT.CRASH_FAILED(ended=ended, last_line=last_line))
    said = f": {last_line}" if lines else ""
    events.write(time.monotonic_ns(), "crash_command", f"the command has ended{said}")


async def cut_off_consumer(pool: WorkerPool, plan: Plan, events: EventLog) -> dict[str, Any]:
    """Cut off a consumer in the middle of its group; says which.

    `consumer` is its number and `held` the messages that it had not acknowledged; nothing where it
    was not connected.
    """
    index, group = next(
        (index, group)
        for index, group in enumerate(plan.groups)
        if group.subscribes is not None and group.subscribes.shared is not None
    )
    device = group.count // 2
    row = next(
        row
        for row, worker in enumerate(plan.workers)
        for share in worker.shares
        if share.group == index and device in share.devices
    )
    answer = await pool.ask(row, "drop", group=index, device=device)
    if not answer["dropped"]:
        return {}
    detail = f"cut off on request with {answer['held']} messages not acknowledged"
    events.write(
        time.monotonic_ns(), "consumer_cut", detail, worker=row, group=group.name, device=device
    )
    return {"consumer": device, "held": answer["held"]}
