"""The last 40 bytes of a payload: what a consumer must know to carry the interaction on.

Little-endian, counted from the start of the trailer:

    offset  size  field
    0       1     message type      number in `messages.MESSAGES`
    1       1     interaction       1 to 7
    2       1     size class        0 small, 1 medium, 2 large
    3       1     suppliers         that answer this call for offers (z); 0 outside interaction 2
    4       4     family            product family; 0 outside interaction 2
    8       4     supermarket  \\
    12      4     distribution  |   the locations that take part, 0xFFFFFFFF for none
    16      4     supplier      |
    20      4     headquarters /
    24      8     interaction number: stream of its first message << 32 | sequence
    32      8     price             of an offer

It stands at the end and not behind the 32-byte header so that the CRC-32 of the filler before it,
which is the same for all messages of a length, need be worked out only once.

In a kernel the fields are a `note`: an array of NOTE_FIELDS int64, its first entries in the
trailer's order; what follows is not sent.
"""

import numpy as np
import numpy.typing as npt

from loadgen.compiled import compiled
from loadgen.workload.payload import read_i64, read_u32

__all__ = ["NOTE_FIELDS", "NOWHERE", "TRAILER_BYTES", "read_note", "write_note"]

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.int64]

TRAILER_BYTES = 40
NOWHERE = 0xFFFFFFFF

# Fields of a note. That of a location is PLACE + its kind.
TYPE = 0
INTERACTION = 1
SIZE_CLASS = 2
SUPPLIERS = 3
FAMILY = 4
PLACE = 5
SUPPLIER_PLACE = PLACE + 2
NUMBER = 9
PRICE = 10
INTENDED_NS = 11  # when the interaction was to begin
TRANSACTION = 12  # row of the transaction that its outputs belong to, -1 for none
NEXT = 13  # which of its outputs is to be sent next
LINK = 14
NOTE_FIELDS = 15

_MASK = 0xFFFFFFFF


@compiled
def _write_u32(out: Bytes, position: int, value: int) -> None:
    out[position] = value & 0xFF
    out[position + 1] = (value >> 8) & 0xFF
    out[position + 2] = (value >> 16) & 0xFF
    out[position + 3] = (value >> 24) & 0xFF


@compiled
def write_note(out: Bytes, position: int, note: Numbers, number: int) -> None:
    """Write the trailer of a message of type `number` at `position`."""
    out[position] = number
    out[position + 1] = note[INTERACTION]
    out[position + 2] = note[SIZE_CLASS]
    out[position + 3] = note[SUPPLIERS]
    _write_u32(out, position + 4, note[FAMILY])
    for kind in range(4):
        _write_u32(out, position + 8 + 4 * kind, note[PLACE + kind])
    _write_u32(out, position + 24, note[NUMBER] & _MASK)
    _write_u32(out, position + 28, note[NUMBER] >> 32)
    _write_u32(out, position + 32, note[PRICE] & _MASK)
    _write_u32(out, position + 36, note[PRICE] >> 32)


@compiled
def read_note(buffer: Bytes, position: int, note: Numbers) -> None:
    """Read the trailer at `position` into the note; what is not sent is set to nothing."""
    note[TYPE] = np.int64(buffer[position])
    note[INTERACTION] = np.int64(buffer[position + 1])
    note[SIZE_CLASS] = np.int64(buffer[position + 2])
    note[SUPPLIERS] = np.int64(buffer[position + 3])
    note[FAMILY] = read_u32(buffer, position + 4)
    for kind in range(4):
        note[PLACE + kind] = read_u32(buffer, position + 8 + 4 * kind)
    note[NUMBER] = read_i64(buffer, position + 24)
    note[PRICE] = read_i64(buffer, position + 32)
    note[INTENDED_NS] = 0
    note[TRANSACTION] = -1
    note[NEXT] = 0
    note[LINK] = -1
