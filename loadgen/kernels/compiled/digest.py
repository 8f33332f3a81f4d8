"""The digest of all that the machine code of a kernel is made of.

That is:

- the bytecode of the function, its default arguments and what it closes over;
- everything that this bytecode reads by a global name, and so on through what that is made of:
  other kernels, intrinsics, attributes of our modules, numbers, strings, tuples, dtypes, types;
- the whole module of a plain function or of a numba type of ours, since numba finds an overload by
  the function or type that it is for, not by a name in the kernel; overloads belong in that module;
- the types of the arguments, with a function that is handed in as an argument.

Comments, docstrings and places within a file do not count. What can change without our noticing
(say, an object of a class of ours) is refused with TypeError.
"""

import dataclasses
import dis
import enum
import functools
import hashlib
import inspect
import re
import sys
from collections.abc import Collection, Iterator
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from types import CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, cast

import numpy as np
from numba import types
from numba.core.dispatcher import Dispatcher
from numba.core.extending import _Intrinsic
from numba.core.typing.templates import Signature

COMPILER = (*(f"loadgen.kernels.compiled{part}" for part in ("", ".cache", ".linking")), __name__)
"""Modules that make machine code: what a kernel reads of them does not count."""

_UNDER_WAY = "under way"
_PLAIN = (type(None), type(...), bool, int, float, complex, str, bytes, np.dtype, np.generic)
_SHAPE = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS | inspect.CO_GENERATOR


_READS, _ATTRIBUTES, _FLAGGED, _NO_STEPS = (
    frozenset(dis.opmap[name] for name in names if name in dis.opmap)
    for names in (
        ("LOAD_GLOBAL", "LOAD_NAME"),
        ("LOAD_ATTR", "LOAD_METHOD"),
        # Their lowest bit says how they are called.
        ("LOAD_GLOBAL", *(("LOAD_ATTR",) if sys.version_info >= (3, 12) else ())),
        ("EXTENDED_ARG", "CACHE"),
    )
)
_IMPORT = dis.opmap["IMPORT_NAME"]


class Digest:
    """One SHA-256 over values and everything that they are made of.

    A function or module met again counts as its number in the order of meeting, which also ends
    recursion. What is in neither this package nor `module`'s is a library, and counts by name.
    `known` holds the digests of kernels by id, for as long as nothing can change.
    """

    def __init__(self, module: str, known: dict[int, str]) -> None:
        self._known = known
        self._kernel: Dispatcher | None = None
        self._packages = {_package(__name__), _package(module)}
        self._hash = hashlib.sha256()
        self._met: dict[int, int] = {}

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def _of_kernel(self, kernel: Dispatcher) -> str:
        """The digest of a kernel, whatever the types of its arguments are."""
        found = self._known.get(id(kernel))
        if found == _UNDER_WAY and kernel is not self._kernel:
            raise TypeError(f"{kernel.py_func.__qualname__}: kernels that call each other")
        if found is None:
            own = Digest(kernel.py_func.__module__, self._known)
            own._kernel = kernel
            self._known[id(kernel)] = _UNDER_WAY
            own.add(kernel.targetoptions)
            own._add_function(kernel.py_func)
            found = self._known[id(kernel)] = own.hexdigest()
        return found

    def _text(self, *words: object) -> None:
        for word in words:
            data = word if isinstance(word, bytes) else str(word).encode()
            self._hash.update(b"%d:" % len(data) + data)

    def _is_met(self, value: object) -> bool:
        met = len(self._met)
        number = self._met.setdefault(id(value), met)
        if number < met:
            self._text("again", number)
        return number < met

    def _is_ours(self, module: str) -> bool:
        return _package(module) in self._packages and module not in COMPILER

    def add(self, value: Any, name: str = "a value") -> None:
        """Count a value and what it is made of; `name` is for the message of a TypeError."""
        kind = type(value)
        self._text(kind.__qualname__)
        if isinstance(value, _PLAIN):
            self._text(repr(value))
        elif isinstance(value, np.ndarray):
            self._text(value.dtype, value.shape, value.tobytes())
        elif isinstance(value, tuple | list):
            self._add_all(value, name)
        elif isinstance(value, set | frozenset):
            self._add_all(sorted(value, key=repr), name)
        elif isinstance(value, dict):
            self._add_all([part for pair in value.items() for part in pair], name)
        elif isinstance(value, types.Type | Signature):
            self._add_type(value)
        elif isinstance(value, Dispatcher):
            self._text(self._of_kernel(value))
        elif isinstance(value, _Intrinsic):
            self.add(value._ctor_kwargs, name)
            self._add_function(value._defn)
        elif isinstance(value, ModuleType):
            self._add_module(value.__name__)
        elif isinstance(value, enum.Enum):
            self._text(value)
            self.add(value.value, name)
        elif isinstance(value, enum.EnumType):
            self._text(value.__qualname__)
            self._add_all(list(value), name)
        elif isinstance(value, FunctionType) and self._is_ours(value.__module__):
            self._add_function(value)
            self._add_module(value.__module__)
        elif isinstance(value, type) and self._is_ours(value.__module__):
            self._add_class(value)
        elif dataclasses.is_dataclass(value):
            self._add_all([getattr(value, f.name) for f in dataclasses.fields(value)], name)
        elif isinstance(value, property):
            self.add(value.fget, name)
        elif hasattr(value, "__name__") and not self._is_ours(value.__module__):
            self._text(value.__module__, value.__name__)
        elif isinstance(value, classmethod | staticmethod):
            self._add_function(value.__func__)
        elif isinstance(value, functools.partial):
            self._add_all([value.func, value.args, value.keywords], name)
        elif not self._is_ours(kind.__module__):
            self._text(re.sub(" at 0x[0-9a-f]+", "", repr(value)))
        else:
            raise TypeError(f"{name}: cannot tell whether a {kind.__qualname__} has changed")

    def _add_all(self, values: Collection[Any], name: str) -> None:
        self._text(len(values))
        for value in values:
            self.add(value, name)

    def _add_type(self, kind: types.Type | Signature) -> None:
        """A numba type; types within it, and the module of a type that is ours."""
        if isinstance(kind, Signature):
            self._add_all([kind.return_type, *kind.args], "a signature")
        elif isinstance(kind, types.Dispatcher):
            self.add(kind.dispatcher)
        elif isinstance(kind, types.ExternalFunction):
            self._text(kind.symbol, kind.sig)
        else:
            self._text(kind)
            self._add_module(type(kind).__module__)
            if self._is_ours(type(kind).__module__):
                self.add(kind.key, str(kind))
            for part in _types_within(kind):
                self._add_type(part)

    def _add_class(self, kind: type) -> None:
        """A class of ours, with what it holds; that of a numba type, with its module."""
        if self._is_met(kind):
            return
        self._text(kind.__module__, kind.__qualname__)
        self._add_all(kind.__bases__, kind.__qualname__)
        if issubclass(kind, types.Type):
            self._add_module(kind.__module__)
        for name, part in vars(kind).items():
            if isinstance(part, FunctionType):
                self._add_function(part)
            elif not name.startswith("__") and name != "_abc_impl":
                self._text(name)
                self.add(part, f"{kind.__qualname__}.{name}")

    def _add_function(self, function: Any) -> None:
        if self._is_met(function):
            return
        self._text(function.__module__, function.__qualname__)
        self._add_all([function.__defaults__, function.__kwdefaults__], function.__qualname__)
        for cell in function.__closure__ or ():
            self.add(cell.cell_contents, function.__qualname__)
        code = _code(function.__code__, function.__doc__)
        self._add_code(code, function.__globals__, function.__qualname__)

    def _add_module(self, name: str) -> None:
        """A whole module of ours: its code, and what that reads by global names."""
        self._text(name)
        module = sys.modules[name]
        if not self._is_ours(name) or self._is_met(module):
            return
        # What Python keeps beside the source is there at once; to compile it takes 5 ms a module.
        code = cast(SourceFileLoader, module.__loader__).get_code(name)
        self._add_code(_code(cast(CodeType, code)), vars(module), name)

    def _add_code(self, code: "_Code", names: dict[str, Any], reader: str) -> None:
        """Code and the values of the global names that it reads.

        Of a module of ours, the attribute that is read counts instead of the module.
        """
        self._text(code.digest)
        for name, *attributes in code.reads:
            if name not in names:
                continue
            value = names[name]
            for attribute in attributes:
                if not isinstance(value, ModuleType) or not self._is_ours(value.__name__):
                    break
                name += f".{attribute}"
                value = getattr(value, attribute)
            self.add(value, f"{reader} reads {name}")
        for name in code.imports:
            self._add_module(name)


