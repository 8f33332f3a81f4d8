"""The arrays of a worker as one argument of compiled code.

A class derived from `Arrays` names the arrays with their types. Compiled code gets the address of a
table of their addresses and shapes, as a typed pointer whose attributes read it. The table is
constant for LLVM, so that an attribute costs nothing within a kernel.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    ClassVar,
    Generic,
    NamedTuple,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

import numpy as np
import numpy.typing as npt

from loadgen.kernels.compiled import is_plain

if not is_plain():
    from loadgen.kernels import numba_types

Uint8 = Annotated[int, np.uint8]
Uint16 = Annotated[int, np.uint16]
Uint32 = Annotated[int, np.uint32]
Int16 = Annotated[int, np.int16]
Int32 = Annotated[int, np.int32]
Int64 = Annotated[int, np.int64]
Float64 = Annotated[float, np.float64]
Bytes = Annotated[npt.NDArray[np.uint8], np.uint8, 1]
ByteRows = Annotated[npt.NDArray[np.uint8], np.uint8, 2]
Int32s = Annotated[npt.NDArray[np.int32], np.int32, 1]
Int64s = Annotated[npt.NDArray[np.int64], np.int64, 1]
Int64Rows = Annotated[npt.NDArray[np.int64], np.int64, 2]
CountRows = Annotated[npt.NDArray[np.uint32], np.uint32, 2]

_DIMENSIONS = 3

if TYPE_CHECKING:

    class _Void:
        def item(self) -> tuple[Any, ...]: ...
else:
    _Void = np.void


class Record(_Void):
    """A row with named fields, which a derived class declares with the types above.

    A field is an attribute also in plain Python. In compiled code a narrow field becomes 64 bits.
    """

    layout: ClassVar[np.dtype[np.void]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        fields = [(name, *get_args(hint)[1:]) for name, hint in hints.items() if name != "layout"]
        cls.layout = np.dtype((cls, np.dtype(fields, align=True)))

    @classmethod
    def rows(cls, count: int) -> "Rows[Self]":
        """Return zeroed records."""
        return cast("Rows[Self]", np.zeros(count, cls.layout))

    @classmethod
    def of(cls, values: Iterable[tuple[Any, ...]]) -> "Rows[Self]":
        """Return records with the values of the tuples."""
        return cast("Rows[Self]", np.array(list(values), cls.layout))

    @classmethod
    def grid(cls, rows: int, columns: int) -> "Grid[Self]":
        return cast("Grid[Self]", np.zeros((rows, columns), cls.layout))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return cls.layout.names or ()

    if not TYPE_CHECKING:

        def __getattribute__(self, name):
            fields = type(self).layout.fields
            if name not in fields:
                return np.void.__getattribute__(self, name)
            value = np.void.__getitem__(self, name)
            return value.item() if isinstance(value, np.generic) else value

        def __setattr__(self, name, value):
            np.void.__setitem__(self, name, value)


R = TypeVar("R")
At = TypeVar("At")


class Records(Protocol, Generic[R, At]):  # type: ignore[misc]
    """An array of records; `At` is the type of an index."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[R]: ...
    def tolist(self) -> list[Any]: ...
    def copy(self) -> Self: ...
    @overload
    def __getitem__(self, at: At, /) -> R: ...
    @overload
    def __getitem__(self, at: str, /) -> npt.NDArray[Any]: ...
    @overload
    def __getitem__(self, at: Any, /) -> Any: ...
    def __setitem__(self, at: Any, value: Any, /) -> None: ...


Rows = Records[R, int]
Grid = Records[R, tuple[int, int]]


class Field(NamedTuple):
    """An entry of the table of addresses; a single record has no dimension."""

    at: int
    dtype: np.dtype[Any]
    dimensions: int


def _fields_of(layout: type) -> dict[str, Field]:
    fields: dict[str, Field] = {}
    for name, hint in get_type_hints(layout, include_extras=True).items():
        kind: Any = get_origin(hint) or hint
        if kind is Annotated:
            _, dtype, dimensions = get_args(hint)
        elif kind is Records:
            row, at = get_args(hint)
            dtype, dimensions = row.layout, 1 if at is int else 2
        elif isinstance(kind, type) and issubclass(kind, Record):
            dtype, dimensions = kind.layout, 0
        else:
            continue
        dtype = np.dtype(dtype)
        fields[name] = Field(len(fields), dtype, dimensions)
    return fields


