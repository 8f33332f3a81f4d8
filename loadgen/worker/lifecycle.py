"""The life of a device's connection: accepted, lost, connected again."""

import errno
import os
from collections import Counter
from functools import lru_cache
from math import inf

import numpy as np

from loadgen.errors import CannotRunError, LoadgenError
from loadgen.kernels import counting, sender
from loadgen.kernels.device import (
    AWAY,
    BLOCKED,
    CLOSED,
    CONNECTED,
    LOSE,
    WINDOW_FULL,
    transition,
)
from loadgen.kernels.in_flight import redelivery_order, set_capacity
from loadgen.kernels.reactor import entry_points
from loadgen.mqtt import packets, violations
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import MQTT_3_1, MQTT_5
from loadgen.mqtt.packets import ConnAck, Disconnect, Packet, PubAck, PubRec, SubAck, UnsubAck
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import is_known, reason_name
from loadgen.plan.behaviour import Behaviour, PlannedFleet
from loadgen.plan.groups import Reconnect, Version, sent_qos
from loadgen.worker.clock import clock_ns
from loadgen.worker.connector import Connector
from loadgen.worker.outgoing import Outgoing
from loadgen.worker.poller import Poller, WorkerLoop
from loadgen.worker.recorder import current_phase
from loadgen.worker.reporter import Reporter
from loadgen.worker.streams import Streams, ending
from loadgen.worker.subscriptions import Subscriptions, breaches
from loadgen.worker.upkeep import NO_PINGRESP, doubt

_CLOSINGS = tuple(map(ending, (0, errno.ECONNRESET, errno.EPIPE)))
_NO_CONNACK = "closed before CONNACK; has the broker reached a limit?"
_LEFT = "left for a while"
_UNANSWERED = (
    "a request without a response: the window of unacknowledged ones is full; "
    "raise --max-unacknowledged"
)
_EXPIRY_EARLY_S, _EXPIRY_LATE_S = 1.0, 5.0
"""Brokers count whole seconds, and may remove a session some time after its expiry."""
_RECEIVE_MAXIMUM = 65_535  # if CONNACK has none (MQTT 5, 3.2.2.3.3)
_PACKET_LIMIT = 1 << 20
_REASON_CHARACTERS = 300  # of the broker's text, which the coordinator escapes


@lru_cache(maxsize=64)
def _decoded(data: bytes, version: int) -> Packet:
    found = decode(data, 0, len(data), version, _PACKET_LIMIT)
    if found is None:
        raise CannotRunError("a packet ended before its length")
    return found[0]


def _limit_of(fleet: PlannedFleet, connection: int, stated: Properties) -> str:
    """Return the limit of a CONNACK that forbids the plan of a device, or ""."""
    publishes = (group := fleet.group_of(connection)).publishes
    if stated.maximum_qos is not None and sent_qos(group) > stated.maximum_qos:
        return f"Maximum QoS {stated.maximum_qos}, and the device sends at {sent_qos(group)}"
    if publishes is not None and publishes.retain and stated.retain_available == 0:
        return "Retain Available 0, and the device sends retained messages"
    is_stored = group.subscribes is not None and not group.clean_start
    if is_stored and (expiry_s := stated.session_expiry_interval) is not None:
        phases = fleet.plan.phases
        needed_s = phases.warmup_s + phases.duration_s + phases.drain_s
        if expiry_s < min(needed_s, group.session_expiry_s):
            return f"Session Expiry Interval {expiry_s}, and the run lasts {needed_s:.6g} s"
    if (limit_bytes := stated.maximum_packet_size) is not None and publishes is not None:
        largest_bytes = _packet_bytes(fleet, connection, publishes.size_bytes[1])
        if largest_bytes > limit_bytes:
            return f"Maximum Packet Size {limit_bytes}, and the device sends {largest_bytes} bytes"
    return ""


def _packet_bytes(fleet: PlannedFleet, connection: int, size_bytes: int) -> int:
    """Return the size of a device's PUBLISH with a payload and header of these sizes."""
    device = fleet.devices[connection]
    number, group = device.publisher, fleet.groups[device.group]
    if number < 0 or fleet.extension is not None:
        return size_bytes
    topic = bytes(fleet.topics[slice(*fleet.topic_ends[number : number + 2])]).decode()
    body = bytes(size_bytes - group.outside_bytes)
    packet = packets.Publish(topic, body, int(group.qos), packet_id=int(group.qos > 0))
    return len(encode(packet, int(group.version))) + group.property_end - group.property_first


