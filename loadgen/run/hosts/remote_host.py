"""The coordinator's side of load hosts elsewhere: agents connect, and runs are played with them.

    async with listening("10.0.0.1") as door:
        ...                                   # agents are started with door.address, door.secret
        hosts = await door.gathered(4, 60.0)
        await run(scenario, directory, hosts=hosts)

Agents stay for as many runs as are made with them; each run has workers of its own. An agent says
something ten times a second: one that was silent for `SILENCE_S` is lost with its workers.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from loadgen.errors import CannotRunError, HostLimitError, LoadgenError
from loadgen.plan.groups import RunPlan
from loadgen.plan.plan import Host
from loadgen.plan.scenario import Scenario
from loadgen.run.host_watch import HostSample, sample_from
from loadgen.run.hosts.clocks import ClockEstimate
from loadgen.run.hosts.link import Link
from loadgen.run.hosts.load_host import Header, Listener, error_from
from loadgen.run.network import difference
from loadgen.run.redaction import printable
from loadgen.run.tasks import beside
from loadgen.worker.shared_counts import LivePage, rows_as_words

SILENCE_S = 5.0
_WATCH_S = 0.25
_ANSWER_S = 30.0
_COMPILE_S = 600.0
"""For an agent to have its workers ready: it may have to compile every kernel first."""


class Agent:
    """A host that an agent speaks for."""

    def __init__(self, said: Header, link: Link) -> None:
        self.number = int(said["host"])
        offer = said["offer"]
        self.offer = Host(**offer | {"addresses": tuple(offer["addresses"])})
        self.machine = str(said["machine"])
        self.environment: dict[str, Any] = said["environment"]
        self.link = link
        self.lost = ""
        self.clock: ClockEstimate | None = None
        self.worst_bound_ns = 0
        self.network: dict[str, int] = {}
        """What the host's TCP counted in the run."""
        self.playing: RemoteHost | None = None
        self._answers: dict[str, asyncio.Future[Header]] = {}

    @property
    def name(self) -> str:
        """Its number, and its own name, which two containers of one machine may share."""
        return f"{self.number} ({printable(self.offer.name, 100)})"

    def take(self, header: Header, block: bytes) -> None:
        """A frame of the agent."""
        if "ping" in header:
            self._set_clock(header.get("clock"))
            self.link.send({"pong": header["ping"], "now_ns": time.monotonic_ns()})
        elif "answer" in header:
            future = self._answers.pop(str(header["answer"]), None)
            if future is not None and not future.done():
                future.set_result(header)
        elif self.playing is not None:
            self.playing.take(header, block)

    def _set_clock(self, said: Mapping[str, Any] | None) -> None:
        if said is None:
            return
        before, self.clock = self.clock, ClockEstimate(**said)
        wrong_ns = 0 if before is None else self.clock.least_error_ns(before)
        self.worst_bound_ns = max(self.worst_bound_ns, self.clock.bound_ns, wrong_ns)

    def lose(self, why: str) -> None:
        """The host is gone, with its workers."""
        if self.lost:
            return
        self.lost = why
        self.link.end(why)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(CannotRunError(f"host {self.name} is gone: {why}"))
        if self.playing is not None:
            self.playing.lose(why)

    async def ask(self, what: str, within_s: float, **fields: Any) -> Header:
        """Have the agent do something; raises CannotRunError, or the error that it answers with."""
        if self.lost:
            raise CannotRunError(f"host {self.name} is gone: {self.lost}")
        future: asyncio.Future[Header] = asyncio.get_running_loop().create_future()
        self._answers[what] = future
        self.link.send({"do": what, **fields})
        try:
            async with asyncio.timeout(within_s):
                answer = await future
        except TimeoutError:
            raise CannotRunError(
                f"host {self.name} did not answer within {within_s:g} s ({what})"
            ) from None
        finally:
            self._answers.pop(what, None)
        if "error" in answer:
            raise error_from(answer["error"], f"on host {self.name}: ")
        return answer

    def document(self) -> dict[str, Any]:
        """What run.json says of this host."""
        clock = {} if self.clock is None else asdict(self.clock)
        return {
            "host": self.number,
            "name": self.offer.name,
            "clock": clock | {"bound_ns": self.worst_bound_ns},
            "network": self.network,
            "environment": self.environment,
        }


