"""The agent of a load host: has the host's workers made, and carries what they and the run say.

`python -P -m loadgen.run.hosts.agent` reads one line of JSON from its standard input:

    {"coordinator": [ADDRESS, PORT], "secret": HEX, "host": NUMBER}

and writes one when it ends, {"ended": WHY}; status 0 where it was asked to. It ends, and its
workers with it, when the coordinator lets it go or is silent for `LEASE_S`, when the connection
or its standard input is closed, and when its parent process dies.

Its workers read the run's clock: the agent asks for it ten times a second (clocks.py). Their part
of the live page is sent on as it changes, every `PAGE_S`.
"""

import asyncio
import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import orjson

from loadgen.brokers.client import open_socket
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import BrokerUnreachableError, HostLimitError
from loadgen.run.environment import environment, host_of, machine_identity
from loadgen.run.host_watch import sample_document
from loadgen.run.hosts.clocks import ClockWatch, RoundTrip
from loadgen.run.hosts.forkserver_process import forkserver
from loadgen.run.hosts.link import Link
from loadgen.run.hosts.load_host import Header, LoadHost, LocalHost
from loadgen.run.network import network_counters
from loadgen.run.preflight import check_host, with_payload_size
from loadgen.run.tasks import beside
from loadgen.worker.shared_counts import LivePage, create_live_page, rows_as_words

LEASE_S = 5.0
"""Without a word of the coordinator, while a run is played."""
IDLE_LEASE_S = 60.0
"""Between runs, when the coordinator may be busy with what came of the last one."""
WORKER_LEASE_S = 8.0
"""Without a word of the agent, as a worker has it: for an agent that stands still."""
PAGE_S = 0.02
PING_S = 0.1
_FIRST_PINGS = 20
_SAMPLE_S = 1.0
_PR_SET_PDEATHSIG = 1
_CONNECT_S = 30.0
_REACH_S = 5.0


class Playing:
    """The workers of one run here. It is the listener of its host."""

    def __init__(self, link: Link, stack: ExitStack, host: LoadHost) -> None:
        self.host = host
        self.plan: Header = {}
        self.configured = False
        self._link = link
        self._stack = stack
        self._page: LivePage | None = None
        self._shown: np.ndarray[Any, np.dtype[np.int64]] | None = None
        self._directory: TemporaryDirectory[str] | None = None
        self._opened: set[int] = set()

    # As Listener

    def started(self, row: int, pid: int) -> None:
        self._link.send({"started": row, "pid": pid})

    def heard(self, row: int, header: Header, block: bytes) -> None:
        if header.get("re") == "clock":
            return
        if header.get("re") == "configure":
            self._opened.add(row)
            if self._opened.issuperset(self.host.rows):
                self._forget_page()
                self.configured = True
        if header.get("re") is not None:
            self.show()  # what an answer tells of is on the page before it
        self._link.send({"from": row, "frame": header}, block)

    def gone(self, row: int, detail: str) -> None:
        self.show()
        self._link.send({"gone": row, "detail": detail, "said": self.host.last_words()})

    def compiled(self, count: int, total: int) -> None:
        self._link.send({"compiled": count, "of": total})

    def forward(self, header: Header, offset_ns: int) -> None:
        """A frame of the coordinator to some workers."""
        frame, rows = header["frame"], header["to"]
        if frame.get("op") == "configure":
            frame |= {
                "plan": self.plan,
                "live": self._new_page(int(frame["workers"])),
                "clock_offset_ns": offset_ns,
                "lease_s": WORKER_LEASE_S,
            }
        elif frame.get("op") == "renew":
            frame["plan"] = self.plan
        each = header.get("each")
        own = None if each is None else dict(zip(rows, each, strict=True))
        self.host.send(rows, frame, own)

    def _new_page(self, workers: int) -> str:
        """Where the live page of this host's workers is; it has room for all rows of the plan."""
        if self._directory is None:
            memory = "/dev/shm"
            self._directory = TemporaryDirectory(
                prefix="loadgen-", dir=memory if os.access(memory, os.W_OK) else None
            )
            path = Path(self._directory.name) / "live"
            self._page = create_live_page(path, workers, len(self.plan["groups"]))
        return str(Path(self._directory.name) / "live")

    def _forget_page(self) -> None:
        if self._directory is not None:
            self._directory.cleanup()

    def show(self) -> None:
        """Send the totals on the live page that changed."""
        if self._page is None:
            return
        rows = np.asarray(self.host.rows)
        now = np.concatenate([words[rows].reshape(-1) for words in rows_as_words(self._page)])
        before = np.zeros_like(now) if self._shown is None else self._shown
        (places,) = np.nonzero(now != before)
        self._shown = now
        if len(places):
            block = places.astype(np.uint32).tobytes() + now[places].tobytes()
            self._link.send({"page": len(places)}, block)

    async def end(self, grace_s: float, rows: list[int]) -> None:
        """Everything of this run ends."""
        await self.host.close(grace_s, rows)
        self._forget_page()
        # The forkserver is waited for.
        await asyncio.to_thread(self._stack.close)


