"""Several hosts as network namespaces, placed by a standalone Spark cluster across them.

Each host has an address and a kernel of its own as far as the network goes, the broker as well.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.report.build.summary import summarize_run
from loadgen.run.progress import Snapshot
from tests.cluster.networks import (
    Network,
    answers,
    namespaces_allowed,
    network,
    program,
    spark_cluster,
)
from tests.cluster.networks import until as wait_until
from tests.cluster.processes import MARK, new_mark, processes
from tests.run.agents import agents
from tests.testbeds import run
from tests.verdicts import without_saturation

pytestmark = pytest.mark.skipif(
    not namespaces_allowed(), reason="network namespaces need root and iproute2"
)

PATIENT_S = 300.0
HOSTS = ("h0", "h1")
END_S = 10.0
"""After a loss all load has ended within this time."""


@pytest.fixture(scope="module")
def net() -> Iterator[Network]:
    with network("broker", *HOSTS) as made:
        yield made


@pytest.fixture(scope="module")
def broker(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a Mosquitto in a namespace of its own."""
    settings = tmp_path_factory.mktemp("broker") / "mosquitto.conf"
    own = net.address("broker")
    settings.write_text(
        f"listener 1883 {own}\nallow_anonymous true\nmax_queued_messages 0\nuser root\n"
        "persistence false\nset_tcp_nodelay true\n"
    )
    with program([*net.inside("broker"), "mosquitto", "-c", str(settings)]):
        wait_until(lambda: answers(own, 1883), "the broker accepts connections")
        yield f"mqtt://{own}:1883"


async def test_a_host_that_was_cut_off_is_named(net: Network, broker: str, tmp_path: Path) -> None:
    """The broker is not at fault, although latencies are as long as the cut."""
    cut: list[float] = []
    seconds = 2.0

    def look(snapshot: Snapshot) -> None:
        if snapshot.phase == "measure" and not cut and snapshot.received_per_s:
            cut.append(time.monotonic())
            net.link("h1", "down")
            asyncio.get_running_loop().call_later(seconds, net.link, "h1", "up")

    within = [net.inside(name) for name in HOSTS]
    flags = {"devices": 60, "duration": 6 + seconds, "warmup": 1, "broker": broker, "hosts": 2}
    async with agents(2, address=net.here, within=within) as found:
        what = build_scenario("fanin", None, flags)
        result = await run(what, tmp_path / "run", hosts=found.hosts, progress=look)
    assert result.facts.messages.window.lost == 0
    # A busy machine can saturate the other host, too.
    hosts = {one.values.get("host"): one for one in result.verdict.reasons}
    assert hosts["1 (b)"].code == "GENERATOR_SATURATED"
    assert hosts["1 (b)"].values["seconds"] >= seconds


# On executors -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mark() -> str:
    return new_mark()


@pytest.fixture(scope="module")
def master(net: Network, mark: str) -> Iterator[str]:
    """A standalone cluster of two hosts for what follows."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(MARK, mark)
        with spark_cluster(net, HOSTS) as cluster:
            yield cluster.master


@contextmanager
def playing(master: str, broker: str, mark: str, out: Path) -> Iterator["subprocess.Popen[str]"]:
    """The command in the middle of its window, on two hosts."""
    words = (
        f"fanin --devices 60 --duration 120 --warmup 1 --hosts 2 --broker {broker} --quiet --json "
        f"--spark-master {master} --spark-wait {PATIENT_S:g} --out {out}"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen", *words.split()],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {MARK: mark},
        start_new_session=True,
    )
    try:
        wait_until(
            lambda: process.poll() is not None or len(list(out.glob("intervals/*.parquet"))) > 3,
            "the load begins",
            PATIENT_S,
        )
        assert process.poll() is None, process.communicate()
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def load(mark: str) -> list[int]:
    """Processes that could still send: workers, what forks them, agents."""
    words = ("pyspark.daemon", "hosts.forkserver")
    return sorted(processes(mark, lambda command: any(word in command for word in words)))


def workers(mark: str) -> list[int]:
    """Return the worker processes; a worker has its row in its name."""
    found = []
    for pid in load(mark):
        with suppress(OSError):  # it has just ended
            if Path(f"/proc/{pid}/comm").read_text().startswith("loadgen-"):
                found.append(pid)
    return found


@pytest.mark.parametrize("what", ["executor", "driver"])
def test_a_loss_ends_the_load_everywhere(
    what: str, master: str, broker: str, mark: str, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    with playing(master, broker, mark, out) as process:
        assert len(workers(mark)) == 2
        if what == "executor":
            backends = processes(mark, lambda command: "ExecutorBackend" in command)
            os.kill(min(backends), signal.SIGKILL)
        else:
            os.kill(process.pid, signal.SIGKILL)
        wait_until(lambda: not workers(mark), "workers end", END_S)
        if what == "driver":
            process.wait(5)
            assert list(out.glob("intervals/*.parquet"))
        else:
            said, errors = process.communicate(timeout=90)
            assert process.returncode == 1, errors
            reasons = {one["code"]: one["detail"] for one in json.loads(said)["verdict"]["reasons"]}
            assert "WORKER_LOST" in without_saturation(reasons)
            assert "their hosts: " in reasons["WORKER_LOST"]
            assert summarize_run(out).counts.sent > 0
        wait_until(lambda: not load(mark), "agents end", 20.0)
        wait_until(
            lambda: not processes(mark, lambda command: "ExecutorBackend" in command),
            "executors end",
            60.0,
        )
