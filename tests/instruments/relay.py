"""The relay: stands between clients and a broker, passes on what they say, and errs on command.

What goes wrong is the network's or the broker's fault, as a client sees it; the broker keeps its
sessions and windows. A delivery that does not reach the client is acknowledged in its name, and one
that the broker never made has a Packet Identifier of our own, whose acknowledgements end here. Run
as a module it is its own child.
"""

import asyncio
import json
import socket
import ssl
import sys
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pytest
import uvloop

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import find_mosquitto, run_mosquitto
from loadgen.brokers.ports import listen
from loadgen.brokers.process import BrokerProcess, package_environment, running, spawn
from loadgen.errors import CannotRunError, RemoteProtocolError
from loadgen.kernels.packet_bytes import INCOMPLETE, OK, ack_fields, frame, publish_fields
from loadgen.mqtt import packets
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import (
    CONNACK,
    CONNECT,
    MQTT_5,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBSCRIBE,
)
from loadgen.mqtt.packets import Subscription
from loadgen.mqtt.reason_codes import ReasonCode, is_failure
from loadgen.mqtt.topics import filter_matches, split_shared
from tests.instruments.connections import Side
from tests.instruments.faults import COUNTED_AS, Dice, FaultCounts, Faults, parse_faults
from tests.instruments.mischief import Mischief, Notes
from tests.instruments.packets import (
    Delivery,
    StoredMessage,
    acknowledgement,
    refusal,
    rejection,
    subscribe_refusal,
)
from tests.instruments.transcript import Transcript
from tests.instruments.websocket_server import WebSocketServer

Json = dict[str, Any]
"""One JSON object."""
STDERR: Final = 2
ANSWER_TIMEOUT_S: Final = 300.0
"""Longest wait for an answer: compiling the kernels takes a minute on a slow host."""
PACKET_LIMIT_BYTES: Final = 16 << 20
_BUFFER_BYTES: Final = 1 << 20
REJECTED = "rejected on request"
"""The Reason String of the fault `reject`."""
SUBSCRIBE_FAILURE = 0x80
"""The only failure that SUBACK has in MQTT 3.1.1 (section 3.9.3)."""
NO_CONNACK = -1
"""What a transcript has in place of a reason code where no CONNACK was sent."""
NOBODYS_PACKET_ID = 65_535
"""The Packet Identifier of the fault `unsolicited`; publishers count from 1."""
OWN_PACKET_IDS: Final = range(65_535, 60_000, -1)
"""Packet Identifiers of deliveries that the broker did not make; it counts from 1."""


class ErringBroker(BrokerProcess):
    """A relay in a separate process; made by `run_relay`.

    A socket pair carries one JSON object a line: the configuration down, the port up, then
    questions down and answers up. When it closes, the relay ends.
    """

    def __init__(self, endpoint: Endpoint, **config: Any) -> None:
        super().__init__("relay", "loadgen relay")
        self._endpoint, self._config = endpoint, config
        self._lock = asyncio.Lock()
        self._writer: asyncio.StreamWriter | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return (self._endpoint,)

    async def start(self) -> None:
        """Start it, on the port it had before if it ran before."""
        await self.stop()
        ours, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            self._process = spawn(
                [sys.executable, "-m", "tests.instruments.relay", str(descriptor)],
                output=STDERR,
                pass_fds=[descriptor],
                environment=package_environment(),
            )
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        greeting = await self.ask(
            host=self._endpoint.host, port=self._endpoint.port, **self._config
        )
        self._endpoint = replace(self._endpoint, port=greeting["port"])

    async def ask(self, **question: Any) -> Json:
        """Return the answer to one question; raises CannotRunError if the relay has ended."""
        assert self._writer is not None
        async with self._lock, asyncio.timeout(ANSWER_TIMEOUT_S):
            self._writer.write(json.dumps(question).encode() + b"\n")
            line = await self._reader.readline()
        if not line:
            raise CannotRunError("the relay ended")
        answer: Json = json.loads(line)
        return answer

    async def stop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        await super().stop()

    async def set_faults(self, faults: str) -> FaultCounts:
        """Replace the faults, and return the counts up to now.

        Messages that were held back are passed on first; a restart keeps the faults.
        """
        parse_faults(faults)
        answer = await self.ask(faults=faults)
        self._config["faults"] = faults
        return FaultCounts(**answer["counts"])

    async def finish(self) -> None:
        """End faults and connections; the transcript is whole then."""
        await self.set_faults("none")
        await self.ask(finish=True)

    async def counts(self) -> FaultCounts:
        """Return the counts since its start."""
        return FaultCounts(**(await self.ask())["counts"])

    async def drop_connections(self, number: int | None = None) -> int:
        """Cut `number` client connections, all if None, and return how many."""
        dropped: int = (await self.ask(drop=number))["dropped"]
        return dropped


