"""The coordinator's side of load hosts elsewhere: agents connect, and runs use their hosts.

    async with listening("10.0.0.1", 7300, secret) as server:
        hosts = await server.gathered(4, 60.0)
        await run(scenario, directory, hosts=hosts)

Agents stay for several runs, each of which starts its workers. One that is silent for `SILENCE_S`
is lost with its workers.
"""

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address
from typing import Any
from weakref import WeakSet

import numpy as np

from loadgen.brokers.ask import together
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.plan.plan import Plan
from loadgen.plan.scenario import Scenario
from loadgen.run.environment import versions
from loadgen.run.host_watch import GAPS_LIMIT, SILENCE_NS, HostSample, difference
from loadgen.run.hosts import messages
from loadgen.run.hosts.agent_link import CLOSE_S, HANDSHAKE_S, AgentLink, tls_of
from loadgen.run.hosts.clocks import ClockEstimate
from loadgen.run.hosts.load_host import Header, OnEvent
from loadgen.run.redaction import error_from
from loadgen.run.tasks import background
from loadgen.sentences import RUN_TEXT, Text, listed, printable, system_reason
from loadgen.worker.shared_counts import SharedPage, rows_as_words

WAIT_S = 30.0  # longest wait for agents, by default
SILENCE_S = 5.0
_WATCH_S = 0.25
_ANSWER_S = 30.0
_COMPILE_S = 600.0  # for an agent to start its workers: it may have to compile all kernels first
_TOTAL_BYTES = 12  # size of a total in a message: a place and a value


