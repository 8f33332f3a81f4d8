"""What a case does with messages: compiled functions that the kernels are given as one argument.

Numba would make a value of each function, an address that no cached kernel may hold. Here they are
in the type of the argument alone, and its value is nothing.
"""

# mypy: disable-error-code="no-untyped-call,untyped-decorator,override"

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from numba import types
from numba.core.imputils import lower_constant, lower_getattr_generic
from numba.core.typing.templates import AttributeTemplate, infer_getattr
from numba.extending import models, register_model, typeof_impl


class Handlers(NamedTuple):
    """The functions of a case.

    on_message       (fleet, row, buffer, message, now_ns, position): a message came that was not
                     there before; acknowledges it, returns the position after what it wrote
    on_acknowledged  (fleet, row, packet_id, now_ns, position): a message of the device is
                     acknowledged for good; the group that counts it, and the position
    on_refused       (fleet, row, packet_id, phase): it is refused, which ends it as well; called
                     before, returns the deliveries that nobody is to expect any more
    write_due        (fleet, number, packet_id, sent_ns, position, sent): write a publisher's next
                     message and fill its row of the batch; the position after it
    on_sent          (fleet, row, sent, phase, sent_ns): a message of the batch is out
    on_unsent        (fleet, sent): it is not, and will be written again
    write_again      (fleet, row, packet_id, dup, copy, position): write what a device had sent and
                     nobody acknowledged before its connection broke; the position after it
    on_return        (fleet, row): a device is back, before anything is written again
    """

    on_message: Callable[..., int]
    on_acknowledged: Callable[..., tuple[int, int]]
    on_refused: Callable[..., int]
    write_due: Callable[..., int]
    on_sent: Callable[..., None]
    on_unsent: Callable[..., None]
    write_again: Callable[..., int]
    on_return: Callable[..., None]


class HandlersType(types.Type):
    """Numba's type of some handlers; `types` are those of the functions."""

    def __init__(self, handlers: Any) -> None:
        self.types = tuple(types.Dispatcher(function) for function in handlers)
        kernels = [one.py_func for one in handlers]
        self.names = tuple((one.__module__, one.__qualname__) for one in kernels)
        super().__init__(f"Handlers({', '.join(map('.'.join, self.names))})")

    def __reduce__(self) -> tuple[Any, ...]:
        return _found_again, (self.names,)


def _found_again(names: tuple[tuple[str, str], ...]) -> HandlersType:
    """The type of the functions with these names, when a kernel is loaded."""
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
