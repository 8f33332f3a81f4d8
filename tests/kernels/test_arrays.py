"""Arrays as one argument: kernels read and write what the object holds."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadgen.kernels.arrays import (
    Arrays,
    Bytes,
    CountRows,
    Float64,
    Grid,
    Int16,
    Int32,
    Int64,
    Int64s,
    Record,
    Rows,
    copy_bytes,
    pointer_to,
    read_i64,
    read_u32,
    write_i64,
    write_u32,
)
from loadgen.kernels.compiled import compiled
from tests.programs import python


class Room(Record):
    flags: Int16
    size: Int32
    heat: Float64
    area: Int64


class House(Record):
    number: Int64


class Yard(Arrays):
    trees: Int64s


class Street(Arrays):
    name: str
    rooms: Rows[Room]
    house: House
    floors: Grid[Room]
    letters: Bytes
    counts: CountRows


yard_of = pointer_to(Yard)


@compiled
def visit(street: Street, row: int) -> int:
    room = street.rooms[row]
    room.flags |= 4
    room.flags &= ~1
    room.size += 70_000
    street.floors[1, 2].area = room.size
    street.house.number += 1
    street.letters[0] = 200
    street.counts[1, 1] += 3
    return room.flags + street.house.number + len(street.letters)


@compiled
def first_tree(street: Street) -> int:
    return int(yard_of(street.extension).trees[0])


@compiled
def doubled(value: int) -> int:
    return value * 2


@compiled
def product(street: Street, row: int) -> int:
    return doubled(street.rooms[row].flags) + doubled(street.rooms[row].area)


@compiled
def move(
    target: np.ndarray[Any, Any], at: int, source: np.ndarray[Any, Any], start: int, count: int
) -> None:
    copy_bytes(target, at, source, start, count)


@compiled
def write_both(buffer: np.ndarray[Any, Any], position: int, value: int) -> tuple[int, int]:
    write_u32(buffer, position, value)
    write_i64(buffer, position + 4, value)
    return read_u32(buffer, position), read_i64(buffer, position + 4)


def street(**changed: Any) -> Street:
    arrays: dict[str, Any] = {
        "name": "High",
        "rooms": Room.rows(3),
        "house": House.rows(1),
        "floors": Room.grid(2, 3),
        "letters": np.zeros(5, np.uint8),
        "counts": np.zeros((2, 2), np.uint32),
    }
    return Street(**arrays | changed)


def test_a_kernel_changes_what_the_object_holds() -> None:
    made = street()
    made.rooms[1].flags = 3
    assert visit(made, 1) == 6 + 1 + 5
    assert made.rooms[1].size == made.floors[1, 2].area == 70_000
    assert made.rooms["flags"].tolist() == [0, 6, 0]
    assert made.house.number == 1
    assert made.letters.tolist() == [200, 0, 0, 0, 0]
    assert made.counts.tolist() == [[0, 0], [0, 3]]


def test_an_array_put_in_place_is_the_one_that_kernels_see() -> None:
    made = street()
    made.letters = np.zeros(9, np.uint8)
    made.rooms = Room.of([(1, 2, 3.0, 4)])
    assert visit(made, 0) == 4 + 1 + 9
    assert made.rooms[0].heat == 3.0


def test_arrays_of_ones_own_are_reached_through_the_others() -> None:
    made = street()
    assert made.extension is None
    made.extension = Yard(trees=np.array([7, 8]))
    assert first_tree(made) == 7


def test_a_narrow_field_is_a_whole_number_in_arithmetic() -> None:
    made = street()
    made.rooms[0].flags = 32_767
    made.rooms[0].area = 1
    assert product(made, 0) == 65_536


@pytest.mark.parametrize(
    "wrong",
    [
        {"letters": np.zeros(5, np.int64)},
        {"letters": np.zeros((5, 1), np.uint8)},
        {"counts": np.zeros((4, 4), np.uint32)[:, ::2]},
        {"rooms": House.rows(3)},
    ],
)
def test_another_type_shape_or_layout_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is not what Street says"):
        street(**wrong)


def test_every_array_is_wanted() -> None:
    with pytest.raises(TypeError, match="Yard without"):
        Yard()


def test_a_field_of_another_table_does_not_compile() -> None:
    @compiled
    def wrong(street: Street) -> int:
        return street.house.area  # type: ignore[attr-defined,no-any-return]

    with pytest.raises(Exception, match="area"):
        wrong(street())


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_a_type_is_found_again_unless_its_class_has_changed() -> None:
    again = pickle.loads(pickle.dumps(Street.compiled))
    assert again is Street.compiled
    find, (layout, _) = Street.compiled.__reduce__()
    assert find(layout, "Street(rooms:another)") != Street.compiled


@pytest.mark.parametrize("count", [0, 1, 7, 8, 64, 1000])
@pytest.mark.parametrize("row", [0, 1])
def test_bytes_are_copied_and_none_beside_them(count: int, row: int) -> None:
    source = np.arange(2000).astype(np.uint8)
    target = np.full((2, 1100), 0xAA, np.uint8)
    move(target[row], 13, source, 5, count)
    wanted = np.full((2, 1100), 0xAA, np.uint8)
    wanted[row, 13 : 13 + count] = source[5 : 5 + count]
    assert (target == wanted).all()


@pytest.mark.parametrize(
    "value", [0, 1, 255, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, -1, -(1 << 63)]
)
def test_numbers_are_written_as_they_are_read_and_none_beside_them(value: int) -> None:
    buffer = np.full(15, 0xAA, np.uint8)
    assert write_both(buffer, 1, value) == (value & 0xFFFF_FFFF, value)
    low, whole = value & 0xFFFF_FFFF, value & 0xFFFF_FFFF_FFFF_FFFF
    wanted = b"\xaa" + low.to_bytes(4, "little") + whole.to_bytes(8, "little") + b"\xaa\xaa"
    assert buffer.tobytes() == wanted


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") == "1", reason="nothing is compiled")
def test_with_bounds_checks_what_reads_and_copies_at_once_keeps_within_its_arrays(
    tmp_path: Path,
) -> None:
    """Set NUMBA_BOUNDSCHECK=1, which numba reads when it is imported."""
    script = """
import numpy as np
from loadgen.kernels.compiled import compiled
from loadgen.kernels.arrays import copy_bytes, read_i64, write_u32

@compiled
def read(a, at): return read_i64(a, at)
@compiled
def write(a, at): write_u32(a, at, 7)
@compiled
def copy(a, at, count): copy_bytes(a, at, np.ones(8, np.uint8), 0, count)

array = np.zeros(16, np.uint8)
read(array, 8), write(array, 12), copy(array, 8, 8), copy(array, 16, 0)
for step in (lambda: read(array, 9), lambda: read(array, -1), lambda: write(array, 13),
             lambda: copy(array, 9, 8), lambda: copy(array, 0, 9), lambda: copy(array, -1, 2)):
    try:
        step()
    except IndexError as error:
        print(error)
"""
    file = tmp_path / "kernels.py"
    file.write_text(script)
    shown = python(str(file), NUMBA_BOUNDSCHECK="1")
    assert shown.stdout == "index is out of bounds\n" * 6, shown.stderr
