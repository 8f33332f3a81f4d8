"""A worker in a separate process, and a broker that behaves as a test wants.

Workers are forked, as in a run, from one process with compiled kernels.
"""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Literal, Self

import orjson

from loadgen.brokers.ports import listen
from loadgen.kernels.fleet import Totals
from loadgen.metrics.interval import Interval
from loadgen.mqtt import packets as mqtt
from loadgen.mqtt.codec import decode, encode
from loadgen.plan.groups import (
    MESSAGING,
    DeviceGroup,
    Publishes,
    Share,
    Subscribes,
    Target,
    Tls,
    WorkerPlan,
)
from loadgen.plan.plan import Plan, document_of
from loadgen.run.redaction import error_from
from loadgen.worker.frames import FrameReader, encode_frame
from loadgen.worker.recorder import decode_intervals
from loadgen.worker.shared_counts import SharedPage, create_live_page
from tests.plans import small_plan

Transport = Literal["tcp", "tls"]
HANG_S = 30.0
"""A wait of this length is a hang, not a slow machine."""
RUN_TAG = 0x10AD
MS = 1_000_000


class Forkserver:
    """The process that workers are forked from."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control.settimeout(HANG_S * 5)
        command = [
            *(sys.executable, "-m", "loadgen.run.hosts.forkserver"),
            *(str(theirs.fileno()), "loadgen.worker.worker:run_worker", MESSAGING),
        ]
        root = str(Path(__file__).parents[2])
        self.process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], env={**os.environ, "PYTHONPATH": root}
        )
        theirs.close()
        self.messages: list[dict[str, Any]] = []
        try:
            self.wait_for("ready")
        except BaseException:
            self.close()
            raise

    def wait_for(self, key: str, **fields: Any) -> dict[str, Any]:
        while True:
            for message in self.messages:
                if key in message and fields.items() <= message.items():
                    self.messages.remove(message)
                    return message
            data = self.control.recv(8192)
            assert data, "the forkserver ended"
            self.messages.append(orjson.loads(data))

    def start(self, row: int) -> tuple[socket.socket, int]:
        """Return (our end of the channel, pid) of a new worker."""
        ours, theirs = socket.socketpair()
        message = orjson.dumps({"start": row, "row": row})
        socket.send_fds(self.control, [message], [theirs.fileno()])
        theirs.close()
        return ours, int(self.wait_for("started", started=row)["pid"])

    def exit_status(self, pid: int) -> int:
        return int(self.wait_for("exited", pid=pid)["status"])

    def close(self) -> None:
        self.control.close()
        self.process.wait(HANG_S)


async def until(condition: Callable[[], Any], what: str = "") -> None:
    """Wait until a condition is true."""
    async with asyncio.timeout(HANG_S):
        while not condition():
            await asyncio.sleep(0.002)


class Driver:
    """The coordinator's side of one worker, played by a test."""

    def __init__(self, channel: socket.socket, directory: Path, *, pid: int = 0) -> None:
        self.channel = channel
        self.encryption: ssl.SSLContext | None = None  # of its brokers
        self.brokers = AsyncExitStack()
        self.directory = directory
        self.pid = pid
        self.rows: list[Interval] = []
        self.frames: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.window_ends: list[int] = []
        self.answers: list[dict[str, Any]] = []
        self.ended = False
        self.live: SharedPage
        self.start_ns = self.measure_ns = self.end_ns = 0

    async def open(self) -> None:
        self.reader, self.writer = await asyncio.open_connection(sock=self.channel)
        self.listening = asyncio.create_task(self._listen())

    async def _listen(self) -> None:
        reader = FrameReader()
        with suppress(ConnectionError):
            while data := await self.reader.read(1 << 20):
                for header, block in reader.feed(data):
                    self.frames.append(header)
                    if "interval" in header:
                        self.rows += decode_intervals(header, block)
                    elif "event" in header:
                        self.events.append(header["event"])
                    elif "window_end" in header:
                        self.window_ends.append(header["window_end"])
                    else:
                        self.answers.append(header)
        self.ended = True

    async def broker(
        self, behaviour: "Behaviour | None" = None, transport: str = "tcp", **options: Any
    ) -> "FakeBroker":
        """Start a fake broker that ends with the test."""
        options |= {"ssl": self.encryption} if transport == "tls" else {}
        made = FakeBroker(behaviour or well_behaved, **options)
        return await self.brokers.enter_async_context(made)

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()
        self.listening.cancel()

    def send(self, op: str, **fields: Any) -> None:
        self.writer.write(encode_frame({"op": op, **fields}))

    async def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        """Return the answer to a command; raise the error that it has."""
        self.send(op, **fields)
        found: list[dict[str, Any]] = []

        def answered() -> bool:
            found[:] = [answer for answer in self.answers if answer.get("re") == op]
            return bool(found) or self.ended

        last_beat = time.monotonic()
        async with asyncio.timeout(HANG_S):
            while not answered():
                if time.monotonic() - last_beat > 1:
                    self.send("beat")
                    last_beat = time.monotonic()
                await asyncio.sleep(0.002)
        assert found, f"the worker ended instead of answering {op}"
        self.answers.remove(found[0])
        if "error" in found[0]:
            raise error_from(found[0]["error"])
        return found[0]

    async def configure(self, plan: Plan) -> dict[str, Any]:
        path = self.directory / "live"
        self.live = create_live_page(path, len(plan.workers), len(plan.groups))
        return await self.ask(
            "configure",
            run="test",
            host=0,
            worker=0,
            workers=len(plan.workers),
            anchor_ns=time.monotonic_ns(),
            live=str(path),
            plan=document_of(plan),
        )

    async def connect(
        self,
        plan: Plan | None = None,
        *,
        rate: float | None = None,
        in_flight: int = 64,
        timeout_s: float = HANG_S,
    ) -> dict[str, Any]:
        """Connect every device, after the worker is configured for a plan."""
        if plan is not None:
            await self.configure(plan)
        return await self.ask(
            "connect",
            start_ns=time.monotonic_ns(),
            rate=rate,
            in_flight=in_flight,
            first_in_flight=in_flight,
            timeout_s=timeout_s,
        )

    async def subscribe(self, timeout_s: float = HANG_S) -> dict[str, Any]:
        return await self.ask("subscribe", timeout_s=timeout_s)

    async def start(
        self,
        *,
        warmup_ms: int = 100,
        measure_ms: int = 400,
        lead_ms: int = 50,
        rates: Sequence[tuple[int, float]] = (),
    ) -> None:
        """Start the schedule; `rates` are factors of the rate after so many ms."""
        self.start_ns = time.monotonic_ns() + lead_ms * MS
        self.measure_ns = self.start_ns + warmup_ms * MS
        self.end_ns = self.measure_ns + measure_ms * MS
        times = {name: getattr(self, name) for name in ("start_ns", "measure_ns", "end_ns")}
        changes = [(self.start_ns + at_ms * MS, factor) for at_ms, factor in rates]
        await self.ask("start", **times, rates=changes)

    def now(self, total: str) -> int:
        page = self.live
        return page.total(total) if total in Totals.names() else page.counted(total)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until a condition is true, and keep the worker's lease alive."""
        async with asyncio.timeout(HANG_S):
            while not condition():
                self.send("beat")
                await asyncio.sleep(0.01)

    async def sent(self) -> dict[str, Any]:
        """Stop when the schedule is over and nothing waits to be sent or acknowledged."""
        await self.until(lambda: self.window_ends and self.now("finished"))
        return await self.stop()

    async def finished(self) -> None:
        """Wait until all messages are sent, acknowledged and received."""
        await self.until(
            lambda: (
                self.window_ends
                and self.now("finished")
                and self.now("received") >= self.now("expected")
            )
        )

    async def stop(self) -> dict[str, Any]:
        """Stop the worker, and wait for its last frame."""
        answer = await self.ask("conclude")
        await self.ask("stop")
        self.writer.write_eof()
        await until(lambda: self.ended)
        final: dict[str, Any] = answer["final"]
        return final

    # What the rows say

    def counted(self, name: str, *, phase: str | None = None, group: str | None = None) -> int:
        """Return the sum of a counter over the rows."""
        return sum(
            getattr(row, name)
            for row in self.rows
            if (phase is None or row.phase == phase) and (group is None or row.group == group)
        )

    def recorded(
        self, series: str, *, phase: str | None = None, group: str | None = None
    ) -> list[Interval]:
        """Return the rows of a latency series, each checked."""
        found = [
            row
            for row in self.rows
            if row.series == series
            and (phase is None or row.phase == phase)
            and (group is None or row.group == group)
        ]
        for row in found:
            assert row.bucket_count.sum() == row.count > 0
            assert 0 <= row.min_ns <= row.max_ns
            assert row.min_ns * row.count <= row.sum_ns <= row.max_ns * row.count
        return found

    def recorded_count(self, series: str, **where: Any) -> int:
        return sum(row.count for row in self.recorded(series, **where))

    def said(self, kind: str) -> list[str]:
        return [event["detail"] for event in self.events if event["kind"] == kind]


