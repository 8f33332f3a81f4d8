"""`loadgen plan CASE`: the needs of a run; nothing runs, and no broker is contacted."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.case import Case
from loadgen.cases.registry import resolve
from loadgen.cli import options
from loadgen.cli.cluster import parsed
from loadgen.errors import HostLimitError, reword
from loadgen.plan.plan import Brokers
from loadgen.sentences import CLI_TEXT, counted

if TYPE_CHECKING:
    from loadgen.brokers.endpoints import Endpoint


def planned_endpoints(brokers: Brokers) -> "list[Endpoint]":
    """Return the addresses of these brokers, with those that a run would start."""
    from loadgen.brokers.endpoints import Endpoint, parse_broker

    # A broker that would be started here listens on loopback.
    here = Endpoint("mqtts" if brokers.encrypted else "mqtt", "127.0.0.1", 1883)
    parsed = [parse_broker(address) for address in brokers.addresses]
    endpoints = [item if isinstance(item, Endpoint) else here for item in parsed]
    # Several brokers, each at a separate port, and those behind a bridge.
    endpoints += [replace(here, port=2884 + n) for n in range(brokers.instances - 1)]
    behind = brokers.backends if brokers.private else 0
    return endpoints + [replace(here, port=1884 + n) for n in range(behind)]


def _command(case: Case[Any]) -> Callable[..., int]:
    def command(flags: options.Flags) -> int:
        import asyncio

        from loadgen.plan.fit import describe
        from loadgen.plan.groups import Target
        from loadgen.plan.host_needs import fewest_hosts, host_like, host_needs
        from loadgen.run.broker_provider import plan_for
        from loadgen.run.environment import host_of

        variant = flags.get("variant")
        if case.variants is not None and variant is not None:
            flags = {**flags, case.variants.field: variant}
        plan = resolve(options.read_scenario(case, flags))
        host = replace(host_of(), name="", addresses=())
        if (each := flags["each_host"]) is not None:
            host = parsed("each_host", each, partial(host_like, host=host))
        endpoints = planned_endpoints(plan.brokers)
        try:
            plan = asyncio.run(plan_for(plan, endpoints, (host,) * plan.scenario.hosts))
        except HostLimitError as error:
            targets = tuple(Target(one.host, one.port) for one in endpoints)
            fewest, _ = fewest_hosts(plan, host, targets)
            if fewest > plan.scenario.hosts:
                reword(error, CLI_TEXT.MORE_HOSTS(error=error, fewest=fewest))
            raise
        described = describe(plan)
        described["each_host"] = asdict(host_needs(plan, host))
        print(json.dumps(described, indent=2) if flags["json_"] else "\n".join(_lines(described)))
        return 0

    listed = [*options.case_options(case), *options.declared("plan")]
    if case.variants is not None:
        # The command that runs the case has its variants as commands.
        names = "|".join(case.variants.commands)
        argument = typer.Argument(metavar=names, help=f"The same as --{case.variants.field}.")
        listed.insert(0, options.parameter("variant", str | None, None, argument))
    return options.with_options(command, listed, options.help_of(case, "plan"))


def _lines(described: Mapping[str, Any]) -> list[str]:
    from loadgen.report.render.text import number

    hosts, each = described["hosts"], described["each_host"]
    lines = []
    for group in described["groups"]:
        publishes = group["publishes"]
        sends = f", {number(publishes['rate'])} msg/s together" if publishes else ""
        lines.append(_line(group["count"], _noun(group["count"], group["name"]) + sends))
    for share in described["shares"][:10]:
        devices = ", ".join(f"{n:,} {_noun(n, name)}" for name, n in share["devices"].items())
        source = f" from {share['source_address']}" if share["source_address"] else ""
        host = f"host {share['host']}, " if hosts > 1 else ""
        lines.append(f"    {host}worker {share['worker']}{source}: {devices}")
    if len(described["shares"]) > 10:
        lines.append(f"    ... {counted(len(described['shares']) - 10, 'worker')} more, alike")
    lines.append(_line(described["workers"], _noun(described["workers"], "workers")))
    if hosts > 1:
        workers = counted(each["workers"], "worker")
        lines += [_line(hosts, "hosts, of which the fullest needs"), ""]
        lines.append(_line(each["devices"], f"devices in {workers}"))
        addresses = each["source_addresses"]
        lines.append(_line(addresses, "source address" if addresses == 1 else "source addresses"))
    fewest, because = each["fewest"], each["because"]
    suffices = []
    if fewest != 1 or each["hosts"] != 1:
        such = f"{fewest:,} such hosts would do" if fewest else "No number of such hosts would do"
        suffices = ["", f"{such}{'; with fewer: ' if because else '.'}{because}"]
    ended = f"{number(round(each['run_s']))} to the end"
    return [
        *lines,
        _line(each["descriptors_per_worker"], "descriptors of each worker"),
        _line(each["ports_per_source_address"], "local ports of each source address"),
        _line(round(each["memory_bytes"] / 2**20), "MiB of memory"),
        f"{each['cores']:>12.2f}  processors for its messages",
        _line(round(each["connects_per_s"]), "connects a second"),
        _line(round(each["connect_s"]), f"seconds to connect them, {ended}"),
        _line(described["send_tick_us"], "µs as the longest wait of a due message for others"),
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


def app() -> typer.Typer:
    return options.cases_app("plan", _command)
