"""Changes inputs that mean something: bytes, and for documents their values."""

import random
from collections.abc import Sequence
from typing import Any

_NUMBERS: Sequence[Any] = (
    *(0, -1, 1, 2**31, 2**53, 2**63 - 1, 2**63, -(2**63), 10**400, 1e308, -0.5, 1e-320),
    *(True, False, None, "", "x" * 400, "\x1b[2J\n", "\ud7ff", "0x10", "1e9", "-5", "nan"),
)
_OTHERS: Sequence[Any] = ([], {}, [[]], {"": {}}, [0] * 50, {"a": [1, {"b": None}]}, [None, 1])
_LENGTHS = (b"\xff\xff\xff\x7f", b"\x80\x80\x80\x80", b"\xff" * 8, b"\x00" * 8, b"\x7f", b"\x80")


def changed(random: random.Random, data: bytes, corpus: Sequence[bytes]) -> bytes:
    """The bytes with a few changes, perhaps joined with others of the corpus; seldom unchanged."""
    raw = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 3, 6, 0))):
        place = random.randrange(len(raw) + 1)
        size = min(random.choice((1, 1, 2, 4, 9, 60)), len(raw) - place)
        match random.randrange(9):
            case 0 if place < len(raw):
                raw[place] ^= 1 << random.randrange(8)
            case 1 if place < len(raw):
                raw[place] = random.randrange(256)
            case 2:
                raw[place : place + random.randrange(5)] = random.choice(_LENGTHS)
            case 3:
                del raw[place : place + size]
            case 4:
                raw[place:place] = raw[place : place + size] * random.choice((1, 1, 2, 40))
            case 5:
                del raw[place:]
            case 6:
                other = random.choice(corpus)
                start = random.randrange(len(other) + 1)
                raw[place:place] = other[start : start + random.choice((3, 20, 400))]
            case 7:
                raw += random.choice(corpus)
            case _:
                raw[place : place + size] = random.randbytes(size)
    return bytes(raw[: 1 << 16])


def changed_document(random: random.Random, value: Any, depth: int = 0) -> Any:
    """A document, as JSON has them, with one of its values replaced, left out or repeated."""
    if isinstance(value, dict) and value and random.random() < 0.97:
        key = random.choice(list(value))
        found = dict(value)
        match random.randrange(12):
            case 0:
                del found[key]
            case 1:
                found[random.choice(list(value))] = found[key]
            case 2:
                found[random.choice(("", "x" * 300, "\x1b[2J"))] = found[key]
            case _:
                found[key] = changed_document(random, found[key], depth + 1)
        return found
    if isinstance(value, list) and value and random.random() < 0.8:
        items = list(value)
        place = random.randrange(len(items))
        match random.randrange(6):
            case 0:
                del items[place]
            case 1:
                items.insert(place, items[place])
            case _:
                items[place] = changed_document(random, items[place], depth + 1)
        return items
    if isinstance(value, (int, float)) and not isinstance(value, bool) and random.random() < 0.5:
        return random.choice((-value, value + 1, value - 1, value * 1000, value * 10**12))
    return random.choice((*_NUMBERS, *_OTHERS))
