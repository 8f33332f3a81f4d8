"""Plays a schedule: loadgen, a relay that writes down what is said, and a broker behind it."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import tomli_w

from loadgen.brokers.certificates import CertificateFiles
from loadgen.brokers.front import bridge_lines
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import BrokerProcess, ProgramSettings
from loadgen.brokers.reflector import run_reflector
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import RunDirectoryError
from loadgen.plan.plan import Bridge
from loadgen.report.build.summary import summarize_run
from loadgen.run.coordinator import RunContext, main_loop, shutdown
from loadgen.run.seal import seal
from loadgen.run.tasks import background
from loadgen.run.testbed import Testbed
from tests.faults.schedules import BRIDGED, Action, Schedule
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
    behind = directory / "behind"
    run_directory = directory / "run"
    is_websocket, is_tls = "ws" in schedule.transport, schedule.transport in ("tls", "wss")
    certificate = (certificates.certificate, certificates.key) if is_tls else None
    done: list[tuple[str, int]] = []
    async with asyncio.timeout(TIMEOUT_S), AsyncExitStack() as stack:
        brokers = await stack.enter_async_context(_brokers(schedule, behind))
        relays = [
            await stack.enter_async_context(
                run_relay(
                    broker.endpoints[0],
                    certificate=certificate,
                    websocket=is_websocket,
                    record=str(directory / f"transcript-{number}"),
                    reads_late=schedule.is_fast,
                )
            )
            for number, broker in enumerate(brokers)
        ]
        path = "/mqtt" if is_websocket else ""
        urls = [f"{one.scheme}://{one.address}{path}" for (one,) in (r.endpoints for r in relays)]
        fields = {**schedule.fields, **dict(zip(("broker", "backend"), urls, strict=False))}
        if is_tls:
            fields["tls_ca"] = str(certificates.authority)
        if schedule.kind == "kill coordinator":
            done.append((schedule.kind, await _killed(schedule, fields, run_directory)))
            while (await relays[0].counts()).connected:
                await asyncio.sleep(_POLL_S)
            await relays[0].finish()
            # A run that measured nothing is not read at all.
            codes: tuple[str, ...] = ("INTERRUPTED",)
            with suppress(RunDirectoryError):
                codes = summarize_run(run_directory).verdict.codes
            return _played(directory, codes, (), done)
        plan = resolve(build_scenario(schedule.case, None, fields))
        joined = None
        if schedule.hosts > 1:
            joined = await stack.enter_async_context(agents(schedule.hosts))
        hosts = None if joined is None else joined.hosts
        async with (
            Testbed(hosts=hosts, command=("test",), lends=False) as testbed,
            AsyncExitStack() as run,
        ):
            context = await testbed.prepare(plan, run_directory, run)
            for liar in brokers if schedule.liar == "broker" else relays:
                if schedule.faults != "none":
                    assert isinstance(liar, ErringBroker)
                    await liar.set_faults(schedule.faults)
            stage = Stage(context, brokers[0], relays[0], done, joined)
            async with background(_act(schedule, stage)):
                await main_loop(context)
            result = await shutdown(context)
        await asyncio.to_thread(seal, run_directory)
        for relay in relays:
            await relay.finish()
    reasons = tuple(f"{reason.code}: {reason.detail}" for reason in result.verdict.reasons)
    return _played(directory, result.verdict.codes, reasons, done)


def _played(
    directory: Path,
    codes: tuple[str, ...],
    reasons: tuple[str, ...],
    done: Sequence[tuple[str, int]],
) -> Played:
    document = orjson.loads((directory / "run" / "run.json").read_bytes())
    behind = directory / "behind"
    transcripts = b"".join(file.read_bytes() for file in directory.glob("transcript-*"))
    lines = sorted(transcripts.splitlines(), key=lambda line: orjson.loads(line)[1])
    truth = read_truth(
        b"\n".join(lines), document, tuple(done), behind.read_bytes() if behind.exists() else b""
    )
    return Played(codes, reasons, document.get("ledger") or {}, truth)


async def _killed(schedule: Schedule, fields: dict[str, Any], directory: Path) -> int:
    """Play it in another process, and kill that one; return the moment."""
    scenario, events = directory.with_name("scenario.toml"), directory / "events.jsonl"
    scenario.write_text(tomli_w.dumps(fields))
    command = ("-m", "loadgen", schedule.case, "--scenario", scenario, "--out", directory)
    process = await asyncio.create_subprocess_exec(sys.executable, *command, "--quiet")
    while b'"measure"' not in (events.read_bytes() if events.exists() else b""):
        assert process.returncode is None
        await asyncio.sleep(_POLL_S)
    await asyncio.sleep(schedule.actions[0].at_s)
    process.kill()
    await process.wait()
    return time.monotonic_ns()


@asynccontextmanager
async def _brokers(schedule: Schedule, transcript: Path) -> AsyncIterator[list[BrokerProcess]]:
    """The broker of a run, and that behind a bridge."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        if schedule.case == "bridge":
            backend = await enter(run_mosquitto(ProgramSettings()))
            topics = schedule.fields["topics"]
            bridge = Bridge(1, (), topics, **BRIDGED, qos=schedule.qos, durable=False)
            lines = bridge_lines(bridge, [backend.endpoints[0]])
            yield [await enter(run_mosquitto(ProgramSettings(more_lines=lines))), backend]
            return
        broker = await enter(run_reflector() if schedule.broker == "reflector" else run_mosquitto())
        if schedule.liar == "relay":
            yield [broker]
            return
        # The broker that errs is a second relay, of which the first one has no notice.
        yield [await enter(run_relay(broker.endpoints[0], record=str(transcript)))]


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
    """Return True if others can get a quota of the processors; real-time processes cannot."""
    return os.access(CPU_GROUPS, os.W_OK) and os.sched_getscheduler(0) == os.SCHED_OTHER