class RemoteHost:
    """The host of an agent, with its workers of one run at a time."""

    def __init__(self, joined: messages.Joined, link: AgentLink) -> None:
        self.number = 0  # its place among the hosts of the command
        self.offer = joined.offer
        self.joined = joined
        self.link = link
        self.lost = ""
        self.busy = ""
        """The load of other programs while its workers started, "" if it was quiet."""
        self.clock: ClockEstimate | None = None
        self.clock_bound_ns = 0
        self.rows: Sequence[int] = ()
        self._behaviour = ""
        self._answers: dict[str, asyncio.Future[messages.Answer]] = {}
        self._on_event: OnEvent | None = None
        self._sample: HostSample | None = None
        self._page: SharedPage | None = None
        self._plan_sent: object = None
        self._first: HostSample | None = None
        self._taken_ns = time.monotonic_ns()
        self._silences: deque[tuple[int, int]] = deque(maxlen=GAPS_LIMIT)

    @property
    def name(self) -> str:
        """Its number with the host's name, which two containers of one machine may share."""
        return f"{self.number} ({printable(self.offer.name, 100)})"

    def assign(self, rows: Sequence[int], behaviour: str) -> None:
        self.rows = rows
        self._behaviour = behaviour
        self._sample = self._page = self._plan_sent = None

    async def start(self, on_event: OnEvent) -> None:
        self._on_event = on_event
        self.busy = await self.ask(messages.StartWorkers(self.rows, self._behaviour), _COMPILE_S)

    def begin(self, page: SharedPage) -> None:
        self._page = page
        self.clock_bound_ns = 0
        self._first = None

    def send(self, rows: Sequence[int], header: Header) -> None:
        if "plan" in header:
            # It is the same for all workers and can be long: the agent keeps it.
            if self._plan_sent is not header["plan"]:
                self._plan_sent = header["plan"]
                self.link.send(messages.SharedPlan(header["plan"]))
            header = {name: value for name, value in header.items() if name != "plan"}
        if rows:
            self.link.send(messages.WorkerCommand(rows, header))

    def sample(self) -> HostSample | None:
        if self._sample is None:
            return None
        now_ns = time.monotonic_ns()
        silences = [*self._sample.silences, *self._silences]
        if self._is_silence(now_ns):
            silences.append((self._taken_ns, now_ns))
        return replace(self._sample, host=self.name, silences=tuple(silences))

    def _is_silence(self, now_ns: int) -> bool:
        """Return True if nothing came for so long that more than one message was delayed."""
        round_trip_ns = 0 if self.clock is None else self.clock.round_trip_ns
        return now_ns - self._taken_ns >= SILENCE_NS + round_trip_ns

    async def close(self, grace_s: float, waited_for: Collection[int]) -> None:
        if not self.lost:
            with suppress(LoadgenError):
                await self.ask(messages.EndWorkers(grace_s, tuple(waited_for)), grace_s + SILENCE_S)
        self._on_event = None

    def take(self, message: messages.Message) -> None:
        """Handle a message of the agent; those about workers are for the run that has them."""
        now_ns = time.monotonic_ns()
        if self._is_silence(now_ns):
            self._silences.append((self._taken_ns, now_ns))
        self._taken_ns = now_ns
        match message:
            case messages.Ping(sent_ns, clock):
                if clock is not None:
                    before, self.clock = self.clock, clock
                    wrong_ns = 0 if before is None else clock.least_error_ns(before)
                    self.clock_bound_ns = max(self.clock_bound_ns, clock.bound_ns, wrong_ns)
                self.link.send(messages.Pong(sent_ns, time.monotonic_ns()))
            case messages.Answer(request):
                future = self._answers.pop(request, None)
                if future is not None and not future.done():
                    future.set_result(message)
            case messages.Leave(why):
                self.lose(printable(why, 300))
            case _ if self._on_event is None:
                return
            case messages.LiveTotals(block):
                self._set_totals(block)
            case messages.HostCounters(sample):
                self._first = self._first or sample
                self._sample = sample
            case messages.WorkerEnded(row, detail, last_words):
                detail = f"{printable(detail, 300)} on host {self.name}"
                words = printable(last_words, 300)
                self._on_event(messages.WorkerEnded(self._own_row(row), detail, words))
            case messages.WorkerFrame(row) | messages.WorkerStarted(row):
                self._own_row(row)
                self._on_event(message)
            case messages.KernelsCompiled():
                self._on_event(message)

    def _own_row(self, row: int) -> int:
        if row not in self.rows:
            raise ValueError(f"host {self.name} reports a worker that it does not have")
        return row

    def _set_totals(self, block: bytes) -> None:
        """Write the totals that changed at this host into the page of the run."""
        if self._page is None:
            return
        count, rest = divmod(len(block), _TOTAL_BYTES)
        places = np.frombuffer(block, np.uint32, count).astype(np.int64)
        values = np.frombuffer(block, np.int64, count, 4 * count)
        rows = np.asarray(self.rows)
        for words in rows_as_words(self._page):
            width = words.shape[1]
            inside = places < len(rows) * width
            words[rows[places[inside] // width], places[inside] % width] = values[inside]
            places, values = places[~inside] - len(rows) * width, values[~inside]
        if len(places) or rest:
            raise ValueError(f"host {self.name} sent totals that have no place on the live page")

    def lose(self, why: str) -> None:
        if self.lost:
            return
        self.lost = why
        self.link.end(why)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(self._gone())
        if self._on_event is not None:
            for row in self.rows:
                self._on_event(messages.WorkerEnded(row, f"ended with host {self.name}: {why}", ""))

    def _gone(self) -> CannotRunError:
        return CannotRunError(RUN_TEXT.HOST_GONE(host=self.name, why=self.lost))

    async def ask(self, request: messages.Request, within_s: float) -> str:
        """Send a request; return the remark of its answer, raise its error or CannotRunError."""
        if self.lost:
            raise self._gone()
        future: asyncio.Future[messages.Answer] = asyncio.get_running_loop().create_future()
        kind = type(request).__name__
        self._answers[kind] = future
        self.link.send(request)
        try:
            async with asyncio.timeout(within_s):
                answer = await future
        except TimeoutError:
            raise CannotRunError(
                RUN_TEXT.NO_ANSWER_OF_HOST(host=self.name, seconds=within_s, request=kind)
            ) from None
        finally:
            self._answers.pop(kind, None)
        if answer.error:
            raise error_from(answer.error, f"on host {self.name}: ")
        return printable(answer.remark, 300)

    def document(self) -> dict[str, Any]:
        clock = {} if self.clock is None else asdict(self.clock)
        first, last = self._first, self._sample
        return {
            "host": self.number,
            "name": self.offer.name,
            "clock": clock | {"bound_ns": self.clock_bound_ns},
            "network": difference(first.network, last.network) if first and last else {},
            "environment": self.joined.environment,
        }


@dataclass(frozen=True, slots=True)
class Hosts:
    agents: tuple[RemoteHost, ...]

    async def check(self, scenario: Scenario) -> None:
        """Check each host for a scenario; raise the first error."""
        request = messages.CheckScenario(scenario.plain())
        await together(*(agent.ask(request, _ANSWER_S) for agent in self.agents))

    async def reach(self, plan: Plan) -> None:
        """Try source addresses and the broker from each host; raise the first error."""
        targets = [(target.host, target.port) for target in plan.targets]
        used = {(one.host, one.source_address) for one in plan.workers if one.source_address}
        hosts = range(len(self.agents))
        sources = (sorted(one for at, one in used if at == number) for number in hosts)
        requests = (messages.ReachBroker(targets, each) for each in sources)
        await together(*(a.ask(r, _ANSWER_S) for a, r in zip(self.agents, requests, strict=True)))

    def assign(self, plan: Plan) -> tuple[RemoteHost, ...]:
        rows: list[list[int]] = [[] for _ in self.agents]
        for row, worker in enumerate(plan.workers):
            rows[worker.host].append(row)
        for agent, of_host in zip(self.agents, rows, strict=True):
            agent.assign(of_host, plan.behaviour)
        return self.agents

    def shared_machines(self) -> list[Text]:
        """Return a remark for each kernel of several hosts, as containers of a machine have."""
        names: dict[str, list[str]] = {}
        for agent in self.agents:
            names.setdefault(agent.joined.machine.partition("/")[0], []).append(agent.name)
        shared = (listed(alike, 10) for alike in names.values() if len(alike) > 1)
        return [RUN_TEXT.SAME_MACHINE(hosts=hosts) for hosts in shared]


class AgentServer:
    """The address at which agents connect."""

    def __init__(self, secret: bytes) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.server: asyncio.Server | None = None
        self.context = tls_of(secret, ssl.Purpose.CLIENT_AUTH)
        self._versions = versions()
        self._links: WeakSet[AgentLink] = WeakSet()
        self._hosts: list[RemoteHost] = []
        self._strangers = 0
        self._refusal = "it has another secret or version, or was too slow"
        self._joined = asyncio.Event()

    async def gathered(self, count: int, timeout_s: float) -> Hosts:
        """Wait for `count` agents, and stop listening; the order of addresses numbers the hosts.

        Raise CannotRunError if fewer connect within `timeout_s`, or if one has other versions.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while len(self._hosts) < count:
                    self._joined.clear()
                    await self._joined.wait()
        except TimeoutError:
            address, port = self.address
            raise CannotRunError(
                RUN_TEXT.FEW_AGENTS(
                    joined=len(self._hosts),
                    wanted=count,
                    names=listed([host.offer.name for host in self._hosts], 10),
                    seconds=timeout_s,
                    address=address,
                    port=port,
                    refused=self._strangers or None,
                    refusal=self._refusal,
                )
            ) from None
        self.stop_listening()
        for agent in self._hosts[count:]:
            agent.link.send(messages.Leave("the command already has all its agents"))
            agent.link.close()
        agents = sorted(self._hosts[:count], key=_place)
        for number, agent in enumerate(agents):
            agent.number = number
            present = agent.joined.versions
            ours = {*self._versions.items()} - {*present.items()}
            if ours:
                theirs = (f"{name} {present.get(name, 'missing')}" for name, _ in ours)
                text = RUN_TEXT.OTHER_VERSIONS(
                    host=agent.name,
                    theirs=tuple(printable(one, 60) for one in sorted(theirs)),
                    ours=tuple(" ".join(one) for one in sorted(ours)),
                )
                agent.link.send(messages.Leave(text))
                raise CannotRunError(text)
        return Hosts(tuple(agents))

    def make_link(self) -> AgentLink:
        agent: RemoteHost | None = None

        def take(message: messages.Message) -> None:
            nonlocal agent
            if agent is not None:
                agent.take(message)
            elif isinstance(message, messages.Joined):
                agent = RemoteHost(message, link)
                self._strangers -= 1
                self._hosts.append(agent)
                self._joined.set()

        def end(why: str) -> None:
            if agent is not None:
                agent.lose(why)
                if self.server is not None and self.server.is_serving():
                    self._hosts.remove(agent)
            else:
                self._refusal = why

        link = AgentLink(take, end)
        self._links.add(link)
        self._strangers += 1
        return link

    async def watch(self) -> None:
        while True:
            for agent in tuple(self._hosts):
                if await agent.link.is_silent(SILENCE_S):
                    agent.lose(f"it sent nothing for {SILENCE_S:g} s")
            await asyncio.sleep(_WATCH_S)

    def close(self) -> None:
        """Release all agents, also refused ones, and cut connections without a proven secret."""
        self.stop_listening()
        for link in tuple(self._links):
            link.send(messages.Leave())
            link.close()

    def stop_listening(self) -> None:
        if self.server is not None:
            self.server.close()


def _place(host: RemoteHost) -> tuple[int, int, str, int]:
    address, port = host.link.peer
    place = ip_address(address)
    return place.version, int(place), host.offer.name, port


@asynccontextmanager
async def listening(
    address: str = "127.0.0.1", port: int = 0, secret: bytes = b""
) -> AsyncIterator[AgentServer]:
    """Listen for agents that have the same secret, on any free port if it is 0.

    They are released at the end of the block. Raise CannotRunError if the address cannot be used.
    """
    agents = AgentServer(secret)
    try:
        agents.server = await asyncio.get_running_loop().create_server(
            agents.make_link,
            address,
            port,
            backlog=1024,  # all agents may connect at the same moment
            ssl=agents.context,
            ssl_handshake_timeout=HANDSHAKE_S,
            ssl_shutdown_timeout=CLOSE_S,
        )
    except OSError as error:
        reason = system_reason(error)
        raise CannotRunError(RUN_TEXT.NO_LISTENER(address=address, reason=reason)) from None
    agents.address = agents.server.sockets[0].getsockname()[:2]
    try:
        async with background(agents.watch()):
            yield agents
    finally:
        agents.close()


@dataclass(frozen=True, slots=True)
class Agents:
    """As many agents as `hosts`, started by others, that connect to `listen` with this secret."""

    hosts: int
    listen: tuple[str, int]
    secret: bytes = field(repr=False)
    wait_s: float = WAIT_S

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Hosts]:
        """Provide the hosts until the end of the block, which releases the agents.

        Raise CannotRunError if it takes longer than `wait_s` until all have connected.
        """
        async with listening(*self.listen, self.secret) as server:
            yield await server.gathered(self.hosts, self.wait_s)
