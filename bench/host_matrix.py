"""Runs on 1, 2 and 4 hosts in network namespaces, against an independent subscriber: a table.

    python -m bench.host_matrix                     everything
    python -m bench.host_matrix cases cut.path      rows whose names begin so

It needs root and Mosquitto. A row is "right" if the counts are the subscriber's, and if a run that
was harmed is INVALID and names host 1.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.wires import Wires, wires
from loadgen.brokers.endpoints import Endpoint
from loadgen.cases.registry import build_scenario
from loadgen.run.progress import Snapshot
from tests.cluster.networks import answers, network, program, until
from tests.integration.listener import listening
from tests.run.agents import Agents, agents
from tests.run_files import manifest
from tests.testbeds import run

HOSTS = ("h0", "h1", "h2", "h3")
PORT = 1883
CUT_S, WINDOW_S = (0.5, 2.0, 10.0), 4.0
CASES: dict[str, dict[str, Any]] = {
    "fanin": {"devices": 40, "rate": 200},
    "fanout": {"topics": 8, "ratio": 5, "rate": 80, "qos": 1},
    "persistent": {"pairs": 8, "rate": 80},
    "latency": {"rate": 100, "devices": 40, "background_rate": 100},
    "connburst": {"devices": 100, "rate": 100},
    "queue": {"rate": 100},
    "request": {"devices": 40, "responders": 8, "rate": 80},
    "specjms": {"topology": "horizontal", "base": 1},
}
Harm = Callable[[Agents, Wires], None]


def cut(seconds: float) -> Harm:
    def harm(_found: Agents, paths: Wires) -> None:
        paths.set(1, loss=1.0)
        asyncio.get_running_loop().call_later(seconds, paths.set, 1)

    return harm


def signalled(number: int, *, worker: bool) -> Harm:
    def harm(found: Agents, _paths: Wires) -> None:
        family = psutil.Process(found.processes[1].pid).children(recursive=True)
        workers = [one.pid for one in family if one.name().startswith("loadgen-")]
        os.kill(workers[0] if worker else found.processes[1].pid, number)

    return harm


@dataclass
class Play:
    """A run: `before` and `harm` change the path of host 1, which the verdict must then name."""

    name: str
    case: str = "fanin"
    hosts: int = 2
    fields: dict[str, Any] = field(default_factory=dict)
    before: dict[str, float] = field(default_factory=dict)
    harm: Harm | None = None
    separate: bool = False  # the agents' connections do not use the path to the broker
    within: Sequence[str] = ()
    named: bool = True


def plays() -> Iterator[Play]:
    for case in CASES:
        for hosts in (1, 2, 4):
            yield Play(f"cases.{case}.{hosts}", case, hosts, named=False)
    for case in ("fanin", "fanout"):
        for seconds in CUT_S:
            name, own = f"{case}.{seconds:g}s", {"duration": WINDOW_S + seconds}
            yield Play(f"cut.host.{name}", case, fields=own, harm=cut(seconds))
            yield Play(f"cut.path.{name}", case, fields=own, harm=cut(seconds), separate=True)
    apart = {"duration": WINDOW_S + 2, "place": ["publishers=1", "subscribers=0"]}
    yield Play("cut.path.publishers.2s", fields=apart, harm=cut(2.0), separate=True)
    for delay_s in (0.06, 0.26):
        far = {"delay_s": delay_s}
        yield Play(f"far.{delay_s:g}s", before=far, named=delay_s > 0.1)
    yield Play("loss.2%", "fanout", before={"loss": 0.02}, separate=True)
    ahead = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "100000")
    yield Play("clock.100000s", within=ahead, named=False)
    for what, worker, number in (
        ("kill.worker", True, signal.SIGKILL),
        ("kill.agent", False, signal.SIGKILL),
        ("stop.agent", False, signal.SIGSTOP),
        ("stop.worker", True, signal.SIGSTOP),
    ):
        yield Play(what, fields={"duration": 40}, harm=signalled(number, worker=worker))
    yield Play("limits.0.2-cores-700-MB", within=("CGROUP",), fields={"rate": 4_000})


@contextmanager
def limited() -> Iterator[Sequence[str]]:
    """Words before a command that runs in groups of version 1 with 700 MB and 0.2 processors."""
    name, groups = f"lg{os.getpid()}", []
    for controller, limits in (
        ("memory", {"memory.limit_in_bytes": 700_000_000}),
        ("cpu", {"cpu.cfs_quota_us": 20_000, "cpu.cfs_period_us": 100_000}),
    ):
        groups.append(Path("/sys/fs/cgroup", controller, name))
        groups[-1].mkdir()
        for file, value in limits.items():
            (groups[-1] / file).write_text(str(value))
    join = "; ".join(f"echo $$ > {group}/cgroup.procs" for group in groups)
    yield ("sh", "-c", f'{join}; exec "$@"', "sh")
    for group in groups:
        until(lambda group=group: not (group / "cgroup.procs").read_text(), "the group ends")  # type: ignore[misc]
        group.rmdir()


async def played(play: Play, spaces: Sequence[Sequence[str]], paths: Wires, here: str) -> list[str]:
    harmed = False

    def look(snapshot: Snapshot) -> None:
        nonlocal harmed
        if snapshot.phase == "measure" and snapshot.received_per_s and not harmed and play.harm:
            harmed = True
            play.harm(found, paths)

    times = {"warmup": 1, "duration": WINDOW_S, "drain": 20, "connect_timeout": 30}
    flags = {**times, **CASES[play.case], **play.fields, "hosts": play.hosts}
    flags |= {"broker": f"mqtt://{paths.address}:{PORT}"}
    with ExitStack() as stack, TemporaryDirectory() as scratch:
        own = stack.enter_context(limited()) if play.within == ("CGROUP",) else play.within
        within = [[*space, *(own if at == 1 else ())] for at, space in enumerate(spaces)]
        address = here if play.separate else paths.address
        paths.set(1, **play.before)
        async with (
            listening(Endpoint("mqtt", paths.address, PORT)) as heard,
            agents(play.hosts, address=address, within=within) as found,
        ):
            scenario = build_scenario(play.case, None, flags)
            result = await run(scenario, Path(scratch) / "run", hosts=found.hosts, progress=look)
            paths.set(1)
        document = manifest(result.directory)
    ledger = document.get("ledger", {}).get("run", {"sent": 0, "intact": 0, "expected": 0})
    reasons = [f"{one.code}: {one.detail}" for one in result.verdict.reasons]
    named = any("1 (b)" in reason for reason in reasons)
    same = len(heard) == ledger["sent"] and ledger["intact"] == ledger["expected"]
    right = named if play.named else same
    p99_us = result.facts.service.latency_p99_us
    return [
        play.name,
        "right" if right else "WRONG",
        "VALID" if result.verdict.valid else "INVALID",
        f"{ledger['sent']:,} sent, {len(heard):,} heard, {ledger['intact']:,} of "
        f"{ledger['expected']:,} arrived",
        "" if p99_us is None else f"p99 {p99_us / 1000:,.1f} ms",
        " | ".join(reasons),
    ]


def main(wanted: Sequence[str]) -> None:
    with ExitStack() as stack:
        net = stack.enter_context(network(*HOSTS))
        paths = stack.enter_context(wires(net, HOSTS))
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        settings = scratch / "mosquitto.conf"
        settings.write_text(
            f"listener {PORT} {paths.address}\nallow_anonymous true\nmax_queued_messages 0\n"
            "user root\npersistence false\nset_tcp_nodelay true\n"
        )
        stack.enter_context(program(["mosquitto", "-c", str(settings)]))
        until(lambda: answers(paths.address, PORT), "the broker accepts connections")
        spaces = [net.inside(name) for name in HOSTS]
        for play in plays():
            if not wanted or play.name.startswith(tuple(wanted)):
                try:
                    row = asyncio.run(played(play, spaces[: play.hosts], paths, net.here))
                except Exception as error:  # the other rows are wanted all the same
                    row = [play.name, "FAILED", f"{type(error).__name__}: {error}"]
                print("  ".join(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
