"""Control packets to bytes and back (spec 2 and 3), for both roles and all versions.

What the spec forbids is refused in both directions, except for received reason codes: a benchmark
must report the broker's answer. Messages go through `kernels.packet_bytes`, which tests compare
with this file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeAlias, cast, get_args

import numpy as np
from numpy.typing import NDArray

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt import packets, wire
from loadgen.mqtt.constants import (
    AUTH,
    CONNACK,
    CONNECT,
    MAX_REMAINING_LENGTH,
    MQTT_3_1,
    MQTT_5,
    PACKET_NAMES,
    PROTOCOL_NAMES,
    PUBLISH,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    VERSION_NAMES,
    WILL,
)
from loadgen.mqtt.packets import Packet, PubAck, PubComp, PubRec, PubRel
from loadgen.mqtt.properties import NO_PROPERTIES, Properties, decode_properties, encode_properties
from loadgen.mqtt.reason_codes import REASON_CODES, ConnectReturnCode, ReasonCode, reason_name
from loadgen.mqtt.topics import topic_filter_fault, topic_name_fault

Acknowledgement: TypeAlias = PubAck | PubRec | PubRel | PubComp
Listed: TypeAlias = packets.Subscribe | packets.SubAck | packets.Unsubscribe | packets.UnsubAck
Buffer: TypeAlias = bytes | bytearray | memoryview | NDArray[np.uint8]

# Flags of the fixed header that are not PUBLISH's own (spec 2.1.3).
_RESERVED_FLAGS: Final = {PUBREL: 2, SUBSCRIBE: 2, UNSUBSCRIBE: 2}
# MQTT 3.1, 3.1: characters of a Client Identifier.
CLIENT_ID_CHARACTERS: Final = 23
# MQTT 3.1, 2.1: PUBREL, SUBSCRIBE and UNSUBSCRIBE may be sent again with DUP.
_DUP_FLAG: Final = 0x08
# Connect Flags (spec 3.1.2.3).
_CLEAN_START: Final = 0x02
_WILL_FLAG: Final = 0x04
_WILL_RETAIN: Final = 0x20
_PASSWORD_FLAG: Final = 0x40
_USER_NAME_FLAG: Final = 0x80
# Subscription Options (spec 3.8.3.1).
_NO_LOCAL: Final = 0x04
_RETAIN_AS_PUBLISHED: Final = 0x08

_QOS: Final = (0, 1, 2)
_SUBACK_RETURN_CODES: Final = frozenset((0, 1, 2, ReasonCode.UNSPECIFIED_ERROR))
_CONNACK_RETURN_CODES: Final = frozenset(int(code) for code in ConnectReturnCode)


# --- both ways --------------------------------------------------------------------------------


def _faults(packet: Packet, version: int) -> Iterator[tuple[str, int]]:
    """Yield what the specification forbids in a packet, with the reason code of a DISCONNECT."""
    malformed, forbidden = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
    match packet:
        case packets.Connect(client_id=client_id, will=will):
            invalid = ReasonCode.CLIENT_IDENTIFIER_NOT_VALID
            if version != MQTT_5 and not packet.clean_start and not client_id:
                yield "no Client Identifier though Clean Session is 0", invalid
            if version == MQTT_3_1 and not 1 <= len(client_id) <= CLIENT_ID_CHARACTERS:
                yield f"no Client Identifier of 1 to {CLIENT_ID_CHARACTERS} characters", invalid
            if version != MQTT_5 and packet.password is not None and packet.user_name is None:
                yield "Password without User Name", malformed
            if will is not None and will.qos not in _QOS:
                yield f"Will QoS {will.qos}", malformed
            if will is not None and (fault := topic_name_fault(will.topic)):
                yield f"Will Topic {fault}", malformed
        case packets.ConnAck(session_present=True, reason_code=code) if code:
            yield "Session Present though it refuses", forbidden
        case packets.Publish(topic_name=topic):
            if packet.qos not in _QOS:
                yield f"QoS {packet.qos}", malformed
            if packet.dup and not packet.qos:
                yield "DUP with QoS 0", malformed
            if not topic and version == MQTT_5:
                if packet.properties.topic_alias is None:
                    yield "no Topic Name and no Topic Alias", forbidden
            elif fault := topic_name_fault(topic):
                yield f"Topic Name {fault}", malformed
        case packets.Subscribe() | packets.Unsubscribe():
            filters = _filters(packet)
            if not filters:
                yield "no Topic Filter", malformed
            for subscription in filters:
                if fault := topic_filter_fault(subscription.topic_filter, version):
                    yield f"Topic Filter {fault}", malformed
                if subscription.qos not in _QOS:
                    yield f"Maximum QoS {subscription.qos}", forbidden
                if subscription.retain_handling not in (0, 1, 2):
                    yield f"Retain Handling {subscription.retain_handling}", forbidden
                if subscription.no_local and subscription.topic_filter.startswith("$share/"):
                    yield "No Local on a Shared Subscription", forbidden
        case packets.SubAck() | packets.UnsubAck():
            has_codes = isinstance(packet, packets.SubAck) or version == MQTT_5
            if bool(packet.reason_codes) != has_codes:
                yield "no reason code" if has_codes else "a reason code", forbidden


def _filters(packet: packets.Subscribe | packets.Unsubscribe) -> Sequence[packets.Subscription]:
    if isinstance(packet, packets.Subscribe):
        return packet.subscriptions
    return [packets.Subscription(topic_filter) for topic_filter in packet.topic_filters]


# --- to bytes ---------------------------------------------------------------------------------


def encode(packet: Packet, version: int) -> bytes:
    """Return the bytes of `packet` in protocol `version` 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5.

    Raises LocalProtocolError if that version cannot express the packet or forbids it.
    """
    _require(version in VERSION_NAMES, f"protocol version {version} is neither 3, 4 nor 5")
    packet_type = packet.packet_type
    for complaint, _ in _faults(packet, version):
        raise LocalProtocolError(f"{PACKET_NAMES[packet_type]}: {complaint}")
    body = _ENCODERS[type(packet)](packet, version)
    flags = _RESERVED_FLAGS.get(packet_type, 0)
    if isinstance(packet, packets.Publish):
        flags = packet.dup << 3 | packet.qos << 1 | packet.retain
    name = f"Remaining Length of {PACKET_NAMES[packet_type]}"
    return bytes((packet_type << 4 | flags,)) + wire.write_variable(len(body), name) + body


def _require(condition: bool, complaint: str) -> None:
    if not condition:
        raise LocalProtocolError(complaint)


def _property_bytes(properties: Properties, packet_type: int, version: int) -> bytes:
    if version == MQTT_5:
        return encode_properties(properties, packet_type)
    _require(
        properties is NO_PROPERTIES or properties == NO_PROPERTIES,
        f"{PACKET_NAMES[packet_type]} of MQTT {VERSION_NAMES[version]} has no properties",
    )
    return b""


def _packet_id_bytes(packet_id: int) -> bytes:
    _require(packet_id != 0, "Packet Identifier must not be 0")
    return wire.write_u16(packet_id, "Packet Identifier")


def _reason_byte(code: int, packet_type: int, version: int) -> bytes:
    allowed = REASON_CODES[packet_type]
    if version != MQTT_5:
        allowed = _CONNACK_RETURN_CODES if packet_type == CONNACK else _SUBACK_RETURN_CODES
    _require(
        code in allowed,
        f"{PACKET_NAMES[packet_type]} must not carry {reason_name(code, version)}",
    )
    return code.to_bytes(1, "big")


def _reason_and_properties(packet: Acknowledgement | packets.Disconnect, version: int) -> bytes:
    """Write reason code and properties; both may be left out, from the end (3.4.2.1, 3.14.2.1)."""
    packet_type = packet.packet_type
    properties = _property_bytes(packet.properties, packet_type, version)
    if version != MQTT_5:
        name = PACKET_NAMES[packet_type]
        _require(
            packet.reason_code == 0, f"{name} of MQTT {VERSION_NAMES[version]} has no reason code"
        )
        return b""
    reason = _reason_byte(packet.reason_code, packet_type, version)
    if properties != b"\0":
        return reason + properties
    return reason if packet.reason_code != 0 else b""


def _encode_connect(packet: packets.Connect, version: int) -> bytes:
    _require(
        packet.protocol_version == version,
        f"CONNECT of protocol version {packet.protocol_version} on a connection of {version}",
    )
    flags = _CLEAN_START if packet.clean_start else 0
    payload = wire.write_utf8(packet.client_id, "Client Identifier")
    if packet.will is not None:
        flags |= _WILL_FLAG | packet.will.qos << 3 | (_WILL_RETAIN if packet.will.retain else 0)
        payload += (
            _property_bytes(packet.will.properties, WILL, version)
            + wire.write_utf8(packet.will.topic, "Will Topic")
            + wire.write_binary(packet.will.payload, "Will Payload")
        )
    if packet.user_name is not None:
        flags |= _USER_NAME_FLAG
        payload += wire.write_utf8(packet.user_name, "User Name")
    if packet.password is not None:
        flags |= _PASSWORD_FLAG
        payload += wire.write_binary(packet.password, "Password")
    return (
        wire.write_utf8(PROTOCOL_NAMES[version], "Protocol Name")
        + bytes((version, flags))
        + wire.write_u16(packet.keep_alive, "Keep Alive")
        + _property_bytes(packet.properties, CONNECT, version)
        + payload
    )


def _encode_connack(packet: packets.ConnAck, version: int) -> bytes:
    return (
        bytes((packet.session_present and version != MQTT_3_1,))
        + _reason_byte(packet.reason_code, CONNACK, version)
        + _property_bytes(packet.properties, CONNACK, version)
    )


def _encode_publish(packet: packets.Publish, version: int) -> bytes:
    body = wire.write_utf8(packet.topic_name, "Topic Name")
    if packet.qos > 0:
        body += _packet_id_bytes(packet.packet_id)
    else:
        _require(packet.packet_id == 0, "PUBLISH with QoS 0 has no Packet Identifier")
    return body + _property_bytes(packet.properties, PUBLISH, version) + packet.payload


def _encode_ack(packet: Acknowledgement, version: int) -> bytes:
    return _packet_id_bytes(packet.packet_id) + _reason_and_properties(packet, version)


def _encode_listed(packet: Listed, version: int) -> bytes:
    properties = _property_bytes(packet.properties, packet.packet_type, version)
    body = _packet_id_bytes(packet.packet_id) + properties
    if isinstance(packet, packets.SubAck | packets.UnsubAck):
        codes = (_reason_byte(code, packet.packet_type, version) for code in packet.reason_codes)
        return body + b"".join(codes)
    has_options = isinstance(packet, packets.Subscribe)
    for subscription in _filters(packet):
        options = (
            (_NO_LOCAL if subscription.no_local else 0)
            | (_RETAIN_AS_PUBLISHED if subscription.retain_as_published else 0)
            | subscription.retain_handling << 4
        )
        _require(
            version == MQTT_5 or options == 0,
            f"MQTT {VERSION_NAMES[version]} has no Subscription Options but the QoS",
        )
        body += wire.write_utf8(subscription.topic_filter, "Topic Filter")
        body += bytes((options | subscription.qos,) if has_options else ())
    return body


def _encode_auth(packet: packets.Auth, version: int) -> bytes:
    _require(version == MQTT_5, f"MQTT {VERSION_NAMES[version]} has no AUTH")
    reason = _reason_byte(packet.reason_code, AUTH, version)
    properties = encode_properties(packet.properties, AUTH)
    # Spec 3.15.2.1: unlike in DISCONNECT, reason code and Property Length go together.
    return b"" if packet.reason_code == 0 and properties == b"\0" else reason + properties


_ENCODERS: Final[dict[type[Packet], Callable[[Any, int], bytes]]] = {
    packets.Connect: _encode_connect,
    packets.ConnAck: _encode_connack,
    packets.Publish: _encode_publish,
    **dict.fromkeys((PubAck, PubRec, PubRel, PubComp), _encode_ack),
    **dict.fromkeys(get_args(Listed), _encode_listed),
    **dict.fromkeys((packets.PingReq, packets.PingResp), lambda packet, version: b""),
    packets.Disconnect: _reason_and_properties,
    packets.Auth: _encode_auth,
}


# --- from bytes -------------------------------------------------------------------------------


def decode(
    buffer: Buffer, start: int, end: int, version: int, limit: int = MAX_REMAINING_LENGTH
) -> tuple[Packet, int] | None:
    """Return the packet at `start` and the start of the next one; None if it is incomplete.

    Reads `buffer[start:end]` and keeps no reference to it. A CONNECT is read by the version that it
    names. Raises RemoteProtocolError with a `reason_code`: 0x95 if the Remaining Length is over
    `limit` bytes, 0x84 for a CONNECT of another protocol, 0x81 or 0x82 for anything else that the
    spec forbids.
    """
    if start >= end:
        return None
    # A C-contiguous uint8 array is a buffer too; its stub says so from Python 3.12 on.
    view = memoryview(cast(bytes, buffer))
    packet_type, flags = view[start] >> 4, view[start] & 0x0F
    name = PACKET_NAMES[packet_type]
    if packet_type == 0 or (packet_type == AUTH and version != MQTT_5):
        raise _malformed(f"packet type {packet_type} is reserved")
    reserved = _RESERVED_FLAGS.get(packet_type, 0)
    is_repeat = version == MQTT_3_1 and reserved and flags == reserved | _DUP_FLAG
    if packet_type == PUBLISH:
        if flags >> 1 & 3 == 3:
            raise _malformed("PUBLISH with QoS 3")
        if flags & 0x0E == 0x08:
            raise _malformed("PUBLISH with DUP and QoS 0")
    elif flags != reserved and not is_repeat:
        raise _malformed(f"{name} with reserved flags 0x{flags:X}")

    header = _decode_remaining_length(view, start + 1, end, name)
    if header is None:
        return None
    length, body_start = header
    if length > limit:
        raise RemoteProtocolError(
            f"{name} from the peer has a Remaining Length of {length} bytes, the limit is {limit}",
            ReasonCode.PACKET_TOO_LARGE,
        )
    packet_end = body_start + length
    if packet_end > end:
        return None
    reader = wire.Reader(bytes(view[body_start:packet_end]), name)
    if packet_type == PUBLISH:
        packet: Packet = _decode_publish(reader, flags, version)
    else:
        packet = _DECODERS[packet_type](reader, version)
    by = packet.protocol_version if isinstance(packet, packets.Connect) else version
    for complaint, code in _faults(packet, by):
        raise reader.fault(complaint, code)
    reader.finish()
    return packet, packet_end


def _malformed(detail: str) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"malformed packet from the peer: {detail}", ReasonCode.MALFORMED_PACKET
    )


def _decode_remaining_length(
    view: memoryview, start: int, end: int, name: str
) -> tuple[int, int] | None:
    """Return Remaining Length (spec 2.1.4) and the start of the body, or None if incomplete."""
    length = 0
    for count in range(min(4, end - start)):
        byte = view[start + count]
        length |= (byte & 0x7F) << 7 * count
        if byte < 0x80:
            if byte == 0 and count > 0:
                raise _malformed(f"{name}: Remaining Length is not written in the fewest bytes")
            return length, start + count + 1
    if end - start >= 4:
        raise _malformed(f"{name}: Remaining Length is longer than four bytes")
    return None


def _properties(reader: wire.Reader, packet_type: int, version: int) -> Properties:
    return decode_properties(reader, packet_type) if version == MQTT_5 else NO_PROPERTIES


def _optional_reason(reader: wire.Reader, packet_type: int, version: int) -> tuple[int, Properties]:
    """Read a reason code that may be left out (spec 3.4.2.1, 3.14.2.1)."""
    if version != MQTT_5 or not reader.remaining_bytes:
        return 0, NO_PROPERTIES
    reason_code = reader.u8("Reason Code")
    has_properties = reader.remaining_bytes > 0
    return reason_code, decode_properties(reader, packet_type) if has_properties else NO_PROPERTIES


def _decode_connect(reader: wire.Reader, _version: int) -> packets.Connect:
    protocol_name = reader.utf8("Protocol Name")
    version = reader.u8("Protocol Version")
    if protocol_name != PROTOCOL_NAMES.get(version):
        raise reader.fault(
            f"protocol {wire.escaped(protocol_name)} version {version} is not supported",
            ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        )
    flags = reader.u8("Connect Flags")
    if flags & 1:
        raise reader.fault("the reserved Connect Flag is set")
    if not flags & _WILL_FLAG and flags & (0x18 | _WILL_RETAIN):
        raise reader.fault("Will QoS or Will Retain without a will")
    keep_alive = reader.u16("Keep Alive")
    properties = _properties(reader, CONNECT, version)
    client_id = reader.utf8("Client Identifier")
    will = None
    if flags & _WILL_FLAG:
        will_properties = _properties(reader, WILL, version)
        will = packets.Will(
            topic=reader.utf8("Will Topic"),
            payload=reader.binary("Will Payload"),
            qos=flags >> 3 & 3,
            retain=bool(flags & _WILL_RETAIN),
            properties=will_properties,
        )
    return packets.Connect(
        client_id=client_id,
        protocol_version=version,
        clean_start=bool(flags & _CLEAN_START),
        keep_alive=keep_alive,
        user_name=reader.utf8("User Name") if flags & _USER_NAME_FLAG else None,
        password=reader.binary("Password") if flags & _PASSWORD_FLAG else None,
        will=will,
        properties=properties,
    )


def _decode_connack(reader: wire.Reader, version: int) -> packets.ConnAck:
    acknowledge_flags = reader.u8("Connect Acknowledge Flags")
    if version == MQTT_3_1:
        # MQTT 3.1 does not use the byte: CONNACK does not report if the session was kept.
        acknowledge_flags = 0
    if acknowledge_flags > 1:
        raise reader.fault("reserved Connect Acknowledge Flags are set")
    reason_code = reader.u8("Connect Reason Code")
    properties = _properties(reader, CONNACK, version)
    return packets.ConnAck(bool(acknowledge_flags), reason_code, properties)


def _decode_publish(reader: wire.Reader, flags: int, version: int) -> packets.Publish:
    qos = flags >> 1 & 3
    topic_name = reader.utf8("Topic Name")
    packet_id = reader.packet_id() if qos > 0 else 0
    properties = _properties(reader, PUBLISH, version)
    return packets.Publish(
        topic_name, reader.rest(), qos, bool(flags & 1), bool(flags & 8), packet_id, properties
    )


def _ack_decoder(make: type[Acknowledgement]) -> Callable[[wire.Reader, int], Packet]:
    def decode_ack(reader: wire.Reader, version: int) -> Packet:
        packet_id = reader.packet_id()
        return make(packet_id, *_optional_reason(reader, make.packet_type, version))

    return decode_ack


def _listed_decoder(
    make: type[Listed], read: Callable[[wire.Reader, int], Iterable[Any]]
) -> Callable[[wire.Reader, int], Packet]:
    def decode_listed(reader: wire.Reader, version: int) -> Packet:
        packet_id = reader.packet_id()
        properties = _properties(reader, make.packet_type, version)
        return make(packet_id, tuple(read(reader, version)), properties)

    return decode_listed


def _read_subscriptions(reader: wire.Reader, version: int) -> Iterator[packets.Subscription]:
    while reader.remaining_bytes:
        topic_filter = reader.utf8("Topic Filter")
        options = reader.u8("Subscription Options")
        if options & (0xC0 if version == MQTT_5 else 0xFC):
            raise reader.fault("reserved Subscription Options are set")
        yield packets.Subscription(
            topic_filter,
            qos=options & 3,
            no_local=bool(options & _NO_LOCAL),
            retain_as_published=bool(options & _RETAIN_AS_PUBLISHED),
            retain_handling=options >> 4 & 3,
        )


def _read_filters(reader: wire.Reader, _version: int) -> Iterator[str]:
    while reader.remaining_bytes:
        yield reader.utf8("Topic Filter")


def _decode_auth(reader: wire.Reader, _version: int) -> packets.Auth:
    if not reader.remaining_bytes:
        return packets.Auth()
    return packets.Auth(reader.u8("Reason Code"), decode_properties(reader, AUTH))


# Without PUBLISH, the only one with flags.
_DECODERS: Final[dict[int, Callable[[wire.Reader, int], Packet]]] = {
    CONNECT: _decode_connect,
    CONNACK: _decode_connack,
    **{make.packet_type: _ack_decoder(make) for make in (PubAck, PubRec, PubRel, PubComp)},
    SUBSCRIBE: _listed_decoder(packets.Subscribe, _read_subscriptions),
    packets.SubAck.packet_type: _listed_decoder(
        packets.SubAck, lambda reader, version: reader.rest()
    ),
    UNSUBSCRIBE: _listed_decoder(packets.Unsubscribe, _read_filters),
    packets.UnsubAck.packet_type: _listed_decoder(
        packets.UnsubAck, lambda reader, version: reader.rest() if version == MQTT_5 else ()
    ),
    packets.PingReq.packet_type: lambda reader, version: packets.PingReq(),
    packets.PingResp.packet_type: lambda reader, version: packets.PingResp(),
    packets.Disconnect.packet_type: lambda reader, version: packets.Disconnect(
        *_optional_reason(reader, packets.Disconnect.packet_type, version)
    ),
    AUTH: _decode_auth,
}