def one_worker_plan(
    *groups: DeviceGroup,
    targets: tuple[Target, ...] | None = None,
    port: int = 0,
    transport: Transport = "tcp",
    version: int = 4,
    **fields: Any,
) -> Plan:
    """Return a plan with all groups on one worker; over TLS without verification by default."""
    if transport == "tls":
        fields.setdefault("tls", Tls(verify=False))
    shares = tuple(Share(index, 0, group.count, 1) for index, group in enumerate(groups))
    fields.setdefault("max_packet_bytes", 1 << 16)
    return small_plan(
        groups,
        targets=targets or (Target("127.0.0.1", port, transport),),
        workers=(WorkerPlan(0, shares),),
        run_tag=RUN_TAG,
        version=5 if version == 5 else 4,
        **fields,
    )


def publishers(
    count: int = 3,
    rate: float = 300.0,
    *,
    qos: int = 0,
    deliveries: int = 1,
    topics: int | None = None,
    window: int = 100,
    size: tuple[int, int] = (32, 32),
    **fields: Any,
) -> DeviceGroup:
    publishes = Publishes(
        "t/{topic}", rate, qos, size_bytes=size, window=window, deliveries=deliveries
    )
    return DeviceGroup("publishers", count, publishes, topics=topics or count, **fields)


