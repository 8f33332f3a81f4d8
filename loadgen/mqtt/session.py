"""One client's side of MQTT without a socket and without a clock (spec 4).

`Session` has three verbs for the network, `receive_data`, `events_received` and `data_to_send`, and
a method for each thing a client may ask for. It is the readable form of the protocol: probes and
tests use it, and the engine does the same for thousands of connections with the arrays and
functions of in_flight.py, which are exported here too and which `Session` uses with one row.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, Final

import numpy as np

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.constants import (
    AUTH,
    CONNACK,
    DISCONNECT,
    MQTT_3_1_1,
    MQTT_5,
    PACKET_NAMES,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    UNSUBACK,
)
from loadgen.mqtt.in_flight import (
    AWAIT_PUBACK,
    AWAIT_PUBCOMP,
    AWAIT_PUBREC,
    FREE,
    IN_FLIGHT_DTYPE,
    MAX_WINDOW,
    RECEIVED_BYTES,
    SENDER_DTYPE,
    UNKNOWN_PACKET_ID,
    WRONG_STATE,
    accept_qos2,
    acquire,
    forget_received,
    keep_alive_due,
    on_puback,
    on_pubcomp,
    on_pubrec,
    redelivery_order,
    release_qos2,
    reset,
    set_capacity,
)
from loadgen.mqtt.kernels import OK
from loadgen.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.reason_codes import REASON_CODES, ReasonCode

__all__ = [
    "AWAIT_PUBACK",
    "AWAIT_PUBCOMP",
    "AWAIT_PUBREC",
    "FREE",
    "IN_FLIGHT_DTYPE",
    "MAX_WINDOW",
    "OK",
    "RECEIVED_BYTES",
    "SENDER_DTYPE",
    "UNKNOWN_PACKET_ID",
    "WRONG_STATE",
    "Session",
    "SessionState",
    "accept_qos2",
    "acquire",
    "forget_received",
    "keep_alive_due",
    "on_puback",
    "on_pubcomp",
    "on_pubrec",
    "redelivery_order",
    "release_qos2",
    "reset",
    "set_capacity",
]

_DEFAULT_WINDOW: Final = 64
_DEFAULT_LIMIT_BYTES: Final = 16 << 20
_NS_PER_S: Final = 1_000_000_000
# What absent CONNECT and CONNACK properties mean (spec 3.1.2.11.3, 3.2.2.3.3).
_DEFAULT_RECEIVE_MAXIMUM: Final = 0xFFFF
_ROW: Final = 0


class SessionState(Enum):
    """Where a network connection stands; the session's messages outlive it."""

    IDLE = "not yet connected"
    CONNECTING = "waiting for CONNACK"
    CONNECTED = "connected"
    CLOSED = "closed"


# What a server may send, by state (spec 3.1.4, 3.14, 4.12). MQTT 3.1.1 has neither of the last two.
_EXPECTED: Final = {
    SessionState.CONNECTING: frozenset((CONNACK, AUTH)),
    SessionState.CONNECTED: frozenset(
        (
            PUBLISH,
            PUBACK,
            PUBREC,
            PUBREL,
            PUBCOMP,
            SUBACK,
            UNSUBACK,
            PINGRESP,
            DISCONNECT,
            AUTH,
        )
    ),
}
_ONLY_MQTT_5: Final = frozenset((DISCONNECT, AUTH))


