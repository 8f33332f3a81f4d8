"""The watch of a run's broker into broker.jsonl, as the score card reads it."""

import asyncio
import os
import socket
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from loadgen.brokers.broker_counters import counters_of
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import free_port
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import CannotRunError, UsageError
from loadgen.plan.plan import Plan
from loadgen.report.build.broker_section import RATES, BrokerRecords, read_broker
from loadgen.run import watched
from loadgen.run.rundir import EventLog
from loadgen.run.watched import BROKER_FILE, loads_of, watched_broker
from tests.refusals import refused
from tests.tables import DATA


def records(directory: Path) -> BrokerRecords:
    found = read_broker(directory)
    assert found is not None
    return found


@pytest.fixture
def events(tmp_path: Path) -> Iterator[EventLog]:
    log = EventLog(tmp_path)
    yield log
    log.close()


def plan_of(**fields: Any) -> Plan:
    return resolve(build_scenario("fanin", None, fields))


def served(*endpoints: Endpoint, pids: Sequence[int] = ()) -> ServedBroker:
    """Return a broker with these endpoints; with `pids` one that was started here."""
    started: Any = tuple(SimpleNamespace(pid=pid, endpoints=endpoints) for pid in pids)
    return ServedBroker("reflector" if pids else "x", "1", endpoints, started)


HERE = Endpoint("mqtt", "127.0.0.1", 1)


async def test_a_process_that_is_named(tmp_path: Path, events: EventLog) -> None:
    """Several endpoints are not asked for counts: they may be one broker."""
    broker = served(HERE, Endpoint("mqtt", "127.0.0.1", 2))
    async with watched_broker(tmp_path, events, plan_of(broker_pid=os.getpid()), broker):
        await asyncio.sleep(0.05)
    found = records(tmp_path)
    # At the beginning and at the end, whatever is in between.
    assert len(found.processes) >= 2
    first = found.processes[0].process
    assert first["resident_bytes"] > 1 << 20 and first.keys() >= {*RATES}
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
    """Another's broker: here this process, which looks like our own."""
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


NODE_PAGE = (DATA / "node_exporter.txt").read_text()


def test_counters_of_a_node_exporter() -> None:
    """The exporter's processor time does not count, nor do disks that are stacked on others."""
    assert counters_of(NODE_PAGE) == {
        "cpu_ns": 12_500_000_000,
        "processors": 2,
        "resident_bytes": 3_000_000_000,
        "disk_read_bytes": 100,
        "network_received_bytes": 300,
        "network_sent_bytes": 400,
    }


class Exporter(BaseHTTPRequestHandler):
    page = NODE_PAGE

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.page.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def exporter() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Exporter) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


async def test_nodes_of_a_broker(tmp_path: Path, events: EventLog, exporter: str) -> None:
    pages = (f"{exporter}/a", "command:echo process_cpu_seconds_total 12.5")
    async with watched_broker(tmp_path, events, plan_of(broker_metrics=pages), served(HERE)):
        pass
    samples = records(tmp_path).processes
    assert [sample.node for sample in samples] == [*pages, *reversed(pages)]
    assert samples[0].process.items() >= counters_of(NODE_PAGE).items()
    assert samples[1].process["cpu_ns"] == 12_500_000_000


async def test_a_page_without_counters_is_refused(
    tmp_path: Path, events: EventLog, exporter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Exporter, "page", "go_goroutines 9\n")
    closed = f"http://127.0.0.1:{free_port('127.0.0.1')}/metrics"
    for source, code in (
        (exporter, "NO_COUNTERS"),
        (closed, "NO_METRICS"),
        ("command:false", "COMMAND_FAILED"),
    ):
        with refused(code, CannotRunError):
            plan = plan_of(broker_metrics=source)
            async with watched_broker(tmp_path, events, plan, served(HERE)):
                raise AssertionError("must not get here")
