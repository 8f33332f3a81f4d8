"""Fits a plan to its hosts: workers, source addresses, pacing."""

import ipaddress
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import chain, cycle
from typing import Any

from pydantic import TypeAdapter

from loadgen.errors import HostLimitError, ScenarioError
from loadgen.kernels.in_flight import RECEIVED_BYTES
from loadgen.plan.deliveries import mean_deliveries
from loadgen.plan.groups import (
    DeviceGroup,
    Network,
    Share,
    Subscribes,
    Target,
    WorkerPlan,
    largest_payload_bytes,
    one_worker,
    target_url,
    usable_addresses,
)
from loadgen.plan.plan import Brokers, Plan, rate_in_window, rooted
from loadgen.plan.scenario import INSTANCES_LIMIT, processors_of
from loadgen.plan.spread import Shares, costed, most_workers, spread, workers_for_load
from loadgen.plan.units import shown
from loadgen.sentences import PLAN_TEXT

SPARE_DESCRIPTORS = 200
"""A worker's files, pipes and libraries, and connects that are being closed and retried."""
BROKER_SPARE_DESCRIPTORS = 50
"""A broker's files and listeners, and the connections of its monitors."""
WORKERS_LIMIT = 1_024  # maximum number of workers of one host
USABLE_PORT_SHARE = 0.99
"""Share of the ports that loadgen may use; the published CONNBURST used 98 % of 60,000."""
LOOPBACK_SOURCES = "127.1.0.0/16"  # source addresses on loopback, where brokers do not listen

SINGLE_SENDS_PER_S = 20_000
"""Highest rate at which a worker sends each message at its due time; above, it sends in ticks."""
TICK_MAXIMUM_US = 1_000
TICK_MINIMUM_US = 100
TICK_MESSAGES = 10
"""Messages of one publisher that fall due in a tick, which determine its length."""

WORKER_BYTES = 60 << 20
"""Memory that a forked worker does not share with its parent, buffers and histograms included."""
DEVICE_BYTES = 3 << 10
SOCKET_BYTES = 5 << 10
"""Kernel memory of both ends of a connection, for the broker may run on the same host."""
TLS_BYTES = 49 << 10
IDENTIFIER_BITMAPS = 3  # of a subscriber at QoS 2, RECEIVED_BYTES each
WITHHELD_BYTES = 24  # of a message whose acknowledgement is withheld
MEMORY_SHARE = 0.9

PACKET_FLOOR_BYTES = 1 << 16
PACKET_SPARE_BYTES = 4 << 10
"""Topic name, properties and fixed header around the largest payload."""


@dataclass(frozen=True, slots=True)
class Host:
    cores: float
    descriptors: int  # limit of one process
    memory_bytes: int  # available
    local_ports: int  # ephemeral ports of one source address
    name: str = ""
    addresses: tuple[str, ...] = ()  # of its interfaces, empty if unknown


@dataclass(frozen=True, slots=True)
class Needs:
    """The resources that a plan uses on a host: of a process, in all, and of a source address."""

    descriptors_per_worker: int
    memory_bytes: int
    ports_per_source_address: int
    host: int = 0
    devices: int = 0
    workers: int = 0
    source_addresses: int = 1
    cores: float = 0.0


def fit_plan(
    plan: Plan,
    host: Host | tuple[Host, ...],
    targets: tuple[Target, ...],
    run_tag: int,
    *,
    username: str | None = None,
    password: str | None = None,
) -> Plan:
    """Return the plan with its devices spread over workers and connecting to these addresses.

    `host` is a tuple of the hosts, or one that describes them all. Raises HostLimitError, with one
    line of advice, and ScenarioError if the scenario contradicts the targets.
    """
    scenario = plan.scenario
    if not targets:
        raise ScenarioError(PLAN_TEXT.NO_ADDRESS())
    if not 0 <= run_tag < 1 << 32:
        raise ValueError(f"run tag {run_tag} does not fit into 32 bits")
    for group in plan.groups:
        user, secret = group.login or (username, password)
        if secret is not None and user is None and plan.version_of(group) != 5:
            raise ScenarioError(PLAN_TEXT.PASSWORD_WITHOUT_USER(mqtt=scenario.mqtt))
    groups = rooted(plan.groups, f"lg{run_tag:08x}")
    hosts = (host,) * scenario.hosts if isinstance(host, Host) else host
    if len(hosts) != scenario.hosts:
        raise ValueError(f"{len(hosts)} hosts for a plan of {scenario.hosts}")
    # Private brokers run on the coordinator's host.
    _require_brokers_fit(plan.brokers, hosts[0], groups)
    separate = plan.brokers.separate_count > 1
    plan = replace(plan, groups=groups, targets=targets, separate_brokers=separate)
    workers = _fitting_workers(plan, hosts)
    if processors := processors_of(scenario.affinity):
        turns: defaultdict[int, Iterator[int]] = defaultdict(lambda: cycle(processors))
        workers = tuple(replace(one, processors=(next(turns[one.host]),)) for one in workers)
    packet_bytes = plan.needs.payload_bytes + PACKET_SPARE_BYTES
    fitted = replace(
        plan,
        run_tag=run_tag,
        workers=workers,
        username=username,
        password=password,
        send_tick_us=_send_tick_us(scenario.send_tick, groups, workers),
        max_packet_bytes=max(PACKET_FLOOR_BYTES, 1 << (packet_bytes - 1).bit_length()),
    )
    _require_memory(fitted, hosts)
    return fitted


