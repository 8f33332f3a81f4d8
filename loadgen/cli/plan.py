"""`loadgen plan CASE`: what a run would need; nothing is run and nobody is asked."""

import asyncio
import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from loadgen.cli.options import (
    Flags,
    case_options,
    help_of,
    json_option,
    read_scenario,
    with_options,
)
from loadgen.errors import UsageError
from loadgen.workload.cases import CASE_INFO, backends_of
from loadgen.workload.scenario import CASES, Case, Scenario

if TYPE_CHECKING:
    from loadgen.brokers.endpoints import Endpoint

__all__ = ["app", "planned_endpoints"]

app = typer.Typer(
    help="What a run would need: workers, descriptors, ports and memory. Runs nothing.",
    add_completion=False,
)


def planned_endpoints(scenario: Scenario) -> "list[Endpoint]":
    """Where the scenario's brokers are, those included that a run would start."""
    from loadgen.brokers.endpoints import Endpoint, parse_broker

    parsed = [parse_broker(text) for text in scenario.broker]
    # A broker that would be started here listens on loopback.
    here = Endpoint("mqtt", "127.0.0.1", 1883)
    endpoints = [item if isinstance(item, Endpoint) else here for item in parsed]
    # So do several, each at a port of its own.
    endpoints += [replace(here, port=2884 + n) for n in range(scenario.instances - 1)]
    # Behind a bridge that would be started here, each is an address of its own.
    for number in range(backends_of(scenario)):
        behind = parse_broker(scenario.backend[number]) if scenario.backend else here
        assert isinstance(behind, Endpoint)
        endpoints.append(behind if scenario.backend else replace(here, port=1884 + number))
    return endpoints


def _command(case: Case) -> Callable[..., int]:
    def command(given: Flags) -> int:
        from loadgen.control.coordinator import plan_for
        from loadgen.workload.plan import describe

        scenario = read_scenario(case, given)
        described = describe(asyncio.run(plan_for(scenario, planned_endpoints(scenario))))
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


@app.callback(invoke_without_command=True)
def _root(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        raise UsageError(f"plan: which case? allowed: {', '.join(CASES)}")


for _case in CASES:
    app.command(_case, short_help=CASE_INFO[_case].summary)(_command(_case))
