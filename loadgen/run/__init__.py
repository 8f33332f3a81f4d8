"""Runs a scenario; it can be called, as `from loadgen import run` finds it before the verb."""

import importlib
import sys
from types import ModuleType


class _Verb(ModuleType):
    def __call__(self, *args: object, **named: object) -> object:
        return importlib.import_module("loadgen.api").run(*args, **named)


sys.modules[__name__].__class__ = _Verb
