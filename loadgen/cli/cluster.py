"""Runs on several hosts, from the options of a run."""

import re
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from loadgen.cases.registry import resolve
from loadgen.cli.options import Flags
from loadgen.errors import ScenarioError
from loadgen.plan.fit import hosts_of_groups
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_address, parse_seconds, shown
from loadgen.run.hosts.remote_host import WAIT_S, Agents, Hosts
from loadgen.run.interrupt import Interrupt, RunInterruptedError, interruptible
from loadgen.run.preflight import check_scenario
from loadgen.run.rundir import directory_or_new
from loadgen.run.secrets import agent_secret, take_secrets
from loadgen.run.tasks import finished_or
from loadgen.run.testbed import Testbed
from loadgen.sentences import CLI_TEXT, RUN_TEXT, counted

if TYPE_CHECKING:
    from loadgen.spark.agents import HostSource

T = TypeVar("T")


def hosts_of(scenario: Scenario, flags: Flags) -> "HostSource | None":
    """Return the hosts that scenario and options request, None for this one; raises UsageError."""
    master, listen = flags["spark_master"], flags["listen"]
    if master is None:
        for name in ("spark_conf", "ship"):
            if flags[name]:
                raise ScenarioError(CLI_TEXT.NO_CLUSTER(name=name))
    if master is None and listen is None:
        for name in ("hosts_wait", "secret"):
            if flags[name]:
                raise ScenarioError(CLI_TEXT.NO_AGENT_USED(name=name))
        if scenario.hosts > 1:
            raise ScenarioError(CLI_TEXT.NO_AGENTS())
        return None

    numbered = [one for one in scenario.place if re.fullmatch(r".*=[0-9,]+", one)]
    # Refused in a moment, and not when the agents have been started; labels are not known yet.
    hosts_of_groups(numbered, resolve(scenario).groups, [""] * scenario.hosts)
    wait_s = parsed("hosts_wait", flags["hosts_wait"] or f"{WAIT_S:g}s", parse_seconds)
    address = None if listen is None else parsed("listen", listen, parse_address)
    if master is None:
        if not flags["secret"]:
            raise ScenarioError(CLI_TEXT.NO_SECRET())

        assert address is not None
        return Agents(scenario.hosts, address, agent_secret(flags["secret"]), wait_s)
    from loadgen.spark.agents import Cluster
    from loadgen.spark.ship import packed_environment

    settings = spark_settings(flags["spark_conf"])
    archive = packed_environment() if flags["ship"] else None
    return Cluster(master, scenario.hosts, settings, archive, wait_s, address)


def parsed(name: str, text: str, parse: Callable[[str], T]) -> T:
    """Return the value of an option; raises ScenarioError."""
    try:
        return parse(text)
    except ValueError as error:
        raise ScenarioError(CLI_TEXT.VALUE(name=name, fault=error)) from None


def spark_settings(flags: Sequence[str] | None) -> dict[str, str]:
    """Read settings from NAME=VALUE; raises ScenarioError."""
    settings = {}
    for text in flags or ():
        name, equals, value = text.partition("=")
        if not equals or not name.startswith("spark."):
            raise ScenarioError(CLI_TEXT.SPARK_SETTING(text=shown(text)))
        settings[name] = value
    return settings


def on_testbed(
    work: Callable[[Path, Testbed], Coroutine[Any, Any, T]],
    scenarios: Sequence[Scenario],
    kind: str,
    flags: Flags,
    *,
    lends: bool = True,
) -> T:
    """Return the result of `work` in `--out`, or in a new directory named by its `kind`.

    The testbed has the hosts that the options request for the first scenario; Ctrl-C ends it.
    """
    for scenario in scenarios:
        take_secrets(scenario.plain())
        check_scenario(scenario)
    command = ("loadgen", *sys.argv[1:])
    source = hosts_of(scenarios[0], flags) if "spark_master" in flags else None

    async def worked(*, interrupt: Interrupt) -> T:
        async with AsyncExitStack() as stack:
            hosts = None
            if source is not None:
                hosts = await _gathered(stack, source, interrupt, quiet=flags["quiet"])
            testbed = Testbed(hosts=hosts, interrupt=interrupt, command=command, lends=lends)
            return await work(directory, await stack.enter_async_context(testbed))

    with directory_or_new(flags["out"], kind) as directory:
        return interruptible(worked)


async def _gathered(
    stack: AsyncExitStack, source: "HostSource", interrupt: Interrupt, *, quiet: bool
) -> Hosts:
    if not quiet:
        agents = counted(source.hosts, "agent")
        address = "" if source.listen is None else f" at {source.listen[0]}:{source.listen[1]}"
        print(f"waiting for {agents}{address} ...", file=sys.stderr, flush=True)
    gathered = await finished_or(stack.enter_async_context(source.opened()), interrupt.asked)
    if gathered.cancelled():
        raise RunInterruptedError(RUN_TEXT.INTERRUPTED_EARLY())
    return gathered.result()
