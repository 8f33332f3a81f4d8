"""The arrays of a worker as one argument of compiled code.

A class derived from `Arrays` names the arrays, each with its type, and that is the only list of
them: an object of the class holds them, and a table of their addresses and shapes; compiled code
gets the address of that table as a typed pointer whose attributes read it.

    class Fleet(Arrays):
        devices: Rows[Device]        records, one a row
        run: Run                     one record
        topics: Bytes                numbers

    @njit
    def idle(fleet, row):
        return fleet.devices[row].state == IDLE

Without compilation (NUMBA_DISABLE_JIT) the object itself serves: its attributes are the arrays.

The table is marked as unchanging for LLVM, so that reading an attribute costs nothing within a
kernel. Handing an object over from Python costs 0.4 µs, however many arrays it names.
"""

# mypy: disable-error-code="no-untyped-call,untyped-decorator,override"

from collections.abc import Callable, Iterable, Iterator
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
from llvmlite import ir
from numba import config, from_dtype, types
from numba.core.cgutils import do_boundscheck, raw_memcpy
from numba.core.extending import intrinsic
from numba.core.imputils import lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, unbox
from numba.np.arrayobj import make_array, populate_array, record_getattr

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
_ENTRY_BYTES = 8 * (1 + _DIMENSIONS)


if TYPE_CHECKING:

    class _Void:
        def item(self) -> tuple[Any, ...]: ...
else:
    _Void = np.void


class Record(_Void):
    """A row with named fields, which a derived class declares with the types above.

    In plain Python, too, a field is an attribute, even where numpy has one of that name, and its
    value a number without a width: as in compiled code, where the narrow field becomes 64 bits.
    """

    layout: ClassVar[np.dtype[np.void]]

    def __init_subclass__(cls) -> None:
        hints = get_type_hints(cls, include_extras=True)
        fields = [(name, *get_args(hint)[1:]) for name, hint in hints.items() if name != "layout"]
        cls.layout = np.dtype((cls, np.dtype(fields, align=True)))

    @classmethod
    def rows(cls, count: int) -> "Rows[Self]":
        """Zeroed records."""
        return cast("Rows[Self]", np.zeros(count, cls.layout))

    @classmethod
    def of(cls, values: Iterable[tuple[Any, ...]]) -> "Rows[Self]":
        """Records with the values of the tuples."""
        return cast("Rows[Self]", np.array(list(values), cls.layout))

    @classmethod
    def grid(cls, rows: int, columns: int) -> "Grid[Self]":
        """Zeroed records in rows and columns."""
        return cast("Grid[Self]", np.zeros((rows, columns), cls.layout))

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The fields, in order."""
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
    """An array of records; `At` says which one."""

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
    """One entry of the table of addresses; no dimension for one record."""

    at: int
    dtype: np.dtype[Any]
    dimensions: int
    compiled: Any


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
        element = RowType(dtype) if issubclass(dtype.type, Record) else from_dtype(dtype)
        compiled = types.Array(element, dimensions, "C") if dimensions else element
        fields[name] = Field(len(fields), dtype, dimensions, compiled)
    return fields


class Arrays:
    """Base of a class that names arrays; other attributes are not for compiled code.

    `own` are the arrays of what builds on these, such as those of a case: compiled code gets a
    number that `pointer_to` makes a pointer.
    """

    fields: ClassVar[dict[str, Field]]
    compiled: ClassVar["ArraysType"]
    _numba_type_: ClassVar["ArraysType"]

    own: "Arrays | None" = None

    def __init_subclass__(cls) -> None:
        cls.fields = _fields_of(cls)
        # By this name numba asks an object for its type, three times as fast as by its own way.
        cls.compiled = cls._numba_type_ = ArraysType(cls)

    def __init__(self, **values: Any) -> None:
        """All that the class names; one record as an array with one row."""
        self.__dict__["table"] = np.zeros((len(self.fields) + 1, 1 + _DIMENSIONS), np.int64)
        self.__dict__["address"] = int(self.__dict__["table"].ctypes.data)
        self.__dict__["held"] = {}
        if missing := self.fields.keys() - values.keys():
            raise TypeError(f"{type(self).__name__} without {sorted(missing)}")
        self.replace(**values)

    def replace(self, **values: Any) -> None:
        """Put other arrays in place, one record as an array with one row."""
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
        elif name == "own":
            self.table[-1, 0] = 0 if value is None else value.address
        self.__dict__[name] = value

    held: dict[str, npt.NDArray[Any]]
    """The arrays, one with one row where the attribute is a record."""
    table: npt.NDArray[np.int64]
    address: int


class RowType(types.Record):
    """Numba's type of a `Record`: a field with a narrow number is read as 64 bits.

    So a kernel is compiled once, whatever field its argument comes from.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        plain = from_dtype(dtype)
        fields = [(name, field._asdict()) for name, field in plain.fields.items()]
        super().__init__(fields, plain.size, plain.aligned)
        self.name = f"Row{self.name}"

    def can_convert_to(self, _context: Any, _other: types.Type) -> None:
        """A row is never taken for another record with the same fields."""


