"""Load hosts of a Spark cluster: a barrier job starts one agent on each of N executors.

    async with hosts_of_cluster(Cluster("spark://master:7077", 4)) as hosts:
        await run(scenario, directory, hosts=hosts)

Spark only places the agents and keeps them. Its tasks meet once (`allGather`), to report their
machines and what is missing there. After that an agent talks to the coordinator over a separate
channel. The job brings the secret of that channel to the tasks, and a pipe brings it to the agents:
it is in no argument, environment, setting or log.

Spark must never repeat the stage, as that would play the load again: the job is collected directly,
and a task that fails ends it.
"""

import asyncio
import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from loadgen import PROGRAM
from loadgen.errors import CannotRunError, LoadgenError, UsageError
from loadgen.run.environment import machine_identity as machine_identity
from loadgen.run.hosts.remote_host import Hosts, listening
from loadgen.run.redaction import printable
from loadgen.run.tasks import finished_or
from loadgen.spark.session import open_session, reason_in, require_answer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WAIT_S = 30.0
"""Longest wait for the master, for its executors, and for the agents."""
END_S = 5.0
"""Longest wait for the job to end after its agents were released."""
_LOOK_S = 0.1
_MASTERS = "spark://HOST:7077, yarn, k8s://HOST:443 or local-cluster[HOSTS,CORES,MIB]"

_Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cluster:
    """The requested hosts; `settings` are Spark's, and `archive` is a packed environment for the
    executors."""

    master: str
    hosts: int
    settings: Mapping[str, str] = field(default_factory=dict)
    archive: Path | None = None
    wait_s: float = WAIT_S


@asynccontextmanager
async def hosts_of_cluster(cluster: Cluster) -> AsyncIterator[Hosts]:
    """Provide the hosts, each with a connected agent; the agents and the job end with the block.

    Raise UsageError for an invalid master, and CannotRunError or HostLimitError if a step to get
    the hosts takes longer than `cluster.wait_s`.
    """
    await _require_master(cluster.master)
    here = _own_address(cluster.master)
    async with listening(here, one_machine=cluster.master.startswith("local")) as server:
        work = _agents_task(cluster.hosts, (here, server.address[1]), server.secret)
        async with _job(cluster, here, work) as job:
            gathered = asyncio.ensure_future(server.gathered(cluster.hosts, cluster.wait_s))
            ended = await finished_or(gathered, job.over)
            if job.over.is_set():
                raise job.error
            try:
                yield ended.result()
            finally:
                server.close()  # the agents go first, then the job can end


async def _require_master(master: str) -> None:
    """Refuse a master that is invalid or unreachable, before a JVM is started."""
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s") and not (
        master == "yarn" or master.startswith("local-cluster[")
    ):
        raise UsageError(
            f"--spark-master: {printable(master, 100)} has no executors; allowed: {_MASTERS}"
        )
    places = rest.rpartition("://")[2].strip("/").split(",") if rest else []
    for place in places:
        if not place.rpartition(":")[2].isdigit():
            raise UsageError(
                f"--spark-master: {printable(master, 100)} names no port; allowed: {_MASTERS}"
            )
    if places:
        await asyncio.to_thread(require_answer, master, places)


def _own_address(master: str) -> str:
    """Choose an address of this host for executors: the one on the route to their master."""
    named = os.environ.get("SPARK_LOCAL_IP")
    if named:
        return named
    if master.startswith("local"):
        return "127.0.0.1"
    there = master.partition("://")[2].split(",")[0].rpartition(":")[0].rpartition("/")[2]
    # To connect a datagram socket sends nothing: the kernel only chooses the route.
    for host in (there.strip("[]"), "192.0.2.1"):
        with suppress(OSError):
            address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
                probe.connect(address[4])
                return str(probe.getsockname()[0])
    return "127.0.0.1"


# The job ----------------------------------------------------------------------------------------


