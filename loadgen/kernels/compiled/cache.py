"""Numba kernels whose code is kept on disk until what it is made of changes.

Numba's own cache looks at the file that a kernel is in: an edit elsewhere in the file compiles all
of it again, and an edit of what the kernel calls in another file goes unnoticed. Here the name of
a file is a digest (`digest`) of the kernel with all that it is made of, of the types of
its arguments, of what compiles it (these files, Python, numba, llvmlite, numpy), and the processor.

There are two kinds of files: `.kernel` is machine code, of what Python calls; `.bitcode` is what
kernels call, which becomes machine code together with its callers (`linking`).

A file is complete from the moment that it has its name, and is never changed. So any number of
processes, worktrees and versions share one directory: NUMBA_CACHE_DIR, else `loadgen/kernels` in
the user's cache directory. Of processes that need the same code at the same time one compiles it,
and the others wait. Where the directory cannot be written, each compiles for itself.
"""

import fcntl
import functools
import os
import pickle
import platform
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

import llvmlite
import numba
import numpy as np
from numba import config, types
from numba.core import event, sigutils
from numba.core.compiler_lock import global_compiler_lock
from numba.core.serialize import dumps
from numba.core.typing.templates import make_concrete_template

from loadgen.kernels.compiled import digest, linking

_config: Any = config
_dumps: Any = dumps
_njit: Any = numba.njit
_normalized: Any = sigutils.normalize_signature
_template: Any = make_concrete_template
_unliteral: Any = types.unliteral

P = ParamSpec("P")
R = TypeVar("R")

MACHINE_CODE = ".kernel"
LLVM_CODE = ".bitcode"
_LEAST_KEPT = 8
"""Files kept of one kernel, however old: its signatures, and the sources of some worktrees."""
_KEPT_S = 3600


class NotCompiledError(Exception):
    """The code of a kernel is not there yet."""


def dispatched(kernel: Callable[P, R]) -> Callable[P, R]:
    """What calls the kernel: code from the cache, or what numba makes of it at the first call."""
    linking.link_once()
    dispatcher: Any = _njit(kernel)
    callee: Any = _njit(no_cpython_wrapper=True)(kernel)
    dispatcher.callee = callee
    dispatcher.compile = functools.partial(_compile, dispatcher, MACHINE_CODE)
    callee.compile = functools.partial(_compile, callee, LLVM_CODE)
    dispatcher.get_call_template = functools.partial(_call_template, callee)
    dispatcher.get_overload = callee.get_overload
    return cast(Callable[P, R], dispatcher)


def _call_template(callee: Any, arguments: Any, keywords: dict[str, types.Type]) -> Any:
    """As numba's, but a constant has the type of its kind: 0 and 1 are not compiled for apart."""
    kinds = {name: _unliteral(kind) for name, kind in keywords.items()}
    parameters, folded = callee.fold_argument_types(tuple(map(_unliteral, arguments)), kinds)
    callee.compile(folded)
    signature = callee.overloads[folded].signature
    name = callee.py_func.__name__
    return _template(f"Call({name})", name, [signature]), parameters, folded, {}


def cache_directory() -> Path:
    """Where compiled kernels are kept."""
    if _config.CACHE_DIR:
        return Path(_config.CACHE_DIR)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "loadgen" / "kernels"


def is_kept() -> bool:
    """Whether what is compiled here can be loaded by another process."""
    directory = cache_directory()
    with suppress(OSError):
        directory.mkdir(parents=True, exist_ok=True)
    return os.access(directory, os.W_OK)


class _Session:
    """From the call of a kernel that has to be compiled or loaded until it is, or of several."""

    depth = 0
    may_compile = True
    digests: dict[int, str]


_session = _Session()


@contextmanager
def only_loading() -> Iterator[None]:
    """A block in which a kernel that would have to be compiled raises NotCompiledError."""
    _session.may_compile = False
    try:
        with _in_session():
            yield
    finally:
        _session.may_compile = True


def _compile(dispatcher: Any, suffix: str, signature: Any) -> Any:
    """The function for these types of arguments, in place of numba's `compile`."""
    arguments, return_type = _normalized(signature)
    with global_compiler_lock, _in_session():
        found = dispatcher.overloads.get(arguments)
        if found is None:
            with dispatcher._compiling_counter:
                found = _loaded_or_compiled(dispatcher, suffix, arguments, return_type)
            dispatcher.add_overload(found)
        return found.entry_point


@contextmanager
def _in_session() -> Iterator[None]:
    # Nothing changes while a kernel is compiled: what its digest is made of is looked at once.
    if _session.depth == 0:
        _session.digests = {}
    _session.depth += 1
    try:
        yield
    finally:
        _session.depth -= 1