register_model(RowType)(models.RecordModel)


@infer_getattr
class _Fields(AttributeTemplate):
    key = RowType

    def generic_resolve(self, of: RowType, name: str) -> Any:
        found = of.typeof(name)
        return types.int64 if isinstance(found, types.Integer) else found


@lower_getattr_generic(RowType)
def _read_field(context: Any, builder: Any, of: RowType, row: Any, name: str) -> Any:
    value = record_getattr(context, builder, of, row, name)
    found = of.typeof(name)
    if isinstance(found, types.Integer):
        return context.cast(builder, value, found, types.int64)
    return value


class ArraysType(types.Type):
    """Numba's type of a pointer to the arrays of a class.

    Its name says what the class names, so that nothing compiled for another table is used.
    """

    def __init__(self, layout: type[Arrays]) -> None:
        self.layout = layout
        named = [f"{name}:{field.compiled}" for name, field in layout.fields.items()]
        super().__init__(f"{layout.__name__}({', '.join(named)})")

    def __reduce__(self) -> tuple[Any, ...]:
        return _found_again, (self.layout, self.name)


def _found_again(layout: type[Arrays], name: str) -> types.Type:
    """The type that a cached kernel was compiled for, another one when the class changed since."""
    return layout.compiled if layout.compiled.name == name else types.Opaque(name)


@register_model(ArraysType)
class _AddressModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: ArraysType) -> None:
        super().__init__(manager, of, ir.IntType(64))


