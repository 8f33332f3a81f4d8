"""The agent of a load host: starts the host's workers, and forwards their frames and commands.

It serves a coordinator until this releases it, is silent for `LEASE_S`, or the connection ends;
then its workers end as well. Its workers read the run's clock (clocks.py).
"""

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from loadgen.brokers.ports import open_socket
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import BrokerUnreachableError, HostLimitError, as_header
from loadgen.run.environment import environment, host_of, machine_identity, versions
from loadgen.run.host_load import LoadWatch
from loadgen.run.host_watch import GAP_NS, HostAttendance
from loadgen.run.hosts import messages
from loadgen.run.hosts.agent_link import CLOSE_S, HANDSHAKE_S, AgentLink, tls_of
from loadgen.run.hosts.clocks import ClockWatch, RoundTrip
from loadgen.run.hosts.load_host import LocalHost, forkserver
from loadgen.run.hosts.path_watch import PathWatch
from loadgen.run.interrupt import ending_signals
from loadgen.run.preflight import check_host, completed
from loadgen.run.tasks import background, every, finished_or
from loadgen.scratch import memory_directory
from loadgen.sentences import RUN_TEXT, system_reason
from loadgen.worker.shared_counts import SharedPage, create_live_page, rows_as_words

LEASE_S = 5.0  # longest silence of the coordinator during a run
IDLE_LEASE_S = 60.0
"""Longest silence between runs, when the coordinator may be busy with the last result."""
WORKER_LEASE_S = 8.0  # longest silence of the agent towards a worker: for an agent that is stopped
PAGE_S = 0.02
PING_S = 0.1
_FIRST_PINGS = 20
_SAMPLE_S = 1.0
_CONNECT_S = 30.0
_DIAL_S = 1.0
_REACH_S = 5.0
RELEASED = "the coordinator released it"