def _loaded_or_compiled(dispatcher: Any, suffix: str, arguments: Any, return_type: Any) -> Any:
    context = dispatcher.targetctx
    key = _digest(dispatcher, arguments)
    function = dispatcher.py_func
    name = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
    path = cache_directory() / f"{name}-{key}{suffix}"
    found = _loaded(path, context, arguments)
    if found is None and not _session.may_compile:
        raise NotCompiledError(name)
    if found is None:
        with _alone(path):
            found = _loaded(path, context, arguments)  # by who had it before us
            if found is None:
                dispatcher._cache_misses[arguments] += 1
                context.refresh()
                return _compiled(dispatcher, path, arguments, return_type)
    dispatcher._cache_hits[arguments] += 1
    context.insert_user_function(found.entry_point, found.fndesc, [linking.code_of(found)])
    return found


def _digest(dispatcher: Any, arguments: Any) -> str:
    made = digest.Digest(dispatcher.py_func.__module__, _session.digests)
    codegen = dispatcher.targetctx.codegen()
    made.add((_toolchain(), codegen.magic_tuple(), dispatcher, arguments))
    return made.hexdigest()[:32]


@functools.cache
def _toolchain() -> tuple[object, ...]:
    """What the code depends on besides the function and its arguments."""
    return (
        *(Path(str(sys.modules[name].__file__)).read_bytes() for name in digest.COMPILER),
        sys.implementation.cache_tag,
        platform.python_version(),
        *(module.__version__ for module in (numba, llvmlite, np)),
        repr((_config.OPT, _config.BOUNDSCHECK, _config.DEBUGINFO_DEFAULT)),
    )


def _loaded(path: Path, context: Any, arguments: Any) -> Any:
    """What was compiled before, or None."""
    try:
        parts = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    with suppress(OSError):
        os.utime(path)
    found = linking.from_parts(context, parts)
    # A function among the arguments was unpickled as another object than the caller's.
    return found._replace(signature=found.signature.replace(args=arguments))


def _compiled(dispatcher: Any, path: Path, arguments: Any, return_type: Any) -> Any:
    """Compile it and keep it, if it can be used in another process."""
    # By the name, machine code finds what it calls: two closures of one function need two.
    named = _renamed(dispatcher.py_func, path.stem.rpartition("-")[2])
    dispatcher._compiler._get_implementation = lambda *_: named
    about = {"dispatcher": dispatcher, "args": arguments, "return_type": return_type}
    with event.trigger_event("numba:compile", data=about):
        result = dispatcher._compiler.compile(arguments, return_type)
    if linking.can_be_kept(result):
        _keep(path, _dumps(linking.parts_of(result)))
    return result


def _renamed(function: FunctionType, key: str) -> FunctionType:
    """The function with the key in its name."""
    code, name = function.__code__, function.__name__
    defaults, closure = function.__defaults__, function.__closure__
    made = FunctionType(code, function.__globals__, name, defaults, closure)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__module__ = function.__module__
    made.__qualname__ = f"{function.__qualname__}_{key}"
    return made


def _keep(path: Path, content: bytes) -> None:
    part = path.with_name(f"{path.name}.{uuid.uuid4().hex}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_bytes(content)
        part.replace(path)
        _forget_old(path)
    except OSError:
        _remove(part)


def _forget_old(path: Path) -> None:
    """Remove what nobody used lately of the same kernel, but for the last few."""
    name = path.stem.rpartition("-")[0]
    files = path.parent.glob(f"{name}-*{path.suffix}")
    times = sorted(((one.stat().st_mtime, one) for one in files), reverse=True)
    for used, one in times[_LEAST_KEPT:]:
        if used < time.time() - _KEPT_S:
            _remove(one)


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


# One process at a time ------------------------------------------------------------------------


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """A block for one process at a time for each file: a byte of one file is locked.

    A process that holds one waits only for what its kernel calls, so no two wait for each other.
    Where there is no locking, several compile the same.
    """
    place = int(path.stem.rpartition("-")[2][:8], 16)
    try:
        locks = _locks(path.parent)
        fcntl.lockf(locks, fcntl.LOCK_EX, 1, place)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        fcntl.lockf(locks, fcntl.LOCK_UN, 1, place)


@functools.cache
def _locks(directory: Path) -> int:
    """The file whose bytes are locked; raises OSError where there can be none."""
    directory.mkdir(parents=True, exist_ok=True)
    return os.open(directory / ".locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
