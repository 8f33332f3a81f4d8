"""An MQTT load generator and broker benchmark that judges its own result."""

import hashlib
import os
from pathlib import Path

__all__ = ["__version__"]

__version__ = "0.1.0"


def _kernel_cache() -> str:
    """Directory for compiled kernels, one for each state of the sources that kernels come from.

    Numba notices a change in a kernel's own file, not in one that it calls or takes a constant
    from, and would go on running what was compiled before.
    """
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for layer in ("metrics", "mqtt", "workload", "specjms", "engine", "brokers"):
        for path in sorted((here / layer).glob("*.py")):
            source = path.read_bytes()
            if layer != "brokers" or b"njit" in source:
                digest.update(path.name.encode() + b"\0" + source)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return str(base / "loadgen" / f"kernels-{digest.hexdigest()[:16]}")


os.environ.setdefault("NUMBA_CACHE_DIR", _kernel_cache())
