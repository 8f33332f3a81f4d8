"""The load of other programs, read from fabricated trees of /proc."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from loadgen.brokers import this_host
from loadgen.errors import HostLimitError
from loadgen.run import host_load
from loadgen.run.host_load import HostLoad, LoadWatch, quiet_host
from loadgen.sentences import Text
from tests.refusals import refused
from tests.tables import rows_of


def write(
    proc: Path, user: int, idle: int, steal: int, own: int, avg10: str = "12.50", waited_ns: int = 0
) -> None:
    """Write a host whose process tree is this one, a child, its child, and another program."""
    parents = {os.getpid(): 1, 2_000_000: os.getpid(), 2_000_001: 2_000_000, 2_000_002: 1}
    (proc / "pressure").mkdir(parents=True, exist_ok=True)
    (proc / "pressure" / "cpu").write_text(f"some avg10={avg10} avg60=0.00 total=1\n")
    (proc / "stat").write_text(f"cpu  {user} 0 0 {idle} 0 0 0 {steal} 0 0\ncpu0 1 1\n")
    # Each task of ours waited a quarter of the time that all tasks did.
    (proc / "schedstat").write_text(f"version 15\ncpu0 0 0 0 0 0 0 9 {waited_ns + 1} 1\n")
    for pid, parent in parents.items():
        (proc / str(pid) / "task" / "1").mkdir(parents=True, exist_ok=True)
        (proc / str(pid) / "task" / "1" / "schedstat").write_text(f"5 {waited_ns // 4} 1\n")
        fields = f"({pid} ä ) b) S {parent} 0 0 0 0 0 0 0 0 0 {own} 0 0 0 20 0 0 0 1"
        (proc / str(pid) / "stat").write_text(f"{pid} {fields}\n", "latin-1")


@pytest.fixture(autouse=True)
def fabricated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(this_host, "PROC", tmp_path)
    monkeypatch.setattr(host_load, "SHORTEST_S", 0.0)


def test_what_others_used_is_the_load(tmp_path: Path) -> None:
    write(tmp_path, 1000, 1000, 0, 0)
    watch = LoadWatch()
    # Of 200 ticks 100 were in use, 3 x 20 by this process with its descendants, 4 stolen.
    # In a minute of run-queue delay 15 s were of others.
    write(tmp_path, 1096, 1100, 4, 20, waited_ns=60 * 10**9)
    load = watch.load()
    assert load is not None and load.waiting is not None and load.waiting > 10
    assert (load.share, load.steal, load.pressure) == (0.2, 0.02, 0.125)
    (tmp_path / "schedstat").unlink()
    assert LoadWatch().load() is None  # the kernel need not have it, and no tick passed
    assert LoadWatch(is_first=False).load() is None  # no tick has passed
    (tmp_path / "stat").unlink()
    assert LoadWatch().load() is None


@pytest.mark.parametrize(("is_busy", "load"), rows_of("run.loads"))
def test_a_busy_host_is_one_on_which_workers_wait(is_busy: bool, load: dict[str, Any]) -> None:
    assert HostLoad(**{"steal": 0.0, "pressure": None, **load}).is_busy is is_busy


async def test_a_host_must_be_quiet_for_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 0.0

    async def sleep(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds

    monkeypatch.setattr(host_load, "asyncio", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(host_load, "time", SimpleNamespace(monotonic=lambda: now_s))
    monkeypatch.setattr(host_load, "cpu_pressure", lambda: None)
    first, busy, quiet = (0, 0, 0, 0, 0), (100, 100, 0, 0, 0), (100, 10, 0, 0, 0)
    looks = [one for last in (quiet, busy, quiet, busy, *[quiet] * 9) for one in (first, last)]
    monkeypatch.setattr(host_load, "_ticks", Mock(side_effect=looks))
    shown: list[Text] = []
    await quiet_host(60.0, shown.append)
    assert [line.values["share"] for line in shown] == [0.1, 1.0, 0.1, 1.0, *[0.1] * 4]
    assert [line.values["left"] for line in shown] == [58, 56, 54, 52, 50, 48, 46, 44]
    assert {line.values["quiet"] for line in shown} == {10}
    assert max(map(len, shown)) < 80
    monkeypatch.setattr(host_load, "_ticks", Mock(side_effect=looks))
    with refused("NOT_QUIET", HostLimitError):
        await quiet_host(15.0, shown.append)
    monkeypatch.setattr(host_load, "_ticks", Mock(return_value=None))
    await quiet_host(60.0, shown.append)  # the load is unknown
