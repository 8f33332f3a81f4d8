"""The cache of compiled kernels.

Each version of the kernels' sources, of numba and of the processor has a directory. A `.kernel` has
the machine code of a function that Python calls, a `.bitcode` the LLVM code of one that kernels
call (see `linking`). A file is complete when it gets its name and never changes, and a lock lets
one process compile a kernel while others wait. Kernels of tests and benchmarks are not in SOURCES:
they may call only kernels of their module and of the program.
"""

# mypy: disable-error-code="attr-defined,no-untyped-call,misc"

import fcntl
import functools
import hashlib
import os
import pickle
import platform
import re
import shutil
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any

import llvmlite
import numba
import numpy as np
from numba import config, types
from numba.core import sigutils
from numba.core.compiler import CompileResult
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import cpu_target
from numba.core.serialize import dumps
from numba.core.typing.templates import make_concrete_template

import loadgen
from loadgen.kernels.compiled import linking

_PACKAGE = Path(str(loadgen.__file__)).parent
SOURCES = (
    *sorted(_PACKAGE.rglob("kernels")),
    *(_PACKAGE / name for name in ("mqtt", "metrics")),
)
"""Folders with the kernels of the program and with all that they read."""
_LEAST_KEPT = 4  # directories that are never removed: those that were used last
_KEPT_S = 3600


def dispatched(kernel: Any) -> Any:
    """Return a function that calls the kernel's code, which is loaded or compiled at first."""
    linking.link_once()
    # Machine code finds what it calls by this name, and two closures of one function share theirs.
    kernel.__qualname__ += f"_{_tag(kernel)}"
    dispatcher = numba.njit(kernel)
    callee = numba.njit(no_cpython_wrapper=True)(kernel)  # type: ignore[call-overload]
    dispatcher.callee = callee
    dispatcher.compile = functools.partial(_compile, dispatcher, ".kernel")
    callee.compile = functools.partial(_compile, callee, ".bitcode")
    dispatcher.get_call_template = functools.partial(_call_template, callee)
    dispatcher.get_overload = callee.get_overload
    return dispatcher


def _tag(kernel: Any) -> str:
    """Return a text that distinguishes a kernel from others of the same qualified name."""
    values = [cell.cell_contents for cell in kernel.__closure__ or ()]
    for value in values:
        if not isinstance(value, int | tuple | Dispatcher):
            raise TypeError(f"{kernel.__qualname__} closes over {value!r}: use a number or kernels")
    path = Path(kernel.__code__.co_filename)
    is_of_program = any(path.is_relative_to(folder) for folder in SOURCES)
    source = "" if is_of_program else path.read_bytes()
    return _hash(kernel.__module__, source, *map(str, values))[:8]


def _hash(*values: str | bytes | tuple[str, bytes]) -> str:
    text = re.sub(" at 0x[0-9a-f]+", "", repr(values))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _call_template(callee: Any, arguments: Any, keywords: dict[str, Any]) -> Any:
    """Return numba's call template for general types, so that constants compile no kernels."""
    kinds = {name: types.unliteral(kind) for name, kind in keywords.items()}
    parameters, folded = callee.fold_argument_types(tuple(map(types.unliteral, arguments)), kinds)
    callee.compile(folded)
    signature = callee.overloads[folded].signature
    name = callee.py_func.__name__
    return make_concrete_template(f"Call({name})", name, [signature]), parameters, folded, {}


def _compile(dispatcher: Any, suffix: str, signature: Any) -> Any:
    """Return the function for these types of arguments, in place of numba's `compile`."""
    arguments, return_type = sigutils.normalize_signature(signature)
    with global_compiler_lock:
        if arguments not in dispatcher.overloads:
            function = dispatcher.py_func
            name = f"{function.__module__}.{function.__qualname__}".replace("<locals>.", "")
            path = version_directory() / f"{name}-{_hash(*map(str, arguments))}{suffix}"
            result = _loaded(path, dispatcher.targetctx, arguments)
            if result is None:
                with _locked(path):
                    result = _loaded(path, dispatcher.targetctx, arguments)
                    if result is None:
                        dispatcher.targetctx.refresh()
                        result = dispatcher._compiler.compile(arguments, return_type)
                        parts = linking.parts_of(result)
                        if parts is not None:  # another process can use the code
                            _store(path, dumps(parts))
            dispatcher.add_overload(result)
        return dispatcher.overloads[arguments].entry_point


def cache_directory() -> Path:
    """Return the directory that contains one directory for each version."""
    if config.CACHE_DIR:
        return Path(config.CACHE_DIR)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "loadgen" / "kernels"


def _hash_of_sources() -> str:
    files = [
        path
        for folder in SOURCES
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".py", ".toml")
    ]
    return _hash(*[(str(path.relative_to(_PACKAGE)), path.read_bytes()) for path in files])


_sources_at_start = _hash_of_sources()


@functools.cache
def version_directory() -> Path:
    """Return the directory of this version, marked as used now."""
    modules = (numba, llvmlite, np)
    options = (config.OPT, config.BOUNDSCHECK, config.DEBUGINFO_DEFAULT)
    processor = cpu_target.target_context.codegen().magic_tuple()
    versions = (platform.python_version(), *(module.__version__ for module in modules))
    version = _hash(_sources_at_start, *versions, str(options), str(processor))
    directory = cache_directory() / f"loadgen-{version}"
    with suppress(OSError):
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            _remove_old(directory.parent)
        os.utime(directory)
    return directory


def _loaded(path: Path, context: Any, arguments: Any) -> Any:
    """Return the function from its file, or None if it is missing or was cut by a crash."""
    try:
        parts = pickle.loads(path.read_bytes())
    except (OSError, EOFError, pickle.UnpicklingError):
        return None
    result = CompileResult._rebuild(context, *parts)
    context.insert_user_function(result.entry_point, result.fndesc, [result[linking.LIBRARY]])
    # A function among the arguments was unpickled as another object than the caller's.
    return result._replace(signature=result.signature.replace(args=arguments))


def _store(path: Path, content: bytes) -> None:
    """Write a file, unless a source changed since this process read it."""
    if _hash_of_sources() != _sources_at_start:
        return
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    with suppress(OSError):
        try:
            part.write_bytes(content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)


def _locked(path: Path) -> AbstractContextManager[object]:
    """Return a context for one process at a time, or for any number if there are no locks."""
    try:
        lock = path.with_suffix(".lock").open("wb")
        fcntl.flock(lock, fcntl.LOCK_EX)
    except OSError:
        return nullcontext()
    return lock


def _remove_old(base: Path) -> None:
    """Remove directories that no process has used for a while, except the last few."""
    used = [(path.stat().st_mtime, path) for path in base.glob("loadgen-*")]
    for used_s, path in sorted(used, reverse=True)[_LEAST_KEPT:]:
        if used_s < time.time() - _KEPT_S:
            shutil.rmtree(path, ignore_errors=True)
