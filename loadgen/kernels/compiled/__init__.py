"""`@compiled` marks the kernels, which numba compiles; their code is kept (cache.py).

They stay plain Python with NUMBA_DISABLE_JIT=1, and in a process that said that it calls none.
There numba is not even imported, which takes a quarter of a second.
"""

import os
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_plain = os.environ.get("NUMBA_DISABLE_JIT", "0") not in ("", "0")


def leave_plain() -> None:
    """Kernels that are imported from here on are for what stands beside them, and not called."""
    global _plain
    _plain = True


def is_plain() -> bool:
    """Whether kernels stay plain Python."""
    return _plain


def compiled(kernel: Callable[P, R]) -> Callable[P, R]:
    """Compile a function with numba when it is first called, or load what was compiled before."""
    if _plain:
        return kernel
    from loadgen.kernels.compiled.cache import dispatched

    return dispatched(kernel)
