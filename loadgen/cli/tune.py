"""`loadgen tune`: what a host should be like, what this one lacks, and a script that changes it."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import typer

from loadgen import PROGRAM
from loadgen.cases.case import Case
from loadgen.cases.registry import resolve
from loadgen.cli import options
from loadgen.cli.plan import planned_endpoints
from loadgen.errors import ScenarioError
from loadgen.run import tuning
from loadgen.run.broker_provider import plan_for
from loadgen.sentences import CLI_TEXT


def show(flags: options.Flags) -> int:
    table = tuning.read_profile(flags["profile"])
    if flags["json_"]:
        print(json.dumps(asdict(table), indent=2, ensure_ascii=False))
        return 0
    print(f"{table.name}: {table.title}\n")
    for setting in table.settings:
        published = f" (published: {setting.published})" if setting.published else ""
        print(f"{setting.area:<8}{setting.name}  {_wanted(setting.rule, setting.value)}{published}")
        print(f"        why     {setting.reason}")
        print(f"        else    {setting.cost}")
        print(f"        source  {setting.source}")
    for note in table.advice:
        print(f"\nby hand, {note.name}: {note.text}\n        source  {note.source}")
    print("\nSettings of the report that the profile leaves out:")
    for note in table.left_out:
        values = ", ".join(dict.fromkeys(note.published.split(", ")))
        print(f"        {note.name} ({values}): {note.text}")
    return 0


def script(flags: options.Flags) -> int:
    print(tuning.render_script(tuning.read_profile(flags["profile"]), PROGRAM), end="")
    return 0


def check(flags: options.Flags) -> int:
    context = flags["context"]
    context.obj = flags
    if context.invoked_subcommand is not None:
        return 0
    # The value of a group's callback is not the command's status.
    raise typer.Exit(_compared(flags, None))


def check_case(case: Case[Any], flags: options.Flags) -> int:
    plan = resolve(options.read_scenario(case, flags))
    brokers = plan.brokers
    placed = plan
    if brokers.private:
        # Given by URL, so that shortages of a private broker are findings and not errors.
        elsewhere = replace(brokers, names=("mqtt://127.0.0.1",))
        placed = replace(plan, brokers=elsewhere)
    plan = asyncio.run(plan_for(placed, planned_endpoints(brokers)))
    return _compared(flags["context"].obj, tuning.demand_of(replace(plan, brokers=brokers)))


def _compared(flags: options.Flags, demand: tuning.Demand | None) -> int:
    profile = tuning.read_profile(flags["profile"])
    interface = flags["interface"] or tuning.interface_of()
    if (named := flags["interface"]) and not Path("/sys/class/net", named).exists():
        raise ScenarioError(CLI_TEXT.NO_INTERFACE(name=named[:60]))
    findings = tuning.compare(profile, tuning.observe(profile, interface=interface), demand)
    if flags["json_"]:
        record = tuning.tuning_record(profile, findings) | {"interface": interface}
        if demand is not None:
            record["needs"] = asdict(demand)
        print(json.dumps(record, indent=2, ensure_ascii=False))
    else:
        print("\n".join(_lines(profile, findings, planned=demand is not None)))
    return int(
        any(
            finding.state == "short" if demand is None else finding.effect == "costs"
            for finding in findings
        )
    )


def _lines(
    profile: tuning.Profile, findings: Sequence[tuning.Finding], *, planned: bool
) -> list[str]:
    short = [
        finding for finding in findings if finding.state == "short" or finding.effect == "costs"
    ]
    lines = []
    for finding in short:
        setting, found = finding.setting, finding.actual or "nothing"
        stopped = setting.rule == "stopped"
        wanted = " is running" if stopped else f", wanted {_wanted(setting.rule, setting.value)}"
        lines.append(f"{setting.name}: {found}{wanted}")
        lines.append(f"    {finding.detail if planned else setting.cost}")
    unknown = [finding.setting.name for finding in findings if finding.state == "unknown"]
    if unknown:
        lines.append(f"cannot be read on this host: {', '.join(unknown)}")
    met = sum(finding.state == "met" for finding in findings)
    lines.append(f"{met} of {len(findings)} settings of {profile.name} are met")
    if planned:
        felt = [finding.setting.name for finding in findings if finding.effect == "costs"]
        lines.append(f"these affect the planned run: {', '.join(felt) if felt else 'none'}")
    elif short:
        lines.append(f"to fix this: loadgen tune script --profile {profile.name}")
    return lines


def _wanted(rule: str, value: str) -> str:
    words = {"least": "at least ", "most": "at most ", "covers": "to cover ", "holds": "to hold "}
    if rule == "stopped":
        return "not running: " + value.replace("|", ", ")
    return words.get(rule, "") + value.replace("|", " or ")
