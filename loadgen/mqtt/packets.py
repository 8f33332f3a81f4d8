"""The fifteen control packets of spec 3.1 to 3.15, in this order, as frozen values.

Fields have the names of the spec. A field that a version of MQTT lacks must have its default.
`packet_id` is the Packet Identifier, and `keep_alive` is in seconds.
"""

from dataclasses import dataclass, field
from typing import ClassVar

from loadgen.mqtt import constants
from loadgen.mqtt.properties import NO_PROPERTIES, Properties


@dataclass(frozen=True, slots=True)
class Will:
    """The Will Message (spec 3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


class Packet:
    __slots__ = ()
    packet_type: ClassVar[int]


@dataclass(frozen=True, slots=True)
class Connect(Packet):
    """Spec 3.1. `clean_start` is named Clean Session in MQTT 3.1.1; the password is never shown."""

    packet_type: ClassVar[int] = constants.CONNECT

    client_id: str
    protocol_version: int = constants.MQTT_5
    clean_start: bool = True
    keep_alive: int = 0
    user_name: str | None = None
    password: bytes | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class ConnAck(Packet):
    """Spec 3.2. In MQTT 3.1.1 `reason_code` is the return code."""

    packet_type: ClassVar[int] = constants.CONNACK

    session_present: bool = False
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Publish(Packet):
    """Spec 3.3. `packet_id` is 0 exactly when `qos` is 0."""

    packet_type: ClassVar[int] = constants.PUBLISH

    topic_name: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class _Acknowledgement(Packet):
    packet_id: int
    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


class PubAck(_Acknowledgement):
    __slots__ = ()
    packet_type: ClassVar[int] = constants.PUBACK


class PubRec(_Acknowledgement):
    __slots__ = ()
    packet_type: ClassVar[int] = constants.PUBREC


class PubRel(_Acknowledgement):
    __slots__ = ()
    packet_type: ClassVar[int] = constants.PUBREL


class PubComp(_Acknowledgement):
    __slots__ = ()
    packet_type: ClassVar[int] = constants.PUBCOMP


@dataclass(frozen=True, slots=True)
class Subscription:
    """One Topic Filter of SUBSCRIBE with its options (spec 3.8.3.1); MQTT 3.1.1 has only `qos`."""

    topic_filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0


@dataclass(frozen=True, slots=True)
class Subscribe(Packet):
    packet_type: ClassVar[int] = constants.SUBSCRIBE

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class SubAck(Packet):
    """Spec 3.9. One reason code for each Topic Filter, in its order."""

    packet_type: ClassVar[int] = constants.SUBACK

    packet_id: int
    reason_codes: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Unsubscribe(Packet):
    packet_type: ClassVar[int] = constants.UNSUBSCRIBE

    packet_id: int
    topic_filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class UnsubAck(Packet):
    """Spec 3.11. MQTT 3.1.1 has no reason codes here."""

    packet_type: ClassVar[int] = constants.UNSUBACK

    packet_id: int
    reason_codes: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class PingReq(Packet):
    packet_type: ClassVar[int] = constants.PINGREQ


@dataclass(frozen=True, slots=True)
class PingResp(Packet):
    packet_type: ClassVar[int] = constants.PINGRESP


@dataclass(frozen=True, slots=True)
class Disconnect(Packet):
    packet_type: ClassVar[int] = constants.DISCONNECT

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Auth(Packet):
    """Spec 3.15; MQTT 5 only."""

    packet_type: ClassVar[int] = constants.AUTH

    reason_code: int = 0
    properties: Properties = NO_PROPERTIES
