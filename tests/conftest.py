"""What all tests share."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

from loadgen.kernels.compiled.cache import cache_directory
from tests.tiers import group_of, is_pure, markers

PLAIN = os.environ.get("NUMBA_DISABLE_JIT") == "1"
"""True if kernels are plain Python."""
STARTERS = ("loadgen.run.hosts.load_host", "loadgen.brokers.process", "tests.run.agents")
"""Modules that start programs of this package."""

# The machines that run these tests are small and shared: how long an example takes says nothing.
settings.register_profile(
    "loadgen",
    # Named, since Hypothesis warns of its usual place if that cannot be written.
    database=DirectoryBasedExampleDatabase(Path(__file__).parents[1] / ".hypothesis" / "examples"),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.register_profile("pure", settings.get_profile("loadgen"), max_examples=12)
settings.load_profile("loadgen")


def pytest_configure(config: pytest.Config) -> None:
    """Keep compiled kernels in one directory, also for tests with a cache directory of their own.

    Of a run in several processes, the one that starts the others compiles the kernels first.
    """
    os.environ["NUMBA_CACHE_DIR"] = str(cache_directory())
    if config.getoption("pure"):
        settings.load_profile("pure")
    is_controller = getattr(config.option, "numprocesses", None) and not os.environ.get(
        "PYTEST_XDIST_WORKER"
    )
    if is_controller and not PLAIN:
        from loadgen.cases.registry import BEHAVIOURS
        from loadgen.worker.warm import warm

        for behaviour in BEHAVIOURS:
            warm(behaviour)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pure", action="store_true", help="collect pure tests only (tests/tiers.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--pure`, import no other test file."""
    path = collection_path.relative_to(config.rootpath).as_posix()
    leave_out = config.getoption("pure") and path.endswith(".py") and not is_pure(path)
    return True if leave_out else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    too_slow = pytest.mark.skip(reason="takes seconds with kernels in plain Python")
    for item in items:
        path = item.path.relative_to(config.rootpath).as_posix()
        for marker in markers(path):
            item.add_marker(marker)
        if group := group_of(path):
            item.add_marker(pytest.mark.xdist_group(group))
        if PLAIN and item.get_closest_marker("compiled"):
            item.add_marker(too_slow)
    # A long group that begins late would leave the other processes without work.
    items.sort(key=lambda item: item.get_closest_marker("xdist_group") is None)


@pytest.fixture(scope="session", autouse=True)
def nursery() -> Iterator[None]:
    """One process that loads kernels, for all runs that tests play in this one."""
    starters = [sys.modules[name] for name in STARTERS if name in sys.modules]
    if PLAIN or not starters:
        yield
        return
    from tests.nursery import Nursery

    made = Nursery()
    with pytest.MonkeyPatch.context() as patched:
        for module in starters:
            patched.setattr(module, "subprocess", made.subprocess)
        yield
    made.close()


@pytest.fixture(scope="session")
def make() -> ModuleType:
    """The module that makes up run directories."""
    from tests.report import fabricate

    return fabricate


@pytest.fixture
def stand_in_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that play without compiled kernels."""
    from loadgen.run.hosts import load_host

    monkeypatch.setattr(load_host, "WORKER_ENTRY", "tests.run.fake_worker:run_worker")
