"""A host of connections that errs on command: the reflector, and the relay of our tests."""

import asyncio
from collections.abc import Iterable
from dataclasses import asdict, replace

from loadgen.brokers.child import Json
from loadgen.brokers.faults import COUNTED_AS, Counts, Dice, Faults, parse_faults
from loadgen.brokers.mischief import Mischief, Receiver
from loadgen.brokers.reflector_clients import Connection, Host
from loadgen.brokers.reflector_packets import Outgoing, subscribe_refusal
from loadgen.brokers.transcript import Transcript
from loadgen.mqtt.constants import MQTT_5, PUBACK
from loadgen.mqtt.packets import Subscribe
from loadgen.mqtt.topics import filter_matches, split_shared

REJECTED = "rejected on request"
"""The Reason String of the fault `reject`."""
SUBSCRIBE_FAILURE = 0x80
"""The only failure that SUBACK has in MQTT 3.1.1 (section 3.9.3)."""
NO_CONNACK = -1
"""What a transcript has in place of a reason code where no CONNACK was sent."""
NOBODYS_PACKET_ID = 65_535
"""The Packet Identifier of the fault `unsolicited`; publishers count from 1."""


class ErringHost(Host):
    """Sets faults, draws their dice, stalls, and cuts connections."""

    def __init__(self, record: str = "") -> None:
        super().__init__()
        self.notes.transcript = Transcript(record)
        self.mischief = Mischief(self.notes, self._elsewhere)
        self.faults = Faults()
        self._loop = asyncio.get_running_loop()
        self._dice: dict[str, Dice] = {}
        self._stall_timer: asyncio.TimerHandle | None = None
        self._reset_timer: asyncio.TimerHandle | None = None

    def receivers(self) -> Iterable[Receiver]:
        """All who may get deliveries, also those that are away."""
        raise NotImplementedError

    def snapshot(self) -> Counts:
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

    def closes(self, connection: Connection, client_id: str, *, clean_start: bool) -> bool:
        """Whether a connection was closed at its CONNECT."""
        if not self.rolls("close"):
            return False
        self.notes.fault("close", client_id)
        self.notes.transcript.connect(client_id, clean=clean_start, present=False, code=NO_CONNACK)
        connection.end(None)
        return True

    # Faults of a message on its way to the broker, in the order in which they are tried.

    def rejects(self, connection: Connection, qos: int, payload: bytes) -> int:
        """The reason code with which a message is rejected, 0 if it is not."""
        if qos == 0 or connection.version != MQTT_5 or not self.rolls("reject"):
            return 0
        self.notes.fault("reject", connection.client_id, payload)
        return self.faults.reject

    def withholds(self, connection: Connection, qos: int, payload: bytes) -> bool:
        """Whether the last acknowledgement of a message is never sent."""
        if qos == 0 or not self.rolls("withhold"):
            return False
        self.notes.fault("withhold", connection.client_id, payload)
        return True

    def after_publish(self, connection: Connection, payload: bytes) -> None:
        """What happens to a client once its message was served."""
        if self.rolls("unsolicited"):
            self.notes.fault("unsolicited", connection.client_id, payload)
            connection.answer(PUBACK, NOBODYS_PACKET_ID)
        if self.rolls("drop"):
            self.notes.fault("drop", connection.client_id, payload)
            connection.cut()

    def subscribing(self, connection: Connection, packet: Subscribe) -> tuple[bool, Subscribe]:
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

    def clients(self) -> list[Connection]:
        """Those that may be cut, in the order of their Client Identifiers."""
        named = [one for one in self.connections if one.client_id and not one.closed]
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

    def _elsewhere(self, receiver: Receiver, item: Outgoing, dice: Dice) -> Receiver | None:
        topic = item.message.topic_text
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
        for connection in list(self.connections):
            connection.seen_tick = self.tick
            connection.release()
            connection.catch_up()
        self.mischief.after_stall(list(self.receivers()))

    def _release_held(self) -> None:
        if self.stalled:
            if self._stall_timer is not None:
                self._stall_timer.cancel()
            self._end_stall()
        self.mischief.release(list(self.receivers()))
