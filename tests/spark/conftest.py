from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from loadgen.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    """Provide one session for all tests: it takes seconds to start."""
    with open_session("local[2]", memory="1g") as session:
        yield session