def run_relay(
    broker: Endpoint,
    faults: str = "none",
    *,
    host: str = "127.0.0.1",
    certificate: tuple[Path, Path] | None = None,
    websocket: bool = False,
    record: str = "",
    reads_late: bool = False,
) -> AbstractAsyncContextManager[ErringBroker]:
    """A relay in front of `broker`, which it reaches over TCP, for the length of the block.

    It listens on a port of its own, for TLS with `certificate` (PEM files: chain, key), and for
    `websocket`. `record` is the file of its transcript, "" for none. If it `reads_late`, it passes
    on what is said after CONNACK without a look, which costs little a message, and reads it for the
    transcript when it is told to `finish`; no fault of single messages can happen then.
    """
    parse_faults(faults)
    scheme = ("wss" if certificate else "ws") if websocket else "mqtts" if certificate else "mqtt"
    files = [str(path) for path in certificate or ()]
    return running(
        ErringBroker(
            Endpoint(scheme, host, 0, path="/mqtt" if websocket else ""),
            broker=[broker.host, broker.port],
            certificate=files,
            websocket=websocket,
            faults=faults,
            record=record,
            reads_late=reads_late,
        )
    )


@asynccontextmanager
async def run_erring(faults: str = "none") -> AsyncIterator[ErringBroker]:
    """A Mosquitto behind a relay, for the length of the block."""
    if find_mosquitto() is None:
        pytest.skip("the program mosquitto is not installed")
    async with run_mosquitto() as broker, run_relay(broker.endpoints[0], faults) as relay:
        yield relay


class Packet(NamedTuple):
    """Where a packet lies in the buffer."""

    first_byte: int
    start: int
    body: int
    end: int


class Upstream(Side):
    """The connection to the broker on behalf of one client."""

    def __init__(self, host: "Relay", client: "Client") -> None:
        super().__init__(host)
        self.client = self.other = client
        self.version = client.version


class Client(Side):
    """A client of the relay, with what is known of its exchanges that the broker does not know."""

    def __init__(self, host: "Relay") -> None:
        super().__init__(host)
        self.client = self
        self.accepted = False
        self.clean_start = True
        self.subscriptions: dict[str, Subscription] = {}
        self.delay_line: deque[tuple[int, Delivery]] = deque()
        self.delay_timer: asyncio.TimerHandle | None = None
        # Packet Identifiers of SUBSCRIBE packets, and what they asked for.
        self.asked: dict[int, tuple[Subscription, ...]] = {}
        # Of deliveries of our own making; of those at QoS 2 that we finish in the client's name;
        # and of messages whose last acknowledgement the client never gets.
        self.own: set[int] = set()
        self.settled: set[int] = set()
        self.withheld: set[int] = set()
        self._next_own = 0

    def send(self, item: Delivery) -> None:
        """Deliver a message."""
        packet_id = item.packet_id
        if item.qos and not packet_id:
            packet_id = OWN_PACKET_IDS[self._next_own % len(OWN_PACKET_IDS)]
            self._next_own += 1
            self.own.add(packet_id)
        self.write(item.packet(packet_id, self.version))
        if self.other is not None and self.blocked:
            self.other.wait_for(self)
        if item.dup:
            self.host.counts.redelivered += 1
        else:
            self.host.counts.delivered += 1
        self.host.notes.transcript.deliver(self.client_id, packet_id, item, dup=item.dup)

    def settle(self, item: Delivery) -> None:
        """Acknowledge a delivery in the client's name."""
        if self.other is None or not item.packet_id:
            return
        if item.qos == 2:
            self.settled.add(item.packet_id)
        answer = PUBACK if item.qos == 1 else PUBREC
        self.other.write(acknowledgement(answer, item.packet_id))

    def release_own(self, packet_id: int) -> None:
        """Send PUBREL."""
        self.write(acknowledgement(PUBREL, packet_id))
        self.host.notes.transcript.release(self.client_id, packet_id)


