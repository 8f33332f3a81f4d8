"""Runs on hosts of a Spark cluster, from the options of a run."""

import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen.cli.options import Flags
from loadgen.errors import ScenarioError
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_seconds, shown

if TYPE_CHECKING:
    from loadgen.run.hosts.remote_host import Hosts
    from loadgen.run.interrupt import Interrupt
    from loadgen.run.testbed import Testbed
    from loadgen.spark.agents import Cluster

T = TypeVar("T")


def cluster_of(scenario: Scenario, flags: Flags) -> "Cluster | None":
    """Return the hosts that scenario and options request, None for this one; raises UsageError."""
    master = flags["spark_master"]
    if master is None:
        for name in ("spark_wait", "spark_conf", "ship"):
            if flags[name]:
                raise ScenarioError(f"{name}: there is no cluster; allowed: with --spark-master")
        if scenario.hosts > 1:
            raise ScenarioError(
                "hosts: several hosts are those of a Spark cluster; allowed: with --spark-master"
            )
        return None
    from loadgen.cases.registry import resolve
    from loadgen.plan.fit import hosts_of_groups
    from loadgen.spark.agents import WAIT_S, Cluster
    from loadgen.spark.ship import packed_environment

    # Refused in a moment, and not when the agents have been started.
    hosts_of_groups(scenario.place, resolve(scenario).groups, scenario.hosts)
    try:
        wait_s = WAIT_S if flags["spark_wait"] is None else parse_seconds(flags["spark_wait"])
    except ValueError as error:
        raise ScenarioError(f"spark_wait: {error}") from None
    settings = spark_settings(flags["spark_conf"])
    archive = packed_environment() if flags["ship"] else None
    return Cluster(master, scenario.hosts, settings, archive, wait_s)


def spark_settings(flags: Sequence[str] | None) -> dict[str, str]:
    """Read settings from NAME=VALUE; raises ScenarioError."""
    return dict(map(_setting, flags or ()))


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("spark."):
        raise ScenarioError(
            f"spark_conf: {shown(text)} is no setting; allowed: as spark.executor.cores=16"
        )
    return name, value


def on_testbed(
    work: "Callable[[Testbed], Coroutine[Any, Any, T]]",
    cluster: "Cluster | None",
    *,
    quiet: bool,
    command: Sequence[str] = (),
    lends: bool = True,
) -> T:
    """Return the result of `work` on a testbed with the hosts of the cluster; Ctrl-C ends a run.

    `command` is noted in run.json, by default the command line.
    """
    from loadgen.run.interrupt import interruptible

    words = command or ("loadgen", *sys.argv[1:])

    async def worked(*, interrupt: "Interrupt") -> T:
        from loadgen.run.testbed import Testbed

        async with AsyncExitStack() as stack:
            hosts = None
            if cluster is not None:
                hosts = await _start_hosts(stack, cluster, interrupt, quiet=quiet)
            testbed = Testbed(hosts=hosts, interrupt=interrupt, command=words, lends=lends)
            return await work(await stack.enter_async_context(testbed))

    return interruptible(worked)


async def _start_hosts(
    stack: AsyncExitStack, cluster: "Cluster", interrupt: "Interrupt", *, quiet: bool
) -> "Hosts":
    from loadgen.run.interrupt import RunInterruptedError
    from loadgen.run.tasks import finished_or
    from loadgen.spark.agents import hosts_of_cluster

    if not quiet:
        agents = "an agent" if cluster.hosts == 1 else f"an agent on each of {cluster.hosts} hosts"
        print(f"starting {agents} by Spark ...", file=sys.stderr, flush=True)
    entered = stack.enter_async_context(hosts_of_cluster(cluster))
    started = await finished_or(entered, interrupt.asked)
    if started.cancelled():
        raise RunInterruptedError("interrupted before anything was measured")
    return started.result()