class Agent:
    """One host's agent, from its connection to its end."""

    def __init__(self) -> None:
        self.link: Link
        self.clock = ClockWatch()
        self.playing: Playing | None = None
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._tasks: set[asyncio.Task[None]] = set()

    def end(self, why: str) -> None:
        if not self.ended.done():
            self.ended.set_result(why)

    def read(self, descriptor: int) -> None:
        """Nothing is to come here but its end."""
        if not os.read(descriptor, 4096):
            self.end("its input was closed")

    def take(self, header: Header, block: bytes) -> None:
        """A frame of the coordinator."""
        if "pong" in header:
            trip = RoundTrip(int(header["pong"]), int(header["now_ns"]), time.monotonic_ns())
            self.clock.add(trip)
        elif "to" in header and self.playing is not None:
            self.playing.forward(header, self.offset_ns)
        elif "plan" in header and self.playing is not None:
            self.playing.plan = header["plan"]
        elif header.get("do") == "leave":
            self.end("asked")
        elif "do" in header:
            task = asyncio.get_running_loop().create_task(self._do(header))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def offset_ns(self) -> int:
        found = self.clock.estimate(time.monotonic_ns())
        return 0 if found is None else found.offset_ns

    async def _do(self, header: Header) -> None:
        actions = {
            "check": self._check,
            "reach": self._reach,
            "start": self._start,
            "end": self._end,
        }
        what = str(header["do"])
        answer: Header = {"answer": what}
        try:
            await actions[what](header)
        except Exception as error:
            # The coordinator waits for an answer, whatever went wrong.
            kind = type(error).__name__
            answer["error"] = {"type": kind, "message": str(error) or kind}
        self.link.send(answer)

    async def _check(self, header: Header) -> None:
        fields = dict(header["scenario"])
        case = str(fields.pop("case"))
        scenario = with_payload_size(build_scenario(case, fields, {}))
        await asyncio.to_thread(check_host, resolve(scenario))

    async def _reach(self, header: Header) -> None:
        """Every target takes a connection from here, and the source addresses are this host's."""
        for source in header["sources"]:
            with socket.socket(socket.AF_INET6 if ":" in source else socket.AF_INET) as tried:
                try:
                    tried.bind((source, 0))
                except OSError as error:
                    reason = (error.strerror or str(error)).lower()
                    raise HostLimitError(
                        f"no connection can be made from {source}: {reason}; give a "
                        "--source-address of this host"
                    ) from None
        for address, port in header["targets"]:
            try:
                async with asyncio.timeout(_REACH_S):
                    (await open_socket(address, port)).close()
            except OSError as error:
                reason = (error.strerror or f"no answer within {_REACH_S:g} s").lower()
                raise BrokerUnreachableError(
                    f"no broker at {address}:{port}: {reason}; can it be reached from there?"
                ) from None

    async def _start(self, header: Header) -> None:
        await self._end({"grace_s": 0.0, "rows": []})
        rows = [int(row) for row in header["rows"]]
        stack = ExitStack()
        server = stack.enter_context(forkserver(str(header["behaviour"])))
        self.playing = Playing(self.link, stack, LocalHost(server, rows))
        await self.playing.host.start(self.playing)

    async def _end(self, header: Header) -> None:
        playing, self.playing = self.playing, None
        if playing is not None:
            await playing.end(float(header["grace_s"]), list(header["rows"]))

    async def ping(self) -> None:
        """Ask for the time; this is the sign of life, too."""
        count = 0
        while True:
            now_ns = time.monotonic_ns()
            found = self.clock.estimate(now_ns)
            known = None if found is None else asdict(found)
            self.link.send({"ping": time.monotonic_ns(), "clock": known})
            if found is not None and self.playing is not None and self.playing.configured:
                rows = self.playing.host.rows
                self.playing.host.send(rows, {"op": "clock", "offset_ns": found.offset_ns})
            count += 1
            await asyncio.sleep(PING_S if count > _FIRST_PINGS else PING_S / 10)

    async def show(self) -> None:
        """Send what changed on the live page."""
        while True:
            if self.playing is not None:
                self.playing.show()
            await asyncio.sleep(PAGE_S)

    async def sample(self) -> None:
        """Send what the kernel of this host counts, at moments of the run's clock."""
        while True:
            if self.playing is not None:
                found = self.playing.host.sample()
                assert found is not None
                moved = replace(found, time_ns=found.time_ns + self.offset_ns)
                sample = sample_document(moved)
                self.link.send({"sample": sample, "network": network_counters()})
            await asyncio.sleep(_SAMPLE_S)

    async def watch(self) -> None:
        """End when the coordinator is silent."""
        while True:
            await asyncio.sleep(LEASE_S / 20)
            lease_s = IDLE_LEASE_S if self.playing is None else LEASE_S
            if self.link.silent_s() > lease_s:
                # What came while this process was busy waits to be read.
                await asyncio.sleep(0.05)
                if self.link.silent_s() > lease_s:
                    self.end(f"the coordinator was silent for {lease_s:g} s")


