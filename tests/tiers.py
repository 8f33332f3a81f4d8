"""Kinds of tests by their paths. This is the one table of them; `tests/conftest.py` applies it.

- pure: starts no process, broker or Spark, and does not sleep. `python3 bootstrap.py quick` runs
  these, with kernels as plain Python.
- groups: the tests of a group run one after another in one process, the longest groups first.
- slow: takes long or needs what few machines have. `-m "not slow"` leaves these out.
"""

from collections.abc import Mapping, Sequence

PURE = (
    *("tests/plan/", "tests/judge/", "tests/cases/", "tests/mqtt/", "tests/metrics/"),
    *("tests/report/", "tests/specjms/", "tests/kernels/", "tests/run/search/"),
    *("tests/test_structure.py", "tests/test_words.py", "tests/test_lock.py"),
)
NOT_PURE = (
    *("tests/cases/test_adding.py", "tests/report/test_renderings.py"),
    "tests/report/render/test_histograms.py",
    # System calls, and whole worlds that take minutes in plain Python.
    *("tests/kernels/test_compiled.py", "tests/kernels/test_reactor.py"),
    *("tests/kernels/test_large_messages.py", "tests/kernels/test_syscalls.py"),
    "tests/specjms/kernels/test_interactions.py",
)
GROUPS: Mapping[str, tuple[str, ...]] = {
    # Several hosts on one machine.
    "namespaces": ("tests/cluster/test_namespaces.py",),
    "hosts": ("tests/cluster/test_spark_hosts.py", "tests/run/hosts/test_remote_host.py"),
    # They measure what a host can do.
    "alone": ("tests/run/test_calibrate.py", "tests/integration/test_search.py"),
    # One session, and one browser.
    "spark": ("tests/spark/",),
    "browser": ("tests/browser/",),
}
SLOW = (
    *("tests/cluster/", "tests/faults/", "tests/browser/", "tests/hostile/"),
    *("tests/integration/test_foreign_brokers.py", "tests/test_wheel.py"),
)


def is_pure(path: str) -> bool:
    """Return True for a test file, or a directory that may hold some, that `quick` runs."""
    return path.startswith(PURE) and not path.startswith(NOT_PURE)


def group_of(path: str) -> str | None:
    """Return the group of a test file, None if it has none."""
    return next((name for name, paths in GROUPS.items() if path.startswith(paths)), None)


def markers(path: str) -> Sequence[str]:
    """Return the markers of a test file."""
    named = [("pure", is_pure(path)), ("slow", path.startswith(SLOW))]
    return [name for name, applies in named if applies]