class HostedWorkers:
    """The workers of a run on this host, whose events go to the coordinator."""

    def __init__(self, link: AgentLink, stack: ExitStack, host: LocalHost) -> None:
        self.host = host
        self.plan: Any = None
        self.configured = False
        self._link = link
        self._stack = stack
        self._page: SharedPage | None = None
        self._sent: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._directory: TemporaryDirectory[str] | None = None
        self._opened: set[int] = set()

    def report(self, event: messages.WorkerEvent) -> None:
        if isinstance(event, messages.WorkerFrame):
            answered = event.frame.get("re")
            if answered == "clock":
                return
            if answered == "configure":
                self._opened.add(event.row)
                if self._opened.issuperset(self.host.rows):
                    self._forget_page()
                    self.configured = True
            if answered is not None:
                self.send_totals()  # an answer refers to totals that are on the page already
        elif isinstance(event, messages.WorkerEnded):
            self.send_totals()
        self._link.send(event)

    def forward(self, command: messages.WorkerCommand, offset_ns: Callable[[], int]) -> None:
        frame = command.frame
        match frame.get("op"):
            case "configure":
                if self._directory is None:
                    self._directory = memory_directory()
                    path = Path(self._directory.name) / "live"
                    groups = len(self.plan["groups"])
                    self._page = create_live_page(path, int(frame["workers"]), groups)
                frame |= {
                    "plan": self.plan,
                    "live": str(Path(self._directory.name) / "live"),
                    "clock_offset_ns": offset_ns(),
                    "lease_s": WORKER_LEASE_S,
                }
            case "renew":
                frame["plan"] = self.plan
        self.host.send(command.rows, frame)

    def _forget_page(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    def answers(self) -> int:
        page = self._page
        return 0 if page is None else page.counted("received") + page.counted("acknowledged")

    def send_totals(self) -> None:
        """Send the totals on the live page that changed."""
        if self._page is None:
            return
        rows = np.asarray(self.host.rows)
        now = np.concatenate([words[rows].reshape(-1) for words in rows_as_words(self._page)])
        before = np.zeros_like(now) if self._sent is None else self._sent
        (places,) = np.nonzero(now != before)
        self._sent = now
        if len(places):
            block = places.astype(np.uint32).tobytes() + now[places].tobytes()
            self._link.send(messages.LiveTotals(block))

    async def end(self, grace_s: float, rows: Sequence[int]) -> None:
        """End the workers, and give those of `rows` some seconds to end by themselves."""
        try:
            await self.host.close(grace_s, rows)
        finally:
            self._forget_page()
            # It waits for the end of the forkserver.
            await asyncio.to_thread(self._stack.close)


class Agent:
    def __init__(self) -> None:
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.link = AgentLink(self.take, self.end)
        self.clock = ClockWatch()
        self.workers: HostedWorkers | None = None
        self._has_run = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._attendance = HostAttendance()
        self.path = PathWatch(lambda: 0 if self.workers is None else self.workers.answers())

    def end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)

    def take(self, message: messages.Message) -> None:
        match message:
            case messages.Pong(sent_ns, now_ns):
                self.clock.add(RoundTrip(sent_ns, now_ns, time.monotonic_ns()))
            case messages.WorkerCommand() if self.workers is not None:
                if message.frame.get("op") == "conclude":
                    self._attendance.turn()
                    self.send_counters()
                self.workers.forward(message, self.offset_ns)
            case messages.SharedPlan(plan) if self.workers is not None:
                self.workers.plan = plan
            case messages.Leave(refused):
                self.end(f"the coordinator refused it: {refused}" if refused else RELEASED)
            case messages.CheckScenario(scenario):
                self._answer(message, self.check(scenario))
            case messages.ReachBroker(targets, sources):
                self._answer(message, self._reach(targets, sources))
            case messages.StartWorkers(rows, behaviour):
                self._answer(message, self.start(rows, behaviour))
            case messages.EndWorkers(grace_s, rows):
                self._answer(message, self.end_workers(grace_s, rows))

    def _answer(self, request: messages.Request, work: Coroutine[Any, Any, str | None]) -> None:

        async def answered() -> None:
            answer = messages.Answer(type(request).__name__)
            try:
                answer = replace(answer, remark=await work or "")
            except Exception as error:
                # The coordinator waits for an answer, whatever went wrong.
                answer = replace(answer, error=as_header(error))
            self.link.send(answer)

        task = asyncio.get_running_loop().create_task(answered())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def offset_ns(self) -> int:
        found = self.clock.estimate(time.monotonic_ns())
        return 0 if found is None else found.offset_ns

    async def check(self, fields: dict[str, Any]) -> None:
        case = str(fields.pop("case"))
        scenario = completed(build_scenario(case, fields, {}))
        await asyncio.to_thread(check_host, resolve(scenario))

    async def _reach(self, targets: Sequence[tuple[str, int]], sources: Sequence[str]) -> None:
        for source in sources:
            with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET) as tried:
                try:
                    tried.bind((source, 0))
                except OSError as error:
                    message = RUN_TEXT.SOURCE_ADDRESS(address=source, reason=system_reason(error))
                    raise HostLimitError(message) from None
        for address, port in targets:
            began_s = time.monotonic()
            try:
                async with asyncio.timeout(_REACH_S):
                    (await open_socket(address, port)).close()
            except OSError as error:
                reason = (error.strerror or f"no answer within {_REACH_S:g} s").lower()
                message = RUN_TEXT.NO_BROKER_FROM_HOST(address=address, port=port, reason=reason)
                raise BrokerUnreachableError(message) from None
            self.path.use(targets, time.monotonic() - began_s)

    async def start(self, rows: Sequence[int], behaviour: str) -> str:
        """Start workers with the kernels of a behaviour, after those of an earlier run ended.

        Return the load of other programs in the meantime, "" if the host was quiet.
        """
        await self.end_workers(0.0, ())
        watch = await asyncio.to_thread(LoadWatch, is_first=not self._has_run)
        self._has_run = True
        stack = ExitStack()
        server = stack.enter_context(forkserver(behaviour))
        self.workers = HostedWorkers(self.link, stack, LocalHost(server, rows))
        await self.workers.host.start(self.workers.report)
        load = await asyncio.to_thread(watch.load)
        return str(load) if load is not None and load.is_busy else ""

    async def end_workers(self, grace_s: float, rows: Sequence[int]) -> None:
        workers, self.workers = self.workers, None
        if workers is not None:
            await workers.end(grace_s, rows)

    async def ping(self) -> None:
        """Request the time, which is a sign of life, too."""
        count = 0
        while True:
            estimate = self.clock.estimate(time.monotonic_ns())
            self.link.send(messages.Ping(time.monotonic_ns(), estimate))
            round_trip_ns = self.link.round_trip_ns()
            if estimate is not None and round_trip_ns >= GAP_NS + estimate.round_trip_ns:
                now_ns = time.monotonic_ns()
                self.path.add_silence(now_ns - round_trip_ns, now_ns)
            workers = self.workers
            if estimate is not None and workers is not None and workers.configured:
                clock = {"op": "clock", "offset_ns": estimate.offset_ns}
                workers.host.send(workers.host.rows, clock)
            count += 1
            await asyncio.sleep(PING_S if count > _FIRST_PINGS else PING_S / 10)

    def send_totals(self) -> None:
        self._attendance.turn()
        if self.workers is not None:
            self.workers.send_totals()

    def send_counters(self) -> None:
        """Send the counters of this host's kernel, at a time of the run's clock."""
        if self.workers is not None:
            sample = self.workers.host.sample()
            offset_ns = self.offset_ns()
            gaps, silences = (
                tuple((start_ns + offset_ns, end_ns + offset_ns) for start_ns, end_ns in times)
                for times in (self._attendance.gaps, self.path.silences)
            )
            time_ns = sample.time_ns + offset_ns
            sample = replace(sample, time_ns=time_ns, gaps=gaps, silences=silences)
            self.link.send(messages.HostCounters(sample))

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 20)
            lease_s = IDLE_LEASE_S if self.workers is None else LEASE_S
            if await self.link.is_silent(lease_s):
                self.end(f"the coordinator was silent for {lease_s:g} s")