class Lifecycle:
    """The connections of one worker, and the parts that serve them."""

    def __init__(self, behaviour: Behaviour, loop: WorkerLoop, reporter: Reporter) -> None:
        fleet, kernels = behaviour.fleet, entry_points(behaviour.handlers)
        self.poller = Poller(fleet, loop, kernels, self._handle_events)
        self.outgoing = Outgoing(fleet)
        self.streams: Streams | None = None
        if fleet.plan.targets[0].transport != "tcp":
            receive = kernels.receive
            self.streams = Streams(
                fleet, self.outgoing, self._handle_events, self.lost, self._violated, receive
            )
        self.connector = Connector(fleet, loop, self.poller.on_events, self.lost)
        packets = behaviour.subscribe_packets
        self.subscriptions = Subscriptions(fleet, reporter, self.outgoing, packets)
        self.failures: Counter[str] = Counter()
        self.refusal = ""  # first failure code of an acknowledgement, with its reason
        self.violation = ""  # first violation of MQTT by the broker that is judged
        self._fleet = fleet
        self._reporter = reporter
        self._report = reporter.event
        # A column is many times cheaper than a field of a record.
        names = ("events", "control_bytes")
        self._events, self._control_bytes = (fleet.held["totals"][name] for name in names)
        self._redeliver_some = kernels.redeliver

    def _handle_events(self) -> None:
        """Handle every event that the kernels queued."""
        fleet = self._fleet
        rows = fleet.events[: self._events[0]].tolist()
        data = fleet.control[: self._control_bytes[0]].tobytes()
        self._events[0] = self._control_bytes[0] = 0
        # First events whose bytes must directly follow sent ones; others may write or close.
        # Messages over TLS already have their send time: a read before them would count as transit.
        for kind, connection, value, offset, length, _ in rows:
            if kind == counting.UNSENT:
                self.outgoing.keep(connection, data[offset : offset + length])
            elif kind == counting.UNSENT_BODY:
                self.outgoing.keep_body(connection, value, value + length)
            else:
                continue
            self.outgoing.go_on(connection)
        for kind, connection, value, offset, length, moment_ns in rows:
            match kind:
                case counting.READY if self.streams is not None:
                    self.streams.serve(connection, value, moment_ns)
                case counting.UNSENT | counting.UNSENT_BODY:
                    pass
                case counting.CONTROL_PACKET:
                    self._on_control(connection, data[offset : offset + length], moment_ns)
                case counting.WRITABLE:
                    self.outgoing.flush(connection)
                case counting.BROKEN:
                    self._protocol_error(connection, f"violation of MQTT: {reason_name(value)}")
                case counting.REFUSED_PACKET:
                    self._on_refusal(connection, data[offset : offset + length])
                case counting.VIOLATION:
                    self._note_violation(connection, value)
                case counting.UNANSWERED:
                    self._report("unanswered", connection, _UNANSWERED)
                case _:
                    self.lost(connection, ending(value))
        self.connector.more()

    def _protocol_error(self, connection: int, detail: str) -> None:
        self._report("protocol", connection, detail)
        self.lost(connection, detail)

    def _on_refusal(self, connection: int, data: bytes) -> None:
        """Report the first acknowledgement with a failure code, in the broker's words."""
        packet = _decoded(data, self._version_of(connection))  # the kernels have checked it
        if isinstance(packet, PubAck | PubRec):
            told = packet.properties.reason_string
            name = reason_name(packet.reason_code, self._version_of(connection))
            reason = f"{name}: {told[:_REASON_CHARACTERS]}" if told else name
            self.refusal = self.refusal or reason
            self._report("refused", connection, f"acknowledged with {reason}")

    def _note_violation(self, connection: int, kind: int, detail: str = "") -> None:
        words = detail or violations.VIOLATIONS[kind].words
        if violations.VIOLATIONS[kind].is_judged:
            self.violation = self.violation or words
        self._report("violation", connection, words)

    def _violated(self, connection: int, kind: int, detail: str = "") -> None:
        """Count a violation by the broker that Python detected."""
        fleet = self._fleet
        fleet.violations[kind] += 1
        if violations.VIOLATIONS[kind].is_judged:
            phase = counting.phase_of_arrival(fleet.run, clock_ns())
            fleet.counters[int(fleet.group[connection]), phase].violations += 1
        self._note_violation(connection, kind, detail)

    def _on_control(self, connection: int, data: bytes, moment_ns: int) -> None:
        version = self._version_of(connection)
        if self._fleet.devices["state"][connection] == CLOSED:
            return
        try:
            packet = _decoded(data, version)
        except LoadgenError as error:
            self._violated(connection, violations.MALFORMED, str(error))
            self._protocol_error(connection, str(error))
            return
        if isinstance(packet, ConnAck | Disconnect) and not is_known(
            packet.reason_code, packet.packet_type, version
        ):
            self._violated(connection, violations.UNKNOWN_REASON)
        if isinstance(packet, ConnAck):
            self._on_connack(connection, packet, data)
        elif isinstance(packet, SubAck | UnsubAck) and self.subscriptions.ends_turn(
            connection, packet, moment_ns
        ):
            for kind in breaches(packet, 1, 0, version):
                self._violated(connection, kind)
        elif isinstance(packet, SubAck) and self._fleet.group_of(connection).subscribes is not None:
            for kind in self.subscriptions.on_suback(connection, packet, moment_ns):
                self._violated(connection, kind)
        elif isinstance(packet, Disconnect):
            if version != MQTT_5:
                self._violated(connection, violations.SERVER_DISCONNECT)
            if packet.properties.session_expiry_interval is not None:  # only clients may send it
                self._violated(connection, violations.UNREQUESTED_PROPERTY)
            name = reason_name(packet.reason_code)
            self.lost(connection, f"DISCONNECT from the broker: {name}")
        else:
            name = type(packet).__name__.upper()
            self._violated(
                connection, violations.UNEXPECTED_PACKET, f"{name}, which was not requested"
            )
            self._protocol_error(connection, f"the broker sent {name}, which was not requested")

    def _on_connack(self, connection: int, packet: ConnAck, data: bytes) -> None:
        fleet = self._fleet
        if packet.reason_code != 0:
            reason = reason_name(packet.reason_code, self._version_of(connection))
            self.lost(connection, f"CONNACK {reason}")
            return
        self._check_connack(connection, packet)
        if limit := _limit_of(fleet, connection, packet.properties):
            self.disconnect(connection, f"CONNACK with {limit}", refused=True)
            return
        self._adopt(connection, packet, data)
        if self.connector.came_back(connection) or fleet.devices[connection].returned_ns:
            self._resume(connection, packet.session_present)

    def _version_of(self, connection: int) -> Version:
        return self._fleet.plan.version_of(self._fleet.group_of(connection))

    def _check_connack(self, connection: int, packet: ConnAck) -> None:
        """Check a CONNACK that accepts a device against what the device requested."""
        fleet, group, properties = self._fleet, self._fleet.group_of(connection), packet.properties
        device, version = fleet.devices[connection], self._version_of(connection)
        was_here = device.returned_ns != 0
        names_are_new = fleet.plan.scenario.client_id is None and group.clients_file is None
        away_s = (device.returned_ns - device.left_ns) / 1e9
        expiry_s = group.session_expiry_s if version == MQTT_5 else inf
        if (stated_s := properties.session_expiry_interval) is not None:
            expiry_s = stated_s
        kept_s = max(expiry_s, group.session_expiry_s) + _EXPIRY_LATE_S
        is_over = device.due_ns and away_s > kept_s  # a broker may notice a mere loss late
        is_new = group.clean_start or (is_over if was_here else names_are_new)
        if packet.session_present and is_new:
            self._violated(connection, violations.SESSION_PRESENT)
        is_stored = was_here and not group.clean_start and version != MQTT_3_1
        if is_stored and not packet.session_present and away_s < expiry_s - _EXPIRY_EARLY_S:
            self._violated(connection, violations.SESSION_LOST)
        if properties.assigned_client_identifier is not None:
            self._violated(connection, violations.ASSIGNED_IDENTIFIER)
        if properties.response_information or properties.authentication_method:
            self._violated(connection, violations.UNREQUESTED_PROPERTY)

    def _adopt(self, connection: int, packet: ConnAck, data: bytes) -> None:
        """Take the limits of a CONNACK; kernels accept the same bytes for others of the group."""
        fleet, properties = self._fleet, packet.properties
        device, group = fleet.devices[connection], fleet.group_of(connection)
        # It replaces the one in CONNECT (MQTT 5, 3.2.2.3.14), for this connection alone.
        server_s = properties.server_keep_alive
        device.keep_alive_ns = (group.keep_alive_s if server_s is None else server_s) * 10**9
        maximum, capacity = properties.receive_maximum or _RECEIVE_MAXIMUM, 0
        if device.sender >= 0:
            sends = group.publishes or group.responds
            capacity = maximum if sends is None else min(sends.window, maximum)
            capacity = set_capacity(fleet, device.sender, capacity)
        if group.subscribes is not None:
            # Brokers bound both directions alike; a larger batch would never fill.
            device.acknowledge_every = min(group.subscribes.acknowledge_every, maximum)
        if packet.session_present or len(data) > fleet.connacks.shape[1]:
            return
        usual = fleet.groups[device.group]
        usual.capacity = capacity
        usual.keep_alive_ns = device.keep_alive_ns
        usual.acknowledge_every = device.acknowledge_every
        usual.connack_bytes = len(data)
        fleet.connacks[device.group, : len(data)] = np.frombuffer(data, np.uint8)

    def lost(self, connection: int, reason: str, *, refused: bool = False) -> None:
        """Handle a connection that was lost, could not be made, or whose CONNACK is `refused`."""
        fleet = self._fleet
        device = fleet.devices[connection]
        state = device.state
        if state == CLOSED:
            return
        was_away = self.connector.is_away(connection)
        left_ns = device.pinged_ns if reason == NO_PINGRESP else clock_ns()
        self._close(connection)
        self.subscriptions.forget(connection)
        if state == CONNECTED and refused:
            fleet.counters[device.group, counting.CONNECT_PHASE].connects -= 1
        if state == CONNECTED and not refused:
            if not self._reporter.stopping:
                device.returned_ns = AWAY
                device.left_ns = left_ns
                device.due_ns = 0
                doubt(fleet, connection)
                if reason != _LEFT:
                    fleet.totals.disconnects += 1
                    phase = current_phase(fleet, clock_ns())
                    fleet.counters[device.group, phase].disconnects += 1
                    self._report("disconnect", connection, reason)
                    self.subscriptions.settle(connection, reason)
        else:
            fleet.totals.connect_failures += 1
            fleet.counters[device.group, counting.CONNECT_PHASE].connect_failures += 1
            if self.connector.connecting_all and not was_away:
                self.failures[_NO_CONNACK if reason in _CLOSINGS else reason] += 1
        if reason == _LEFT:
            return
        policy = fleet.plan.reconnect
        # A device that left reconnects, with several attempts if needed.
        if policy is None and was_away:
            policy = Reconnect(fleet.plan.scenario.away, fleet.plan.scenario.away, 0.5)
        # A device whose first connect fails is a failure of the run and not tried again.
        tried = not self.connector.connecting_all or state == CONNECTED or was_away
        if policy is not None and tried and not self._reporter.stopping:
            self.connector.reconnect(connection, policy)

    def _close(self, connection: int) -> None:
        device = self._fleet.devices[connection]
        transition(self._fleet, connection, LOSE)
        device.held = device.pings = 0
        device.pinged_ns = 0
        device.flags &= ~BLOCKED
        self.outgoing.taken(connection)
        closed = self.streams is not None and self.streams.close(connection)
        if device.descriptor >= 0 and not closed:
            os.close(device.descriptor)
        device.descriptor = -1

    def disconnect(self, connection: int, reason: str, *, refused: bool = False) -> None:
        self.outgoing.write(connection, encode(Disconnect(), self._version_of(connection)))
        self.lost(connection, reason, refused=refused)

    def leave(self, connection: int, until_ns: int) -> None:
        """Disconnect a device, which returns at a given time."""
        self.disconnect(connection, _LEFT)
        self._fleet.devices[connection].due_ns = until_ns
        self.connector.return_at(connection, until_ns)

    def _resume(self, connection: int, session_present: bool) -> None:
        """Restore the subscription of a reconnected device, and repeat unacknowledged messages."""
        fleet = self._fleet
        device = fleet.devices[connection]
        device.flags &= ~WINDOW_FULL
        # Packets after the CONNACK may have answers already, which go behind the repeated messages.
        begun = self.outgoing.taken(connection)
        if not session_present and fleet.group_of(connection).subscribes is not None:
            self.subscriptions.ask(connection)
        if device.sender >= 0 and device.responses >= 0:
            # Responses are not stored; their requests count as lost unless the response arrived.
            sender.give_up_all(fleet, connection)
        elif device.sender >= 0:
            slots = redelivery_order(fleet, device.sender)
            while len(slots):
                handled, size, body_bytes = self._redeliver_some(
                    fleet, connection, session_present, slots, len(slots), clock_ns()
                )
                self.outgoing.write(connection, fleet.out[:size].tobytes(), body_bytes)
                slots = slots[handled:].copy()
        for data in begun:
            self.outgoing.keep(connection, data)
        self.outgoing.flush(connection)
        sender.requeue(fleet, connection)
        self._report("return", connection, "connected again")
