"""The encoding of integers, strings and bytes in MQTT (spec 1.5).

A fault of data that is read is a RemoteProtocolError; of data that is written, a
LocalProtocolError. Section numbers are those of the OASIS MQTT 5.0 specification.
"""

from functools import partial
from typing import Final

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt.constants import MAX_REMAINING_LENGTH
from loadgen.mqtt.reason_codes import ReasonCode

_ESCAPED_CHARACTERS: Final = 80


def escaped(text: str) -> str:
    """Return `text` in quotes, in ASCII, control characters escaped, at most 80 characters."""
    if len(text) <= _ESCAPED_CHARACTERS:
        return ascii(text)
    return f"{text[:_ESCAPED_CHARACTERS]!a}... ({len(text)} characters)"


class Reader:
    """A cursor over the body of one packet that the peer sent; `what` names it in messages.

    Every method takes the spec's name of the field that it reads, and raises RemoteProtocolError
    (0x81 Malformed Packet) if the field is missing or of another type.
    """

    __slots__ = ("_data", "_end", "_position", "_what")

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._position = 0
        self._end = len(data)
        self._what = what

    def fault(
        self, detail: str, reason_code: int = ReasonCode.MALFORMED_PACKET
    ) -> RemoteProtocolError:
        """Return the error to raise; `detail` must already be bounded and escaped."""
        return RemoteProtocolError(f"malformed {self._what} from the peer: {detail}", reason_code)

    def _take(self, count: int, field: str) -> bytes:
        start, end = self._position, self._position + count
        if end > self._end:
            raise self.fault(f"{field} runs past the end of the packet")
        self._position = end
        return self._data[start:end]

    @property
    def remaining_bytes(self) -> int:
        return self._end - self._position

    def u8(self, field: str) -> int:
        return self._take(1, field)[0]

    def u16(self, field: str) -> int:
        return int.from_bytes(self._take(2, field), "big")

    def u32(self, field: str) -> int:
        return int.from_bytes(self._take(4, field), "big")

    def variable(self, field: str) -> int:
        """Read a variable byte integer (spec 1.5.5); more bytes than needed are malformed."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8(field)
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if byte == 0 and shift > 0:
                    raise self.fault(f"{field} is not written in the fewest bytes")
                return value
        raise self.fault(f"{field} is longer than four bytes")

    def binary(self, field: str) -> bytes:
        """Read Binary Data (spec 1.5.6)."""
        return self._take(self.u16(field), field)

    def utf8(self, field: str) -> str:
        """Read a UTF-8 Encoded String (spec 1.5.4): well formed, no surrogate, no U+0000."""
        data = self.binary(field)
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.fault(f"{field} is not well-formed UTF-8") from None
        if "\0" in text:
            raise self.fault(f"{field} contains U+0000")
        return text

    def packet_id(self) -> int:
        """Read a Packet Identifier (spec 2.2.1), which is never 0."""
        value = self.u16("Packet Identifier")
        if value == 0:
            raise self.fault("Packet Identifier is 0")
        return value

    def rest(self) -> bytes:
        position, self._position = self._position, self._end
        return self._data[position:]

    def part(self, length: int, field: str) -> "Reader":
        """Return a reader over the next `length` bytes, and skip them here."""
        return Reader(self._take(length, field), self._what)

    def finish(self) -> None:
        """Raise if bytes are left over."""
        if self.remaining_bytes:
            raise self.fault(f"{self.remaining_bytes} trailing bytes")


def _checked(value: int, high: int, field: str) -> int:
    if not 0 <= value <= high:
        raise LocalProtocolError(f"{field} must be between 0 and {high}, not {value}")
    return value


def _write_integer(size_bytes: int, value: int, field: str) -> bytes:
    return _checked(value, (1 << 8 * size_bytes) - 1, field).to_bytes(size_bytes, "big")


write_u8: Final = partial(_write_integer, 1)
write_u16: Final = partial(_write_integer, 2)
write_u32: Final = partial(_write_integer, 4)
"""Writers of (value, field) (spec 1.5.2, 1.5.3); LocalProtocolError if the value does not fit."""


def write_variable(value: int, field: str) -> bytes:
    """Write a Variable Byte Integer (spec 1.5.5); LocalProtocolError if `value` does not fit."""
    _checked(value, MAX_REMAINING_LENGTH, field)
    if value < 0x80:
        return value.to_bytes(1, "big")
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def write_binary(data: bytes, field: str) -> bytes:
    """Write Binary Data (spec 1.5.6); LocalProtocolError beyond 65,535 bytes."""
    if len(data) > 0xFFFF:
        raise LocalProtocolError(f"{field} has {len(data)} bytes, MQTT allows 65,535")
    return len(data).to_bytes(2, "big") + data


def write_utf8(text: str, field: str) -> bytes:
    """Write a UTF-8 String (spec 1.5.4); LocalProtocolError for U+0000, surrogates, length."""
    try:
        data = text.encode("utf-8")
    except UnicodeEncodeError:
        raise LocalProtocolError(f"{field} contains a surrogate, which is not UTF-8") from None
    if b"\0" in data:
        raise LocalProtocolError(f"{field} contains U+0000")
    return write_binary(data, field)
