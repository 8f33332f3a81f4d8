"""The trailer of a payload."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from loadgen.specjms.kernels import trailer

_U8, _U32 = st.integers(0, 255), st.integers(0, 2**32 - 1)


def _note(*values: int) -> trailer.InteractionNote:
    """Return a note with the fields of a trailer, in its order."""
    note = trailer.InteractionNote.rows(1)[0]
    note.type, note.interaction, note.size_class, note.suppliers, note.family = values[:5]
    note.places[:] = values[5:9]
    note.number, note.price = values[9:]
    return note


def _fields(note: trailer.InteractionNote) -> tuple[int, ...]:
    small = (note.type, note.interaction, note.size_class, note.suppliers, note.family)
    return (*small, *note.places.tolist(), note.number, note.price)


@given(
    st.tuples(_U8, _U8, _U8, _U8, _U32, _U32, _U32, _U32, _U32),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.integers(0, 9),
)
def test_a_note_survives_the_wire(
    small: tuple[int, ...], number: int, price: int, offset: int
) -> None:
    note = _note(*small, number, price)
    out = np.full(trailer.TRAILER_BYTES + 20, 0xEE, np.uint8)
    trailer.write_note(out, offset, note, 7)
    assert set(out[:offset].tolist() + out[offset + trailer.TRAILER_BYTES :].tolist()) <= {0xEE}
    found = _note(*[9] * 11)
    trailer.read_note(out, offset, found)
    # The type written is that of the message, not of its cause.
    assert _fields(found) == (7, *_fields(note)[1:])


def test_fields_stand_where_the_table_says() -> None:
    note = _note(0, 2, 1, 3, 0x01020304, 5, 6, 7, 8, 0x1112131415161718, 0x2122232425262728)
    out = np.zeros(trailer.TRAILER_BYTES, np.uint8)
    trailer.write_note(out, 0, note, 9)
    assert out.tobytes().hex(" ", 4) == (
        "09020103 04030201 05000000 06000000 07000000 08000000 18171615 14131211 28272625 24232221"
    )
