"""MQTT 5 properties (spec 2.2.2): one table, used in both directions."""

import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, Final

from loadgen.errors import LocalProtocolError
from loadgen.mqtt import wire
from loadgen.mqtt.constants import PACKET_NAMES, packet_types
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.mqtt.topics import topic_name_fault


@dataclass(frozen=True, slots=True)
class Properties:
    """The properties of one packet or will; fields are the spec's names, None means absent.

    Intervals are in seconds. Only `subscription_identifier` and `user_property` repeat.
    """

    payload_format_indicator: int | None = None
    message_expiry_interval: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_identifier: tuple[int, ...] = ()
    session_expiry_interval: int | None = None
    assigned_client_identifier: str | None = None
    server_keep_alive: int | None = None
    authentication_method: str | None = None
    authentication_data: bytes | None = field(default=None, repr=False)
    request_problem_information: int | None = None
    will_delay_interval: int | None = None
    request_response_information: int | None = None
    response_information: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None
    retain_available: int | None = None
    user_property: tuple[tuple[str, str], ...] = ()
    maximum_packet_size: int | None = None
    wildcard_subscription_available: int | None = None
    subscription_identifier_available: int | None = None
    shared_subscription_available: int | None = None


NO_PROPERTIES: Final = Properties()


@dataclass(frozen=True, slots=True)
class _Kind:
    """A data type of spec 2.2.2.2 with its reader and writer."""

    name: str
    read: Callable[[wire.Reader, str], Any]
    write: Callable[[Any, str], bytes]


def _read_pair(reader: wire.Reader, name: str) -> tuple[str, str]:
    return reader.utf8(f"{name} name"), reader.utf8(f"{name} value")


def _write_pair(pair: tuple[str, str], name: str) -> bytes:
    return wire.write_utf8(pair[0], f"{name} name") + wire.write_utf8(pair[1], f"{name} value")


_KINDS: Final = (
    _Kind("Byte", wire.Reader.u8, wire.write_u8),
    _Kind("Two Byte Integer", wire.Reader.u16, wire.write_u16),
    _Kind("Four Byte Integer", wire.Reader.u32, wire.write_u32),
    _Kind("Variable Byte Integer", wire.Reader.variable, wire.write_variable),
    _Kind("UTF-8 Encoded String", wire.Reader.utf8, wire.write_utf8),
    _Kind("Binary Data", wire.Reader.binary, wire.write_binary),
    _Kind("UTF-8 String Pair", _read_pair, _write_pair),
)


@dataclass(frozen=True, slots=True)
class PropertyRow:
    """One row of spec 2.2.2.2. `low` and `high` bound an integer if its type does not."""

    identifier: int
    name: str
    kind: _Kind
    packets: frozenset[int]
    repeatable_in: frozenset[int]
    low: int
    high: int | None

    @property
    def attribute(self) -> str:
        return self.name.lower().replace(" ", "_")

    def fault(self, value: object) -> str | None:
        """Return the fault of a value of the right type, or None."""
        if isinstance(value, int):
            if value < self.low:
                return f"{self.name} is {value}, the least allowed is {self.low}"
            if self.high is not None and value > self.high:
                return f"{self.name} is {value}, the most allowed is {self.high}"
        if self.identifier == 0x08 and isinstance(value, str):
            fault = topic_name_fault(value)
            return fault and f"{self.name} {fault}"
        return None


def _table() -> Iterator[PropertyRow]:
    kinds = {kind.name: kind for kind in _KINDS}
    text = files("loadgen.mqtt").joinpath("properties.toml").read_text("utf-8")
    for name, row in tomllib.loads(text).items():
        carriers = packet_types(row["packets"]), packet_types(row.get("repeats", ""))
        bounds = row.get("low", 0), row.get("high")
        yield PropertyRow(row["identifier"], name, kinds[row["kind"]], *carriers, *bounds)


PROPERTY_TABLE: Final = tuple(_table())

_BY_IDENTIFIER: Final = {row.identifier: row for row in PROPERTY_TABLE}
# Resolved once: encoding walks this for every packet that has properties.
_COLUMNS: Final = tuple((row, row.attribute, bool(row.repeatable_in)) for row in PROPERTY_TABLE)
_NEEDS_METHOD: Final = "Authentication Data without Authentication Method"


def encode_properties(properties: Properties, packet_type: int) -> bytes:
    """Return Property Length and properties, as `write_properties` writes them."""
    if properties is NO_PROPERTIES:
        return b"\0"
    body = write_properties(properties, packet_type)
    return wire.write_variable(len(body), "Property Length") + body


def write_properties(properties: Properties, packet_type: int) -> bytes:
    """Return the properties of a packet type (or WILL), in the table's order.

    Raises LocalProtocolError for a property that the packet must not carry, a repetition that it
    does not allow, and a value out of range.
    """
    parts: list[bytes] = []
    for row, attribute, is_tuple in _COLUMNS:
        value = getattr(properties, attribute)
        if value is None or (value == () and is_tuple):
            continue
        if packet_type not in row.packets:
            raise LocalProtocolError(f"{PACKET_NAMES[packet_type]} must not carry {row.name}")
        values = value if is_tuple else (value,)
        if len(values) > 1 and packet_type not in row.repeatable_in:
            raise LocalProtocolError(f"{PACKET_NAMES[packet_type]} must not repeat {row.name}")
        for one in values:
            if fault := row.fault(one):
                raise LocalProtocolError(f"{PACKET_NAMES[packet_type]}: {fault}")
            parts.append(row.identifier.to_bytes(1, "big"))
            parts.append(row.kind.write(one, row.name))
    if properties.authentication_data is not None and properties.authentication_method is None:
        raise LocalProtocolError(f"{PACKET_NAMES[packet_type]}: {_NEEDS_METHOD}")
    return b"".join(parts)


def decode_properties(reader: wire.Reader, packet_type: int) -> Properties:
    """Read Property Length and properties of a packet type (or WILL).

    Raises RemoteProtocolError: 0x81 for an unknown or foreign identifier and for a bad type, 0x82
    for a repetition or a value out of range, 0x94 for Topic Alias 0 (spec 3.3.2.3.4).
    """
    length = reader.variable("Property Length")
    if length == 0:
        return NO_PROPERTIES
    part = reader.part(length, "Property Length")
    values: dict[str, Any] = {}
    while part.remaining_bytes:
        identifier = part.variable("property identifier")
        row = _BY_IDENTIFIER.get(identifier)
        if row is None:
            raise part.fault(f"unknown property identifier 0x{identifier:02X}")
        if packet_type not in row.packets:
            raise part.fault(f"{row.name} is not allowed here")
        if row.attribute in values and packet_type not in row.repeatable_in:
            raise part.fault(f"{row.name} is repeated", ReasonCode.PROTOCOL_ERROR)
        value = row.kind.read(part, row.name)
        if fault := row.fault(value):
            code = ReasonCode.TOPIC_ALIAS_INVALID if identifier == 0x23 else None
            raise part.fault(fault, code or ReasonCode.PROTOCOL_ERROR)
        if row.repeatable_in:
            values.setdefault(row.attribute, []).append(value)
        else:
            values[row.attribute] = value
    if "authentication_data" in values and "authentication_method" not in values:
        raise reader.fault(_NEEDS_METHOD, ReasonCode.PROTOCOL_ERROR)
    for name, value in values.items():
        if isinstance(value, list):
            values[name] = tuple(value)
    return Properties(**values)
