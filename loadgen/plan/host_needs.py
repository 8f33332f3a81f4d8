"""Resources of each host and role that a plan needs, its duration, and the fewest hosts for it."""

import math
from bisect import bisect_left
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.plan import fit
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.plan.spread import costed, most_workers
from loadgen.plan.units import parse_bytes, parse_count, parse_number
from loadgen.sentences import PLAN_TEXT, read_table

CONNECTS_PER_CORE_S = 10_000
"""Half of the connects that a core makes: the kernel's work for sockets takes as much again."""
BUSY_SHARE = 0.7
"""Highest planned load of a host's processors; above, short delays affect latencies."""
MOST_HOSTS = 10_000
_NAMES = read_table("loadgen.plan", "host_needs.toml")


def role_needs(plan: Plan) -> list[dict[str, Any]]:
    """Return what each group needs: its hosts, processors, and memory for its connections."""
    parts = [(share.group, worker.host) for worker in plan.workers for share in worker.shares]
    return [
        {
            "group": one.name,
            "hosts": sorted({host for group, host in parts if group == at}),
            "cores": one.cores * one.count,
            "memory_bytes": fit.device_bytes(plan.groups[at], plan.encrypted) * one.count,
        }
        for at, one in enumerate(costed(plan.groups, plan.separate_count))
    ]


def host_needs(plan: Plan, host: fit.Host) -> dict[str, Any]:
    """Return what the fullest of a plan's hosts needs, and the duration of the run.

    `connects_per_s` are requested, or the most that the host can make. `fewest` hosts suffice;
    `binding` is the limit that one fewer exceeds, and `because` a sentence about it.
    """
    needs = asdict(fit.needs_of(plan))
    phases = plan.phases
    wanted = (phases.connect_rate or math.inf) / plan.scenario.hosts
    connects = min(CONNECTS_PER_CORE_S * host.cores, wanted)
    connect_s = needs["devices"] / connects
    fewest, because = fewest_hosts(plan, host, plan.targets)
    return needs | {
        "hosts": plan.scenario.hosts,
        "connects_per_s": connects,
        "connect_s": connect_s,
        "run_s": connect_s + phases.warmup_s + phases.duration_s + phases.drain_s,
        "fewest": fewest,
        "binding": _NAMES["binding"].get(getattr(because, "code", ""), ""),
        "because": because,
    }


def fewest_hosts(plan: Plan, host: fit.Host, targets: tuple[Target, ...]) -> tuple[int, str]:
    """Return the fewest hosts like this one that suffice, 0 above MOST_HOSTS, and the limit."""

    @cache  # each plan that is tried takes time
    def lacking(hosts: int) -> str:
        # Groups have no fixed hosts here, and each network is taken to be as large as the first.
        network = (plan.scenario.source_address or "").partition(",")[0] or None
        changed = {"hosts": hosts, "place": (), "source_address": network}
        scenario = plan.scenario.model_copy(update=changed)
        return _lacking(replace(plan, scenario=scenario), host, targets)

    least = _least_hosts(plan, host, targets)
    most = min(MOST_HOSTS, most_workers(costed(plan.groups, plan.separate_count)))
    short, enough = least - 1, least
    while enough < most and lacking(enough):
        short, enough = enough, 2 * enough - least + 1
    enough = min(enough, most)
    if why := lacking(enough):
        return 0, why
    enough = bisect_left(range(enough), True, lo=short + 1, key=lambda hosts: not lacking(hosts))
    return enough, lacking(enough - 1) if enough > 1 else ""


def _least_hosts(plan: Plan, host: fit.Host, targets: tuple[Target, ...]) -> int:
    """Return a lower bound of the hosts that a plan needs, from what is known without a plan."""
    groups, cores = costed(plan.groups, plan.separate_count), BUSY_SHARE * host.cores
    loads = [one.cores * one.count for one in groups]
    if any(load > cores * one.parts for load, one in zip(loads, groups, strict=True)):
        return MOST_HOSTS + 1  # one part, which cannot be divided, is too much for a host
    devices = sum(group.count for group in groups)
    needed = sum(fit.device_bytes(group, plan.encrypted) * group.count for group in groups)
    needed += -(-devices // host.descriptors) * fit.WORKER_BYTES
    for_memory = -(-needed // max(1, int(host.memory_bytes * fit.MEMORY_SHARE)))
    most = [fit.WORKERS_LIMIT * host.descriptors]
    loopback = all(target.host.startswith("127.") for target in targets)
    if plan.scenario.source_address is None and not loopback:
        most.append(host.local_ports * len(targets))
    return max(for_memory, -(-devices // max(1, min(most))), math.ceil(sum(loads) / cores))


def _lacking(plan: Plan, host: fit.Host, targets: tuple[Target, ...]) -> str:
    """Return the reason why hosts like this one do not suffice for a plan, "" if they do."""
    try:
        needs = fit.needs_of(fit.fit_plan(plan, host, targets, 0))
    except LoadgenError as error:
        reason: str = error.args[0]
        return reason
    if few := few_processors(needs, host):
        return few
    wanted = plan.phases.connect_rate or 0.0
    most = int(CONNECTS_PER_CORE_S * host.cores)
    return PLAN_TEXT.CONNECT_RATE(most=most) if wanted / plan.scenario.hosts > most else ""


def few_processors(needs: fit.Needs, host: fit.Host) -> str:
    """Return a sentence if the messages would take too much of a host's processors, else ""."""
    if needs.cores <= BUSY_SHARE * host.cores:
        return ""
    return PLAN_TEXT.PROCESSORS(needed=needs.cores, cores=host.cores, share=BUSY_SHARE)


def host_like(text: str, host: fit.Host) -> fit.Host:
    """Return `host` with the values of a text such as cores=16,memory=64GiB; raise ValueError."""
    changed: dict[str, Any] = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        if not equals or name not in _NAMES["fields"]:
            raise ValueError(
                f"{entry[:60]!r} is not one of {', '.join(f'{own}=N' for own in _NAMES['fields'])}"
            )
        parse = {"memory": parse_bytes, "cores": parse_number}.get(name, parse_count)
        changed[_NAMES["fields"][name]] = parse(value)
    if not all(changed.values()):
        raise ValueError("no value may be 0")
    return replace(host, **changed)
