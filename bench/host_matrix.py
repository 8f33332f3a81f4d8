"""Runs on 1, 2 and 4 hosts in network namespaces, against an independent subscriber: a table.

    python -m bench.host_matrix                     everything
    python -m bench.host_matrix cases cut.path      rows whose names begin so

It needs root and Mosquitto. A row is "right" if messages are those of the subscriber, and connects
those in the broker's log. If host 1 was harmed, the expected rule must name it, and no reason may
blame the broker; if the broker was harmed, no reason may name a host.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from bench.wires import Wires, wires
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.front import bridge_lines
from loadgen.cases.registry import build_scenario
from loadgen.judge.codes import REASONS
from loadgen.judge.facts import RunFacts
from loadgen.plan.plan import Bridge
from loadgen.plan.scenario import HEADER_BYTES
from loadgen.run.progress import Snapshot
from tests.cluster.networks import Network, answers, network, program, until
from tests.integration.listener import listening
from tests.run.agents import SECRET, Agents, agents
from tests.run_files import manifest
from tests.testbeds import run

HOSTS = ("h0", "h1", "h2", "h3")
NAMED = "1 (b)"
PORT = 1883
CUT_S, WINDOW_S = (0.5, 2.0, 10.0), 4.0
LIMITED = ("CGROUP",)
EQUAL, BROKER = "equal", "broker"
"""Instead of a rule: the counts are equal and the broker is not blamed, or no host is named."""
PATH_RULES = {"cut_off", "lossy", "pressed"}
BLAMELESS = {"GENERATOR_SATURATED", "RATE_MISSED", "WORKER_LOST", "CLOCK"}
Places = Sequence[str]
ROLES: dict[str, Places] = {
    "both": (),
    "sends": ("publishers=1", "subscribers=0"),
    "hears": ("publishers=0", "subscribers=1"),
}
CASES: dict[str, dict[str, Any]] = {
    "fanin": {"devices": 40, "rate": 200},
    "fanout": {"topics": 8, "ratio": 5, "rate": 80, "qos": 1},
    "persistent": {"pairs": 8, "rate": 80},
    "latency": {"rate": 100, "devices": 40, "background_rate": 100},
    "connburst": {"devices": 100, "rate": 100},
    "queue": {"rate": 100},
    "request": {"devices": 40, "responders": 8, "rate": 80},
    "specjms": {"topology": "horizontal", "base": 1},
    "bridge": {"devices": 40, "rate": 200},
    "run": {
        "group": [
            {"name": "sensors", "count": 40, "topic": "plant/{device}/t", "rate": 100, "qos": 1},
            {"name": "boards", "count": 4, "subscribe": ["plant/+/t"], "qos": 1},
        ]
    },
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


def broker_killed(found: Agents, paths: Wires) -> None:
    del found
    paths.broker.kill()


def stopped(found: Agents, paths: Wires) -> None:
    """Stop the broker for two seconds."""
    del found
    for number, later_s in ((signal.SIGSTOP, 0.0), (signal.SIGCONT, 2.0)):
        asyncio.get_running_loop().call_later(later_s, paths.broker.send_signal, number)


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
    expects: Sequence[str] = (EQUAL,)  # rules of the verdict, one of which names host 1
    cause: str = ""


def plays() -> Iterator[Play]:
    for case in CASES:
        for hosts in (1, 2, 4):
            yield Play(f"cases.{case}.{hosts}", case, hosts)
    for case, qos, role in product(("fanin", "fanout"), (0, 1), ROLES):
        own: dict[str, Any] = {"qos": qos, "place": [*ROLES[role]]}
        cuts = product((2.0,), (True,)) if qos else product(CUT_S, (False, True))
        for seconds, separate in cuts:
            name = f"cut.{'path' if separate else 'host'}.{case}.{role}.qos{qos}.{seconds:g}s"
            lost = seconds > 5 and not separate
            yield Play(
                name,
                case,
                fields=own | {"duration": WINDOW_S + seconds},
                harm=cut(seconds),
                separate=separate,
                expects=["workers_lost" if lost else "cut_off"],
            )
        for name, before, fields in (
            ("loss", {"loss": 0.02}, {"duration": 10}),
            ("rate", {"rate": 1e6}, {"size": "1000"}),
        ):
            bad = ["lossy", "pressed", "cut_off"]
            yield Play(
                f"{name}.{case}.{role}.qos{qos}",
                case,
                fields=own | {"rate": 80 if case == "fanout" and role != "sends" else 400} | fields,
                before=before,
                expects=bad,
            )
    for delay_s in (0.06, 0.26):
        far = {"delay_s": delay_s}
        expects = ["clocks_differ"] if delay_s > 0.1 else [EQUAL]
        yield Play(f"far.{delay_s:g}s", before=far, expects=expects)
    ahead = ("unshare", "--time", "--fork", "--kill-child", "--monotonic", "100000")
    yield Play("clock.100000s", within=ahead)
    for what, worker, number in (
        ("kill.worker", True, signal.SIGKILL),
        ("kill.agent", False, signal.SIGKILL),
        ("stop.agent", False, signal.SIGSTOP),
        ("stop.worker", True, signal.SIGSTOP),
    ):
        lost_one = signalled(number, worker=worker)
        yield Play(what, fields={"duration": 40}, harm=lost_one, expects=["workers_lost"])
    yield Play("kill.coordinator")
    for case in ("fanin", "fanout"):
        yield Play(f"broker.stop.{case}", case, harm=stopped, expects=[BROKER])
        yield Play(f"broker.kill.{case}", case, harm=broker_killed, expects=[BROKER])
    late = ["late", "stalled", "dominant", "busy", "breaks_bounds"]
    yield Play("limits.6000", within=LIMITED, fields={"rate": 6_000})
    full = {"rate": 20_000, "duration": 8}
    yield Play("limits.20000", within=LIMITED, fields=full, expects=late, cause="THROTTLED")
    many = {"devices": 24_000, "broker": "mqtts://192.0.2.1"}
    yield Play("limits.memory", within=LIMITED, fields=many, expects=["MEMORY"])


def rules_naming(facts: RunFacts, host: str = NAMED) -> dict[str, str]:
    """Return the rules of the verdict whose findings name a host, with the code of the cause."""
    return {
        name: getattr(values.get("cause"), "code", "")
        for row in REASONS
        for name in row.rules
        for values in row.findings(name, facts)
        if host in str([*values.values()])
    }


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


def devices_in(log: Path) -> int:
    """Return the number of devices of hosts whose connections the broker has logged."""
    return len(
        set(re.findall(r"New client connected from \S+\.1\d+:\d+ as (\S+)", log.read_text()))
    )


async def played(
    play: Play, spaces: Sequence[Sequence[str]], paths: Wires, net: Network, log: Path
) -> list[str]:
    harmed = False

    def look(snapshot: Snapshot) -> None:
        nonlocal harmed
        if snapshot.phase == "measure" and snapshot.received_per_s and not harmed and play.harm:
            harmed = True
            play.harm(found, paths)

    times = {"warmup": 1, "duration": WINDOW_S, "drain": 20, "connect_timeout": 30}
    flags = {**times, **CASES[play.case], **play.fields, "hosts": play.hosts}
    # The wires carry less than the load of a limited host.
    limits = play.within == LIMITED
    at = f"{net.here}:{PORT + 2}" if limits else f"{paths.address}:{PORT}"
    flags = {"broker": f"mqtt://{at}"} | flags
    if play.case == "bridge":
        flags |= {"backend": f"mqtt://{paths.address}:{PORT + 1}"}
    hears: AbstractAsyncContextManager[list[tuple[str, bytes]]] = nullcontext([])
    if play.harm is not broker_killed:
        hears = listening(Endpoint("mqtt", paths.address, PORT))
    with ExitStack() as stack, TemporaryDirectory() as scratch:
        within = [[*space, *(play.within if at == 1 else ())] for at, space in enumerate(spaces)]
        if play.within == LIMITED:
            # `ip netns exec` hides the control groups.
            enter = ("nsenter", f"--net=/run/netns/{spaces[1][-1]}")
            within[1] = [*enter, *stack.enter_context(limited())]
        address = net.here if play.separate else paths.address
        paths.set(1, **play.before)
        async with (
            hears as heard,
            agents(play.hosts, address=address, within=within) as found,
        ):
            scenario = build_scenario(play.case, None, flags)
            result = await run(scenario, Path(scratch) / "run", hosts=found.hosts, progress=look)
            paths.set(1)
        document = manifest(result.directory)
    ledger = document.get("ledger", {}).get("run", {"sent": 0, "intact": 0, "expected": 0})
    rules = rules_naming(result.facts)
    codes = {*result.verdict.codes}
    count = sum(len(payload) >= HEADER_BYTES for _, payload in heard)
    same = ledger["sent"] == count and ledger["intact"] == ledger["expected"]
    same = same and (play.case == "connburst") == (not count)
    seen = devices_in(log)
    if [*play.expects] == [EQUAL]:
        right = same and codes <= {"GENERATOR_SATURATED"}
        right = right and 0 < result.facts.connects.connected == seen
    elif [*play.expects] == [BROKER]:
        blamed = [rules_naming(result.facts, f"{at} (").keys() for at in range(play.hosts)]
        right = not any(PATH_RULES & one for one in blamed)
        seen_by = {*result.verdict.codes, *(one.code for one in result.verdict.remarks)}
        right = right and not seen_by.isdisjoint({"STANDSTILL", "DISCONNECTED"})
    else:
        right = play.cause in {rules.get(rule) for rule in play.expects} and codes <= BLAMELESS
        right = right and (same or "WORKER_LOST" in codes)
    p99_us = result.facts.service.latency_p99_us
    return [
        play.name,
        "right" if right else "WRONG",
        ",".join(f"{rule} {cause}".strip() for rule, cause in rules.items()),
        "VALID" if result.verdict.valid else "INVALID",
        f"{result.facts.connects.connected:,} connected, {seen:,} in the log, "
        f"{ledger['sent']:,} sent, {count:,} heard, {ledger['intact']:,} of "
        f"{ledger['expected']:,} arrived",
        "" if p99_us is None else f"p99 {p99_us / 1000:,.1f} ms",
        " | ".join(f"{one.code}: {one.detail}" for one in result.verdict.reasons),
    ]


def coordinator_killed(paths: Wires, net: Network, within: Sequence[Sequence[str]]) -> list[str]:
    """Kill a command in its window: the load ends, and the agents serve the next command."""

    def commands() -> list[psutil.Process]:
        family = [child for one in started for child in psutil.Process(one.pid).children(True)]
        return [one for one in family if one.name().startswith("loadgen-")]

    def play(name: str, seconds: float) -> "subprocess.Popen[bytes]":
        words = f"fanin --devices 40 --rate 200 --warmup 1 --duration {seconds} --hosts 2 --quiet"
        here = f"--listen {net.here}:{PORT} --secret file:{secret} --out {scratch}/{name}"
        to = f"--broker mqtt://{paths.address}:{PORT} --hosts-wait 60s"
        command = [sys.executable, "-m", "loadgen", *words.split(), *to.split(), *here.split()]
        return stack.enter_context(program(command))

    with ExitStack() as stack:
        scratch = Path(stack.enter_context(TemporaryDirectory()))
        secret = scratch / "secret"
        secret.touch(0o600)
        secret.write_text(SECRET)
        join = ["--join", f"{net.here}:{PORT}", "--secret", f"file:{secret}"]
        agent = [sys.executable, "-m", "loadgen", "agent", *join]
        started = [stack.enter_context(program([*space, *agent])) for space in within]
        first = play("first", 60)
        until(lambda: len([*scratch.glob("first/intervals/*.parquet")]) > 2, "the load begins")
        workers, begin_s = len(commands()), time.monotonic()
        first.kill()
        until(lambda: not commands(), "the workers end")
        took_s = time.monotonic() - begin_s
        again = play("second", WINDOW_S)
        again.wait(120)
        document = manifest(scratch / "second")
    sums, codes = document["ledger"]["run"], {one["code"] for one in document["verdict"]["reasons"]}
    right = workers == 2 and sums["intact"] == sums["expected"] > 0 and took_s < 10
    right = right and codes <= {"GENERATOR_SATURATED"}
    found = f"{workers} workers ended after {took_s:.1f} s; then {sums['intact']:,} of "
    return ["right" if right else "WRONG", f"{found}{sums['expected']:,} arrived", str(codes)]


@contextmanager
def brokers(paths: Wires, net: Network, scratch: Path) -> Iterator[Path]:
    """Mosquitto, which forwards to a second one for BRIDGE; return their log."""
    log, settings = scratch / "log", scratch / "mosquitto.conf"
    log.touch()
    behind = Endpoint("mqtt", paths.address, PORT + 1)
    lines = bridge_lines(Bridge(1, (), 5, "loadgen/front", "loadgen/back", 0, False), [behind])
    with ExitStack() as stack:
        for port in (PORT + 1, PORT):
            settings.write_text(
                f"listener {port} {paths.address}\nlistener {port + 2} {net.here}\n"
                "allow_anonymous true\nmax_queued_messages 0\n"
                "user root\npersistence false\nset_tcp_nodelay true\nlog_type notice\n"
                f"log_dest file {log}\n" + "\n".join(lines if port == PORT else ())
            )
            paths.broker = stack.enter_context(program(["mosquitto", "-c", str(settings)]))
            until(lambda port=port: answers(paths.address, port), "the broker accepts connections")  # type: ignore[misc]
        yield log


def main(wanted: Sequence[str]) -> None:
    with ExitStack() as stack:
        net = stack.enter_context(network(*HOSTS))
        paths = stack.enter_context(wires(net, HOSTS))
        spaces = [net.inside(name) for name in HOSTS]
        for play in plays():
            if wanted and not play.name.startswith(tuple(wanted)):
                continue
            try:
                with TemporaryDirectory() as scratch, brokers(paths, net, Path(scratch)) as log:
                    if play.name == "kill.coordinator":
                        row = [play.name, *coordinator_killed(paths, net, spaces[:2])]
                    else:
                        row = asyncio.run(played(play, spaces[: play.hosts], paths, net, log))
            except Exception as error:  # the other rows are wanted all the same
                refused = getattr(
                    [*error.args, ""][0], "code", ""
                ) in play.expects and "host 'b'" in str(error)
                row = [play.name, "right" if refused else "FAILED", f"{error!r}"]
            print("  ".join(row), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
