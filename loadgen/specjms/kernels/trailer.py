"""The last 40 bytes of a payload, from which a consumer continues the interaction.

Little-endian:

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

The trailer comes after the filler, so that its CRC-32 is computed once for each type and length.
"""

from typing import Annotated

import numpy as np
import numpy.typing as npt

from loadgen.kernels.arrays import Bytes, Int32, Int64, Record, read_i64, read_u32, write_u32
from loadgen.kernels.compiled import compiled

TRAILER_BYTES = 40
NOWHERE = 0xFFFFFFFF

_MASK = 0xFFFFFFFF


class InteractionNote(Record):
    """The fields of a trailer, and the progress of the outputs."""

    number: Int64
    price: Int64
    intended_ns: Int64  # when the interaction was due
    places: Annotated[npt.NDArray[np.int64], np.int64, 4]  # the locations that take part, by kind
    type: Int32
    interaction: Int32
    size_class: Int32
    suppliers: Int32
    family: Int64
    transaction: Int32  # row of the transaction that its outputs belong to, -1 for none
    next: Int32  # number of the output to send next
    link: Int32  # the next note in the line of a connection, or in the list of free ones


@compiled
def write_note(out: Bytes, position: int, note: InteractionNote, number: int) -> None:
    """Write the trailer of a message of type `number` at `position`."""
    out[position] = number
    out[position + 1] = note.interaction
    out[position + 2] = note.size_class
    out[position + 3] = note.suppliers
    write_u32(out, position + 4, note.family)
    for kind in range(4):
        write_u32(out, position + 8 + 4 * kind, note.places[kind])
    write_u32(out, position + 24, note.number & _MASK)
    write_u32(out, position + 28, note.number >> 32)
    write_u32(out, position + 32, note.price & _MASK)
    write_u32(out, position + 36, note.price >> 32)


@compiled
def read_note(buffer: Bytes, position: int, note: InteractionNote) -> None:
    """Read the trailer at `position` into the note, and reset fields that are not sent."""
    note.type = int(np.int64(buffer[position]))
    note.interaction = int(np.int64(buffer[position + 1]))
    note.size_class = int(np.int64(buffer[position + 2]))
    note.suppliers = int(np.int64(buffer[position + 3]))
    note.family = read_u32(buffer, position + 4)
    for kind in range(4):
        note.places[kind] = read_u32(buffer, position + 8 + 4 * kind)
    note.number = read_i64(buffer, position + 24)
    note.price = read_i64(buffer, position + 32)
    note.intended_ns = 0
    note.transaction = -1
    note.next = 0
    note.link = -1