@unbox(ArraysType)
def _unbox(_type: ArraysType, value: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(value, "address")
    number = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(number)


@infer_getattr
class _Attributes(AttributeTemplate):
    key = ArraysType

    def generic_resolve(self, of: ArraysType, name: str) -> Any:
        if name == "own":
            return types.int64
        field = of.layout.fields.get(name)
        return None if field is None else field.compiled


@lower_getattr_generic(ArraysType)
def _read(context: Any, builder: Any, of: ArraysType, table: Any, name: str) -> Any:
    """The array or record `name`, put together from its entry in the table."""
    word = ir.IntType(64)

    def load(offset: int) -> Any:
        address = builder.add(table, word(offset))
        value = builder.load(builder.inttoptr(address, word.as_pointer()))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    if name == "own":
        return load(_ENTRY_BYTES * len(of.layout.fields))
    field = of.layout.fields[name]
    base = _ENTRY_BYTES * field.at
    if not field.dimensions:
        return builder.inttoptr(load(base), context.get_value_type(field.compiled))
    array = make_array(field.compiled)(context, builder)
    shape = [load(base + 8 * (1 + axis)) for axis in range(field.dimensions)]
    item_bytes = context.get_constant(types.intp, field.dtype.itemsize)
    strides = [item_bytes]
    for length in shape[:0:-1]:
        strides.insert(0, builder.mul(strides[0], length))
    populate_array(
        array,
        data=builder.inttoptr(load(base), array.data.type),
        shape=shape,
        strides=strides,
        itemsize=item_bytes,
        meminfo=None,
    )
    return array._getvalue()


def pointer_to(layout: type[Arrays]) -> Any:
    """A function of compiled code: the pointer to `own` arrays of that class."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return lambda own: own

    def pointer(_context: Any, own: Any) -> Any:
        def generate(_c: Any, _b: Any, _s: Any, arguments: Any) -> Any:
            return arguments[0]

        return layout.compiled(types.int64), generate

    return intrinsic(pointer)


def plain_reader(size_bytes: int) -> Callable[[npt.NDArray[np.uint8], int], int]:
    """As `_reader`, in plain Python."""
    signed = size_bytes == 8

    def read(buffer: npt.NDArray[np.uint8], position: int) -> int:
        data = buffer[position : position + size_bytes].tobytes()
        return int.from_bytes(data, "little", signed=signed)

    return read


def plain_writer(size_bytes: int) -> Callable[[npt.NDArray[np.uint8], int, int], None]:
    """As `_writer`, in plain Python."""
    mask = (1 << 8 * size_bytes) - 1

    def write(buffer: npt.NDArray[np.uint8], position: int, value: int) -> None:
        data = (int(value) & mask).to_bytes(size_bytes, "little")
        buffer[position : position + size_bytes] = np.frombuffer(data, np.uint8)

    return write


def plain_copy(
    target: npt.NDArray[np.uint8], at: int, source: npt.NDArray[np.uint8], start: int, count: int
) -> None:
    """As `copy_bytes`, in plain Python."""
    target[at : at + count] = source[start : start + count]


def _address(context: Any, builder: Any, kind: Any, array: Any, position: Any, size: Any) -> Any:
    """The address of array[position : position + size]; a negative position is none from the end.

    With NUMBA_BOUNDSCHECK=1 what is not within the array raises IndexError, as for any index.
    """
    found = make_array(kind)(context, builder, array)
    if context.enable_boundscheck:
        length = builder.extract_value(found.shape, 0)
        with builder.if_then(builder.icmp_signed("!=", size, size.type(0))):
            last = builder.add(position, builder.sub(size, size.type(1)))
            for place in (position, last):
                do_boundscheck(context, builder, place, length)
    return builder.gep(found.data, [position])


def _reader(size_bytes: int) -> Any:
    """A function that reads buffer[position : position + size_bytes], least byte first, at once.

    Put together from bytes the number costs several times as much where LLVM does not see through.
    """
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return plain_reader(size_bytes)

    def read(_context: Any, buffer: Any, _position: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(8 * size_bytes)
            array, position = arguments
            size = ir.IntType(64)(size_bytes)
            address = _address(context, builder, signature.args[0], array, position, size)
            number = builder.load(builder.bitcast(address, word.as_pointer()), align=1)
            return number if size_bytes == 8 else builder.zext(number, ir.IntType(64))

        return types.int64(buffer, types.int64), generate

    return intrinsic(read)


def _writer(size_bytes: int) -> Any:
    """A function that writes a number to buffer[position : position + size_bytes] in one store."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return plain_writer(size_bytes)

    def write(_context: Any, buffer: Any, _position: Any, _value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            word = ir.IntType(8 * size_bytes)
            array, position, value = arguments
            size = ir.IntType(64)(size_bytes)
            address = _address(context, builder, signature.args[0], array, position, size)
            number = value if size_bytes == 8 else builder.trunc(value, word)
            builder.store(number, builder.bitcast(address, word.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(buffer, types.int64, types.int64), generate

    return intrinsic(write)


def _copier() -> Any:
    """`copy_bytes`; numba makes some thousand instructions of a slice that is assigned."""
    if config.DISABLE_JIT:  # type: ignore[attr-defined]
        return plain_copy

    def copy(_context: Any, target: Any, _at: Any, source: Any, _start: Any, _count: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            to, at, of, start, count = arguments
            target_address = _address(context, builder, signature.args[0], to, at, count)
            source_address = _address(context, builder, signature.args[2], of, start, count)
            raw_memcpy(builder, target_address, source_address, count, 1)
            return context.get_dummy_value()

        where = (target, types.int64, source, types.int64, types.int64)
        return types.void(*where), generate

    return intrinsic(copy)


read_4_bytes = _reader(4)
"""(buffer, position) to an unsigned number; the caller keeps within the buffer."""
read_8_bytes = _reader(8)
"""The same, to a signed number."""
write_4_bytes = _writer(4)
"""(buffer, position, value): its low 32 bits, least byte first; the caller keeps within."""
write_8_bytes = _writer(8)
"""The same, of 64 bits."""
copy_bytes = _copier()
"""(target, at, source, start, count): target[at : at + count] = source[start : start + count].

The caller keeps within both, which are not the same bytes.
"""
