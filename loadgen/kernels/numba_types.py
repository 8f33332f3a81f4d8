"""numba's types of a worker's arrays and of handlers, and functions that read several bytes."""

# mypy: disable-error-code="no-untyped-call,untyped-decorator,override"

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from llvmlite import ir
from numba import from_dtype, types
from numba.core.cgutils import do_boundscheck, raw_memcpy
from numba.core.extending import intrinsic
from numba.core.imputils import lower_constant, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import NativeValue, models, register_model, typeof_impl, unbox
from numba.np.arrayobj import make_array, populate_array, record_getattr

from loadgen.kernels.handlers import Handlers

if TYPE_CHECKING:
    from loadgen.kernels.arrays import Arrays, Field


class RowType(types.Record):
    """numba's type of a `Record`: fields are read as 64 bits, so that one kernel serves all."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        plain = from_dtype(dtype)
        fields = [(name, field._asdict()) for name, field in plain.fields.items()]
        super().__init__(fields, plain.size, plain.aligned)
        self.name = f"Row{self.name}"

    def can_convert_to(self, _context: Any, _other: types.Type) -> None:
        """Return None: a row is never converted to another record with the same fields."""


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


def _type_of(field: "Field") -> types.Type:
    kind = field.dtype.type
    is_record = issubclass(kind, np.void) and kind is not np.void
    element = RowType(field.dtype) if is_record else from_dtype(field.dtype)
    return types.Array(element, field.dimensions, "C") if field.dimensions else element


class ArraysType(types.Type):
    """numba's type of a pointer to the arrays of a class; its name contains all of them."""

    def __init__(self, layout: "type[Arrays]") -> None:
        self.layout = layout
        self.parts = {name: _type_of(field) for name, field in layout.fields.items()}
        named = [f"{name}@{layout.entry(name)}:{kind}" for name, kind in self.parts.items()]
        super().__init__(f"{layout.__name__}({', '.join(named)})")

    def __reduce__(self) -> tuple[Any, ...]:
        return _found_again, (self.layout, self.name)


def _found_again(layout: "type[Arrays]", name: str) -> types.Type:
    """Return the type that a kernel in the cache was compiled for."""
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
        if name == "extension":
            return types.int64
        return of.parts.get(name)


@lower_getattr_generic(ArraysType)
def _read(context: Any, builder: Any, of: ArraysType, table: Any, name: str) -> Any:
    """Build the array or record `name` from its entry in the table."""
    word = ir.IntType(64)

    def load(offset: int) -> Any:
        address = builder.add(table, word(offset))
        value = builder.load(builder.inttoptr(address, word.as_pointer()))
        value.set_metadata("invariant.load", builder.module.add_metadata([]))
        return value

    if name == "extension":
        return load(of.layout.entry())
    field = of.layout.fields[name]
    base = of.layout.entry(name)
    if not field.dimensions:
        return builder.inttoptr(load(base), context.get_value_type(of.parts[name]))
    array = make_array(of.parts[name])(context, builder)
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


def pointer_to(layout: "type[Arrays]") -> Any:
    def pointer(_context: Any, extension: Any) -> Any:
        def generate(_c: Any, _b: Any, _s: Any, arguments: Any) -> Any:
            return arguments[0]

        return layout.compiled(types.int64), generate

    return intrinsic(pointer)


def _address(context: Any, builder: Any, kind: Any, array: Any, position: Any, size: Any) -> Any:
    """Return the address of array[position : position + size]; NUMBA_BOUNDSCHECK=1 checks it."""
    struct = make_array(kind)(context, builder, array)
    if context.enable_boundscheck:
        length = builder.extract_value(struct.shape, 0)
        with builder.if_then(builder.icmp_signed("!=", size, size.type(0))):
            last = builder.add(position, builder.sub(size, size.type(1)))
            for place in (position, last):
                do_boundscheck(context, builder, place, length)
    return builder.gep(struct.data, [position])


def reader(size_bytes: int) -> Any:
    """Return a function that reads buffer[position : position + size_bytes] as one number."""

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


def writer(size_bytes: int) -> Any:
    """Return a function that writes a number to buffer[position : position + size_bytes]."""

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


def copier() -> Any:
    """Return `copy_bytes`: numba compiles the assignment of a slice to a thousand instructions."""

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


class HandlersType(types.Type):
    """numba's type of the handlers of a case (handlers.py); `types` are those of the functions.

    The functions are part of the type and not values: code in the cache must not contain addresses.
    """

    def __init__(self, handlers: Any) -> None:
        self.types = tuple(types.Dispatcher(function) for function in handlers)
        kernels = [one.py_func for one in handlers]
        self.names = tuple((one.__module__, one.__name__) for one in kernels)
        super().__init__(f"Handlers({', '.join(map('.'.join, self.names))})")

    def __reduce__(self) -> tuple[Any, ...]:
        return _handlers_again, (self.names,)


def _handlers_again(names: tuple[tuple[str, str], ...]) -> HandlersType:
    """Return the type of the functions with these names, for a kernel from the cache."""
    return HandlersType([getattr(import_module(module), name) for module, name in names])


register_model(HandlersType)(models.OpaqueModel)


@typeof_impl.register(Handlers)
def _type_of_handlers(value: Handlers, _context: Any) -> HandlersType:
    return HandlersType(value)


@lower_constant(HandlersType)
def _handlers_constant(context: Any, _builder: Any, _type: HandlersType, _value: Handlers) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _HandlerFunctions(AttributeTemplate):
    key = HandlersType

    def generic_resolve(self, of: HandlersType, name: str) -> Any:
        return of.types[Handlers._fields.index(name)] if name in Handlers._fields else None


@lower_getattr_generic(HandlersType)
def _handler(context: Any, _builder: Any, _of: HandlersType, _value: Any, _name: str) -> Any:
    return context.get_dummy_value()
