"""Faults of connections, of messages to the broker and of subscriptions, on command."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace

from loadgen.brokers.reflector import Connection, ReflectorHost
from loadgen.mqtt.constants import MQTT_5, PUBACK
from loadgen.mqtt.packets import Subscribe
from loadgen.mqtt.topics import filter_matches, split_shared
from tests.instruments.child import Json
from tests.instruments.faults import COUNTED_AS, Dice, FaultCounts, Faults, parse_faults
from tests.instruments.mischief import Mischief, Notes, Receiver
from tests.instruments.packets import Delivery, rejection, subscribe_refusal
from tests.instruments.transcript import Transcript

REJECTED = "rejected on request"
"""The Reason String of the fault `reject`."""
SUBSCRIBE_FAILURE = 0x80
"""The only failure that SUBACK has in MQTT 3.1.1 (section 3.9.3)."""
NO_CONNACK = -1
"""What a transcript has in place of a reason code where no CONNACK was sent."""
NOBODYS_PACKET_ID = 65_535
"""The Packet Identifier of the fault `unsolicited`; publishers count from 1."""


class ErringConnection(Connection):
    """A connection that is not read during a stall, and whose answers are in the transcript."""

    host: "ErringHost"

    def __init__(self, host: "ErringHost") -> None:
        super().__init__(host)
        self.client_id = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.host.stalled:
            # uvloop begins to read right after this, and may read once before it pauses; see
            # `buffer_updated`.
            self.holds += 1
            asyncio.get_running_loop().call_soon(self._pause_if_held)

    def _pause_if_held(self) -> None:
        if self.holds and not self.transport.is_closing():
            self.transport.pause_reading()

    def buffer_updated(self, nbytes: int) -> None:
        if self.host.stalled:
            self.partial = bytes(self.host.view[: len(self.partial) + nbytes])
        else:
            super().buffer_updated(nbytes)

    def catch_up(self) -> None:
        """Serve what was read during a stall."""
        if self.partial and not self.closed:
            # Copies the partial packet to the beginning of the view, as before a read.
            self.get_buffer(-1)
            self.consume(len(self.partial))

    def reject(self, packet_type: int, packet_id: int, code: int, reason: str) -> None:
        """Send PUBACK or PUBREC with a failure."""
        self.write(rejection(packet_type, packet_id, code, reason))
        self.host.notes.transcript.answer(self.client_id, packet_type, packet_id, code)

    def answer(self, packet_type: int, packet_id: int) -> None:
        super().answer(packet_type, packet_id)
        self.host.notes.transcript.answer(self.client_id, packet_type, packet_id, 0)


class ErringHost(ReflectorHost):
    """Sets faults, draws their dice, stalls, and cuts connections."""

    def __init__(self, record: str = "") -> None:
        super().__init__()
        self.stalled = False
        self.counts: FaultCounts = FaultCounts()
        self.notes = Notes(self.counts, Transcript(record))
        self.mischief = Mischief(self.notes, self._elsewhere)
        self.faults = Faults()
        self._loop = asyncio.get_running_loop()
        self._dice: dict[str, Dice] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None

    def receivers(self) -> Iterable[Receiver]:
        """All who may get deliveries, also those that are away."""
        raise NotImplementedError

    def snapshot(self) -> FaultCounts:
        """The counts as of now, gauges filled in."""
        receivers = list(self.receivers())
        held = self.mischief.held + sum(len(receiver.delay_line) for receiver in receivers)
        connected = sum(1 for receiver in receivers if receiver.version)
        return replace(self.notes.counts, held=held, connected=connected)

    def answer(self, question: Json) -> Json:
        """What the parent asks: counts, after a change of faults or a cut."""
        if "faults" in question:
            self.set_faults(parse_faults(question["faults"]))
        dropped = self.drop_connections(question["drop"]) if "drop" in question else 0
        return {"counts": asdict(self.snapshot()), "dropped": dropped}

    def set_faults(self, faults: Faults) -> None:
        """From now on, these; what the earlier ones held back is let go first, and dice restart."""
        self._release_held()
        self.faults = faults
        self.mischief.set_faults(faults)
        self._dice = {name: faults.dice(name) for name in COUNTED_AS if faults.chance(name)}
        if self._reset_timer is not None:
            self._reset_timer.cancel()
            self._reset_timer = None
        if faults.reset_ns:
            self._reset_timer = self._loop.call_later(faults.reset_ns / 1e9, self._on_reset)
        if faults.stall_ns:
            self._stall(faults.stall_ns / 1e9)

    def rolls(self, name: str) -> bool:
        """Whether the fault of this name happens this time."""
        dice = self._dice.get(name)
        return dice is not None and dice.roll()

    def closes(self, connection: ErringConnection, client_id: str, *, clean_start: bool) -> bool:
        """Whether a connection was closed at its CONNECT."""
        if not self.rolls("close"):
            return False
        self.notes.fault("close", client_id)
        self.notes.transcript.connect(client_id, clean=clean_start, present=False, code=NO_CONNACK)
        connection.end(None)
        return True

    # Faults of a message on its way to the broker, in the order in which they are tried.

    def rejects(self, connection: ErringConnection, qos: int, payload: bytes) -> int:
        """The reason code with which a message is rejected, 0 if it is not."""
        if qos == 0 or connection.version != MQTT_5 or not self.rolls("reject"):
            return 0
        self.notes.fault("reject", connection.client_id, payload)
        return self.faults.reject

    def withholds(self, connection: ErringConnection, qos: int, payload: bytes) -> bool:
        """Whether the last acknowledgement of a message is never sent."""
        if qos == 0 or not self.rolls("withhold"):
            return False
        self.notes.fault("withhold", connection.client_id, payload)
        return True

    def after_publish(self, connection: ErringConnection, payload: bytes) -> None:
        """What happens to a client once its message was served."""
        if self.rolls("unsolicited"):
            self.notes.fault("unsolicited", connection.client_id, payload)
            connection.answer(PUBACK, NOBODYS_PACKET_ID)
        if self.rolls("drop"):
            self.notes.fault("drop", connection.client_id, payload)
            connection.cut()

    def subscribing(
        self, connection: ErringConnection, packet: Subscribe
    ) -> tuple[bool, Subscribe]:
        """Whether a SUBSCRIBE was refused, and what it asks for where it was not."""
        count, version = len(packet.subscriptions), connection.version
        if self.rolls("subrefuse"):
            self.notes.fault("subrefuse", connection.client_id)
            code = self.faults.subrefuse if version == MQTT_5 else SUBSCRIBE_FAILURE
            connection.write(subscribe_refusal(packet.packet_id, code, count, version))
            self.notes.transcript.subscribe(
                connection.client_id, packet.subscriptions, (code,) * count
            )
            return True, packet
        most = self.faults.subgrant
        if (
            most is None
            or all(one.qos <= most for one in packet.subscriptions)
            or not self.rolls("subgrant")
        ):
            return False, packet
        self.notes.fault("subgrant", connection.client_id)
        lowered = tuple(replace(one, qos=min(one.qos, most)) for one in packet.subscriptions)
        return False, replace(packet, subscriptions=lowered)

    # Connections

    def erring_connections(self) -> list[ErringConnection]:
        """Return the connections of clients and those to the broker."""
        return [one for one in self.connections if isinstance(one, ErringConnection)]

    def clients(self) -> list[ErringConnection]:
        """Those that may be cut, in the order of their Client Identifiers."""
        named = [one for one in self.erring_connections() if one.client_id and not one.closed]
        return sorted(named, key=lambda connection: connection.client_id)

    def drop_connections(self, number: int | None) -> int:
        """Cut `number` clients (None: all) in the order of their identifiers; how many it did."""
        chosen = self.clients()[:number]
        for connection in chosen:
            self.notes.fault("drop", connection.client_id)
            connection.cut()
        return len(chosen)

    def close(self) -> None:
        """Cut every connection and stop every timer."""
        for timer in (self._stall_timer, self._reset_timer):
            if timer is not None:
                timer.cancel()
        super().close()
        self.notes.transcript.close()

    def _on_reset(self) -> None:
        self._reset_timer = self._loop.call_later(self.faults.reset_ns / 1e9, self._on_reset)
        clients = self.clients()
        if clients and not self.stalled:
            chosen = clients[self._dice["reset"].below(len(clients))]
            self.notes.fault("reset", chosen.client_id)
            chosen.cut()

    def _elsewhere(self, receiver: Receiver, item: Delivery, dice: Dice) -> Receiver | None:
        topic = item.topic
        others = [
            other
            for other in self.receivers()
            if other.version
            and not any(filter_matches(split_shared(f)[1], topic) for f in other.subscriptions)
        ]
        return others[dice.below(len(others))] if others else None

    # Stalls

    def _stall(self, seconds: float) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        self._stall_timer = self._loop.call_later(seconds, self._end_stall)
        if not self.stalled:
            self.stalled = self.mischief.stalled = True
            for connection in self.connections:
                connection.hold()

    def _end_stall(self) -> None:
        self._stall_timer = None
        self.stalled = self.mischief.stalled = False
        for connection in self.erring_connections():
            connection.release()
            connection.catch_up()
        self.mischief.after_stall(list(self.receivers()))

    def _release_held(self) -> None:
        if self.stalled:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            self._end_stall()
        self.mischief.release(list(self.receivers()))
