import sys
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from loadgen.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The module that makes up run directories."""
    path = Path(__file__).parents[1] / "scorecard" / "fabricate.py"
    name = "fabricate_runs"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """One session for all tests: it takes seconds to start."""
    with open_session("local[2]", memory="1g") as session:
        yield session