class Arrays:
    """Base of a class that names arrays; compiled code does not see other attributes."""

    fields: ClassVar[dict[str, Field]]
    compiled: ClassVar[Any]
    _numba_type_: ClassVar[Any]

    extension: "Arrays | None" = None  # arrays of a case; compiled code needs `pointer_to`

    def __init_subclass__(cls) -> None:
        inherited = getattr(cls, "fields", None)
        cls.fields = _fields_of(cls)
        # A class without further arrays is the same to compiled code.
        if not is_plain() and cls.fields != inherited:
            # numba reads an object's type from this attribute three times as fast as by typeof.
            cls.compiled = cls._numba_type_ = numba_types.ArraysType(cls)

    @classmethod
    def entry(cls, name: str = "extension") -> int:
        """Return the offset of an array's entry in the table, in bytes."""
        at = len(cls.fields) if name == "extension" else cls.fields[name].at
        return 8 * (1 + _DIMENSIONS) * at

    def __init__(self, **values: Any) -> None:
        """Take all arrays that the class names; a record is an array with one row."""
        self.__dict__["table"] = np.zeros((len(self.fields) + 1, 1 + _DIMENSIONS), np.int64)
        self.__dict__["address"] = int(self.__dict__["table"].ctypes.data)
        self.__dict__["held"] = {}
        if missing := self.fields.keys() - values.keys():
            raise TypeError(f"{type(self).__name__} without {sorted(missing)}")
        self.replace(**values)

    def replace(self, **values: Any) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    def __setattr__(self, name: str, value: Any) -> None:
        field = self.fields.get(name)
        if field is not None:
            fits = value.dtype == field.dtype and value.ndim == max(field.dimensions, 1)
            if not fits or not value.flags.c_contiguous:
                raise ValueError(f"{name} is not what {type(self).__name__} says")
            self.held[name] = value
            entry = self.table[field.at]
            entry[0] = value.ctypes.data
            entry[1 : 1 + value.ndim] = value.shape
            if not field.dimensions:
                value = value[0]
        elif name == "extension":
            self.table[-1, 0] = 0 if value is None else value.address
        self.__dict__[name] = value

    held: dict[str, npt.NDArray[Any]]  # a record is an array with one row
    table: npt.NDArray[np.int64]
    address: int


def joined(pieces: Sequence[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the bytes of all pieces, at least one byte, and the end of each piece, after a 0."""
    ends = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return np.frombuffer(bytearray(b"".join(pieces) or b"\0"), np.uint8), ends


def pointer_to(layout: type[Arrays]) -> Any:
    """Return a function of compiled code that converts `extension` to a pointer to such arrays."""
    return (lambda extension: extension) if is_plain() else numba_types.pointer_to(layout)


def _plain_reader(size_bytes: int) -> Any:
    def read(buffer: npt.NDArray[np.uint8], position: int) -> int:
        data = buffer[position : position + size_bytes].tobytes()
        return int.from_bytes(data, "little", signed=size_bytes == 8)

    return read


def _plain_writer(size_bytes: int) -> Any:
    def write(buffer: npt.NDArray[np.uint8], position: int, value: int) -> None:
        data = (int(value) & ((1 << 8 * size_bytes) - 1)).to_bytes(size_bytes, "little")
        buffer[position : position + size_bytes] = np.frombuffer(data, np.uint8)

    return write


def _plain_copy(
    target: npt.NDArray[np.uint8], at: int, source: npt.NDArray[np.uint8], start: int, count: int
) -> None:
    target[at : at + count] = source[start : start + count]


_reader: Any = _plain_reader if is_plain() else numba_types.reader
_writer: Any = _plain_writer if is_plain() else numba_types.writer
read_u8: Callable[[npt.NDArray[np.uint8], int], int] = _reader(1)
read_u32: Callable[[npt.NDArray[np.uint8], int], int] = _reader(4)
read_i64: Callable[[npt.NDArray[np.uint8], int], int] = _reader(8)
"""Readers of (buffer, position), least byte first, without a check of bounds."""
write_u32: Callable[[npt.NDArray[np.uint8], int, int], None] = _writer(4)
write_i64: Callable[[npt.NDArray[np.uint8], int, int], None] = _writer(8)
"""Writers of (buffer, position, value): its low bits, least byte first, without a check."""
copy_bytes: Any = _plain_copy if is_plain() else numba_types.copier()
"""Copy of (target, at, source, start, count), without overlap and a check of bounds."""
