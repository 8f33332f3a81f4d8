"""Runs on several hosts: agents are processes of this machine, each with its workers."""

import asyncio
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import psutil
import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import BrokerUnreachableError, HostLimitError, ScenarioError
from loadgen.judge.next_step import Aim, Require
from loadgen.plan.groups import MESSAGING
from loadgen.report.build.summary import summarize_run
from loadgen.report.record import open_run
from loadgen.run.coordinator import RunResult
from loadgen.run.environment import host_of, versions
from loadgen.run.hosts.messages import CheckScenario, Joined, LiveTotals, ReachBroker
from loadgen.run.hosts.remote_host import SILENCE_S, AgentServer, Hosts, RemoteHost, listening
from loadgen.run.preflight import require_hosts
from loadgen.run.progress import Snapshot
from loadgen.run.search.search import Search
from loadgen.worker.shared_counts import private_page, rows_as_words
from tests.needs import needs_mosquitto
from tests.refusals import refused
from tests.run.agents import SECRET, Agents, agents
from tests.run_files import manifest, rows
from tests.testbeds import run, search
from tests.verdicts import faults

PROMISED_S = 10.0
"""Longest time until everything stops after a host was lost."""
TIMES = {"warmup": 0.5, "duration": 1.5, "settle": 0.1}
LONG = {"warmup": 0.2, "duration": 60, "broker": "reflector"}


def has_time_namespaces() -> bool:
    words = ["unshare", "--time", "--fork", "--monotonic", "1000", "true"]
    return shutil.which("unshare") is not None and (
        subprocess.run(words, capture_output=True, check=False).returncode == 0
    )


async def play(
    directory: Path,
    case: str,
    fields: Mapping[str, object],
    hosts: Hosts | None = None,
    progress: Callable[[Snapshot], None] = lambda _: None,
) -> RunResult:
    count = 1 if hosts is None else len(hosts.agents)
    scenario = build_scenario(case, None, {**fields, "hosts": count, "workers": 2})
    return await run(scenario, directory, hosts=hosts, progress=progress)