class Relay:
    """Clients on one side, on the other `broker`, its host and port.

    It sets faults, draws their dice, stalls, and cuts connections.
    """

    def __init__(
        self, broker: tuple[str, int], faults: Faults, record: str = "", *, reads_late: bool = False
    ) -> None:
        self.connections: set[Side] = set()
        self._server: asyncio.Server | None = None
        self.grow_buffer(_BUFFER_BYTES)
        self.stalled = False
        self.counts: FaultCounts = FaultCounts()
        self.notes = Notes(self.counts, Transcript(record))
        self.mischief = Mischief(self.notes, self._elsewhere)
        self.faults = Faults()
        self._loop = asyncio.get_running_loop()
        self._dice: dict[str, Dice] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None
        self._broker = broker
        self._unnamed = 0
        # What the clients subscribed to, by Client Identifier: a session keeps it.
        self._subscriptions: dict[str, dict[str, Subscription]] = {}
        self._opening: set[asyncio.Task[None]] = set()
        # Whether single messages matter, or did once: their acknowledgements still may.
        self._looks = False
        # What passed unread, with its moment and the connection on which it came.
        self._reads_late = reads_late
        self._unread: list[tuple[int, Side, bytes]] = []
        self._is_over = False
        # PUBLISH packets that a ceiling holds back, and when the next may pass.
        self._waiting: deque[tuple[Client, bytes]] = deque()
        self._next_service_ns = 0
        self._pump: asyncio.TimerHandle | None = None
        self.set_faults(faults)

    def receivers(self) -> list[Client]:
        """Return all clients that may get deliveries."""
        return [one for one in self.connections if isinstance(one, Client) and one.accepted]

    def grow_buffer(self, size: int) -> None:
        self.buffer = np.zeros(size, np.uint8)
        self.view = memoryview(self.buffer)  # type: ignore[arg-type]

    async def listen(
        self,
        host: str,
        port: int,
        protocol: Callable[[], asyncio.BaseProtocol],
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Listen, and return the port; `port` 0 chooses one."""
        listener = listen(host, port)
        # asyncio sets the backlog anew.
        self._server = await self._loop.create_server(
            protocol, sock=listener, backlog=4096, ssl=tls
        )
        chosen: int = listener.getsockname()[1]
        return chosen

    def snapshot(self) -> FaultCounts:
        """Return the counts as of now, gauges filled in."""
        receivers = self.receivers()
        held = self.mischief.held + sum(len(receiver.delay_line) for receiver in receivers)
        gauges = {"held": held, "connected": len(receivers), "waiting": len(self._waiting)}
        return replace(self.notes.counts, **gauges)

    def answer(self, question: Json) -> Json:
        """What the parent asks: counts, after a change of faults or a cut."""
        if "faults" in question:
            self.set_faults(parse_faults(question["faults"]))
        if "finish" in question:
            self.finish()
        dropped = self.drop_connections(question["drop"]) if "drop" in question else 0
        return {"counts": asdict(self.snapshot()), "dropped": dropped}

    def set_faults(self, faults: Faults) -> None:
        """From now on, these; what the earlier ones held back is let go first, and dice restart."""
        if self.stalled:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            self._end_stall()
        self.mischief.release(self.receivers())
        self._looks |= bool(
            faults.on_deliveries or faults.on_publishes or faults.ceiling or self.notes.transcript
        )
        self.faults = faults
        self.mischief.set_faults(faults)
        self._dice = {name: faults.dice(name) for name in COUNTED_AS if faults.chance(name)}
        if self._reset_timer is not None:
            self._reset_timer.cancel()
            self._reset_timer = None
        if faults.reset_ns:
            self._reset_timer = self._loop.call_later(faults.reset_ns / 1e9, self._on_reset)
        if faults.stall_ns:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            self._stall_timer = self._loop.call_later(faults.stall_ns / 1e9, self._end_stall)
            self.stalled = self.mischief.stalled = True
            for connection in self.connections:
                connection.hold()
        self._serve_waiting()

    def happens(self, name: str, client: "Client", payload: bytes | None = None) -> bool:
        """Return True, and count it, if the fault of this name happens this time."""
        dice = self._dice.get(name)
        if dice is None or not dice.roll():
            return False
        self.notes.fault(name, client.client_id, payload)
        return True

    def drop_connections(self, number: int | None) -> int:
        """Cut `number` clients (None: all) in the order of their identifiers; how many it did."""
        chosen = self._clients()[:number]
        for connection in chosen:
            self.notes.fault("drop", connection.client_id)
            connection.cut()
        return len(chosen)

    def _clients(self) -> list[Side]:
        """Return those that may be cut, in the order of their Client Identifiers."""
        named = [one for one in self.connections if one.client_id and not one.closed]
        return sorted(named, key=lambda connection: connection.client_id)

    def _on_reset(self) -> None:
        self._reset_timer = self._loop.call_later(self.faults.reset_ns / 1e9, self._on_reset)
        clients = self._clients()
        if clients and not self.stalled:
            chosen = clients[self._dice["reset"].below(len(clients))]
            self.notes.fault("reset", chosen.client_id)
            chosen.cut()

    def _elsewhere(self, _: object, item: Delivery, dice: Dice) -> Client | None:
        topic = item.topic
        others = [
            other
            for other in self.receivers()
            if not any(filter_matches(split_shared(f)[1], topic) for f in other.subscriptions)
        ]
        return others[dice.below(len(others))] if others else None

    def _end_stall(self) -> None:
        self._stall_timer = None
        self.stalled = self.mischief.stalled = False
        for connection in list(self.connections):
            connection.release()
            connection.catch_up()
        self.mischief.after_stall(self.receivers())
        self._serve_waiting()

    def consume(self, connection: Side, end: int) -> int:
        """Serve the packets in `view[:end]` and return where the first incomplete one begins.

        Raises RemoteProtocolError if the client violates the protocol.
        """
        client = connection.client
        if self._reads_late and client.accepted:
            self._unread.append((time.monotonic_ns(), connection, bytes(self.view[:end])))
            self._pass_on(connection, 0, end)
            return end
        handlers = _FROM_CLIENT if connection is client else _FROM_BROKER
        passed = position = 0
        while position < end and (self._is_over or not connection.closed):
            if client.client_id and client.other is None:
                # The broker has not answered yet.
                return position
            status, first, body, packet_end = frame(self.buffer, position, end, PACKET_LIMIT_BYTES)
            if status == INCOMPLETE:
                break
            if status != OK:
                raise RemoteProtocolError("no MQTT packet", ReasonCode.MALFORMED_PACKET)
            handler = handlers.get(first >> 4)
            if handler is not None and (self._looks or first >> 4 in _ALWAYS):
                # What is passed on as it came goes first.
                self._pass_on(connection, passed, position)
                passed = position
                if not handler(self, client, Packet(first, position, body, packet_end)):
                    passed = packet_end
            position = packet_end
        self._pass_on(connection, passed, position)
        return position

    def _pass_on(self, connection: Side, start: int, end: int) -> None:
        other = connection.other
        if other is None or start == end:
            return
        other.write(bytes(self.view[start:end]))
        if other.blocked:
            connection.wait_for(other)

    def detach(self, connection: Side) -> None:
        client = connection.client
        if connection is not client and not (client.accepted or client.closed):
            self._note_connect(client, present=False, code=NO_CONNACK)
        if connection.other is not None:
            # What it was told before still goes out.
            connection.other.end()
        if connection is not client or not client.accepted:
            return
        client.accepted = False
        counts = self.counts
        counts.disconnects += 1
        self.notes.transcript.gone(client.client_id)
        self.mischief.forget(client)
        if client.delay_timer is not None:
            client.delay_timer.cancel()
        counts.discarded += len(client.delay_line)
        client.delay_line.clear()

    def finish(self) -> None:
        """Cut every connection, and read what passed unread into the transcript."""
        for connection in list(self.connections):
            connection.cut()
        self._reads_late, self._is_over = False, True
        rest: dict[Side, bytes] = {}
        for at_ns, connection, data in self._unread:
            self.notes.transcript.at_ns = at_ns
            said = rest.get(connection, b"") + data
            if len(said) > len(self.view):
                self.grow_buffer(len(said))
            self.view[: len(said)] = said
            rest[connection] = said[self.consume(connection, len(said)) :]

    def close(self) -> None:
        """Cut every connection and stop every timer."""
        for task in (*self._opening, self._stall_timer, self._reset_timer):
            if task is not None:
                task.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.cut()
        self.notes.transcript.close()

    # From the client. Each returns whether the packet goes on as it came.

    def _on_connect(self, client: Client, packet: Packet) -> bool:
        connect = self._decoded(packet, MQTT_5)
        if not isinstance(connect, packets.Connect) or client.client_id:
            raise RemoteProtocolError("a second CONNECT", ReasonCode.PROTOCOL_ERROR)
        self._unnamed += not connect.client_id
        client.client_id = connect.client_id or f"relayed-{self._unnamed}"
        client.version, client.clean_start = connect.protocol_version, connect.clean_start
        if self.happens("close", client):
            self._note_connect(client, present=False, code=NO_CONNACK)
            client.end()
            return False
        if self.happens("refuse", client):
            self._note_connect(client, present=False, code=self.faults.refuse)
            client.write(refusal(self.faults.refuse, client.version))
            client.end()
            return False
        client.hold()
        task = self._loop.create_task(
            self._open(client, bytes(self.view[packet.start : packet.end]))
        )
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)
        return False

    async def _open(self, client: Client, connect: bytes) -> None:
        upstream = Upstream(self, client)
        try:
            await self._loop.create_connection(lambda: upstream, *self._broker)
        except OSError:
            client.cut()
            return
        if client.closed:
            upstream.cut()
            return
        client.other = upstream
        upstream.write(connect)
        client.release()
        if not self.stalled:
            client.catch_up()

    def _on_subscribe(self, client: Client, packet: Packet) -> bool:
        subscribe = self._decoded(packet, client.version)
        assert isinstance(subscribe, packets.Subscribe)
        asked, faults = subscribe.subscriptions, self.faults
        if self.happens("subrefuse", client):
            code = faults.subrefuse if client.version == MQTT_5 else SUBSCRIBE_FAILURE
            refused = subscribe_refusal(subscribe.packet_id, code, len(asked), client.version)
            client.write(refused)
            self.notes.transcript.subscribe(client.client_id, asked, (code,) * len(asked))
            return False
        most = 2 if faults.subgrant is None else faults.subgrant
        lowers = any(one.qos > most for one in asked) and self.happens("subgrant", client)
        client.asked[subscribe.packet_id] = asked
        client.subscriptions.update((one.topic_filter, one) for one in asked)
        if lowers and client.other is not None:
            lowered = tuple(replace(one, qos=min(one.qos, most)) for one in asked)
            client.other.write(encode(replace(subscribe, subscriptions=lowered), client.version))
        return not lowers

    def _on_unsubscribe(self, client: Client, packet: Packet) -> bool:
        unsubscribe = self._decoded(packet, client.version)
        assert isinstance(unsubscribe, packets.Unsubscribe)
        for topic_filter in unsubscribe.topic_filters:
            client.subscriptions.pop(topic_filter, None)
        return True

    def _on_published(self, client: Client, packet: Packet) -> bool:
        item = self._publish(client, packet)
        message, packet_id = item.message, item.packet_id
        self.notes.transcript.publish(client.client_id, packet_id, item, dup=item.dup)
        if not self._selects(message):
            return True
        answered, payload = item.qos > 0, message.payload
        if answered and client.version == MQTT_5 and self.happens("reject", client, payload):
            answer, code = PUBACK if item.qos == 1 else PUBREC, self.faults.reject
            client.write(rejection(answer, packet_id, code, REJECTED))
            self.notes.transcript.answer(client.client_id, answer, packet_id, code)
            return False
        if answered and self.happens("withhold", client, payload):
            client.withheld.add(packet_id)
        if self.faults.ceiling:
            self._waiting.append((client, bytes(self.view[packet.start : packet.end])))
            if self._pump is None:
                self._serve_waiting()
        else:
            self.counts.received += 1
            self._pass_on(client, packet.start, packet.end)
        if self.happens("unsolicited", client, payload):
            client.answer(PUBACK, NOBODYS_PACKET_ID)
        if self.happens("drop", client, payload):
            client.cut()
        return False

    def _serve_waiting(self) -> None:
        """Pass waiting messages on, at most as many a second as the ceiling allows."""
        if self._pump is not None:
            self._pump.cancel()
            self._pump = None
        ceiling = self.faults.ceiling
        interval_ns = 1e9 / ceiling if ceiling else 0.0
        now_ns = time.monotonic_ns()
        # A pause of the queue earns nothing, but lateness of the timer is made up for.
        if now_ns - self._next_service_ns > max(50_000_000, interval_ns):
            self._next_service_ns = now_ns
        while self._waiting and not self.stalled and self._next_service_ns <= now_ns:
            client, packet = self._waiting.popleft()
            self._next_service_ns = int(self._next_service_ns + interval_ns)
            self.counts.received += 1
            if client.other is not None:
                client.other.write(packet)
        if self._waiting and not self.stalled:
            wait_s = max(0.001, (self._next_service_ns - now_ns) / 1e9)
            self._pump = self._loop.call_later(wait_s, self._serve_waiting)

    def _on_client_ack(self, client: Client, packet: Packet) -> bool:
        _, packet_id, reason = self._ack_fields(client, packet)
        self.notes.transcript.taken(client.client_id, packet.first_byte >> 4, packet_id)
        if packet_id not in client.own:
            return True
        if packet.first_byte >> 4 == PUBREC and not is_failure(reason):
            client.release_own(packet_id)
        else:
            client.own.discard(packet_id)
        return False

    # From the broker.

    def _on_connack(self, client: Client, packet: Packet) -> bool:
        present, code = bool(self.view[packet.body] & 1), self.view[packet.body + 1]
        if code == 0:
            client.accepted = True
            self.counts.connects += 1
            kept = self._subscriptions.get(client.client_id, {}) if present else {}
            client.subscriptions = self._subscriptions[client.client_id] = kept
            if client.clean_start and self.happens("session", client):
                present = True
                self.view[packet.body] = 1
        self._note_connect(client, present=present, code=code)
        return True

    def _on_delivery(self, client: Client, packet: Packet) -> bool:
        item = self._publish(client, packet)
        if self.mischief.active and self._selects(item.message):
            self.mischief.offer(client, item)
        else:
            self.mischief.follow(client, item)
        return False

    def _on_broker_ack(self, client: Client, packet: Packet) -> bool:
        packet_type = packet.first_byte >> 4
        _, packet_id, reason = self._ack_fields(client, packet)
        last = packet_type != PUBREC or is_failure(reason)
        if last and packet_id in client.withheld:
            client.withheld.discard(packet_id)
            return False
        self.notes.transcript.answer(client.client_id, packet_type, packet_id, reason)
        return True

    def _on_release(self, client: Client, packet: Packet) -> bool:
        _, packet_id, _ = self._ack_fields(client, packet)
        if packet_id in client.settled or self.happens("unreleased", client):
            client.settled.discard(packet_id)
            if client.other is not None:
                client.other.write(acknowledgement(PUBCOMP, packet_id))
            return False
        self.notes.transcript.release(client.client_id, packet_id)
        return True

    def _on_suback(self, client: Client, packet: Packet) -> bool:
        suback = self._decoded(packet, client.version)
        assert isinstance(suback, packets.SubAck)
        asked = client.asked.pop(suback.packet_id, ())
        self.notes.transcript.subscribe(client.client_id, asked, suback.reason_codes)
        return True

    def _decoded(self, packet: Packet, version: int) -> packets.Packet:
        decoded = decode(self.view, packet.start, packet.end, version, PACKET_LIMIT_BYTES)
        assert decoded is not None
        return decoded[0]

    def _ack_fields(self, client: Client, packet: Packet) -> tuple[int, int, int]:
        kind = packet.first_byte >> 4
        return ack_fields(self.buffer, kind, packet.body, packet.end, client.version)

    def _publish(self, client: Client, packet: Packet) -> Delivery:
        view, first = self.view, packet.first_byte
        status, topic_start, topic_end, packet_id, payload, _ = publish_fields(
            self.buffer, first, packet.body, packet.end, client.version
        )
        if status != OK:
            raise RemoteProtocolError("malformed PUBLISH", ReasonCode.MALFORMED_PACKET)
        message = StoredMessage(
            bytes(view[topic_start:topic_end]),
            bytes(view[payload : packet.end]),
            bytes(view[topic_end + (2 if packet_id else 0) : payload]) or b"\0",
        )
        return Delivery(message, first >> 1 & 3, bool(first & 1), int(packet_id), bool(first & 8))

    def _selects(self, message: StoredMessage) -> bool:
        return not self.faults.only or filter_matches(
            self.faults.only, message.topic.decode("utf-8", "replace")
        )

    def _note_connect(self, client: Client, *, present: bool, code: int) -> None:
        self.notes.transcript.connect(
            client.client_id, clean=client.clean_start, present=present, code=code
        )


_Handler = Callable[[Relay, Client, Packet], bool]
_FROM_CLIENT: Final[dict[int, _Handler]] = {
    CONNECT: Relay._on_connect,
    SUBSCRIBE: Relay._on_subscribe,
    UNSUBSCRIBE: Relay._on_unsubscribe,
    PUBLISH: Relay._on_published,
    PUBACK: Relay._on_client_ack,
    PUBREC: Relay._on_client_ack,
    PUBCOMP: Relay._on_client_ack,
}
_FROM_BROKER: Final[dict[int, _Handler]] = {
    CONNACK: Relay._on_connack,
    PUBLISH: Relay._on_delivery,
    PUBACK: Relay._on_broker_ack,
    PUBREC: Relay._on_broker_ack,
    PUBCOMP: Relay._on_broker_ack,
    PUBREL: Relay._on_release,
    SUBACK: Relay._on_suback,
}
_ALWAYS: Final = frozenset((CONNECT, CONNACK, SUBSCRIBE, UNSUBSCRIBE))
"""Packets that are looked at though no fault is set."""


async def serve(config: Json) -> tuple[Relay, int]:
    """A relay that listens, and its port."""
    relay = Relay(
        tuple(config["broker"]),
        parse_faults(config["faults"]),
        config["record"],
        reads_late=config.get("reads_late", False),
    )
    # Compiling, or loading what was compiled, belongs to the start and not to the first client.
    frame(relay.buffer, 0, 2, PACKET_LIMIT_BYTES)
    publish_fields(relay.buffer, PUBLISH << 4, 0, 4, MQTT_5)
    ack_fields(relay.buffer, PUBACK, 0, 2, MQTT_5)
    tls = None
    if config["certificate"]:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*config["certificate"])

    def accept() -> asyncio.BaseProtocol:
        client = Client(relay)
        return WebSocketServer(client) if config["websocket"] else client

    port = await relay.listen(config["host"], config["port"], accept, tls)
    return relay, port


async def _serve_channel(descriptor: int) -> None:
    channel = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_unix_connection(sock=channel)
    relay, port = await serve(json.loads(await reader.readline()))
    answer: Json = {"port": port}
    with suppress(ConnectionError):  # the parent has ended
        while True:
            writer.write(json.dumps(answer).encode() + b"\n")
            line = await reader.readline()
            if not line:
                break
            answer = relay.answer(json.loads(line))
    relay.close()
    writer.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve_channel(int(sys.argv[1])))
