"""Runs a scenario. `from loadgen import run` finds this package, so it can be called."""

import importlib
import sys
from types import ModuleType


class _Verb(ModuleType):
    def __call__(self, *args: object, **named: object) -> object:
        return importlib.import_module("loadgen.api").run(*args, **named)


sys.modules[__name__].__class__ = _Verb
