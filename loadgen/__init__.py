"""An MQTT load generator and broker benchmark that judges its own result.

    from loadgen import Fanin, run

    result = run(Fanin(devices=1_000, rate=50_000))

The names of `loadgen.api` and the scenarios of the cases are imported when they are used.
"""

import importlib

__version__ = "0.2.0"

PROGRAM = f"loadgen {__version__}"
"""Name and version, as in files and in messages to peers."""

_VERBS = frozenset({"Result", "compare", "read", "search", "sweep"})


def __getattr__(name: str) -> object:
    """Return a scenario of a case, or a name of `loadgen.api`."""
    if name == "run":
        return importlib.import_module("loadgen.run")  # which can be called
    if name in _VERBS:
        return getattr(importlib.import_module("loadgen.api"), name)
    if name[:1].isupper():
        for case in importlib.import_module("loadgen.cases.registry").CASES.values():
            if case.scenario.__name__ == name:
                return case.scenario
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
