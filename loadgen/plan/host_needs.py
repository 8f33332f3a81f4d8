"""Resources of each host that a plan needs, its duration, and the least number of hosts for it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from loadgen.errors import LoadgenError
from loadgen.plan.fit import (
    MEMORY_SHARE,
    WORKERS_LIMIT,
    Host,
    Needs,
    device_bytes,
    fit_plan,
    needs_of,
)
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.plan.units import parse_bytes, parse_count
from loadgen.sentences import counted

CONNECTS_PER_CORE_S = 10_000
"""Half of the connects that a core was measured to make (36 to 50 µs each).

The kernel's work for the sockets takes as much again."""
BUSY_SHARE = 0.7
"""Highest planned load of a host's processors; above, short delays affect latencies."""
MOST_HOSTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNeeds(Needs):
    """Resources that the fullest of a plan's hosts needs, and the duration of the run.

    `connects_per_s` is the host's part of the requested rate, or the most that it can make if no
    rate is requested. `cores` is the load of messages in processors. `fewest` is the least number
    of hosts that suffices; `because` is the reason why one fewer does not.
    """

    hosts: int
    connects_per_s: float
    connect_s: float
    run_s: float
    fewest: int
    because: str


def host_needs(plan: Plan, host: Host) -> HostNeeds:
    needs = asdict(needs_of(plan))
    phases = plan.phases
    connects = CONNECTS_PER_CORE_S * host.cores
    if phases.connect_rate is not None:
        connects = min(connects, phases.connect_rate / plan.scenario.hosts)
    connect_s = needs["devices"] / connects
    fewest, because = fewest_hosts(plan, host, plan.targets)
    return HostNeeds(
        hosts=plan.scenario.hosts,
        connects_per_s=connects,
        connect_s=connect_s,
        run_s=connect_s + phases.warmup_s + phases.duration_s + phases.drain_s,
        fewest=fewest,
        because=because,
        **needs,
    )


def fewest_hosts(plan: Plan, host: Host, targets: tuple[Target, ...]) -> tuple[int, str]:
    """Return the least number of hosts like this one that suffices, and why one fewer does not.

    The number is 0 if MOST_HOSTS are not enough.
    """

    def lacking(hosts: int) -> str:
        # Groups have no fixed hosts here, and each network is taken to be as large as the first.
        network = plan.scenario.source_address
        changed = {
            "hosts": hosts,
            "place": (),
            "source_address": None if network is None else network.partition(",")[0],
        }
        scenario = plan.scenario.model_copy(update=changed)
        return _lacking(replace(plan, scenario=scenario), host, targets)

    least = _least_hosts(plan, host, targets)
    # Fewer do not suffice; to try a plan takes time with each of its workers.
    short, why = least - 1, lacking(max(1, min(least - 1, MOST_HOSTS)))
    if not why:
        return max(1, short), ""
    if least > MOST_HOSTS:
        return 0, why
    enough = least
    while reason := lacking(enough):
        short, why, enough = enough, reason, enough * 2
        if enough > MOST_HOSTS:
            return 0, why
    while enough - short > 1:
        middle = (enough + short) // 2
        if reason := lacking(middle):
            short, why = middle, reason
        else:
            enough = middle
    return enough, why


def _least_hosts(plan: Plan, host: Host, targets: tuple[Target, ...]) -> int:
    """Return a lower bound of the hosts that a plan needs, from memory, descriptors and ports."""
    devices = sum(group.count for group in plan.groups)
    most = [
        int(host.memory_bytes * MEMORY_SHARE) // device_bytes(plan.encrypted),
        WORKERS_LIMIT * host.descriptors,
    ]
    loopback = all(target.host.startswith("127.") for target in targets)
    if plan.scenario.source_address is None and not loopback:
        most.append(host.local_ports * len(targets))
    return -(-devices // max(1, min(most)))


def _lacking(plan: Plan, host: Host, targets: tuple[Target, ...]) -> str:
    """Return the reason why hosts like this one do not suffice for a plan, "" if they do."""
    try:
        needs = needs_of(fit_plan(plan, host, targets, 0))
    except LoadgenError as error:
        return str(error)
    if needs.cores > BUSY_SHARE * host.cores:
        return f"messages would take {needs.cores:.1f} of {host.cores:g} processors"
    wanted = plan.phases.connect_rate or 0.0
    most = int(CONNECTS_PER_CORE_S * host.cores)
    if wanted / plan.scenario.hosts > most:
        return f"a host makes at most {counted(most, 'connect')} a second"
    return ""


_FIELDS: Mapping[str, str] = {
    "cores": "cores",
    "descriptors": "descriptors",
    "memory": "memory_bytes",
    "ports": "local_ports",
}


def host_like(text: str, host: Host) -> Host:
    """Return `host` with the values of a text such as cores=16,memory=64GiB; raise ValueError."""
    changed: dict[str, Any] = {}
    for entry in text.split(","):
        name, equals, value = entry.strip().partition("=")
        if not equals or name not in _FIELDS:
            raise ValueError(
                f"{entry[:60]!r} is not one of {', '.join(f'{own}=N' for own in _FIELDS)}"
            )
        changed[_FIELDS[name]] = parse_bytes(value) if name == "memory" else parse_count(value)
    if not all(changed.values()):
        raise ValueError("nothing may be 0")
    return replace(host, **changed)
