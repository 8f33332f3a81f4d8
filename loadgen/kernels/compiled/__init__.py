"""The decorator of kernels, the functions that numba compiles.

With NUMBA_DISABLE_JIT=1 they stay plain Python, as in a process that calls `leave_plain`. That
process does not import numba, which takes a quarter of a second.
"""

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
R = TypeVar("R")

_plain = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def leave_plain() -> None:
    """Keep kernels as plain Python from now on, in a process that calls none of them."""
    global _plain
    _plain = True


def is_plain() -> bool:
    """Return True if kernels stay plain Python."""
    return _plain


def compiled(kernel: Callable[P, R]) -> Callable[P, R]:
    """Compile a function with numba, or load its compiled code, when it is first called."""
    if _plain:
        return kernel
    from loadgen.kernels.compiled.cache import dispatched

    return cast(Callable[P, R], dispatched(kernel))
