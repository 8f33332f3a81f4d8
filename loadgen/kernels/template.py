"""Filling of the places of a payload template, which `plan.payload_template` reads."""

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Int64, Record, Rows
from loadgen.kernels.compiled import compiled

Bytes = npt.NDArray[np.uint8]


class Place(Record):
    """A place in a body, with the number that fills it and its digits."""

    offset: Int64
    digits: Int64
    source: Int64
    fill: Int64
    """The character before the digits of the number."""


SOURCES = ("device", "sequence", "time_ms", "random")
"""The numbers that can fill a place; `Place.source` is an index of it."""
DEVICE, SEQUENCE, TIME_MS = 0, 1, 2
SPACE, ZERO = 0x20, 0x30


@compiled
def fill_template(
    out: Bytes,
    start: int,
    places: Rows[Place],
    device: int,
    sequence: int,
    time_ms: int,
    random: int,
) -> None:
    """Write the numbers of one message into the body that begins at out[start]."""
    for number in range(len(places)):
        place = places[number]
        source = place.source
        if source == DEVICE:
            value = device
        elif source == SEQUENCE:
            value = sequence
        elif source == TIME_MS:
            value = time_ms
        else:
            # Multiplied (Knuth, TAOCP 3.3.4) and folded twice: after one product alone two places
            # of a message would differ by a constant.
            value = random * 6364136223846793005 + (number + 1) * 1442695040888963407
            value = (value >> 11) & 0xFFFFFFFFFFFFF
            value ^= value >> 27
            value = ((value * 3935559000370003845) >> 11) & 0xFFFFFFFFFFFFF
            value ^= value >> 29
        first = start + place.offset
        position = first + place.digits - 1
        fill = ZERO if source > TIME_MS else place.fill
        while position >= first:
            out[position] = ZERO + value % 10
            value //= 10
            position -= 1
            if value == 0:
                break
        while position >= first:
            out[position] = fill
            position -= 1
