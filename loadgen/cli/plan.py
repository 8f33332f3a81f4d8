"""`loadgen plan CASE`: the needs of a run; nothing runs, and no broker is contacted."""

import asyncio
import json
import shlex
import sys
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.cases.case import Case
from loadgen.cases.registry import resolve
from loadgen.cli import options
from loadgen.cli.cluster import parsed
from loadgen.errors import HostLimitError, reword
from loadgen.plan.fit import Host, describe
from loadgen.plan.groups import Target
from loadgen.plan.host_needs import fewest_hosts, host_like, host_needs, role_needs
from loadgen.plan.plan import Brokers
from loadgen.report.render.text import number
from loadgen.run.broker_provider import plan_for
from loadgen.run.environment import host_of
from loadgen.run.preflight import completed
from loadgen.sentences import CLI_TEXT, counted


def planned_endpoints(brokers: Brokers) -> list[Endpoint]:
    """Return the addresses of these brokers, with those that a run would start."""
    # A broker that would be started here listens on loopback.
    here = Endpoint("mqtts" if brokers.encrypted else "mqtt", "127.0.0.1", 1883)
    parsed = [parse_broker(address) for address in brokers.addresses]
    endpoints = [item if isinstance(item, Endpoint) else here for item in parsed]
    # Several brokers, each at a separate port, and those behind a bridge.
    endpoints += [replace(here, port=2884 + n) for n in range(brokers.instances - 1)]
    behind = brokers.backends if brokers.private else 0
    return endpoints + [replace(here, port=1884 + n) for n in range(behind)]


def show_plan(case: Case[Any], flags: options.Flags) -> int:
    variant = flags.get("variant")
    if case.variants is not None and variant is not None:
        flags = {**flags, case.variants.field: variant}
    plan = resolve(completed(options.read_scenario(case, flags)))
    host = replace(host_of(), name="", addresses=())
    if (each := flags["each_host"]) is not None:
        host = parsed("each_host", each, partial(host_like, host=host))
    endpoints = planned_endpoints(plan.brokers)
    words = ",".join(entry.partition("=")[2] for entry in plan.scenario.place).split(",")
    labels = [word for word in dict.fromkeys(words) if not word.isdigit()] or [""]
    count = plan.scenario.hosts
    hosts = [replace(host, name=labels[n * len(labels) // count]) for n in range(count)]
    try:
        plan = asyncio.run(plan_for(plan, endpoints, hosts))
    except HostLimitError as error:
        targets = tuple(Target(one.host, one.port) for one in endpoints)
        fewest, _ = fewest_hosts(plan, host, targets)
        if fewest > plan.scenario.hosts:
            reword(error, CLI_TEXT.MORE_HOSTS(error=error, fewest=fewest))
        raise
    described = describe(plan)
    described["each_host"] = host_needs(plan, host)
    described["roles"] = role_needs(plan)
    if len(hosts) > 1 and flags["spark_master"] is None:
        described["commands"] = _commands(hosts, sys.argv[1:])
    print(json.dumps(described, indent=2) if flags["json_"] else "\n".join(_lines(described)))
    return 0


def _commands(hosts: Sequence[Host], planned: Sequence[str]) -> dict[str, str]:
    """Return the commands of the run with this plan, by the hosts on which they belong."""
    own = ArgumentParser(add_help=False, allow_abbrev=False)
    own.add_argument("--each-host")
    own.add_argument("--json", action="store_true")
    own.add_argument("--listen", default="COORDINATOR:7300")
    own.add_argument("--secret", default="file:secret")
    own_words, words = own.parse_known_args(["loadgen", *planned])
    joined = (own_words.listen, "--secret", own_words.secret)
    if "plan" in words:
        words.remove("plan")
    commands = {"COORDINATOR": shlex.join((*words, "--listen", *joined))}
    for label, alike in groupby(range(len(hosts)), lambda number: hosts[number].name):
        agent = ("loadgen", "agent", "--join", *joined, *(("--label", label) if label else ()))
        commands[_numbered([*alike])] = shlex.join(agent)
    return commands


def _numbered(hosts: Sequence[int]) -> str:
    """Return `hosts 0 to 49`, or the numbers one by one if some between are missing."""
    if 1 < len(hosts) == hosts[-1] - hosts[0] + 1:
        return f"hosts {hosts[0]} to {hosts[-1]}"
    return f"{_noun(len(hosts), 'hosts')} {', '.join(map(str, hosts))}"


def _lines(described: Mapping[str, Any]) -> list[str]:
    hosts, each = described["hosts"], described["each_host"]
    lines = []
    for group, role in zip(described["groups"], described["roles"], strict=True):
        publishes = group["publishes"]
        words = f", {number(publishes['rate'])} msg/s together" if publishes else ""
        if hosts > 1:
            words += f", on {_numbered(role['hosts'])}: {role['cores']:.2f} processors, "
            words += f"{round(role['memory_bytes'] / 2**20):,} MiB for connections"
        lines.append(_line(group["count"], _noun(group["count"], group["name"]) + words))
    for share in described["shares"][:10]:
        devices = ", ".join(f"{n:,} {_noun(n, name)}" for name, n in share["devices"].items())
        source = f" from {share['source_address']}" if share["source_address"] else ""
        host = f"host {share['host']}, " if hosts > 1 else ""
        lines.append(f"    {host}worker {share['worker']}{source}: {devices}")
    if more := len(described["shares"][10:]):
        lines.append(f"    ... {counted(more, 'similar worker')}")
    lines.append(_line(described["workers"], _noun(described["workers"], "workers")))
    if hosts > 1:
        workers = counted(each["workers"], "worker")
        lines += [_line(hosts, "hosts; the one with the largest share needs"), ""]
        lines.append(_line(each["devices"], f"devices in {workers}"))
        addresses = each["source_addresses"]
        lines.append(_line(addresses, "source address" if addresses == 1 else "source addresses"))
    suffices = []
    if because := each["because"]:
        such = f"{counted(each['fewest'], 'such host')} would be enough; with fewer, "
        such = such if each["fewest"] else "No number of such hosts is enough; "
        suffices = ["", f"{such}the limit is {each['binding'] or 'this'}: {because}"]
    elif each["hosts"] != 1:
        suffices = ["", "1 such host would be enough."]
    for where, command in described.get("commands", {}).items():
        suffices += ["", f"on {where}:", f"    {command}"]
    ended = f"{number(round(each['run_s']))} to the end of the run"
    return [
        *lines,
        _line(each["descriptors_per_worker"], "descriptors of each worker"),
        _line(each["ports_per_source_address"], "local ports of each source address"),
        _line(round(each["memory_bytes"] / 2**20), "MiB of memory"),
        f"{each['cores']:>12.2f}  processors for messages",
        _line(round(each["connects_per_s"]), "connects a second"),
        _line(round(each["connect_s"]), f"seconds to connect them, {ended}"),
        _line(described["send_tick_us"], "µs that a due message may wait to be sent with others"),
        *suffices,
    ]


def _line(count: int, text: str) -> str:
    return f"{count:>12,}  {text}"


def _noun(count: int, name: str) -> str:
    """Return the name of a group after a count, such as publishers, or subscriber after 1."""
    words = name.replace("_", " ")
    if not words.replace(" ", "").isalpha():  # a numbered group, such as 1.order
        return words
    return words.removesuffix("s") if count == 1 else words.removesuffix("s") + "s"
