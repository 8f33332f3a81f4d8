"""The number of examples of a test with made-up input."""

import os

from hypothesis import settings

_SHARE = 8 if os.environ.get("NUMBA_DISABLE_JIT") == "1" else 1


def examples(count: int) -> settings:
    """Return settings for this number of examples, or an eighth with kernels in plain Python."""
    return settings(max_examples=max(count // _SHARE, 5))
