"""What all tests share."""

from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

# The machines that run these tests are small and shared: how long an example takes says nothing.
settings.register_profile(
    "loadgen", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("loadgen")


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The module that makes up run directories."""
    from tests.scorecard import fabricate

    return fabricate
