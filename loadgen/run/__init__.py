"""Runs a scenario: workers, phases, the run directory, progress.

The package can be called, because `from loadgen import run` can find it instead of the verb.
"""

import importlib
import sys
from types import ModuleType


class _Verb(ModuleType):
    def __call__(self, *args: object, **named: object) -> object:
        return importlib.import_module("loadgen.api").run(*args, **named)


sys.modules[__name__].__class__ = _Verb
