"""Bodies of messages: text, XML, or an object, stream or map of JMS, with content of their type.

The length follows the size formulas: as many lines as fit, then a remark that fills the rest. A
value of a stream or map has a byte for its kind, as in OpenWire, and numbers are big endian. An
object is in the format of Java's Object Serialization Stream Protocol.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from loadgen.specjms.messages import MESSAGES, BodyType

Value = int | float | str
Fields = Mapping[str, Value]  # all lines of a kind have the same length

_LINES: Final[Mapping[str, Callable[[int], Fields]]] = {
    "OrderLine": lambda n: {"product": f"P{n:07}", "quantity": 12 + n % 60, "unit": "carton"},
    "SaleLine": lambda n: {"product": 70_000_000 + n, "sold": 3 + n % 9},
    "Reading": lambda n: {
        "tag": f"urn:epc:id:sgtin:0614141.{100_000 + n}.{2017 + n % 7000:04}",
        "reader": f"dock-{n % 4}",
        "at": f"2007-10-10T13:{n // 60 % 60:02}:{n % 60:02}Z",
    },
    "PurchaseLine": lambda n: {
        "product": f"P{n:07}",
        "description": f"article {n:07} of the autumn catalogue",
        "quantity": f"{1200 + n % 600}",
        "unit": "pallet",
        "price": f"{100 + n % 800}.90",
        "currency": "EUR",
        "delivery": f"2007-11-{1 + n % 28:02}",
    },
    "Price": lambda n: {"product": f"P{n:07}", "price": 9.9 + n % 80},
    "CashDesk": lambda n: {"desk": n, "receipts": 200 + n % 90},
    "Product": lambda n: {"product": n},
    "Card": lambda n: {"number": f"4000{n:012}"},
}
"""Fields of one line, by its kind."""


@lru_cache(maxsize=256)
def body_of(number: int, size_bytes: int) -> bytes:
    """Return the body of a message type with exactly this size, cut if the size is too small."""
    name, line = MESSAGES[number].name, MESSAGES[number].line
    encode = _ENCODINGS[MESSAGES[number].body]

    def encoded(count: int, remark: int = 0) -> bytes:
        lines = [_LINES[line](n) for n in range(count)]
        return encode(name, line, lines, "x" * remark)

    one, two = len(encoded(1)), len(encoded(2))
    count = max(0, 1 + (size_bytes - one) // (two - one))
    remark = size_bytes - len(encoded(count))
    return encoded(count, max(remark, 0))[:size_bytes]


Lines = Sequence[Fields]


def _xml(name: str, line: str, lines: Lines, remark: str) -> bytes:
    says = [" ".join(f'{key}="{value}"' for key, value in one.items()) for one in lines]
    rows = "".join(f"<{line} {text}/>" for text in says)
    first = '<?xml version="1.0" encoding="UTF-8"?>'
    return f"{first}<{name}>{rows}<remark>{remark}</remark></{name}>".encode()


def _text(name: str, line: str, lines: Lines, remark: str) -> bytes:
    rows = [" ".join(map(str, one.values())) for one in lines]
    return "\n".join((f"{name}: {line}", *rows, f"remark: {remark}")).encode()


_TAGS: Final = {int: (6, ">bq"), float: (7, ">bd")}  # long and double in OpenWire; strings have 9


def _string(text: str) -> bytes:
    return struct.pack(">H", len(text)) + text.encode()


def _tagged(value: Value) -> bytes:
    if isinstance(value, str):
        return b"\x09" + _string(value)
    tag, layout = _TAGS[type(value)]
    return struct.pack(layout, tag, value)


def _stream(name: str, _line: str, lines: Lines, remark: str) -> bytes:
    values = [name, len(lines), *(value for one in lines for value in one.values()), remark]
    return b"".join(map(_tagged, values))


def _map(name: str, _line: str, lines: Lines, remark: str) -> bytes:
    rows = {f"{key}{at:05}": value for at, one in enumerate(lines) for key, value in one.items()}
    entries: Fields = {"type": name, **rows, "remark": remark}
    pairs = (_string(key) + _tagged(value) for key, value in entries.items())
    return struct.pack(">i", len(entries)) + b"".join(pairs)


def _object(name: str, line: str, lines: Lines, remark: str) -> bytes:
    """Return an object with an array of lines and a remark, its fields in Java's order."""
    array = f"[Lspecjms/{line};"
    described = [_field("[", "lines") + b"\x74" + _string(array)]
    described.append(_field("L", "remark") + b"\x74" + _string("Ljava/lang/String;"))
    out = [b"\xac\xed\x00\x05\x73", _class(f"{name[0].upper()}{name[1:]}", described)]
    out += [b"\x75", _class(f"{line};", [], "[L"), struct.pack(">i", len(lines))]
    for at, fields in enumerate(lines):
        numbers = sorted(key for key, value in fields.items() if not isinstance(value, str))
        texts = sorted(key for key, value in fields.items() if isinstance(value, str))
        described = [_field("J", key) for key in numbers]
        described += [_field("L", key) + _STRING_TYPE for key in texts]
        out += [b"\x73", _LINE_CLASS if at else _class(line, described)]
        out += [struct.pack(">q", int(fields[key])) for key in numbers]
        out += [b"\x74" + _string(str(fields[key])) for key in texts]
    return b"".join((*out, b"\x74", _string(remark)))


_STRING_TYPE, _LINE_CLASS = (struct.pack(">Bi", 0x71, 0x7E0000 + handle) for handle in (2, 6))
"""References to earlier parts by their handles: the type of a string, the class of a line."""


def _class(name: str, fields: Sequence[bytes], kind: str = "") -> bytes:
    head = b"\x72" + _string(f"{kind}specjms.{name}") + struct.pack(">qbH", 1, 2, len(fields))
    return b"".join((head, *fields, b"\x78\x70"))


def _field(kind: str, name: str) -> bytes:
    return kind.encode() + _string(name)


_ENCODINGS: Final[Mapping[BodyType, Callable[[str, str, Lines, str], bytes]]] = {
    "object": _object,
    "text": _text,
    "XML": _xml,
    "stream": _stream,
    "map": _map,
}