class Session:
    """A client session over any number of network connections, one at a time.

    `version` is 4 (MQTT 3.1.1) or 5. `window` bounds the messages of QoS 1 and 2 under way; the
    broker's Receive Maximum may bound them further. `limit_bytes` bounds the Remaining Length of
    what the broker sends, beside the Maximum Packet Size of CONNECT.

    Times are nanoseconds of one clock of the caller's. A request that MQTT forbids raises
    LocalProtocolError and changes nothing. What the broker must not send raises
    RemoteProtocolError: the session is then closed, the events before the fault can still be read,
    and MQTT 5 has a DISCONNECT with the reason in `data_to_send`.
    """

    def __init__(
        self,
        version: int = MQTT_5,
        *,
        window: int = _DEFAULT_WINDOW,
        limit_bytes: int = _DEFAULT_LIMIT_BYTES,
    ) -> None:
        if version not in (MQTT_3_1_1, MQTT_5):
            raise LocalProtocolError(f"protocol version {version} is neither 4 nor 5")
        if not 1 <= window <= MAX_WINDOW:
            raise LocalProtocolError(f"window must be between 1 and {MAX_WINDOW}, not {window}")
        self.version = version
        self._limit_bytes = limit_bytes

        # The session (spec 4.1).
        self._senders = np.zeros(1, SENDER_DTYPE)
        self._window = np.zeros((1, window), IN_FLIGHT_DTYPE)
        self._received = np.zeros((1, RECEIVED_BYTES), np.uint8)
        self._messages: dict[int, Publish] = {}
        self._sequence = 0

        # The network connection; `connect` starts all of it anew.
        self._state = SessionState.IDLE
        self._buffer = bytearray()
        self._output: list[bytes] = []
        self._events: list[Packet] = []
        self._connect = Connect("")
        self._connack = ConnAck()
        self._requests: dict[int, Subscribe | Unsubscribe] = {}
        self._last_request_id = window
        self._redelivery: deque[int] = deque()
        self._open_qos2: set[int] = set()
        self._aliases: dict[int, str] = {}
        self._last_sent_ns = np.zeros(1, np.int64)
        self._keep_alive_ns = np.zeros(1, np.int64)
        self._ping_sent_ns: int | None = None

        self._handlers: dict[int, Callable[[Any, int], Packet | None]] = {
            CONNACK: self._on_connack,
            PUBLISH: self._on_publish,
            PUBACK: self._on_puback,
            PUBREC: self._on_pubrec,
            PUBREL: self._on_pubrel,
            PUBCOMP: self._on_pubcomp,
            SUBACK: self._on_answer,
            UNSUBACK: self._on_answer,
            PINGRESP: self._on_pingresp,
            DISCONNECT: self._on_disconnect,
            AUTH: self._on_auth,
        }

    # --- what it is ---------------------------------------------------------------------------

    @property
    def state(self) -> SessionState:
        """Where the network connection stands."""
        return self._state

    @property
    def connack(self) -> ConnAck:
        """The CONNACK of this network connection, or its default before it came."""
        return self._connack

    @property
    def client_id(self) -> str:
        """The Client Identifier asked for, or the one that the broker assigned (spec 3.2.2.3.7)."""
        return self._connack.properties.assigned_client_identifier or self._connect.client_id

    @property
    def in_flight(self) -> int:
        """Messages of QoS 1 and 2 sent and not fully acknowledged."""
        return int(self._senders[_ROW]["in_flight"])

    @property
    def can_publish(self) -> bool:
        """Whether a message of QoS 1 or 2 would be accepted now."""
        capacity = int(self._senders[_ROW]["capacity"])
        return self._state is SessionState.CONNECTED and self.in_flight < capacity

    @property
    def next_tick_ns(self) -> int | None:
        """When `tick` has something to do, or None when keep-alive is off."""
        keep_alive_ns = int(self._keep_alive_ns[_ROW])
        if self._state is not SessionState.CONNECTED or keep_alive_ns == 0:
            return None
        if self._ping_sent_ns is not None:
            return self._ping_sent_ns + keep_alive_ns
        return int(self._last_sent_ns[_ROW]) + keep_alive_ns

    # --- the network --------------------------------------------------------------------------

    def receive_data(self, data: bytes, now_ns: int) -> None:
        """Take bytes from the network, cut anywhere; answers and events follow from them.

        Bytes for a closed session are dropped. Raises RemoteProtocolError.
        """
        if self._state is SessionState.IDLE:
            raise LocalProtocolError("data received before connect")
        if self._state is SessionState.CLOSED:
            return
        self._buffer += data
        position = 0
        try:
            while self.state is not SessionState.CLOSED:
                found = decode(
                    self._buffer,
                    position,
                    len(self._buffer),
                    self.version,
                    self._limit_bytes,
                )
                if found is None:
                    break
                packet, following = found
                self._check_size(packet, following - position)
                position = following
                self._on_packet(packet, now_ns)
        except RemoteProtocolError as error:
            self._fail(error, now_ns)
            raise
        del self._buffer[:position]

    def events_received(self) -> list[Packet]:
        """The packets received since the last call, without repetitions of a QoS 2 message.

        In a PUBLISH that used a Topic Alias the Topic Name is filled in.
        """
        events, self._events = self._events, []
        return events

    def data_to_send(self) -> bytes:
        """The bytes for the network since the last call."""
        data = b"".join(self._output)
        self._output.clear()
        return data

    def connection_lost(self) -> None:
        """The network connection is gone. Messages under way wait for the next `connect`."""
        self._state = SessionState.CLOSED
        self._buffer.clear()
        self._output.clear()

    def tick(self, now_ns: int) -> None:
        """Send PINGREQ when it is due (spec 3.1.2.10).

        Raises RemoteProtocolError (0x8D) when PINGRESP has not come within one keep-alive interval.
        """
        if self._state is not SessionState.CONNECTED:
            return
        if self._ping_sent_ns is not None:
            keep_alive_ns = int(self._keep_alive_ns[_ROW])
            if now_ns - self._ping_sent_ns >= keep_alive_ns:
                error = RemoteProtocolError(
                    f"no PINGRESP within {keep_alive_ns // _NS_PER_S} s",
                    ReasonCode.KEEP_ALIVE_TIMEOUT,
                )
                self._fail(error, now_ns)
                raise error
            return
        due = np.empty(1, np.int64)
        if keep_alive_due(self._last_sent_ns, self._keep_alive_ns, now_ns, due):
            self._send(PingReq(), now_ns)
            self._ping_sent_ns = now_ns

    # --- what the application asks for --------------------------------------------------------

    def connect(self, packet: Connect, now_ns: int) -> None:
        """Open a new network connection's dialogue; the session goes on if the broker has it."""
        if self._state in (SessionState.CONNECTING, SessionState.CONNECTED):
            raise LocalProtocolError("CONNECT must be sent once a network connection")
        data = encode(packet, self.version)
        self._state = SessionState.CONNECTING
        self._connect = packet
        self._connack = ConnAck()
        self._buffer.clear()
        self._output.clear()
        self._requests.clear()
        self._redelivery.clear()
        self._open_qos2.clear()
        self._aliases.clear()
        self._ping_sent_ns = None
        self._keep_alive_ns[_ROW] = packet.keep_alive * _NS_PER_S
        self._write(data, now_ns)

    def publish(
        self,
        topic_name: str,
        payload: bytes,
        now_ns: int,
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """Publish a message; its Packet Identifier, 0 for QoS 0.

        Raises LocalProtocolError when the window is full (`can_publish` tells) and when the broker
        said in CONNACK that it does not take such a message.
        """
        self._require_connected("PUBLISH")
        offer = self._connack.properties
        if offer.maximum_qos is not None and qos > offer.maximum_qos:
            raise LocalProtocolError(f"the broker takes QoS {offer.maximum_qos} at most")
        if retain and offer.retain_available == 0:
            raise LocalProtocolError("the broker takes no retained messages")
        if properties.topic_alias is not None:
            raise LocalProtocolError("this session sends Topic Names, no Topic Alias")
        if properties.subscription_identifier:
            raise LocalProtocolError("a client must not send a Subscription Identifier in PUBLISH")
        packet = Publish(
            topic_name, payload, qos, retain, packet_id=1 if qos else 0, properties=properties
        )
        # Encoded before a slot is taken, so that a refusal changes nothing.
        data = self._encoded(packet)
        if qos == 0:
            self._write(data, now_ns)
            return 0
        packet_id = acquire(self._senders, self._window, _ROW, qos, self._sequence, now_ns, now_ns)
        if packet_id == 0:
            raise LocalProtocolError(f"{self.in_flight} messages are under way, the window is full")
        self._sequence += 1
        self._messages[packet_id] = replace(packet, packet_id=packet_id)
        self._send(self._messages[packet_id], now_ns)
        return packet_id

    def subscribe(
        self,
        subscriptions: tuple[Subscription, ...],
        now_ns: int,
        properties: Properties = NO_PROPERTIES,
    ) -> int:
        """Send SUBSCRIBE; its Packet Identifier, which SUBACK repeats."""
        self._require_connected("SUBSCRIBE")
        offer = self._connack.properties
        filters = [subscription.topic_filter for subscription in subscriptions]
        if offer.wildcard_subscription_available == 0 and any(
            wildcard in topic_filter for topic_filter in filters for wildcard in "+#"
        ):
            raise LocalProtocolError("the broker has no wildcard subscriptions")
        if offer.shared_subscription_available == 0 and any(
            topic_filter.startswith("$share/") for topic_filter in filters
        ):
            raise LocalProtocolError("the broker has no shared subscriptions")
        if offer.subscription_identifier_available == 0 and properties.subscription_identifier:
            raise LocalProtocolError("the broker has no subscription identifiers")
        return self._request(Subscribe(self._free_id(), subscriptions, properties), now_ns)

    def unsubscribe(
        self, topic_filters: tuple[str, ...], now_ns: int, properties: Properties = NO_PROPERTIES
    ) -> int:
        """Send UNSUBSCRIBE; its Packet Identifier, which UNSUBACK repeats."""
        self._require_connected("UNSUBSCRIBE")
        return self._request(Unsubscribe(self._free_id(), topic_filters, properties), now_ns)

    def auth(self, packet: Auth, now_ns: int) -> None:
        """Go on with enhanced authentication, or start it again (spec 4.12)."""
        if self._state not in (SessionState.CONNECTING, SessionState.CONNECTED):
            raise LocalProtocolError(f"AUTH while the session is {self._state.value}")
        if self._connect.properties.authentication_method is None:
            raise LocalProtocolError("AUTH needs an Authentication Method in CONNECT")
        self._send(packet, now_ns)

    def disconnect(self, now_ns: int, packet: Disconnect | None = None) -> None:
        """Send DISCONNECT and close; what arrives afterwards is dropped."""
        self._require_connected("DISCONNECT")
        self._send(packet or Disconnect(), now_ns)
        self._state = SessionState.CLOSED

    # --- sending ------------------------------------------------------------------------------

    def _require_connected(self, what: str) -> None:
        if self._state is not SessionState.CONNECTED:
            raise LocalProtocolError(f"{what} while the session is {self._state.value}")

    def _encoded(self, packet: Packet) -> bytes:
        data = encode(packet, self.version)
        most = self._connack.properties.maximum_packet_size
        if most is not None and len(data) > most:
            name = PACKET_NAMES[packet.packet_type]
            raise LocalProtocolError(f"{name} of {len(data)} bytes, the broker takes {most}")
        return data

    def _send(self, packet: Packet, now_ns: int) -> None:
        self._write(self._encoded(packet), now_ns)

    def _answer(self, packet: Packet, now_ns: int) -> None:
        """Send what the peer's packet requires; that it cannot be sent is the peer's fault."""
        try:
            data = self._encoded(packet)
        except LocalProtocolError as error:
            raise _unexpected(f"no way to answer, {error}") from None
        self._write(data, now_ns)

    def _write(self, data: bytes, now_ns: int) -> None:
        self._output.append(data)
        self._last_sent_ns[_ROW] = now_ns

    def _free_id(self) -> int:
        """A Packet Identifier above those of the window that no request uses."""
        width = self._window.shape[1]
        for step in range(1, 0x10000 - width):
            candidate = (self._last_request_id - width - 1 + step) % (0xFFFF - width) + width + 1
            if candidate not in self._requests:
                return candidate
        raise LocalProtocolError("every Packet Identifier waits for SUBACK or UNSUBACK")

    def _request(self, packet: Subscribe | Unsubscribe, now_ns: int) -> int:
        self._send(packet, now_ns)
        self._requests[packet.packet_id] = packet
        self._last_request_id = packet.packet_id
        return packet.packet_id

    # --- receiving ----------------------------------------------------------------------------

    def _check_size(self, packet: Packet, size_bytes: int) -> None:
        most = self._connect.properties.maximum_packet_size
        if most is not None and size_bytes > most:
            raise RemoteProtocolError(
                f"{PACKET_NAMES[packet.packet_type]} of {size_bytes} bytes from the peer, "
                f"Maximum Packet Size was {most}",
                ReasonCode.PACKET_TOO_LARGE,
            )

    def _fail(self, error: RemoteProtocolError, now_ns: int) -> None:
        """Close after the peer's fault; MQTT 5 says why (spec 4.13)."""
        code = error.reason_code
        if self._state is SessionState.CONNECTED and self.version == MQTT_5:
            known = code if code in REASON_CODES[DISCONNECT] else ReasonCode.PROTOCOL_ERROR
            data = encode(Disconnect(known), MQTT_5)
            if len(data) <= (self._connack.properties.maximum_packet_size or len(data)):
                self._write(data, now_ns)
        self._state = SessionState.CLOSED
        self._buffer = bytearray()

    def _on_packet(self, packet: Packet, now_ns: int) -> None:
        packet_type = packet.packet_type
        expected = _EXPECTED[self._state]
        if packet_type not in expected or (
            packet_type in _ONLY_MQTT_5 and self.version == MQTT_3_1_1
        ):
            raise _unexpected(f"{PACKET_NAMES[packet_type]} while {self._state.value}")
        event = self._handlers[packet_type](packet, now_ns)
        if event is not None:
            self._events.append(event)

    def _on_connack(self, packet: ConnAck, now_ns: int) -> Packet:
        if packet.session_present and self._connect.clean_start:
            raise _unexpected("CONNACK with Session Present after Clean Start")
        self._connack = packet
        if packet.reason_code != ReasonCode.SUCCESS:
            self._state = SessionState.CLOSED
            return packet
        self._state = SessionState.CONNECTED
        offer = packet.properties
        if offer.server_keep_alive is not None:
            self._keep_alive_ns[_ROW] = offer.server_keep_alive * _NS_PER_S
        maximum = offer.receive_maximum or _DEFAULT_RECEIVE_MAXIMUM
        set_capacity(self._senders, self._window, _ROW, maximum)
        if packet.session_present:
            self._redeliver(now_ns)
        else:
            reset(self._senders, self._window, _ROW)
            forget_received(self._received, _ROW)
            self._messages.clear()
        return packet

    def _redeliver(self, now_ns: int) -> None:
        """Send again what was under way (spec 4.4), PUBLISH as far as Receive Maximum allows."""
        slots = np.empty(self._window.shape[1], np.int64)
        count = redelivery_order(self._senders, self._window, _ROW, slots)
        for slot in slots[:count]:
            if self._window[_ROW, slot]["state"] == AWAIT_PUBCOMP:
                self._answer(PubRel(int(slot) + 1), now_ns)
            else:
                self._redelivery.append(int(slot) + 1)
        self._redeliver_waiting(now_ns)

    def _redeliver_waiting(self, now_ns: int) -> None:
        # What waits here is in flight by its slot, but not on the wire.
        while self._redelivery:
            on_the_wire = self.in_flight - len(self._redelivery)
            if on_the_wire >= self._senders[_ROW]["capacity"]:
                return
            packet_id = self._redelivery.popleft()
            try:
                self._send(replace(self._messages[packet_id], dup=True), now_ns)
            except LocalProtocolError:
                # The broker takes less than before: discarded as if complete (spec 3.2.2.3.6).
                self._discard(packet_id)

    def _discard(self, packet_id: int) -> None:
        if self._messages.pop(packet_id).qos == 1:
            on_puback(self._senders, self._window, _ROW, packet_id)
        else:
            on_pubrec(self._senders, self._window, _ROW, packet_id, ReasonCode.PACKET_TOO_LARGE)

    def _check_sent(self, packet: PubAck | PubRec) -> None:
        """Refuse the acknowledgement of a message that this connection has not yet sent again."""
        if packet.packet_id in self._redelivery:
            name = PACKET_NAMES[packet.packet_type]
            raise _unexpected(f"{name} for Packet Identifier {packet.packet_id}, not yet sent")

    def _on_publish(self, packet: Publish, now_ns: int) -> Packet | None:
        packet = self._with_topic(packet)
        if packet.qos == 0:
            return packet
        self._check_receive_maximum(packet)
        if packet.qos == 1:
            self._answer(PubAck(packet.packet_id), now_ns)
            return packet
        self._open_qos2.add(packet.packet_id)
        new = accept_qos2(self._received, _ROW, packet.packet_id)
        self._answer(PubRec(packet.packet_id), now_ns)
        return packet if new else None

    def _with_topic(self, packet: Publish) -> Publish:
        """Learn or apply the Topic Alias of the peer (spec 3.3.2.3.4)."""
        alias = packet.properties.topic_alias
        if alias is None:
            return packet
        most = self._connect.properties.topic_alias_maximum or 0
        if alias > most:
            raise RemoteProtocolError(
                f"Topic Alias {alias} from the peer, Topic Alias Maximum was {most}",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if packet.topic_name:
            self._aliases[alias] = packet.topic_name
            return packet
        if alias not in self._aliases:
            raise _unexpected(f"Topic Alias {alias} that stands for nothing")
        return replace(packet, topic_name=self._aliases[alias])

    def _check_receive_maximum(self, packet: Publish) -> None:
        most = self._connect.properties.receive_maximum or _DEFAULT_RECEIVE_MAXIMUM
        if packet.packet_id not in self._open_qos2 and len(self._open_qos2) >= most:
            raise RemoteProtocolError(
                f"more than {most} messages of QoS 1 and 2 from the peer at a time",
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
            )

    def _on_puback(self, packet: PubAck, now_ns: int) -> Packet:
        self._check_sent(packet)
        status, _ = on_puback(self._senders, self._window, _ROW, packet.packet_id)
        if status != OK:
            raise _unexpected(f"PUBACK for Packet Identifier {packet.packet_id}")
        self._finished(packet.packet_id, now_ns)
        return packet

    def _on_pubrec(self, packet: PubRec, now_ns: int) -> Packet:
        self._check_sent(packet)
        failed = packet.reason_code >= ReasonCode.UNSPECIFIED_ERROR
        status, _ = on_pubrec(
            self._senders, self._window, _ROW, packet.packet_id, packet.reason_code
        )
        if status == WRONG_STATE:
            raise _unexpected(f"PUBREC for Packet Identifier {packet.packet_id}")
        if status == UNKNOWN_PACKET_ID:
            # Spec 4.3.3 has no error for it: the peer is told, and answers PUBCOMP.
            if not failed:
                self._answer(PubRel(packet.packet_id, self._not_found()), now_ns)
        elif failed:
            self._finished(packet.packet_id, now_ns)
        else:
            self._answer(PubRel(packet.packet_id), now_ns)
        return packet

    def _on_pubcomp(self, packet: PubComp, now_ns: int) -> Packet:
        status, _ = on_pubcomp(self._senders, self._window, _ROW, packet.packet_id)
        if status == WRONG_STATE:
            raise _unexpected(f"PUBCOMP for Packet Identifier {packet.packet_id}")
        if status == OK:
            self._finished(packet.packet_id, now_ns)
        return packet

    def _finished(self, packet_id: int, now_ns: int) -> None:
        del self._messages[packet_id]
        self._redeliver_waiting(now_ns)

    def _not_found(self) -> int:
        code = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND
        return code if self.version == MQTT_5 else ReasonCode.SUCCESS

    def _on_pubrel(self, packet: PubRel, now_ns: int) -> Packet:
        known = release_qos2(self._received, _ROW, packet.packet_id)
        self._open_qos2.discard(packet.packet_id)
        reason_code = ReasonCode.SUCCESS if known else self._not_found()
        self._answer(PubComp(packet.packet_id, reason_code), now_ns)
        return packet

    def _on_answer(self, packet: SubAck | UnsubAck, now_ns: int) -> Packet:
        name = PACKET_NAMES[packet.packet_type]
        request = self._requests.get(packet.packet_id)
        if isinstance(packet, SubAck) and isinstance(request, Subscribe):
            asked = len(request.subscriptions)
        elif isinstance(packet, UnsubAck) and isinstance(request, Unsubscribe):
            asked = len(request.topic_filters) if self.version == MQTT_5 else 0
        else:
            raise _unexpected(f"{name} for Packet Identifier {packet.packet_id}")
        if len(packet.reason_codes) != asked:
            raise _unexpected(f"{name} with {len(packet.reason_codes)} reason codes for {asked}")
        del self._requests[packet.packet_id]
        return packet

    def _on_pingresp(self, packet: PingResp, now_ns: int) -> Packet:
        self._ping_sent_ns = None
        return packet

    def _on_disconnect(self, packet: Disconnect, now_ns: int) -> Packet:
        self._state = SessionState.CLOSED
        return packet

    def _on_auth(self, packet: Auth, now_ns: int) -> Packet:
        method = self._connect.properties.authentication_method
        if method is None or packet.properties.authentication_method not in (None, method):
            raise _unexpected("AUTH of a method that CONNECT did not name")
        return packet


def _unexpected(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"unexpected from the peer: {detail}", ReasonCode.PROTOCOL_ERROR)