def _require_memory(plan: Plan, hosts: tuple[Host, ...]) -> None:
    for needs in needs_by_host(plan):
        host = hosts[needs.host]
        available = int(host.memory_bytes * MEMORY_SHARE)
        if needs.memory_bytes > available:
            several = needs.workers if needs.workers > 1 else None
            counts = {"devices": needs.devices, "workers": needs.workers, "several": several}
            gib = {"needed": needs.memory_bytes / 2**30, "available": available / 2**30}
            raise HostLimitError(PLAN_TEXT.MEMORY(where=_named(host), **counts, **gib))


def _named(host: Host) -> str:
    """Return the beginning of a sentence about one host of several."""
    return f"host {shown(host.name)}: " if host.name else ""


# Workers ----------------------------------------------------------------------------------------


def _usable_ports(host: Host) -> int:
    return int(host.local_ports * USABLE_PORT_SHARE)


def _fitting_workers(plan: Plan, hosts: tuple[Host, ...]) -> tuple[WorkerPlan, ...]:
    wanted = plan.scenario.workers
    opened = min(host.descriptors for host in hosts)
    held = opened - SPARE_DESCRIPTORS
    if held < 1:
        raise HostLimitError(PLAN_TEXT.FEW_FILES(opened=opened, spare=SPARE_DESCRIPTORS))
    groups = costed(plan.groups, plan.brokers.separate_count)
    where = hosts_of_groups(plan.scenario.place, plan.groups, [host.name for host in hosts])
    useful = most_workers(groups)
    if useful < len(hosts):
        raise ScenarioError(PLAN_TEXT.TOO_MANY_HOSTS(useful=useful))
    for_load = workers_for_load(groups, min(host.cores for host in hosts), len(hosts))
    limit = min(useful, WORKERS_LIMIT * len(hosts))
    count = min(for_load if wanted is None else max(wanted, len(hosts)), useful)
    devices = sum(group.count for group in plan.groups)
    fewest = -(-devices // held)
    if wanted is None and fewest > limit:
        # Shares of a thousand workers take long to make, and a search for hosts tries many.
        raise HostLimitError(_too_few_descriptors(-(-devices // limit), held, limit))
    while True:
        shares = spread(groups, count, len(hosts), where)
        most = max(sum(share.count for share in part) for part in shares)
        problem = "" if most <= held else _too_few_descriptors(most, held, count)
        if not problem:
            workers, problem = _with_sources(plan, hosts, shares)
            if not problem:
                return workers
        if wanted is not None or count >= limit:
            raise HostLimitError(problem)
        # Descriptors set the lower bound; above it each attempt adds one worker to each host.
        count = max(min(fewest, limit), min(limit, count + len(hosts)))


def _too_few_descriptors(most: int, held: int, workers: int) -> str:
    return PLAN_TEXT.WORKER_FILES(
        workers=workers, devices=most, files=held, limit=most + SPARE_DESCRIPTORS
    )


def hosts_of_groups(
    place: Sequence[str], groups: Iterable[DeviceGroup], labels: Sequence[str]
) -> Mapping[str, tuple[int, ...]]:
    """Return the hosts of each named group; an entry of `place` is such as `publishers=0,left`.

    A name is that of a group or a common prefix, in the singular or plural, or the kind of groups;
    a host is a number or label. Raises ScenarioError for an unknown one, and for a host without a
    group.
    """
    kinds = {group.name: group.kind for group in groups}
    placed: dict[str, tuple[int, ...]] = {}
    for entry in place:
        name, _, wanted = entry.partition("=")
        where = sorted({number for one in wanted.split(",") for number in _numbers(one, labels)})
        prefix = name.removesuffix("s")
        meant = [one for one, kind in kinds.items() if one.startswith(prefix) or kind == name]
        if not meant:
            raise ScenarioError(PLAN_TEXT.UNKNOWN_GROUP(group=shown(name), names=tuple(kinds)[:20]))
        placed |= dict.fromkeys(meant, tuple(where))
    idle = set(range(len(labels))) - {number for where in placed.values() for number in where}
    if idle and kinds.keys() == placed.keys():
        raise ScenarioError(PLAN_TEXT.IDLE_HOST(host=min(idle)))
    return placed


def _numbers(text: str, labels: Sequence[str]) -> list[int]:
    numbers = [number for number, label in enumerate(labels) if text in (str(number), label)]
    if not numbers:
        named = tuple(dict.fromkeys(filter(None, labels)))[:20]
        raise ScenarioError(
            PLAN_TEXT.UNKNOWN_HOST(text=text, last=len(labels) - 1, count=len(labels), labels=named)
        )
    return numbers


# Ports and source addresses ---------------------------------------------------------------------


def _with_sources(
    plan: Plan, hosts: tuple[Host, ...], shares: Shares
) -> tuple[tuple[WorkerPlan, ...], str]:
    """Return worker plans, with source addresses if needed, or the reason for more workers."""
    count = len(hosts)
    for source in (group.source for group in plan.groups if group.source is not None):
        _check_family(ipaddress.ip_network(source), plan.targets)
    pools = [_sources(plan, hosts, number, shares[number::count]) for number in range(count)]
    plans = [
        WorkerPlan(at, part, pool[at // count % len(pool)] if pool else None, host=at % count)
        for at, part in enumerate(shares)
        for pool in (pools[at % count],)
    ]
    for number, (host, pool) in enumerate(zip(hosts, pools, strict=True)):
        workers, ports = plans[number::count], _usable_ports(host)
        worst = _ports_used(plan, workers) if pool else 0
        if worst <= ports:
            continue
        loopback = ipaddress.ip_address(pool[0]).is_loopback
        network = "127.0.0.0/16" if loopback else "a larger network"
        problem = PLAN_TEXT.SOURCE_PORTS(
            where=_named(host), connections=worst, ports=ports, network=network
        )
        if len(pool) <= len(workers):
            raise HostLimitError(problem)
        return (), problem
    busy = (worker for worker in plans if worker.shares)
    return tuple(replace(worker, worker=at) for at, worker in enumerate(busy)), ""


def _sources(plan: Plan, hosts: tuple[Host, ...], number: int, shares: Shares) -> Sequence[str]:
    """Return source addresses for the workers of a host, one spare; empty for any address."""
    count, host = len(hosts), hosts[number]
    given = plan.scenario.source_address
    if given is None and not _runs_out_of_ports(plan, host, shares):
        return ()
    networks = [ipaddress.ip_network(text) for text in (given or LOOPBACK_SOURCES).split(",")]
    if len(networks) not in (1, count):
        raise ScenarioError(PLAN_TEXT.NETWORKS(networks=len(networks), count=count))
    network = networks[number % len(networks)]
    _check_family(network, plan.targets)
    first, size = usable_addresses(network)
    if count > 1 and len(networks) == 1 and not network.is_loopback:
        if host.addresses:
            own = [text for text in host.addresses if ipaddress.ip_address(text) in network]
            if not own:
                raise HostLimitError(PLAN_TEXT.NO_ADDRESS_IN(where=_named(host), network=network))
            return own
        size //= count
        first += number * size
        if not size:
            raise HostLimitError(PLAN_TEXT.NETWORK_SMALL(network=network, count=count))
    return [str(network[first + at]) for at in range(min(size, len(shares) + 1))]


def _runs_out_of_ports(plan: Plan, host: Host, shares: Shares) -> bool:
    """Return True if a host needs spare addresses of loopback, as one has too few ports."""
    shared, ports = _to_one_target(plan, chain.from_iterable(shares)), _usable_ports(host)
    if shared <= ports:
        return False
    if all(target.host.startswith("127.") for target in plan.targets):
        return True
    addresses = -(-shared // max(1, ports))
    raise HostLimitError(
        PLAN_TEXT.BROKER_PORTS(
            where=_named(host), connections=shared, ports=ports, addresses=addresses
        )
    )


def _ports_used(plan: Plan, workers: Iterable[WorkerPlan]) -> int:
    """Return the connections to one target from the most used source address of a host."""
    used: Counter[tuple[int, str | None]] = Counter()
    for worker in workers:
        used[worker.host, worker.source_address] += _to_one_target(plan, worker.shares)
    return max(used.values(), default=0)


def _check_family(network: Network, targets: tuple[Target, ...]) -> None:
    for target in targets:
        version = 6 if ":" in target.host else 4
        if network.version != version:
            raise ScenarioError(
                PLAN_TEXT.NETWORK_FAMILY(
                    network=network,
                    version=network.version,
                    host=target.host,
                    version_of_broker=version,
                )
            )


def _to_one_target(plan: Plan, shares: Iterable[Share]) -> int:
    # Other groups have own source addresses.
    shares = (share for share in shares if plan.groups[share.group].source is None)
    return _most_to_one_target(shares, plan.groups, len(plan.targets), plan.separate_brokers)


def _most_to_one_target(
    shares: Iterable[Share], groups: tuple[DeviceGroup, ...], targets: int, separate: bool
) -> int:
    """Return an upper bound of the connections that these shares make to one target."""
    most, everywhere = [0] * targets, 0
    for share in shares:
        group = groups[share.group]
        if separate and not group.targets:
            topics = group.topic_count
            block = -(-group.count * -(-topics // targets) // topics)
            everywhere += min(share.count, -(-block // share.step))
            continue
        used = group.targets or range(targets)
        # A share of step s reaches every g-th target, with g = gcd(s, targets).
        each = -(-share.count // (len(used) // math.gcd(share.step, len(used))))
        if not group.targets:
            everywhere += each
        for target in group.targets:
            most[target] += each
    return max(most) + everywhere


# Private brokers --------------------------------------------------------------------------------


def broker_descriptors(brokers: Brokers, groups: tuple[DeviceGroup, ...], targets: int = 1) -> int:
    """Return the descriptors of the fullest broker process; `targets` is for brokers by URL."""
    if brokers.private:
        targets = brokers.separate_count + brokers.backends
    # A broker behind a relay is a further target.
    targets = max(targets, *(target + 1 for group in groups for target in group.targets), 1)
    most = _most_to_one_target(
        one_worker(groups).shares, groups, targets, brokers.separate_count > 1
    )
    # The front broker of a bridge connects to each backend.
    return most + brokers.backends + BROKER_SPARE_DESCRIPTORS


def _require_brokers_fit(brokers: Brokers, host: Host, groups: tuple[DeviceGroup, ...]) -> None:
    if not brokers.private:
        return
    needed = broker_descriptors(brokers, groups)
    if needed <= host.descriptors:
        return
    instances = fitting_instances(brokers, host, groups)
    spread = f"use --instances {instances}, or " if instances else ""
    count = brokers.separate_count + brokers.backends
    whose = "the private broker" if count == 1 else f"one of the {count:,} private brokers"
    raise HostLimitError(
        PLAN_TEXT.BROKER_FILES(whose=whose, needed=needed, limit=host.descriptors, instances=spread)
    )


def fitting_instances(brokers: Brokers, host: Host, groups: tuple[DeviceGroup, ...]) -> int | None:
    """Return the least number of private brokers that suffices, None if too many are needed."""
    if not brokers.may_be_several:
        return None
    held = max(1, host.descriptors - BROKER_SPARE_DESCRIPTORS)
    fewest = max(brokers.instances, -(-sum(group.count for group in groups) // held))
    for instances in range(fewest, INSTANCES_LIMIT + 1):
        wider = tuple(
            replace(group, count=instances) if group.each_broker else group for group in groups
        )
        if broker_descriptors(replace(brokers, instances=instances), wider) <= host.descriptors:
            return instances
    return None


def _send_tick_us(
    wanted_s: float | None, groups: tuple[DeviceGroup, ...], workers: tuple[WorkerPlan, ...]
) -> int:
    """Return the time in µs that a due message may wait to be sent with others."""
    if wanted_s is not None:
        return round(wanted_s * 1e6)
    # Of timed groups only: a timed pair must not wait because its background is fast.
    fastest = busiest = 0.0
    for worker in workers:
        sends = 0.0
        for share in worker.shares:
            group = groups[share.group]
            if group.publishes is not None and group.timed:
                each = group.publishes.rate / group.count
                sends += each * share.count
                fastest = max(fastest, each)
        busiest = max(busiest, sends)
    if busiest <= SINGLE_SENDS_PER_S:
        return 0
    return round(min(TICK_MAXIMUM_US, max(TICK_MINIMUM_US, TICK_MESSAGES / fastest * 1e6)))


def needs_of(plan: Plan) -> Needs:
    """Return the resources that a plan uses on a host: of each, the most of any host."""
    every = needs_by_host(plan)
    return Needs(
        **{need.name: max(getattr(each, need.name) for each in every) for need in fields(Needs)}
    )


def device_bytes(group: DeviceGroup, encrypted: bool) -> int:
    """Return the most memory that a device of a group needs, with both ends of its connection."""
    subscribes = group.subscribes or Subscribes(())
    needed = DEVICE_BYTES + SOCKET_BYTES + (TLS_BYTES if encrypted else 0)
    if subscribes.qos == 2:
        needed += IDENTIFIER_BITMAPS * RECEIVED_BYTES
    if subscribes.acknowledge_every > 1:
        needed += WITHHELD_BYTES * subscribes.acknowledge_every
    return needed


def needs_by_host(plan: Plan) -> list[Needs]:
    by_host: dict[int, list[WorkerPlan]] = {}
    for worker in plan.workers:
        by_host.setdefault(worker.host, []).append(worker)
    each = [device_bytes(group, plan.encrypted) for group in plan.groups]
    cores = [one.cores for one in costed(plan.groups, plan.separate_count)]
    body_bytes = largest_payload_bytes(plan.groups)
    needs = []
    for host in sorted(by_host):
        workers = by_host[host]
        held = [sum(share.count for share in worker.shares) for worker in workers]
        devices = sum(each[s.group] * s.count for worker in workers for s in worker.shares)
        needs.append(
            Needs(
                descriptors_per_worker=max(held) + SPARE_DESCRIPTORS,
                memory_bytes=len(workers) * (WORKER_BYTES + body_bytes) + devices,
                ports_per_source_address=_ports_used(plan, workers),
                host=host,
                devices=sum(held),
                workers=len(workers),
                source_addresses=len({worker.source_address for worker in workers}),
                cores=sum(cores[s.group] * s.count for worker in workers for s in worker.shares),
            )
        )
    return needs


def describe(plan: Plan) -> dict[str, object]:
    """Return the plan as plain JSON values, without user name and password."""
    return {
        "hosts": len({worker.host for worker in plan.workers}),
        "workers": len(plan.workers),
        "run_tag": f"{plan.run_tag:08x}",
        "seed": plan.scenario.seed,
        "mqtt": plan.scenario.mqtt,
        "send_tick_us": plan.send_tick_us,
        "max_packet_bytes": plan.max_packet_bytes,
        "targets": [target_url(target) for target in plan.targets],
        "tls": plan.encrypted,
        "groups": [describe_group(plan, group) for group in plan.groups],
        "shares": [
            {
                "worker": worker.worker,
                "host": worker.host,
                "source_address": worker.source_address,
                "devices": {plan.groups[share.group].name: share.count for share in worker.shares},
            }
            for worker in plan.workers
        ],
        "needs": asdict(needs_of(plan)),
    }


_GROUP = TypeAdapter(DeviceGroup)
_SHOWN: Any = {
    **dict.fromkeys(("name", "count", "timed", "clean_start", "keep_alive_s", "targets"), True),
    "publishes": {"topic", "rate", "qos", "retain", "size_bytes", "arrivals", "unit"},
    "subscribes": {"filters", "qos", "acknowledge_every"},
}


def describe_group(plan: Plan, group: DeviceGroup) -> dict[str, object]:
    described: dict[str, Any] = _GROUP.dump_python(group, mode="json", include=_SHOWN)
    if group.publishes is not None:
        publishes = described["publishes"]
        outside_bytes = plan.scenario.outside_bytes
        publishes["size_bytes"] = [size - outside_bytes for size in group.publishes.size_bytes]
        publishes["rate"] = rate_in_window(group, plan.phases)
        deliveries = mean_deliveries(group, plan.groups, plan.separate_count)
        whole = int(deliveries) if deliveries.is_integer() else round(deliveries, 3)
        publishes |= {"topics": group.distinct(group.publishes.topic), "deliveries": whole}
    return described
