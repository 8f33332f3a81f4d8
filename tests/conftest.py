"""What all tests share."""

import os
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings

from loadgen.kernels.compiled.cache import cache_directory

SATURATING = (
    *("tests/run/test_calibrate.py", "tests/integration/test_search.py"),
    *("tests/run/hosts/test_remote_host.py", "tests/cluster/"),
)
"""Tests that look for a host's limit, or play several hosts on it: one at a time."""

# The machines that run these tests are small and shared: how long an example takes says nothing.
settings.register_profile(
    "loadgen", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("loadgen")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled kernels in one directory, also for tests with a cache directory of their own.

    Of a run in several processes, the one that starts the others compiles the kernels first.
    """
    os.environ["NUMBA_CACHE_DIR"] = str(cache_directory())
    is_controller = getattr(config.option, "numprocesses", None) and not os.environ.get(
        "PYTEST_XDIST_WORKER"
    )
    if is_controller and os.environ.get("NUMBA_DISABLE_JIT") != "1":
        from loadgen.cases.registry import BEHAVIOURS
        from loadgen.worker.warm import warm

        for behaviour in BEHAVIOURS:
            warm(behaviour)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    for item in items:
        if item.path.relative_to(config.rootpath).as_posix().startswith(SATURATING):
            item.add_marker(pytest.mark.xdist_group("saturating"))


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The module that makes up run directories."""
    from tests.report import fabricate

    return fabricate


@pytest.fixture
def stand_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that play without compiled kernels."""
    from loadgen.run.hosts import forkserver_process

    monkeypatch.setattr(forkserver_process, "WORKER_ENTRY", "tests.run.fake_worker:run_worker")