def descendants(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    return found


def workers_of(process: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return [one for one in descendants(process) if one.name().startswith("loadgen-")]


async def gone(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Return the processes that are still there after so long."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        processes = [
            one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE
        ]
        if not processes:
            break
        await asyncio.sleep(0.1)
    return processes


CASES: list[tuple[str, dict[str, object]]] = [
    ("fanout", {"topics": 4, "ratio": 20, "rate": 100, "qos": 1}),
    ("latency", {"rate": 500, "devices": 100, "background_rate": 500}),
]


@needs_mosquitto
async def test_two_hosts_count_what_one_counts(tmp_path: Path) -> None:
    async with agents(2) as found:
        for case, own in CASES:
            fields = {**own, **TIMES, "broker": "mosquitto"}
            one = await play(tmp_path / f"{case}-1", case, fields)
            two = await play(tmp_path / f"{case}-2", case, fields, found.hosts)
            assert faults(one.verdict.reasons) == faults(two.verdict.reasons) == (), case
            window, card = two.facts.messages.window, summarize_run(two.directory)
            assert window == one.facts.messages.window, case
            assert two.facts.messages.proven and not two.facts.messages.imbalances
            assert {row["host"] for row in rows(two.directory)} == {0, 1}
            said = manifest(two.directory)
            assert [host["host"] for host in said["hosts"]] == [0, 1]
            assert all(host["environment"]["kernel"] for host in said["hosts"])
            sent, received = (
                sum(one[name] for one in card.details["load_hosts"])
                for name in ("sent", "received")
            )
            assert (sent, received) == (window.sent, window.intact)
            assert said["network"].keys() == said["hosts"][0]["network"].keys() != set()
            bound_ns = said["observed"]["clock_bound_ns"]
            assert 0 < bound_ns == two.facts.service.clock_bound_ns < 50_000_000
            # All clocks here are one.
            assert all(
                abs(host["clock"]["offset_ns"]) <= host["clock"]["bound_ns"]
                for host in said["hosts"]
            )
            # The timed pair of LATENCY is on one host.
            by_two_clocks = any(remark.code == "CLOCK_ERROR" for remark in two.verdict.remarks)
            assert by_two_clocks == (case != "latency")
            remarks = [row.remark for row in card.rows if "LATENCY" in row.name]
            assert all(("Between hosts" in one) == by_two_clocks for one in remarks)
            assert open_run(two.directory).record.valid == two.verdict.valid
        for process in found.processes:
            assert not workers_of(process)


@needs_mosquitto
async def test_the_supply_chain_on_two_hosts_passes_its_audit(tmp_path: Path) -> None:
    fields = {"topology": "horizontal", "base": 1, "warmup": 1, "duration": 4}
    async with agents(2) as found:
        two = await play(tmp_path / "two", "specjms", fields | {"broker": "mosquitto"}, found.hosts)
    one = await play(tmp_path / "one", "specjms", fields | {"broker": "mosquitto"})
    for name, result in (("two", two), ("one", one)):
        audit = manifest(tmp_path / name)["observed"]["specjms"]["audit"]
        # A busy host begins interactions late.
        assert {test for test in audit if not audit[test]["pass"]} <= {"pacing"}
        assert {reason.code for reason in faults(result.verdict.reasons)} <= {"AUDIT"}
    assert two.facts.messages.window.lost == 0 and two.facts.messages.proven
    assert two.facts.schedule.scheduled == one.facts.schedule.scheduled


async def test_a_search_goes_through_its_steps_with_the_same_agents(tmp_path: Path) -> None:
    fields = {"devices": 20, **TIMES, "broker": "reflector", "hosts": 2}
    scenario = build_scenario("fanin", None, fields)
    what = Search(scenario, Aim("rate", 100, 100, 200, precision=0.9), Require())
    async with agents(2) as found:
        result = await search(what, tmp_path / "search", hosts=found.hosts)
        assert len(result.steps) >= 2
        steps = [manifest(tmp_path / "search" / str(step.run)) for step in result.steps]
        assert all(step["hosts"] for step in steps)
        assert steps[1]["connect"].get("kept_from") == steps[0]["id"]


@pytest.mark.skipif(not has_time_namespaces(), reason="no time namespaces without root")
async def test_a_clock_that_is_a_day_ahead_changes_no_latency(tmp_path: Path) -> None:
    ahead_s = 100_000
    other = ["unshare", "--time", "--fork", "--kill-child", "--monotonic", str(ahead_s)]
    fields = {"devices": 50, "rate": 500, **TIMES, "broker": "reflector"}
    async with agents(2, within=([], other)) as found:
        result = await play(tmp_path / "run", "fanin", fields, found.hosts)
    assert faults(result.verdict.reasons) == ()
    assert (result.facts.messages.window.lost, result.facts.messages.window.expected) == (0, 750)
    here, there = (host["clock"] for host in manifest(result.directory)["hosts"])
    assert abs(here["offset_ns"]) <= here["bound_ns"]
    assert abs(there["offset_ns"] + ahead_s * 10**9) <= there["bound_ns"]
    seconds = {row["second"] for row in rows(result.directory)}
    assert max(seconds) - min(seconds) < 60
    assert (
        result.facts.service.latency_p99_us is not None
        and result.facts.service.latency_p99_us < 5e6
    )


async def lose_in_the_window(
    found: Agents,
    directory: Path,
    harm: Callable[[], None],
    changed: Mapping[str, object] | None = None,
) -> tuple[RunResult, float]:
    """Do harm in the window of a run; return the run and the time that it went on."""
    done_s = 0.0

    def look(snapshot: Snapshot) -> None:
        nonlocal done_s
        if snapshot.phase == "measure" and not done_s and snapshot.received_per_s:
            done_s = time.monotonic()
            harm()

    fields = {"devices": 50, "rate": 500, **LONG, **(changed or {})}
    result = await play(directory, "fanin", fields, found.hosts, look)
    assert done_s
    return result, time.monotonic() - done_s


def hosts_of_lost(result: RunResult) -> str:
    """Return the hosts of the lost workers as the verdict has them; the run can be read."""
    assert open_run(result.directory).record.valid is False
    assert sum(row["received"] for row in rows(result.directory)) > 0
    (reason,) = [one for one in result.verdict.reasons if one.code == "WORKER_LOST"]
    return str(reason.values["hosts"])


async def test_a_killed_agent_ends_the_run_and_its_workers(tmp_path: Path) -> None:
    async with agents(2) as found:
        left: list[psutil.Process] = []

        def kill() -> None:
            left.extend(descendants(found.processes[1]))
            found.processes[1].kill()

        result, seconds = await lose_in_the_window(found, tmp_path / "run", kill)
        assert hosts_of_lost(result).startswith("1 (")
        assert seconds < PROMISED_S
        assert await gone(left, 5) == []
        # The next run says what is missing, and leaves nothing.
        with refused("HOST_GONE"):
            await play(tmp_path / "next", "fanin", {"devices": 2, **TIMES}, found.hosts)
        assert not list((tmp_path / "next").glob("*"))
        assert not workers_of(found.processes[0])


async def test_a_killed_worker_ends_the_run_and_the_agents_stay(tmp_path: Path) -> None:
    async with agents(2) as found:

        def kill() -> None:
            (worker,) = workers_of(found.processes[0])
            worker.kill()

        result, seconds = await lose_in_the_window(found, tmp_path / "run", kill)
        assert hosts_of_lost(result).startswith("0 (")
        assert seconds < PROMISED_S
        fields = {"devices": 20, "rate": 100, **TIMES, "broker": "reflector"}
        again = await play(tmp_path / "again", "fanin", fields, found.hosts)
        assert faults(again.verdict.reasons) == ()


async def test_an_agent_that_stands_still_is_lost_and_its_workers_end(tmp_path: Path) -> None:
    async with agents(2) as found:
        stopped = found.processes[1]
        left: list[psutil.Process] = []

        def stop() -> None:
            left.extend(workers_of(stopped))
            stopped.send_signal(signal.SIGSTOP)

        began_s = time.monotonic()
        result, seconds = await lose_in_the_window(found, tmp_path / "run", stop)
        assert hosts_of_lost(result).startswith("1 (")
        assert SILENCE_S <= seconds < PROMISED_S
        assert left
        assert await gone(left, max(0.0, began_s + 60 - time.monotonic())) == []
        stopped.kill()


@asynccontextmanager
async def relayed_agents(carry: Callable[..., Awaitable[None]]) -> AsyncIterator[Agents]:
    """Provide two agents, the second of which connects through a relay that carries bytes so."""
    targets: list[tuple[str, int]] = []
    open_ends: list[asyncio.StreamWriter] = []

    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_ends.append(writer)
        there, onward = await asyncio.open_connection(*targets[0])
        open_ends.append(onward)
        await asyncio.gather(
            carry(reader, onward, outward=True), carry(there, writer, outward=False)
        )

    server = await asyncio.start_server(relay, "127.0.0.1", 0)
    async with agents(2, relays={1: server.sockets[0].getsockname()}, targets=targets) as found:
        yield found
    server.close()
    # An agent dials again while the test ends.
    for writer in open_ends:
        writer.transport.abort()


async def test_a_delay_on_one_way_is_inside_the_bound(tmp_path: Path) -> None:
    """Messages of the agent are late, those to it are not."""
    loop = asyncio.get_running_loop()
    slow_s = 0.25

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool
    ) -> None:
        later_s = slow_s if outward else 0.0
        while data := await reader.read(1 << 16):
            loop.call_later(later_s, writer.write, data)
        loop.call_later(later_s, writer.close)

    fields = {"devices": 20, "rate": 200, **TIMES, "broker": "reflector"}
    async with relayed_agents(carry) as found:
        result = await play(tmp_path / "run", "fanin", fields, found.hosts)
    # In truth both clocks are one.
    clock = manifest(result.directory)["hosts"][1]["clock"]
    assert slow_s / 2 <= clock["bound_ns"] / 1e9
    assert abs(clock["offset_ns"]) <= clock["bound_ns"]
    assert abs(clock["offset_ns"]) / 1e9 > slow_s * 0.4
    assert "CLOCK" in result.verdict.codes
    assert result.facts.messages.window.lost == 0


@pytest.mark.parametrize("way", ["both", "to the agent"])
async def test_a_network_that_stands_still_ends_both_sides(tmp_path: Path, way: str) -> None:
    flowing = asyncio.Event()
    flowing.set()

    async def carry(
        reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, outward: bool
    ) -> None:
        while data := await reader.read(1 << 16):
            if way == "both" or not outward:
                await flowing.wait()
            writer.write(data)
        writer.close()

    async with relayed_agents(carry) as found:
        left: list[psutil.Process] = []

        def cut() -> None:
            left.extend(workers_of(found.processes[1]))
            flowing.clear()

        result, seconds = await lose_in_the_window(found, tmp_path / "run", cut)
        assert hosts_of_lost(result).startswith("1 (")
        assert seconds < PROMISED_S
        causes = str([one.values.get("cause") for one in result.verdict.reasons])
        assert ("coordinator was silent" in causes) == (way != "both")
        assert "silent" in await found.words(1)
        found.processes[1].terminate()  # it would dial again
        assert left and await gone(left, 5) == []
        flowing.set()


async def test_what_a_host_lacks_is_said_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = ["env", "-C", "/"]
    (tmp_path / "payload.bin").write_bytes(b"x" * 100)
    async with agents(2, within=([], elsewhere)) as found:
        monkeypatch.chdir(tmp_path)
        fields = {"devices": 2, **TIMES, "broker": "reflector", "payload": "payload.bin"}
        with refused("UNREADABLE", ScenarioError, field="payload", path="payload.bin"):
            await play(tmp_path / "run", "fanin", fields, found.hosts)
        assert not list((tmp_path / "run").glob("*"))


async def test_what_an_agent_cannot_do_is_answered_at_once() -> None:
    async with agents(1) as found:
        (agent,) = found.hosts.agents
        nowhere = ReachBroker([("127.0.0.1", 1)], [])
        with refused("NO_BROKER_FROM_HOST", BrokerUnreachableError, port="1"):
            await agent.ask(nowhere, 20.0)
        with refused("UNKNOWN_CASE", ScenarioError) as unknown:
            await agent.ask(CheckScenario({"case": "nothing known"}), 20.0)
        with refused("SOURCE_ADDRESS", HostLimitError, address="192.0.2.7"):
            await agent.ask(ReachBroker([], ["192.0.2.7"]), 20.0)
        assert str(unknown.value).startswith("on host 0 (")
        assert not agent.lost


def test_totals_of_a_host_come_into_its_own_rows_or_end_it() -> None:
    page = private_page(3, 2)
    remote = host("x", "10.0.0.1")
    remote.assign([0, 2], MESSAGING)
    remote.begin(page)
    remote._on_event = Mock()
    totals, counts = rows_as_words(page)
    widths = totals.shape[1], counts.shape[1]
    # The second number of both rows' totals, the last one of the second row's counts.
    places = np.array([1, widths[0] + 1, 2 * sum(widths) - 1], np.uint32).tobytes()
    values = np.array([7, 8, 9]).tobytes()
    remote.take(LiveTotals(places + values))
    assert (totals[:, 1].tolist(), counts[:, -1].tolist()) == ([7, 0, 8], [0, 0, 9])
    beyond = np.array([2 * sum(widths)], np.uint32).tobytes()
    for block in (beyond + values[:8], places + values + b"more", places[:8]):
        with pytest.raises(ValueError, match="no place on the live page"):
            remote.take(LiveTotals(block))


async def test_missing_agents_and_hosts_are_named(tmp_path: Path) -> None:
    async with listening() as server:
        with refused("FEW_AGENTS", joined=0, wanted=2, refused=None):
            await server.gathered(2, 0.1)
    with refused("PRIVATE_BROKER"):
        require_hosts(resolve(build_scenario("fanin", None, {"hosts": 2})), ["one", "two"])
    with refused("OTHER_HOSTS"):
        await run(build_scenario("fanin", None, {"hosts": 2}), tmp_path / "run")


def host(name: str, address: str, **joined: object) -> RemoteHost:
    link = Mock(peer=(address, 1))
    own: dict[str, Any] = {"machine": name, "versions": versions(), "environment": {}} | joined
    return RemoteHost(Joined(replace(host_of(), name=name), **own), link)


async def test_hosts_are_numbered_by_address_and_must_be_alike() -> None:
    server = AgentServer(b"")
    server._hosts = [host("x", "10.0.0.10"), host("z", "10.0.0.9"), host("y", "10.0.0.9")]
    hosts = await server.gathered(3, 0.1)
    assert [agent.name for agent in hosts.agents] == ["0 (y)", "1 (z)", "2 (x)"]
    assert hosts.shared_machines() == []
    server._hosts = [host("x", "10.0.0.1", versions=versions() | {"python": "3.0.1"})]
    ours = versions()["python"]
    with refused("OTHER_VERSIONS", theirs=("python 3.0.1",), ours=(f"python {ours}",)):
        await server.gathered(1, 0.1)


def test_containers_of_one_machine_are_a_remark() -> None:
    found = [host(name, "10.0.0.1", machine=f"boot/{name}") for name in "xyz"]
    (remark,) = Hosts((*found, host("w", "10.0.0.2"))).shared_machines()
    assert remark.values == {"hosts": "0 (x), 0 (y), 0 (z)"}


async def test_an_agent_serves_again_until_a_signal() -> None:
    # `env`, so that the agent is a child of this process and its exit status is seen.
    async with agents(1, within=[["env"]]) as found:
        found.hosts.agents[0].link.end("as if the coordinator had died")
        assert "its process ended or was killed" in await found.words(0)
        assert "connection refused" in await found.words(0)
        found.processes[0].terminate()
        assert await asyncio.to_thread(found.processes[0].wait, 20) == 0
    async with listening(secret=SECRET.encode()) as server:
        port = server.address[1]
    async with agents(1, relays={0: ("127.0.0.1", port)}, secret="none is waited for" * 2) as found:
        assert "connection refused" in await found.words(0)
        async with listening(port=port, secret=SECRET.encode()) as server:
            assert "another secret" in await found.words(0)
            with refused("FEW_AGENTS", refusal="it has another secret or version, or was too slow"):
                await server.gathered(1, 3.0)


async def test_nobody_connects_when_all_are_there() -> None:
    async with agents(1) as found:
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*found.address)


# In network namespaces ----------------------------------------------------------------------