class _Job:
    """A Spark session and its only job, in a separate thread."""

    def __init__(self, cluster: Cluster, here: str, task: Callable[..., Iterator[str]]) -> None:
        self.over = asyncio.Event()
        self.started = asyncio.Event()
        self.ready = asyncio.Event()
        self.error: LoadgenError = CannotRunError("the Spark job ended before its agents came")
        self._cluster = cluster
        self._settings = _settings(cluster, here)
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._spark: SparkSession | None = None
        self.ending = False
        self.thread = threading.Thread(target=self._run, name="spark", daemon=True)

    def _run(self) -> None:
        try:
            self._play()
        except LoadgenError as error:
            self.error = error
        except Exception as error:
            reason = reason_in(_text_of(error)) or type(error).__name__
            self.error = CannotRunError(f"the Spark job failed: {printable(reason, 400)}")
        self._tell(self.over)

    def _tell(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(event.set)

    def _play(self) -> None:
        cluster = self._cluster
        with open_session(cluster.master, options=self._settings) as spark:
            self._spark = spark
            self._tell(self.started)
            self._await_executors(spark)
            self._tell(self.ready)
            rows = spark.sparkContext.parallelize(range(cluster.hosts), cluster.hosts)
            reports = [
                json.loads(one) for one in rows.barrier().mapPartitions(self._task).collect()
            ]
        raise CannotRunError(problem_in(reports))

    def _await_executors(self, spark: "SparkSession") -> None:
        """Wait until there is an executor for each host: the scheduler then gives every executor a
        task before any gets a second."""
        wanted, there = self._cluster.hosts, 0
        until = time.monotonic() + self._cluster.wait_s
        status: Any = spark.sparkContext._jsc.sc()
        while there < wanted:
            if self.ending or time.monotonic() > until:
                raise CannotRunError(
                    f"Spark gives {there} of {wanted} hosts within {self._cluster.wait_s:g} s: "
                    "are there as many workers with free cores and memory? (--spark-wait waits "
                    "longer)"
                )
            time.sleep(_LOOK_S)
            there = status.getExecutorMemoryStatus().size() - 1  # the driver counts, too

    def cancel(self) -> None:
        """Cancel the job, without waiting for its end."""
        self.ending = True
        if self._spark is not None:
            with suppress(Exception):
                self._spark.sparkContext.cancelAllJobs()

    def kill(self) -> None:
        """Kill the JVM, for a session that neither starts nor stops."""
        from pyspark import SparkContext

        context: Any = SparkContext
        gateway = context._gateway
        if gateway is not None:
            gateway.proc.kill()
            gateway.proc.wait()
            gateway.proc.stdin.close()
            with suppress(Exception):
                gateway.shutdown()
            context._gateway = context._jvm = None


def _text_of(error: Exception) -> str:
    """Return the text of an error; that of a Java error needs the JVM, which may have ended."""
    with suppress(Exception):
        return str(error)
    return ""


@asynccontextmanager
async def _job(
    cluster: Cluster, here: str, task: Callable[..., Iterator[str]]
) -> AsyncIterator[_Job]:
    """Run the job that keeps the agents, from its tasks' start to its end."""
    job = _Job(cluster, here, task)
    job.thread.start()
    try:
        await _submitted(job, cluster)
        yield job
    finally:
        await asyncio.shield(_end(job))


async def _submitted(job: _Job, cluster: Cluster) -> None:
    """Wait until the job is submitted; raise CannotRunError if Spark takes too long."""
    try:
        async with asyncio.timeout(cluster.wait_s):
            await finished_or(job.started.wait(), job.over)
    except TimeoutError:
        raise CannotRunError(
            f"Spark at {printable(cluster.master, 100)} did not start within {cluster.wait_s:g} s: "
            "is this the address of its master? (--spark-wait waits longer)"
        ) from None
    await finished_or(job.ready.wait(), job.over)
    if job.over.is_set():
        raise job.error


async def _end(job: _Job) -> None:
    """Wait for the job to end; if it does not, cancel it, then kill the JVM."""
    job.ending = True
    if job.started.is_set():
        await asyncio.to_thread(job.thread.join, END_S)
    for step in (job.cancel, job.kill) if job.started.is_set() else (job.kill,):
        if job.thread.is_alive():
            step()
            await asyncio.to_thread(job.thread.join, END_S)


def _settings(cluster: Cluster, here: str) -> dict[str, str]:
    """Return Spark's settings of the job; the user's win, except over those that forbid retries.

    Raise UsageError if the number of cores is invalid.
    """
    settings = {
        "spark.app.name": f"loadgen, {cluster.hosts} load hosts",
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        "spark.dynamicAllocation.enabled": "false",
        "spark.executor.instances": str(cluster.hosts),
        "spark.executor.heartbeatInterval": "5s",
        "spark.network.timeout": "60s",
        "spark.driver.memory": "512m",
    }
    cores = cluster.settings.get("spark.executor.cores")
    if cores is not None:
        if not cores.isdecimal() or not int(cores):
            raise UsageError(
                f"--spark-conf: spark.executor.cores={printable(cores, 40)} is no number of cores; "
                "allowed: 1 or more, as spark.executor.cores=16"
            )
        # A task then fills its executor.
        settings["spark.task.cpus"] = cores
        settings["spark.cores.max"] = str(int(cores) * cluster.hosts)
    if cluster.archive is not None:
        settings["spark.archives"] = f"{cluster.archive}#environment"
        settings["spark.pyspark.python"] = "./environment/bin/python"
    once = {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1"}
    return settings | dict(cluster.settings) | once


# On an executor ---------------------------------------------------------------------------------


def _agents_task(
    hosts: int, coordinator: tuple[str, int], secret: str
) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the task of each partition, which becomes the parent of that host's agent.

    It yields one line of JSON when the agent has ended, or if a host lacks something. The function
    is sent by value, so that a host without this package can report that.
    """
    program = PROGRAM

    def task(_rows: Iterable[int]) -> Iterator[str]:
        import importlib
        import json
        import socket

        from pyspark import BarrierTaskContext

        context: Any = BarrierTaskContext.get()
        report = {"number": context.partitionId(), "name": socket.gethostname(), "lacks": ""}
        try:
            there = importlib.import_module("loadgen.spark.agents")
            report |= {"machine": there.machine_identity(), "program": there.PROGRAM}
        except ImportError as error:
            report["lacks"] = f"its Python has no {error.name or error}"
        everyone = [json.loads(said) for said in context.allGather(json.dumps(report))]
        if all(not one["lacks"] and one["program"] == program for one in everyone):
            settings = {"coordinator": coordinator, "secret": secret, "host": report["number"]}
            report["ended"] = there.keep_agent(settings)
        yield json.dumps(report)

    return task


def keep_agent(settings: Mapping[str, object]) -> str:
    """Run an agent with these settings until it ends; return the reason.

    If this process is killed, the agent's standard input closes, and the agent ends as well.
    """
    import sys

    from loadgen.run.hosts.forkserver_process import child_environment

    with subprocess.Popen(
        [sys.executable, "-P", "-m", "loadgen.run.hosts.agent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=child_environment(),
    ) as agent:
        assert agent.stdin is not None and agent.stdout is not None
        agent.stdin.write(json.dumps(settings).encode() + b"\n")
        agent.stdin.flush()
        output = agent.stdout.read().decode("utf-8", "replace").strip().splitlines()
    with suppress(ValueError, IndexError, KeyError):
        return str(json.loads(output[-1])["ended"])
    return f"it ended with status {agent.returncode}"


def problem_in(reports: Sequence[_Report]) -> str:
    """Return the reason why the agents ended or were not started, in one line."""
    lacking = [report for report in reports if report["lacks"]]
    if lacking:
        names = ", ".join(sorted({printable(report["name"], 60) for report in lacking})[:5])
        return (
            f"{names}: {printable(lacking[0]['lacks'], 100)}; install loadgen there, or use --ship"
        )
    first = next((report for report in reports if report["program"] != PROGRAM), reports[0])
    name = printable(first["name"], 60)
    if "ended" in first:
        return f"the agent of host {name} ended: {printable(first['ended'], 200)}"
    return (
        f"{name}: it has {printable(first['program'], 60)} and this host {PROGRAM}; install the "
        "same there, or use --ship"
    )
