"""Payload templates: text with places that each message fills with numbers of its own.

    {"id": "{device:07}", "n": {sequence:9}, "at": {time_ms}, "celsius": 2{random:1}.{random:2}}

A place is a name in braces, with the number of its digits after a colon; they are filled with
zeros where the number of digits begins with 0, else with spaces, and a number that needs more
digits keeps its last ones. So every message has the same length. Other braces stand for
themselves, but for a lone word in braces, which is most likely a name that was misspelt.

    device     number of the publishing device in its group                     7 digits
    sequence   number of the message in its stream, from 0                     10
    time_ms    when it was meant to be sent, milliseconds since 1970 (UTC)     13
    random     digits that differ from message to message, the same each run    4
"""

import re

import numpy as np
import numpy.typing as npt

from loadgen.errors import ScenarioError
from loadgen.kernels.arrays import Rows
from loadgen.kernels.template import SOURCES, SPACE, ZERO, Place

_DIGITS = dict(zip((name.encode() for name in SOURCES), (7, 10, 13, 4), strict=True))
_SOURCES = {name: number for number, name in enumerate(_DIGITS)}
_PLACE = re.compile(rb"\{([A-Za-z_]+)(?::(0?)([0-9]{1,2}))?\}")
_MOST_DIGITS = 18


def no_template() -> Rows[Place]:
    """The places of a payload that is the same in every message: none."""
    return Place.rows(0)


def read_template(text: bytes) -> tuple[npt.NDArray[np.uint8], Rows[Place]]:
    """What follows the header in a message, and its places.

    Raises ScenarioError for a name that is not known, too many digits, and no place at all.
    """
    body = bytearray()
    places: list[tuple[int, int, int, int]] = []
    after = 0
    for found in _PLACE.finditer(text):
        name, zero, digits = found.groups()
        if name not in _SOURCES:
            known = ", ".join(source.decode() for source in _SOURCES)
            raise ScenarioError(
                f"payload_template: {{{name.decode()[:40]}}} is not known; allowed: {known}"
            )
        width = int(digits) if digits else _DIGITS[name]
        if not 1 <= width <= _MOST_DIGITS:
            raise ScenarioError(
                f"payload_template: {{{name.decode()}}} has {width} digits; allowed: 1 to "
                f"{_MOST_DIGITS}"
            )
        body += text[after : found.start()]
        fill = ZERO if zero or not digits else SPACE
        places.append((len(body), width, _SOURCES[name], fill))
        body += bytes([fill]) * width
        after = found.end()
    if not places:
        raise ScenarioError(
            "payload_template: no place to fill, as {sequence}; --payload takes a file as it is"
        )
    body += text[after:]
    return np.frombuffer(body, np.uint8), Place.of(places)