class _Code(NamedTuple):
    """What a code object says, with the functions nested in it."""

    digest: bytes
    reads: tuple[tuple[str, ...], ...]
    """Global names, each with the attributes that are read of it at once."""
    imports: tuple[str, ...]
    """Modules imported within functions."""


@functools.cache
def _code(code: CodeType, docstring: str | None = None) -> _Code:
    nested = [_code(const) for const in code.co_consts if isinstance(const, CodeType)]
    reads = [read for inner in nested for read in inner.reads]
    imports = [name for inner in nested for name in inner.imports]
    steps = list(_steps(code))
    for at, (operation, number) in enumerate(steps):
        if operation in _READS:
            loads = takewhile(lambda step: step[0] in _ATTRIBUTES, steps[at + 1 :])
            places = (number, *(place for _, place in loads))
            reads.append(tuple(code.co_names[place] for place in places))
        elif operation == _IMPORT and code.co_name != "<module>":
            imports.append(code.co_names[number])
    parts = (
        code.co_code,
        *(code.co_flags & _SHAPE, code.co_argcount, code.co_kwonlyargcount),
        *(code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars),
        [_constant(const) for const in code.co_consts if const != docstring],
        [inner.digest for inner in nested],
    )
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return _Code(digest, tuple(dict.fromkeys(reads)), tuple(imports))


def _steps(code: CodeType) -> Iterator[tuple[int, int]]:
    """The instructions, each with the number of its name, if it has one.

    As `dis` has them, which takes ten times as long to describe each one.
    """
    extension = 0
    for operation, number in zip(*[iter(code.co_code)] * 2, strict=True):
        number |= extension
        extension = number << 8 if operation == dis.EXTENDED_ARG else 0
        if operation not in _NO_STEPS:
            yield operation, number >> 1 if operation in _FLAGGED else number


def _constant(value: object) -> object:
    """A constant of a code object as something whose repr is the same in every process."""
    if isinstance(value, frozenset):
        return "frozenset", sorted(map(repr, value))
    if isinstance(value, tuple):
        return [_constant(part) for part in value]
    return value.co_name if isinstance(value, CodeType) else value


def _types_within(kind: types.Type) -> Iterator[types.Type]:
    """Types that a numba type is built from: element of an array, members of a tuple."""
    for name in ("dtype", "type", "types", "fields", "members"):
        part = getattr(kind, name, None)
        for each in part if isinstance(part, tuple | list) else (part,):
            if isinstance(each, types.Type):
                yield each


def _package(module: str) -> str:
    return module.partition(".")[0]
