"""numba's type of the handlers of a case (handlers.py).

For numba each function would be a value, an address that code in the cache must not contain. Here
the functions are part of the argument's type only, and it has no value.
"""

# mypy: disable-error-code="no-untyped-call,untyped-decorator,override"

from importlib import import_module
from typing import Any

from numba import types
from numba.core.imputils import lower_constant, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl

from loadgen.kernels.handlers import Handlers


class HandlersType(types.Type):
    """numba's type of handlers; `types` are those of the functions."""

    def __init__(self, handlers: Any) -> None:
        self.types = tuple(types.Dispatcher(function) for function in handlers)
        kernels = [one.py_func for one in handlers]
        self.names = tuple((one.__module__, one.__name__) for one in kernels)
        super().__init__(f"Handlers({', '.join(map('.'.join, self.names))})")

    def __reduce__(self) -> tuple[Any, ...]:
        return _found_again, (self.names,)


def _found_again(names: tuple[tuple[str, str], ...]) -> HandlersType:
    """Return the type of the functions with these names, for a kernel from the cache."""
    return HandlersType([getattr(import_module(module), name) for module, name in names])


register_model(HandlersType)(models.OpaqueModel)


@typeof_impl.register(Handlers)
def _typeof(value: Handlers, _context: Any) -> HandlersType:
    return HandlersType(value)


@lower_constant(HandlersType)
def _constant(context: Any, _builder: Any, _type: HandlersType, _value: Handlers) -> Any:
    return context.get_dummy_value()


@infer_getattr
class _Functions(AttributeTemplate):
    key = HandlersType

    def generic_resolve(self, of: HandlersType, name: str) -> Any:
        return of.types[Handlers._fields.index(name)] if name in Handlers._fields else None


@lower_getattr_generic(HandlersType)
def _function(context: Any, _builder: Any, _of: HandlersType, _value: Any, _name: str) -> Any:
    return context.get_dummy_value()