async def served(settings: Mapping[str, Any], stdin: int | None) -> str:
    """As `serve_agent`, in the loop that runs."""
    loop = asyncio.get_running_loop()
    agent = Agent()
    secret = bytes.fromhex(settings["secret"])
    agent.link = link = Link("agent", secret, agent.take, agent.end)
    address, port = settings["coordinator"]
    try:
        async with asyncio.timeout(_CONNECT_S):
            await loop.create_connection(lambda: link, str(address), int(port))
            await link.opened
    except (TimeoutError, OSError) as error:
        return f"the coordinator at {address}:{port} cannot be reached: {error or 'no answer'}"
    if stdin is not None:
        loop.add_reader(stdin, agent.read, stdin)
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(ValueError, RuntimeError):  # in a thread: whoever owns the process hears them
            loop.add_signal_handler(number, agent.end, "it was told to end by a signal")
    try:
        link.send(
            {
                "host": int(settings["host"]),
                "offer": asdict(host_of()),
                "machine": machine_identity(),
                "environment": await asyncio.to_thread(environment),
            }
        )
        async with beside(agent.ping(), agent.show(), agent.sample(), agent.watch()):
            return await agent.ended
    finally:
        if stdin is not None:
            loop.remove_reader(stdin)
        if agent.playing is not None:
            await agent.playing.end(0.5, [])
        link.close()


def serve_agent(settings: Mapping[str, Any], stdin: int | None = None) -> str:
    """Be the agent of this host until it is over; returns why. `settings` are as above.

    `stdin` is a descriptor whose end of file ends it.
    """
    return asyncio.run(served(settings, stdin))


def main() -> int:
    """Entry point of the process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(0, 1)):
        line += byte
    why = serve_agent(orjson.loads(line), 0)
    print(orjson.dumps({"ended": why}).decode(), flush=True)
    return 0 if why == "asked" else 3


if __name__ == "__main__":
    sys.exit(main())
