"""Runs a scenario: workers, phases, the run directory, progress.

The package can be called, because `from loadgen import run` can find it: `run(...)` is that of
`loadgen.api`.
"""

import importlib
import sys
from types import ModuleType


class _Verb(ModuleType):
    """A package that is also the verb of its name."""

    def __call__(self, *args: object, **named: object) -> object:
        return importlib.import_module("loadgen.api").run(*args, **named)


sys.modules[__name__].__class__ = _Verb
