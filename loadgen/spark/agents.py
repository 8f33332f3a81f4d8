"""Load hosts of a Spark cluster: a barrier job starts one agent on each of N executors.

    async with Cluster("spark://master:7077", 4).opened() as hosts:
        await run(scenario, directory, hosts=hosts)

An agent is a task with all cores of an executor. It talks to the coordinator over a separate
channel, whose secret is in no argument, environment, setting or log. Spark must never repeat the
stage, which would repeat the load: the job is collected directly, and a task that fails ends it.
"""

import asyncio
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import TypeAlias

from loadgen.brokers.this_host import with_descendants
from loadgen.errors import CannotRunError, LoadgenError, UsageError
from loadgen.run.hosts.remote_host import WAIT_S, Agents, Hosts, listening
from loadgen.run.tasks import background, finished_or
from loadgen.sentences import SPARK_TEXT, printable
from loadgen.spark.session import SETTINGS, open_session, places_of, reason_in, spark_errors

END_S = 5.0  # longest wait for the job to end after its agents were released
_FEW_SLOTS = "SPARK-24819"
"""Spark's name for a barrier stage that has more tasks than there are slots."""


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
        master = printable(self.master, 100)
        if self.master.startswith(("spark://", "k8s://")):
            places_of(self.master)  # refuses one without a port before anything is started
        elif self.master != "yarn" and not self.master.startswith("local-cluster["):
            raise UsageError(SPARK_TEXT.MASTER_WITHOUT_EXECUTORS(master=master))
        here, port = self.listen or (_own_address(self.master), 0)
        secret = secrets.token_hex(32).encode()
        loop, started, over = asyncio.get_running_loop(), asyncio.Event(), asyncio.Event()
        async with listening(here, port, secret) as server:
            task = _agent_task(here, server.address[1], secret)
            start = partial(loop.call_soon_threadsafe, started.set)
            play = asyncio.to_thread(_play, self, _settings(self, here), task, start)
            job = asyncio.create_task(play)
            job.add_done_callback(lambda _: over.set())
            patience_s = 0.0
            try:
                try:
                    async with asyncio.timeout(self.wait_s):
                        await finished_or(started.wait(), over)
                except TimeoutError:
                    slow = SPARK_TEXT.SLOW_MASTER(master=master, wait_s=self.wait_s)
                    raise CannotRunError(slow) from None
                gathered = await finished_or(server.gathered(self.hosts, 2 * self.wait_s), over)
                if over.is_set():
                    await job  # raises its error
                patience_s, hosts = END_S, gathered.result()
                async with background(_lose(hosts, job)):
                    yield hosts
            finally:
                server.close()  # the agents go first, then the job can end
                await asyncio.shield(_end(job, patience_s))


HostSource: TypeAlias = Cluster | Agents  # hosts of a run besides this one


async def _lose(hosts: Hosts, job: asyncio.Task[None]) -> None:
    """Count hosts as lost if the job ends before they are released."""
    await asyncio.wait((job,))
    for agent in hosts.agents:
        agent.lose(str(job.exception()))


def _own_address(master: str) -> str:
    """Choose an address of this host for executors: the one on the route to their master."""
    named = os.environ.get("SPARK_LOCAL_IP")
    if named or master.startswith("local"):
        return named or "127.0.0.1"
    places = [] if master == "yarn" else places_of(master)
    # To connect a datagram socket sends nothing: the kernel only chooses the route.
    for host in (*(host for host, _ in places), "192.0.2.1"):
        with suppress(OSError):
            address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(address[0], socket.SOCK_DGRAM) as probe:
                probe.connect(address[4])
                return str(probe.getsockname()[0])
    return "127.0.0.1"


