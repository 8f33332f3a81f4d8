"""Plays a schedule: loadgen, a relay that writes down what is said, and a broker behind it."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from loadgen.brokers.certificates import CertificateFiles
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import BrokerProcess, ProgramSettings
from loadgen.brokers.reflector import run_reflector
from loadgen.cases.registry import build_scenario, resolve
from loadgen.run.coordinator import RunContext, main_loop, shutdown
from loadgen.run.seal import seal
from loadgen.run.tasks import background
from loadgen.run.testbed import Testbed
from tests.faults.schedules import Action, Schedule
from tests.faults.truth import Truth, read_truth
from tests.instruments.relay import ErringBroker, run_relay
from tests.run.agents import Agents, agents

TIMEOUT_S = 90.0
_POLL_S = 0.005
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
"""Of cgroup version 1."""


@dataclass(frozen=True, slots=True)
class Played:
    """What a run said, and what it should have been told of."""

    codes: tuple[str, ...]
    remarks: tuple[str, ...]
    reasons: tuple[str, ...]
    ledger: dict[str, Any]
    truth: Truth


@dataclass(frozen=True, slots=True)
class Stage:
    """What actions are done to."""

    context: RunContext
    broker: BrokerProcess
    relay: ErringBroker
    done: list[tuple[str, int]]
    agents: Agents | None = None


async def play(schedule: Schedule, directory: Path, certificates: CertificateFiles) -> Played:
    """Play it; everything is kept in `directory`. TimeoutError when it hangs."""
    transcript = directory / "transcript"
    behind = directory / "behind"
    run_directory = directory / "run"
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        broker = await stack.enter_async_context(_broker(schedule, behind))
        relay = await stack.enter_async_context(
            run_relay(
                broker.endpoints[0],
                certificate=(
                    (certificates.certificate, certificates.key)
                    if schedule.transport in ("tls", "wss")
                    else None
                ),
                websocket=schedule.transport in ("ws", "wss"),
                record=str(transcript),
            )
        )
        endpoint = relay.endpoints[0]
        path = "/mqtt" if schedule.transport in ("ws", "wss") else ""
        fields = {**schedule.fields, "broker": f"{endpoint.scheme}://{endpoint.address}{path}"}
        if schedule.transport in ("tls", "wss"):
            fields["tls_ca"] = str(certificates.authority)
        plan = resolve(build_scenario(schedule.case, None, fields))
        done: list[tuple[str, int]] = []
        joined = None
        if schedule.hosts > 1:
            joined = await stack.enter_async_context(agents(schedule.hosts))
        hosts = None if joined is None else joined.hosts
        async with (
            Testbed(hosts=hosts, command=("test",), lends=False) as testbed,
            AsyncExitStack() as run,
        ):
            context = await testbed.prepare(plan, run_directory, run)
            liar = broker if schedule.liar == "broker" else relay
            if schedule.faults != "none":
                assert isinstance(liar, ErringBroker)
                await liar.set_faults(schedule.faults)
            stage = Stage(context, broker, relay, done, joined)
            async with background(_act(schedule, stage)):
                await main_loop(context)
            result = await shutdown(context)
        await asyncio.to_thread(seal, run_directory)
        await relay.set_faults("none")
    document = orjson.loads((run_directory / "run.json").read_bytes())
    return Played(
        codes=result.verdict.codes,
        remarks=tuple(one["code"] for one in document.get("remarks") or ()),
        reasons=tuple(f"{reason.code}: {reason.detail}" for reason in result.verdict.reasons),
        ledger=document.get("ledger") or {},
        truth=read_truth(
            transcript.read_bytes(),
            document,
            tuple(done),
            behind.read_bytes() if behind.exists() else b"",
        ),
    )


@asynccontextmanager
async def _broker(schedule: Schedule, transcript: Path) -> AsyncIterator[BrokerProcess]:
    if schedule.broker == "mosquitto":
        async with run_mosquitto(ProgramSettings()) as mosquitto:
            yield mosquitto
    else:
        async with run_reflector() as reflector:
            if schedule.liar == "relay":
                yield reflector
                return
            # The broker that errs is a second relay, of which the first one has no notice.
            async with run_relay(reflector.endpoints[0], record=str(transcript)) as broker:
                yield broker


async def _act(schedule: Schedule, stage: Stage) -> None:
    """Do each action at its moment of the window."""
    windows = stage.context.phases.monitor.state.windows
    window = "hold" if schedule.case == "connburst" else "measure"
    # A hold is known only when it has ended; it begins with the end of subscribing.
    first = "subscribe" if window == "hold" else "warmup"
    while not {window, first} & windows.keys():
        await asyncio.sleep(_POLL_S)
    began_s = (windows[window][0] if window in windows else windows[first][1]) / 1e9
    for action in schedule.actions:
        await asyncio.sleep(max(0.0, began_s + action.at_s - time.monotonic()))
        stage.done.append((action.name, time.monotonic_ns()))
        await _do(stage, action)
        stage.done.append((f"after {action.name}", time.monotonic_ns()))


async def _stopped(pid: int, seconds: float) -> None:
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def _do(stage: Stage, action: Action) -> None:
    value, relay, pids = action.value, stage.relay, stage.context.phases.pool.pids
    match action.name:
        case "freeze broker":
            await _stopped(stage.broker.pid, value)
        case "kill broker":
            stage.broker.kill()
            await asyncio.sleep(value)
            await stage.broker.start()
        case "freeze worker":
            await _stopped(pids[0], value)
        case "kill worker":
            os.kill(pids[0], signal.SIGKILL)
        case "freeze agent":
            assert stage.agents is not None
            await _stopped(stage.agents.processes[1].pid, value)
        case "kill agent":
            assert stage.agents is not None
            stage.agents.processes[1].kill()
        case "freeze coordinator":
            # This process is the coordinator. The relay is another one, and may stand.
            seconds, stall_s = value
            if stall_s:
                await relay.set_faults(f"stall={stall_s}s")
            time.sleep(seconds)  # noqa: ASYNC251 (that is what it is for)
        case "stall":
            await relay.set_faults(f"stall={value}s")
            await asyncio.sleep(value)
        case "faults":
            await relay.set_faults(value)
        case "cut":
            await relay.drop_connections(value)
        case "interrupt":
            stage.context.phases.interrupt.asked.set()
        case "quota":
            await _quota(pids, *value)
        case _:
            raise AssertionError(action)


async def _quota(pids: Sequence[int], share_ms: int, seconds: float) -> None:
    """Let the workers together have so many ms of a processor in each 100, for some seconds."""
    group = CPU_GROUPS / f"loadgen-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_quota_us").write_text(str(share_ms * 1_000))
        for pid in pids:
            (group / "cgroup.procs").write_text(str(pid))
        await asyncio.sleep(seconds)
    finally:
        _disband(group)


def _disband(group: Path) -> None:
    """Give the processes of a group their freedom back; one that is ending is in it for a while."""
    for _ in range(200):
        for line in (group / "cgroup.procs").read_text().split():
            with suppress(OSError):
                (CPU_GROUPS / "cgroup.procs").write_text(line)
        with suppress(OSError):
            group.rmdir()
            return
        time.sleep(0.01)


def can_limit() -> bool:
    """Whether this process may give others a quota of the processors."""
    return os.access(CPU_GROUPS, os.W_OK)
