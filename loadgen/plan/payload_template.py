"""Payload templates: text with places that are filled with numbers for each message.

    {"id": "{device:07}", "n": {sequence:9}, "at": {time_ms}, "celsius": 2{random:1}.{random:2}}

A place is a name with its number of digits, which are filled with zeros if it begins with 0, else
with spaces. A longer number keeps its last digits, so every message has the same length. {loadgen}
is the place of the header, as 64 hexadecimal digits, instead of in front of the text.
"""

import re

import numpy as np
import numpy.typing as npt

from loadgen.errors import ScenarioError
from loadgen.kernels.arrays import Rows
from loadgen.kernels.payload import HEADER_BYTES, IN_FIELD, IN_FRONT, SOURCES, SPACE, ZERO, Place
from loadgen.sentences import PLAN_TEXT

# Default digits: of the device in its group, of the message in its stream from 0, of its due time
# in ms since 1970 (UTC), and of random ones, which are the same each run.
_DIGITS = dict(zip((name.encode() for name in SOURCES), (7, 10, 13, 4), strict=True))
_SOURCES = {name: number for number, name in enumerate(_DIGITS)}
_HEADER = "loadgen"
_PLACE = re.compile(rb"\{([A-Za-z_]+)(?::(0?)([0-9]{1,2}))?\}")
_UNCLOSED = re.compile(rb"\{(?:%s)\b(?!(?::0?[0-9]{1,2})?\})" % b"|".join(_DIGITS))
_MOST_DIGITS = 18


def no_template() -> Rows[Place]:
    """Return the places of a payload that is the same in every message: an empty table."""
    return Place.rows(0)


def read_template(text: bytes) -> tuple[npt.NDArray[np.uint8], Rows[Place], int]:
    """Return the text that follows the header, its places, and the header's place.

    {loadgen} takes 32 bytes here, and 64 in messages. Raises ScenarioError for an unknown name, too
    many digits, and a text without a place.
    """
    body = bytearray()
    places: list[tuple[int, int, int, int]] = []
    after, header_place = 0, IN_FRONT
    if unclosed := _UNCLOSED.search(text):
        start = unclosed[0].decode()
        raise ScenarioError(PLAN_TEXT.PLACE_OPEN(start=start))
    for match in _PLACE.finditer(text):
        name, zero, digits = match.groups()
        if name.decode() == _HEADER and not digits:
            if header_place != IN_FRONT:
                raise ScenarioError(PLAN_TEXT.TWO_HEADERS())
            body += text[after : match.start()]
            header_place = IN_FIELD + len(body)
            body += b"0" * HEADER_BYTES
            after = match.end()
            continue
        if name not in _SOURCES:
            known = ", ".join([*(source.decode() for source in _SOURCES), _HEADER])
            raise ScenarioError(PLAN_TEXT.PLACE_UNKNOWN(name=name.decode()[:40], known=known))
        width = int(digits) if digits else _DIGITS[name]
        if not 1 <= width <= _MOST_DIGITS:
            raise ScenarioError(
                PLAN_TEXT.PLACE_DIGITS(name=name.decode(), width=width, most=_MOST_DIGITS)
            )
        body += text[after : match.start()]
        fill = ZERO if zero or not digits else SPACE
        places.append((len(body), width, _SOURCES[name], fill))
        body += bytes([fill]) * width
        after = match.end()
    if not places and header_place == IN_FRONT:
        raise ScenarioError(PLAN_TEXT.NO_PLACE())
    body += text[after:]
    return np.frombuffer(body, np.uint8), Place.of(places), header_place
