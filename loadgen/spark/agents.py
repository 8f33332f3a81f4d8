"""Load hosts of a Spark cluster: a barrier job starts one agent on each of N executors.

    async with Cluster("spark://master:7077", 4).opened() as hosts:
        await run(scenario, directory, hosts=hosts)

Spark only places the agents and keeps them: each is a task. It talks to the coordinator over a
separate channel, whose secret the job brings to the tasks: it is in no argument, environment,
setting or log.

Spark must never repeat the stage, as that would play the load again: the job is collected directly,
and a task that fails ends it.
"""

import asyncio
import os
import secrets
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from loadgen.errors import CannotRunError, LoadgenError, UsageError
from loadgen.run.hosts.remote_host import WAIT_S, Agents, Hosts, listening
from loadgen.run.redaction import printable
from loadgen.run.tasks import background, finished_or
from loadgen.sentences import SPARK_TEXT
from loadgen.spark.session import open_session, reason_in, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

END_S = 5.0
"""Longest wait for the job to end after its agents were released."""
_LOOK_S = 0.1
_MASTERS = "spark://HOST:7077, yarn, k8s://HOST:443 or local-cluster[HOSTS,CORES,MIB]"


@dataclass(frozen=True, slots=True)
class Cluster:
    """The requested hosts; `settings` are Spark's, and `archive` is a packed environment for the
    executors. Agents connect to `listen`, by default a free port on the route to the master."""

    master: str
    hosts: int
    settings: Mapping[str, str] = field(default_factory=dict)
    archive: Path | None = None
    wait_s: float = WAIT_S
    listen: tuple[str, int] | None = None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Hosts]:
        """Provide the hosts, each with a connected agent; agents and job end with the block.

        Raise UsageError for an invalid master, and CannotRunError if a step to get the hosts takes
        longer than `wait_s`.
        """
        _require_master(self.master)
        here, port = self.listen or (_own_address(self.master), 0)
        secret = secrets.token_hex(32).encode()
        async with listening(here, port, secret) as server:
            job = _Job(self, here, _agent_task(here, server.address[1], secret))
            job.thread.start()
            try:
                try:
                    async with asyncio.timeout(self.wait_s):
                        await finished_or(job.started.wait(), job.over)
                except TimeoutError:
                    raise CannotRunError(
                        SPARK_TEXT.SLOW_MASTER(
                            master=printable(self.master, 100), wait_s=self.wait_s
                        )
                    ) from None
                # First the executors have to come, then their agents.
                gathering = server.gathered(self.hosts, 2 * self.wait_s)
                gathered = await finished_or(gathering, job.over)
                if job.over.is_set():
                    raise job.error
                hosts = gathered.result()
                async with background(_lose(hosts, job)):
                    yield hosts
            finally:
                server.close()  # the agents go first, then the job can end
                await asyncio.shield(_end(job))


HostSource: TypeAlias = Cluster | Agents
"""Hosts of a run besides this one."""


async def _lose(hosts: Hosts, job: "_Job") -> None:
    """Count hosts as lost if the job ends before they are released."""
    await job.over.wait()
    for agent in hosts.agents:
        agent.lose(str(job.error))


def _require_master(master: str) -> None:
    """Refuse an invalid master before anything is started."""
    kind, _, rest = master.partition("://")
    if kind not in ("spark", "k8s") and not (
        master == "yarn" or master.startswith("local-cluster[")
    ):
        raise UsageError(
            SPARK_TEXT.MASTER_WITHOUT_EXECUTORS(master=printable(master, 100), masters=_MASTERS)
        )
    for place in rest.rpartition("://")[2].strip("/").split(",") if rest else ():
        if not place.rpartition(":")[2].isdigit():
            raise UsageError(
                SPARK_TEXT.MASTER_WITHOUT_PORT(master=printable(master, 100), masters=_MASTERS)
            )


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
        self.error: LoadgenError = CannotRunError(SPARK_TEXT.JOB_ENDED())
        self.ending = False
        self.thread = threading.Thread(target=self._run, name="spark", daemon=True)
        self._cluster = cluster
        self._settings = _settings(cluster, here)
        self._task = task
        self._loop = asyncio.get_running_loop()
        self._spark: SparkSession | None = None

    def _run(self) -> None:
        try:
            self._play()
        except LoadgenError as error:
            self.error = error
        except Exception as error:
            reason = printable(reason_in(str(error)) or type(error).__name__, 400)
            self.error = CannotRunError(SPARK_TEXT.DRIVER_FAILED(reason=reason))
        self._set(self.over)

    def _set(self, event: asyncio.Event) -> None:
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(event.set)

    def _play(self) -> None:
        cluster = self._cluster
        with open_session(cluster.master, options=self._settings) as spark:
            self._spark = spark
            self._set(self.started)
            with spark_errors("the Spark job failed"):
                self._await_executors(spark)
                rows = spark.sparkContext.parallelize(range(cluster.hosts), cluster.hosts)
                ended = rows.barrier().mapPartitions(self._task).collect()
        raise CannotRunError(SPARK_TEXT.AGENT_ENDED(host=printable(ended[0], 300)))

    def _await_executors(self, spark: "SparkSession") -> None:
        """Wait until there is an executor for each host: the scheduler then gives every executor a
        task before any gets a second."""
        wanted, there = self._cluster.hosts, 0
        until = time.monotonic() + self._cluster.wait_s
        status: Any = spark.sparkContext._jsc.sc()
        while there < wanted:
            if self.ending or time.monotonic() > until:
                raise CannotRunError(
                    SPARK_TEXT.FEW_HOSTS(there=there, wanted=wanted, wait_s=self._cluster.wait_s)
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

        gateway = SparkContext._gateway
        if gateway is not None:
            gateway.proc.kill()


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
            raise UsageError(SPARK_TEXT.EXECUTOR_CORES(cores=printable(cores, 40)))
        # A task then fills its executor.
        settings["spark.task.cpus"] = cores
        settings["spark.cores.max"] = str(int(cores) * cluster.hosts)
    if cluster.archive is not None:
        settings["spark.archives"] = f"{cluster.archive}#environment"
        settings["spark.pyspark.python"] = "./environment/bin/python"
    once = {"spark.task.maxFailures": "1", "spark.stage.maxConsecutiveAttempts": "1"}
    return settings | dict(cluster.settings) | once


# On an executor ---------------------------------------------------------------------------------


def _agent_task(address: str, port: int, secret: bytes) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the task of each partition, which is the agent of that host until it is released.

    The function is sent by value, so that a host without this package can report that.
    """

    def task(_rows: Iterable[int]) -> Iterator[str]:
        import asyncio
        import importlib
        import socket
        import sys

        name = socket.gethostname()
        try:
            agent = importlib.import_module("loadgen.run.hosts.agent")
            reason = asyncio.run(agent.serve(address, port, secret))
        except ImportError as error:
            raise RuntimeError(
                f"{name}: its Python, {sys.executable}, has no {error.name or error}; install "
                "loadgen there, or use --ship"
            ) from None
        except OSError as error:
            raise RuntimeError(
                f"{name}: the coordinator at {address}:{port} cannot be reached: {error}"
            ) from None
        yield f"{name} ended: {reason}"

    return task