def subscribers(count: int = 1, *, qos: int = 0, **fields: Any) -> DeviceGroup:
    return DeviceGroup("subscribers", count, subscribes=Subscribes(("t/+",), qos), **fields)


def header(packet: mqtt.Publish) -> tuple[int, int, int]:
    """Return (stream, sequence, intended_ns) of a payload, which must be intact and of this run."""
    data = packet.payload
    assert zlib.crc32(data[:28], zlib.crc32(data[32:])) == int.from_bytes(data[28:32], "little")
    assert int.from_bytes(data[:4], "little") == RUN_TAG
    parts = (data[4:8], data[8:16], data[16:24])
    stream, sequence, intended_ns = (int.from_bytes(part, "little") for part in parts)
    return stream, sequence, intended_ns


def check_stream(packets: list[mqtt.Publish], stream: int, dues: list[int] | None = None) -> None:
    """Check that every message of one stream arrived once, in order and intact."""
    headers = [header(packet) for packet in packets]
    assert [found[:2] for found in headers] == [(stream, n) for n in range(len(packets))]
    if dues is not None:
        assert [found[2] for found in headers] == dues


class Gone(Exception):  # noqa: N818
    """The client closed the connection."""


class Session:
    """One client's connection as the broker sees it."""

    def __init__(
        self, broker: "FakeBroker", reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.broker = broker
        self.reader = reader
        self.writer = writer
        self.version = 4
        self.connect = mqtt.Connect("")
        self.filters: list[tuple[str, int]] = []
        self.published: list[mqtt.Publish] = []
        self.packets: list[mqtt.Packet] = []
        self.received = bytearray()
        self._buffer = bytearray()

    @property
    def socket(self) -> socket.socket:
        found: socket.socket = self.writer.get_extra_info("socket")
        return found

    async def packet(self) -> mqtt.Packet:
        """Return the next packet; raise Gone at the end."""
        while True:
            decoded = decode(bytes(self._buffer), 0, len(self._buffer), self.version)
            if decoded is not None:
                packet, end = decoded
                del self._buffer[:end]
                if isinstance(packet, mqtt.Connect):
                    self.version = packet.protocol_version
                    self.connect = packet
                self.packets.append(packet)
                return packet
            try:
                data = await self.reader.read(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                raise Gone
            self.received += data
            self._buffer += data

    def send(self, *packets: mqtt.Packet) -> None:
        self.writer.write(b"".join(encode(packet, self.version) for packet in packets))

    def send_bytes(self, data: bytes) -> None:
        self.writer.write(data)

    async def drain(self) -> None:
        await self.writer.drain()

    def close(self) -> None:
        self.writer.close()

    def abort(self) -> None:
        # In CPython 3.11.3 and older, a transport of TLS that was closed twice has no protocol.
        with suppress(AttributeError):
            self.writer.transport.abort()

    async def welcome(self, answer: mqtt.ConnAck | None = None) -> mqtt.Connect:
        """Read CONNECT, answer CONNACK."""
        packet = await self.packet()
        assert isinstance(packet, mqtt.Connect)
        self.send(answer or mqtt.ConnAck())
        return packet

    async def behave(self, *, until_packet: type[mqtt.Packet] | None = None) -> mqtt.Packet:
        """Route, acknowledge and answer, until the client leaves or sends a packet of this type."""
        while True:
            packet = await self.packet()
            if until_packet is not None and isinstance(packet, until_packet):
                return packet
            self.respond(packet)
            await self.writer.drain()

    def respond(self, packet: mqtt.Packet) -> None:
        if isinstance(packet, mqtt.Subscribe):
            self.filters += [(wanted.topic_filter, wanted.qos) for wanted in packet.subscriptions]
            self.send(mqtt.SubAck(packet.packet_id, tuple(w.qos for w in packet.subscriptions)))
        elif isinstance(packet, mqtt.Publish):
            self.published.append(packet)
            if packet.qos == 1:
                self.send(mqtt.PubAck(packet.packet_id))
            elif packet.qos == 2:
                self.send(mqtt.PubRec(packet.packet_id))
            self.broker.route(packet)
        elif isinstance(packet, mqtt.PubRel):
            self.send(mqtt.PubComp(packet.packet_id))
        elif isinstance(packet, mqtt.PubRec):
            self.send(mqtt.PubRel(packet.packet_id))
        elif isinstance(packet, mqtt.PingReq):
            self.send(mqtt.PingResp())
        elif isinstance(packet, mqtt.Disconnect):
            raise Gone


Behaviour = Callable[[Session], Coroutine[Any, Any, Any]]


def matches(pattern: str, topic: str) -> bool:
    wanted, found = pattern.split("/"), topic.split("/")
    return len(wanted) == len(found) and all(
        a in ("+", b) for a, b in zip(wanted, found, strict=True)
    )


async def well_behaved(session: Session) -> None:
    await session.welcome()
    await session.behave()


class FakeBroker:
    """A listener that passes each connection to the test's coroutine."""

    def __init__(
        self, behaviour: Behaviour = well_behaved, *, host: str = "127.0.0.1", **options: Any
    ) -> None:
        self.behaviour = behaviour
        self.options = options
        self.sessions: list[Session] = []
        self.errors: list[BaseException] = []
        self.gone = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._next_id = 0
        self._listener = listen(host)
        self.port: int = self._listener.getsockname()[1]

    async def __aenter__(self) -> Self:
        self.server = await asyncio.start_server(
            self._accept, sock=self._listener, limit=1 << 20, **self.options
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for session in self.sessions:
            session.abort()
        await asyncio.sleep(0)
        if self.errors:
            raise self.errors[0]

    def _accept(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> Awaitable[None] | None:
        session = Session(self, reader, writer)
        self.sessions.append(session)
        task = asyncio.ensure_future(self._serve(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return None

    async def _serve(self, session: Session) -> None:
        try:
            await self.behaviour(session)
        except (Gone, ConnectionError):
            self.gone += 1
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self.errors.append(error)
            session.abort()
        else:
            return
        session.close()

    def route(self, packet: mqtt.Publish) -> None:
        """Deliver to every session with a matching filter."""
        for session in self.sessions:
            for pattern, granted in session.filters:
                if not matches(pattern, packet.topic_name):
                    continue
                qos = min(granted, packet.qos)
                self._next_id = self._next_id % 60_000 + 1
                packet_id = self._next_id if qos else 0
                session.send(
                    mqtt.Publish(packet.topic_name, packet.payload, qos=qos, packet_id=packet_id)
                )

    @property
    def published(self) -> Counter[str]:
        """The number of PUBLISH packets received, by topic."""
        return Counter(
            packet.topic_name for session in self.sessions for packet in session.published
        )

    def client(self, number: int) -> Session:
        """Return the session whose client identifier ends in this device number, group 0."""
        ends = f"0-{number}"
        return next(made for made in self.sessions if made.connect.client_id.endswith(ends))


StartBroker = Callable[..., Awaitable[FakeBroker]]
"""`Driver.broker`, as the fixture `start_broker` has it."""
