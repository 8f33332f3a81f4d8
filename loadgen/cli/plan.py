"""`loadgen plan CASE`: what a run would need; nothing is run and nobody is asked."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cases.registry import resolve
from loadgen.cli.options import (
    Flags,
    Words,
    case_options,
    cases_app,
    help_of,
    json_option,
    read_scenario,
    with_options,
)
from loadgen.workload.case import Case
from loadgen.workload.workload import Brokers

if TYPE_CHECKING:
    from loadgen.brokers.endpoints import Endpoint

SUMMARY = "What a run would need: workers, descriptors, ports and memory. Runs nothing."


def planned_endpoints(brokers: Brokers) -> "list[Endpoint]":
    """Where these brokers are, those included that a run would start."""
    from loadgen.brokers.endpoints import Endpoint, parse_broker

    # A broker that would be started here listens on loopback.
    here = Endpoint("mqtts" if brokers.encrypted else "mqtt", "127.0.0.1", 1883)
    parsed = [parse_broker(address) for address in brokers.addresses]
    endpoints = [item if isinstance(item, Endpoint) else here for item in parsed]
    # So do several, each at a port of its own, and those behind a bridge.
    endpoints += [replace(here, port=2884 + n) for n in range(brokers.instances - 1)]
    behind = brokers.backends if brokers.private else 0
    return endpoints + [replace(here, port=1884 + n) for n in range(behind)]


def _command(case: Case[Any]) -> Callable[..., int]:
    def command(given: Flags) -> int:
        import asyncio

        from loadgen.control.targets import plan_for
        from loadgen.workload.plan import describe

        workload = resolve(read_scenario(case, given))
        described = describe(asyncio.run(plan_for(workload, planned_endpoints(workload.brokers))))
        print(json.dumps(described, indent=2) if given["json_"] else "\n".join(_lines(described)))
        return 0

    return with_options(command, [*case_options(case), json_option()], help_of(case))


def _lines(described: Mapping[str, Any]) -> list[str]:
    needs = described["needs"]
    lines = []
    for group in described["groups"]:
        publishes = group["publishes"]
        sends = f", {publishes['rate']:,g} msgs/sec in all" if publishes else ""
        lines.append(f"{group['count']:>12,}  {group['name']}{sends}")
    for share in described["shares"][:10]:
        devices = ", ".join(f"{count:,} {name}" for name, count in share["devices"].items())
        source = f" from {share['source_address']}" if share["source_address"] else ""
        lines.append(f"    worker {share['worker']}{source}: {devices}")
    if len(described["shares"]) > 10:
        lines.append(f"    ... {len(described['shares']) - 10} workers more, alike")
    return [
        *lines,
        f"{described['workers']:>12,}  workers",
        f"{needs['descriptors_per_worker']:>12,}  descriptors of each worker",
        f"{needs['ports_per_source_address']:>12,}  local ports of each source address",
        f"{needs['memory_bytes'] / 2**20:>12,.0f}  MiB of memory",
        f"{described['send_tick_us']:>12,}  µs that a due message may wait to be sent with others",
    ]


def app(words: Words) -> typer.Typer:
    """`loadgen plan`."""
    example = "loadgen plan fanin --devices 100k"
    return cases_app(words, "plan", f"{SUMMARY}\n\nExample: {example}", _command)