def _play(
    cluster: Cluster,
    settings: Mapping[str, str],
    task: Callable[[Iterable[int]], Iterator[str]],
    started: Callable[[], object],
) -> None:
    """Run a Spark session with its only job; raise CannotRunError when the job ends."""
    from pyspark.resource import ResourceProfileBuilder, TaskResourceRequests

    try:
        with open_session(cluster.master, options=settings) as spark:
            started()
            with spark_errors("the Spark job failed"):
                context = spark.sparkContext
                rows = context.parallelize(range(cluster.hosts), cluster.hosts)
                slot = TaskResourceRequests().cpus(int(settings["spark.executor.cores"]))
                profile = ResourceProfileBuilder().require(slot).build
                ended = rows.barrier().mapPartitions(task).withResources(profile).collect()
    except Exception as error:
        if _FEW_SLOTS in str(error):
            few = SPARK_TEXT.FEW_HOSTS(wanted=cluster.hosts, wait_s=cluster.wait_s)
            raise CannotRunError(few) from None
        if isinstance(error, LoadgenError):
            raise
        reason = printable(reason_in(str(error)) or type(error).__name__, 400)
        raise CannotRunError(SPARK_TEXT.DRIVER_FAILED(reason=reason)) from error
    raise CannotRunError(SPARK_TEXT.AGENT_ENDED(host=printable(ended[0], 300)))


async def _end(job: asyncio.Task[None], patience_s: float) -> None:
    """Wait this long for the job to end, then end its JVM."""
    for number, wait_s in ((0, patience_s), (signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        java = with_descendants([os.getpid()])[1:] if number and not job.done() else []
        for process in java:
            if "org.apache.spark.deploy.SparkSubmit" in process.command():
                with suppress(OSError):
                    os.kill(process.pid, number)
        await asyncio.wait((job,), timeout=wait_s)
    if job.done():
        job.exception()  # retrieved, so that asyncio does not log it


def _settings(cluster: Cluster, here: str) -> dict[str, str]:
    """Return Spark's settings of the job; the user's win, except over those that forbid retries."""
    settings = SETTINGS["agents"] | {
        "spark.app.name": f"loadgen, {cluster.hosts} load hosts",
        "spark.driver.host": here,
        "spark.driver.bindAddress": here,
        "spark.executor.instances": str(cluster.hosts),
        "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": f"{ceil(cluster.wait_s)}",
    }
    # A standalone master would give all its cores.
    cores = cluster.settings.get("spark.executor.cores", "1")
    if not cores.isdecimal() or not int(cores):
        raise UsageError(SPARK_TEXT.EXECUTOR_CORES(cores=printable(cores, 40)))
    settings |= {"spark.executor.cores": cores, "spark.cores.max": f"{int(cores) * cluster.hosts}"}
    if cluster.archive is not None:
        settings["spark.archives"] = f"{cluster.archive}#environment"
        settings["spark.pyspark.python"] = "./environment/bin/python"
    return settings | dict(cluster.settings) | SETTINGS["once"]


def _agent_task(address: str, port: int, secret: bytes) -> Callable[[Iterable[int]], Iterator[str]]:
    """Return the task of a partition, an agent. It is sent by value, as hosts may lack loadgen."""

    from pyspark import __version__ as spark_version

    def task(_rows: Iterable[int]) -> Iterator[str]:
        import importlib
        import socket
        import sys

        import pyspark

        context = pyspark.BarrierTaskContext.get()
        hosts = [info.address.partition(":")[0] for info in context.getTaskInfos()]
        name, number = socket.gethostname(), context.partitionId()
        if hosts.count(hosts[number]) > 1:
            name += f"-{hosts[:number].count(hosts[number])}"
        if pyspark.__version__ != spark_version:
            raise RuntimeError(
                f"{name}: it has Spark {pyspark.__version__}, and the driver {spark_version}; "
                "install the same on both"
            )
        try:
            agent = importlib.import_module("loadgen.run.hosts.agent")
            run = importlib.import_module("uvloop").run
            reason = run(agent.serve(address, port, secret, name))
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