class RemoteHost:
    """The workers of one run on the host of an agent."""

    def __init__(self, agent: Agent, rows: Sequence[int], behaviour: str) -> None:
        self.rows = rows
        self.name = agent.name
        self._agent = agent
        self._behaviour = behaviour
        self._listener: Listener | None = None
        self._sample: HostSample | None = None
        self._said = ""
        self._page: LivePage | None = None
        self._plan_sent: object = None
        self._network: Mapping[str, int] | None = None

    async def start(self, listener: Listener) -> None:
        self._listener = listener
        self._agent.playing = self
        rows, behaviour = list(self.rows), self._behaviour
        await self._agent.ask("start", _COMPILE_S, rows=rows, behaviour=behaviour)

    @property
    def clock_bound_ns(self) -> int:
        return self._agent.worst_bound_ns

    def begin(self, page: LivePage) -> None:
        self._page = page
        self._agent.worst_bound_ns = 0
        self._agent.network = {}
        self._network = None

    def send(
        self, rows: Sequence[int], header: Header, each: Mapping[int, Header] | None = None
    ) -> None:
        if "plan" in header:
            # The same for every worker, and long where there are many: the agent keeps it.
            if self._plan_sent is not header["plan"]:
                self._plan_sent = header["plan"]
                self._agent.link.send({"plan": header["plan"]})
            header = {name: value for name, value in header.items() if name != "plan"}
        if rows:
            own = None if each is None else [each[row] for row in rows]
            self._agent.link.send({"to": list(rows), "frame": header, "each": own})

    def sample(self) -> HostSample | None:
        return self._sample

    def last_words(self) -> str:
        return self._said

    async def close(self, grace_s: float, waited_for: Collection[int]) -> None:
        if not self._agent.lost:
            with suppress(LoadgenError):
                within_s = grace_s + SILENCE_S
                await self._agent.ask("end", within_s, grace_s=grace_s, rows=list(waited_for))
        self._agent.playing = None

    def take(self, header: Header, block: bytes) -> None:
        """A frame of the agent that is about this run."""
        listener = self._listener
        if listener is None:
            return
        if "page" in header:
            self._turn(int(header["page"]), block)
        elif "from" in header:
            listener.heard(self._row(header["from"]), header["frame"], block)
        elif "gone" in header:
            self._said = printable(str(header.get("said", "")), 300)
            detail = printable(str(header["detail"]), 300)
            listener.gone(self._row(header["gone"]), f"{detail} on host {self.name}")
        elif "started" in header:
            listener.started(self._row(header["started"]), int(header["pid"]))
        elif "compiled" in header:
            listener.compiled(int(header["compiled"]), int(header["of"]))
        elif "sample" in header:
            self._sample = sample_from(header["sample"])
            counted = {str(name): int(value) for name, value in header["network"].items()}
            self._network = self._network or counted
            self._agent.network = difference(self._network, counted)

    def lose(self, why: str) -> None:
        """The whole host is gone."""
        if self._listener is not None:
            for row in self.rows:
                self._listener.gone(row, f"went with host {self.name}: {why}")

    def _row(self, said: object) -> int:
        if said not in self.rows:
            raise ValueError(f"host {self.name} speaks for a worker that it does not have")
        return int(str(said))

    def _turn(self, count: int, block: bytes) -> None:
        """Put the totals that changed at this host into the page of the run."""
        if self._page is None:
            return
        places = np.frombuffer(block, np.uint32, count).astype(np.int64)
        values = np.frombuffer(block, np.int64, count, 4 * count)
        rows = np.asarray(self.rows)
        for words in rows_as_words(self._page):
            width = words.shape[1]
            own = places < len(rows) * width
            words[rows[places[own] // width], places[own] % width] = values[own]
            places, values = places[~own] - len(rows) * width, values[~own]
        if len(places) or len(block) != 12 * count:
            raise ValueError(f"host {self.name} sent totals that have no place on the live page")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The agents that runs are played with, by the number of their host."""

    agents: tuple[Agent, ...]

    @property
    def offers(self) -> tuple[Host, ...]:
        """What each host has, for the plan."""
        return tuple(agent.offer for agent in self.agents)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(agent.name for agent in self.agents)

    @property
    def machines(self) -> tuple[str, ...]:
        """What `machine_identity` says at each."""
        return tuple(agent.machine for agent in self.agents)

    async def check(self, scenario: Scenario) -> None:
        """Have each host make the checks that are made here before a run; the first error."""
        await self._each("check", lambda _host: {"scenario": scenario.plain()})

    async def reach(self, plan: RunPlan) -> None:
        """Have each host try its addresses of the plan, and the broker; the first error."""
        targets = [(target.host, target.port) for target in plan.targets]

        def tried(host: int) -> Header:
            own = {worker.source_address for worker in plan.workers if worker.host == host}
            return {"targets": targets, "sources": sorted(one for one in own if one is not None)}

        await self._each("reach", tried)

    async def _each(self, what: str, fields: Callable[[int], Header]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for agent in self.agents:
                    group.create_task(agent.ask(what, _ANSWER_S, **fields(agent.number)))
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    def playing(self, plan: RunPlan) -> tuple[RemoteHost, ...]:
        """Each host with its workers of this plan."""
        rows: list[list[int]] = [[] for _ in self.agents]
        for worker in plan.workers:
            rows[worker.host].append(worker.worker)
        return tuple(
            RemoteHost(agent, own, plan.behaviour)
            for agent, own in zip(self.agents, rows, strict=True)
        )

    def document(self) -> list[dict[str, Any]]:
        """What run.json says of the hosts."""
        return [agent.document() for agent in self.agents]


class Door:
    """Where agents connect."""

    def __init__(self, one_machine: bool) -> None:
        self.address: tuple[str, int] = ("", 0)
        self.secret = secrets.token_hex(32)
        self._one_machine = one_machine
        self._server: asyncio.Server | None = None
        self._links: set[Link] = set()
        self._agents: dict[int, Agent] = {}
        self._refused = ""
        self._news = asyncio.Event()

    async def open(self, address: str, port: int) -> None:
        """Listen; raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._make_link, address, port)
        self.address = self._server.sockets[0].getsockname()[:2]

    async def gathered(self, count: int, timeout_s: float) -> Hosts:
        """The agents of hosts 0 to count - 1, when all are there; nobody can connect after that.

        Raises CannotRunError where one does not come within `timeout_s` seconds, and HostLimitError
        where two are on one machine.
        """
        wanted = range(count)
        try:
            async with asyncio.timeout(timeout_s):
                while not self._agents.keys() >= set(wanted) and not self._refused:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            missing = ", ".join(str(n) for n in wanted if n not in self._agents)
            raise CannotRunError(
                f"no agent came from host {missing} within {timeout_s:g} s; can it reach "
                f"{self.address[0]}:{self.address[1]}?"
            ) from None
        if self._refused:
            raise HostLimitError(self._refused)
        self._stop_listening()
        return Hosts(tuple(self._agents[number] for number in wanted))

    def _make_link(self) -> Link:
        """The end of a connection that came."""
        found: list[Agent] = []

        def take(header: Header, block: bytes) -> None:
            if found:
                found[0].take(header, block)
            elif "host" in header:
                found.append(Agent(header, link))
                self._admit(found[0])

        def end(why: str) -> None:
            self._links.discard(link)
            if found:
                found[0].lose(why)

        link = Link("coordinator", bytes.fromhex(self.secret), take, end)
        self._links.add(link)
        return link

    def _admit(self, agent: Agent) -> None:
        same = [one for one in self._agents.values() if one.machine == agent.machine]
        if agent.number in self._agents:
            self._refused = f"two agents say that they are host {agent.number}"
        elif same and not self._one_machine:
            first, second = sorted((same[0], agent), key=lambda one: one.number)
            self._refused = (
                f"hosts {first.name} and {second.name} are one machine and would share its "
                "processors: give each a machine of its own"
            )
        else:
            self._agents[agent.number] = agent
        self._news.set()

    async def watch(self) -> None:
        """Lose the hosts that fall silent."""
        while True:
            for agent in tuple(self._agents.values()):
                # What came while this process was busy waits to be read: look twice.
                if agent.link.silent_s() > SILENCE_S:
                    await asyncio.sleep(0.05)
                    if agent.link.silent_s() > SILENCE_S:
                        agent.lose(f"nothing was heard of it for {SILENCE_S:g} s")
            await asyncio.sleep(_WATCH_S)

    def close(self) -> None:
        """Let all agents go, those that were refused, too, and cut strangers off."""
        self._stop_listening()
        for link in tuple(self._links):
            if link.opened.done():
                link.send({"do": "leave"})
                link.close()
            else:
                link.end("nobody is expected any more")

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()


@asynccontextmanager
async def listening(
    address: str = "127.0.0.1", port: int = 0, *, one_machine: bool = False
) -> AsyncIterator[Door]:
    """A door for agents at an address of this machine; port 0 for any that is free.

    With `one_machine` several agents may be on one machine, as in a test. Agents end with the
    block. Raises CannotRunError where the address cannot be listened at.
    """
    door = Door(one_machine)
    try:
        await door.open(address, port)
    except OSError as error:
        raise CannotRunError(
            f"agents cannot connect to {address}: {(error.strerror or str(error)).lower()}; give "
            "an address of this machine"
        ) from None
    try:
        async with beside(door.watch()):
            yield door
    finally:
        door.close()