async def serve(address: str, port: int, secret: bytes, label: str = "") -> str:
    """Serve the coordinator at this address, and return the reason of the end.

    `label` replaces the name of this host. Raise OSError if the coordinator cannot be reached.
    """
    agent = Agent()
    try:
        async with asyncio.timeout(_CONNECT_S):
            await asyncio.get_running_loop().create_connection(
                lambda: agent.link,
                address,
                port,
                ssl=tls_of(secret, ssl.Purpose.SERVER_AUTH),
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=CLOSE_S,
            )
    except TimeoutError:
        raise TimeoutError(f"no answer within {_CONNECT_S:g} s") from None
    except ssl.SSLError:
        text = "it has another secret or version; use the same on both sides"
        raise ConnectionError(text) from None
    try:
        surroundings = await asyncio.to_thread(environment)
        offer = replace(host_of(), name=label or socket.gethostname())
        agent.link.send(messages.Joined(offer, machine_identity(), versions(), surroundings))
        samples = every(PAGE_S, agent.send_totals), every(_SAMPLE_S, agent.send_counters)
        async with background(agent.ping(), *samples, agent.path.watch(), agent.watch()):
            reason = await agent.ended
            agent.link.send(messages.Leave(reason))  # before its workers end, whose end it explains
            return reason
    finally:
        await agent.end_workers(0.5, ())
        agent.link.close()


async def join_runs(
    address: str, port: int, secret: bytes, label: str, show: Callable[[str], None]
) -> None:
    """Serve one coordinator after the other at this address until a signal to end.

    `show` is called with each new reason for which the agent has no coordinator.
    """
    stopped = asyncio.Event()
    for number in ending_signals():
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    shown = ""
    while not stopped.is_set():
        service = await finished_or(serve(address, port, secret, label), stopped)
        if service.cancelled():
            return
        try:
            reason = service.result()
        except OSError as error:
            code = error.errno if isinstance(error, ConnectionError) else None
            cause = str(error) if code is None else os.strerror(code).lower()
            reason = f"no coordinator at {address}:{port} yet: {cause}"
        if reason != shown:
            show(reason)
            shown = reason
        await finished_or(asyncio.sleep(_DIAL_S), stopped)
