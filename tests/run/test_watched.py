"""The broker of a run, watched into broker.jsonl as the score card reads it."""

import asyncio
import os
import shlex
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import CannotRunError, UsageError
from loadgen.plan.plan import Plan
from loadgen.report.build.broker_section import BrokerRecords, read_broker
from loadgen.run import watched
from loadgen.run.rundir import EventLog
from loadgen.run.watched import BROKER_FILE, loads_of, processor_record, watched_broker
from tests.refusals import refused


def records(directory: Path) -> BrokerRecords:
    found = read_broker(directory)
    assert found is not None
    return found


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path)
    yield log
    log.close(0)


def plan_of(**fields: Any) -> Plan:
    return resolve(build_scenario("fanin", None, fields))


def served(*endpoints: Endpoint, pids: Sequence[int] = ()) -> ServedBroker:
    """A broker with these endpoints; with `pids` one that was started here."""
    started: Any = tuple(SimpleNamespace(pid=pid, endpoints=endpoints) for pid in pids)
    return ServedBroker("reflector" if pids else "x", "1", endpoints, started)


HERE = Endpoint("mqtt", "127.0.0.1", 1)


async def test_a_process_that_is_named(tmp_path: Path, events: EventLog) -> None:
    """Of several endpoints none is asked for its counts: they may be one broker."""
    broker = served(HERE, Endpoint("mqtt", "127.0.0.1", 2))
    async with watched_broker(tmp_path, events, plan_of(broker_pid=os.getpid()), broker):
        await asyncio.sleep(0.05)
    found = records(tmp_path)
    # At the beginning and at the end, whatever is in between.
    assert len(found.processes) >= 2
    assert found.processes[0].resident_bytes > 1 << 20
    assert (found.counts, found.troubles) == ((), ())


async def test_a_broker_of_ours_that_comes_back_as_another_process(
    tmp_path: Path, events: EventLog
) -> None:
    broker = served(HERE, pids=[2**22 + 1])
    async with watched_broker(tmp_path, events, plan_of(), broker):
        await asyncio.sleep(0.05)
        broker.brokers[0].pid = os.getpid()  # type: ignore[misc]
    assert len(records(tmp_path).processes) == 1


async def test_what_listens_on_this_host_is_found(
    tmp_path: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker of somebody else: here this process, that cannot be told from ourselves."""
    monkeypatch.setattr(os, "getpid", lambda: 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        endpoint = Endpoint("mqtt", "127.0.0.1", listener.getsockname()[1])
        async with watched_broker(tmp_path, events, plan_of(), served(endpoint)):
            await asyncio.sleep(0.05)
    assert len(records(tmp_path).processes) >= 2


async def test_a_pid_that_is_none_is_refused_before_anything(
    tmp_path: Path, events: EventLog
) -> None:
    with refused("NO_PROCESS", UsageError, pid=2**22 + 1):
        async with watched_broker(tmp_path, events, plan_of(broker_pid=2**22 + 1), served(HERE)):
            raise AssertionError("must not get here")
    assert not (tmp_path / BROKER_FILE).exists()


async def test_a_full_disk_does_not_end_the_run(tmp_path: Path, events: EventLog) -> None:
    (tmp_path / BROKER_FILE).symlink_to("/dev/full")
    async with watched_broker(tmp_path, events, plan_of(), served(HERE, pids=[os.getpid()])):
        await asyncio.sleep(0.05)
    told = (tmp_path / "events.jsonl").read_text().splitlines()
    assert len(told) == 1 and "No space left" in told[0]


async def test_records_are_bounded(
    tmp_path: Path, events: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "MOST_RECORDS", 1)
    async with watched_broker(tmp_path, events, plan_of(), served(HERE, pids=[os.getpid()])):
        await asyncio.sleep(0.05)
    assert len(records(tmp_path).processes) == 1


async def test_processes_are_sampled_while_the_block_lasts() -> None:
    gone = 2**22 + 1
    async with loads_of((os.getpid(), gone)) as loads:
        while not loads:
            await asyncio.sleep(0.01)
    (_, (own, other)) = loads[0]
    assert own is not None and own > 0 and other is None


@pytest.mark.parametrize(
    ("output", "cpu_ns", "processors"),
    [
        ("12.5", 12_500_000_000, 0),
        ("12.5 8", 12_500_000_000, 8),
        (
            "# TYPE x counter\nprocess_cpu_seconds_total 3.5 1700000000000\nother 9",
            3_500_000_000,
            0,
        ),
        ('process_cpu_seconds_total{a="b"} 1e1\nprocess_cpu_seconds_total 2', 12_000_000_000, 0),
    ],
)
async def test_a_command_reports_a_broker_of_another_host(
    output: str, cpu_ns: int, processors: int
) -> None:
    process = (await processor_record(f"printf '%s\n' {shlex.quote(output)}"))["process"]
    assert (process["cpu_ns"], process["processors"]) == (cpu_ns, processors)


@pytest.mark.parametrize(
    ("command", "code"), [("echo busy", "NO_PROCESSOR_TIME"), ("false", "COMMAND_FAILED")]
)
async def test_a_command_without_processor_time_is_refused(command: str, code: str) -> None:
    with refused(code, CannotRunError):
        await processor_record(command)
