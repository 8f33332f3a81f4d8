"""From a workload to a plan that fits the host: workers, source addresses, pacing."""

import ipaddress
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields, replace

from loadgen.errors import HostLimitError, ScenarioError
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.workload.groups import (
    DeviceConduct,
    DeviceGroup,
    RunPlan,
    Share,
    Target,
    WorkerPlan,
    target_url,
    topics_of,
)
from loadgen.workload.scenario import INSTANCES_LIMIT
from loadgen.workload.spread import Shares, costed, most_workers, spread, workers_for_load
from loadgen.workload.workload import Brokers, Workload, rooted

SPARE_DESCRIPTORS = 200
"""A worker's own files, pipes, libraries and the connects that are being closed and retried."""
BROKER_SPARE_DESCRIPTORS = 50
"""A broker's own files and listeners, and the connections that watch it."""
WORKERS_LIMIT = 1_024
USABLE_PORT_SHARE = 0.99
"""Other programs of the host want some; the published CONNBURST took 98 % of 60,000."""
LOOPBACK_SOURCES = "127.1.0.0/16"
"""Every address of 127.0.0.0/8 is local on Linux; this part is away from where brokers listen."""

SINGLE_SENDS_PER_S = 20_000
"""Up to here a worker gives every message its own moment; above, it sends in ticks."""
TICK_MAXIMUM_US = 1_000
TICK_MINIMUM_US = 100
TICK_MESSAGES = 10
"""A tick is long enough that a publisher has this many messages due in it."""

WORKER_BYTES = 60 << 20
"""What a forked worker does not share with its parent, its buffers and histograms included."""
DEVICE_BYTES = 3 << 10
SOCKET_BYTES = 5 << 10
"""Kernel memory of one connection's two ends, as on a host that also holds the broker."""
TLS_BYTES = 49 << 10
MEMORY_SHARE = 0.9

PACKET_FLOOR_BYTES = 1 << 16
PACKET_SPARE_BYTES = 4 << 10
"""Topic name, properties and fixed header around the largest payload."""


@dataclass(frozen=True, slots=True)
class Host:
    """What one load host offers.

    `descriptors` is the limit of one process, `local_ports` the ephemeral ports of one source
    address, `memory_bytes` what is available.
    """

    cores: int
    descriptors: int
    memory_bytes: int
    local_ports: int


@dataclass(frozen=True, slots=True)
class Needs:
    """What a plan takes: of one process, of all, and of the most used source address."""

    descriptors_per_worker: int
    memory_bytes: int
    ports_per_source_address: int


def plan_run(
    workload: Workload,
    host: Host,
    targets: tuple[Target, ...],
    run_tag: int,
    *,
    username: str | None = None,
    password: str | None = None,
) -> RunPlan:
    """Spread the workload's devices over workers.

    Workers are as many as descriptors, ports and load ask for (`workload.workers` overrides, but
    never more than there are parts to play). The timed pair of LATENCY gets a worker of its own
    where there are two. With several hosts, each with these limits, worker w runs on host w modulo
    hosts.

    Raises HostLimitError, one line that says how to make it fit, and ScenarioError where the
    workload contradicts the targets.
    """
    if not targets:
        raise ScenarioError("broker: no address is known; give --broker mqtt://host:1883")
    if not 0 <= run_tag < 1 << 32:
        raise ValueError(f"run tag {run_tag} does not fit into 32 bits")
    if password is not None and username is None and workload.version != 5:
        raise ScenarioError(
            f"a password needs a user name in MQTT {workload.protocol}; add one or use --mqtt 5"
        )
    groups = rooted(workload.groups, f"lg{run_tag:08x}")
    _require_brokers_fit(workload.brokers, host, groups)
    place = _Place(workload, host, targets, groups)
    workers = _pinned(_fitting_workers(place), workload.processors)
    encrypted = any(target.transport in ("tls", "wss") for target in targets)
    plan = RunPlan(
        run_tag=run_tag,
        seed=workload.seed,
        version=workload.version,
        groups=groups,
        targets=targets,
        workers=workers,
        username=username,
        password=password,
        tls=workload.tls if encrypted else None,
        send_tick_us=_send_tick_us(workload.send_tick_us, groups, workers),
        max_packet_bytes=_packet_limit(workload.needs.payload_bytes),
        separate_brokers=workload.brokers.apart > 1,
        **{one.name: getattr(workload, one.name) for one in fields(DeviceConduct)},
    )
    _require_memory(plan, host, workload.hosts)
    return workload.case.plan(workload, plan)


def _require_memory(plan: RunPlan, host: Host, hosts: int) -> None:
    memory = needs_of(plan).memory_bytes
    available = int(host.memory_bytes * hosts * MEMORY_SHARE)
    if memory > available:
        raise HostLimitError(
            f"{_devices(plan.groups):,} devices in {len(plan.workers)} workers need "
            f"{memory / 2**30:.1f} GiB of memory and may use {available / 2**30:.1f}: ask for "
            "fewer devices or workers, or spread over more --hosts"
        )


def _devices(groups: Iterable[DeviceGroup]) -> int:
    return sum(group.count for group in groups)


def _pinned(workers: tuple[WorkerPlan, ...], processors: tuple[int, ...]) -> tuple[WorkerPlan, ...]:
    """The workers with a processor each, in turn."""
    if not processors:
        return workers
    return tuple(
        replace(worker, processors=(processors[worker.worker % len(processors)],))
        for worker in workers
    )


def _packet_limit(payload_bytes: int) -> int:
    needed = payload_bytes + PACKET_SPARE_BYTES
    return int(max(PACKET_FLOOR_BYTES, 1 << (needed - 1).bit_length()))


# Workers ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """What is to be played, on what host, against which targets."""

    workload: Workload
    host: Host
    targets: tuple[Target, ...]
    groups: tuple[DeviceGroup, ...]

    @property
    def usable_ports(self) -> int:
        return int(self.host.local_ports * USABLE_PORT_SHARE)

    def to_one_target(self, shares: Iterable[Share]) -> int:
        """An upper bound of the connections that these shares make to one target."""
        separate = self.workload.brokers.apart > 1
        return _most_to_one_target(shares, self.groups, len(self.targets), separate)


def _fitting_workers(place: _Place) -> tuple[WorkerPlan, ...]:
    host, wanted = place.host, place.workload.workers
    held = host.descriptors - SPARE_DESCRIPTORS
    if held < 1:
        raise HostLimitError(
            f"a process may open only {host.descriptors} files here and a worker needs "
            f"{SPARE_DESCRIPTORS} and one for each device: raise the limit (ulimit -n)"
        )
    groups = costed(place.groups)
    most = most_workers(groups)
    for_load = workers_for_load(groups, host.cores, place.workload.hosts)
    count = min(for_load if wanted is None else wanted, most)
    while True:
        shares = spread(groups, count)
        problem = _descriptor_problem(shares, held, count)
        if not problem:
            workers, problem = _with_sources(place, shares)
            if not problem:
                return workers
        if wanted is not None or count >= min(most, WORKERS_LIMIT):
            raise HostLimitError(problem)
        # Descriptors bound the number from below; from there on one by one.
        count = max(min(-(-_devices(place.groups) // held), most, WORKERS_LIMIT), count + 1)


def _descriptor_problem(shares: Shares, held: int, workers: int) -> str:
    most = max(sum(share.count for share in own) for own in shares)
    if most <= held:
        return ""
    return (
        f"a worker of {workers} would hold {most:,} devices and may open {held:,} beside its own "
        f"files: use more --workers, or raise the limit (ulimit -n {most + SPARE_DESCRIPTORS})"
    )


# Ports and source addresses ---------------------------------------------------------------------


def _with_sources(place: _Place, shares: Shares) -> tuple[tuple[WorkerPlan, ...], str]:
    """Worker plans with a source address each where needed, or why more workers are needed.

    Raises HostLimitError where more workers would not help.
    """
    network = place.workload.source_address or _network_of_its_own(place)
    if network is None:
        return tuple(WorkerPlan(w, own) for w, own in enumerate(shares)), ""
    available = ipaddress.ip_network(network)
    _check_family(available, place.targets)
    size, first = available.num_addresses, 0
    if size > 2:  # neither the network's own address nor its broadcast address
        size, first = size - 2, 1
    plans = tuple(
        WorkerPlan(w, own, str(available[first + w % size])) for w, own in enumerate(shares)
    )
    worst = _ports_used(plans, place.to_one_target)
    if worst <= place.usable_ports:
        return plans, ""
    example = "127.0.0.0/16" if available.is_loopback else "a larger network"
    problem = (
        f"{worst:,} connections from one source address to one broker address need more than its "
        f"{place.usable_ports:,} ports: use more --workers, and --source-address with an address "
        f"for each ({example}), or widen net.ipv4.ip_local_port_range"
    )
    if len(shares) >= size:
        raise HostLimitError(problem)
    return (), problem


def _network_of_its_own(place: _Place) -> str | None:
    """Loopback's spare addresses where one does not have enough ports; None where it does."""
    shared = -(-place.to_one_target(_everyone(place.groups)) // place.workload.hosts)
    if shared <= place.usable_ports:
        return None
    if all(target.host.startswith("127.") for target in place.targets):
        return LOOPBACK_SOURCES
    addresses = -(-shared // max(1, place.usable_ports))
    raise HostLimitError(
        f"{shared:,} connections to one broker address need more than the {place.usable_ports:,} "
        f"ports of one source address: give --source-address with {addresses} or more "
        "addresses of this host, or more --broker endpoints"
    )


def _ports_used(
    workers: Sequence[WorkerPlan], to_one_target: Callable[[Iterable[Share]], int]
) -> int:
    """Connections to one target from the most used source address."""
    used: Counter[str | None] = Counter()
    for worker in workers:
        used[worker.source_address] += to_one_target(worker.shares)
    return max(used.values(), default=0)


def _check_family(
    network: ipaddress.IPv4Network | ipaddress.IPv6Network, targets: tuple[Target, ...]
) -> None:
    for target in targets:
        version = 6 if ":" in target.host else 4
        if network.version != version:
            raise ScenarioError(
                f"source_address: {network} is IPv{network.version} and the broker's address "
                f"{target.host} is IPv{version}; allowed: addresses of one kind"
            )


def _everyone(groups: tuple[DeviceGroup, ...]) -> list[Share]:
    return [Share(index, 0, group.count, 1) for index, group in enumerate(groups)]


def _most_to_one_target(
    shares: Iterable[Share], groups: tuple[DeviceGroup, ...], targets: int, separate: bool
) -> int:
    """An upper bound of the connections that these shares make to one target.

    Device i connects to its group's target i modulo their number; a share of step s reaches every
    g-th of them only, g being the greatest common divisor of both, and those evenly. With
    `separate` targets each has a block of neighbouring devices instead.
    """
    most = [0] * targets
    for share in shares:
        group = groups[share.group]
        if separate and not group.targets:
            topics = topics_of(group, groups)
            block = -(-group.count * -(-topics // targets) // topics)
            each = min(share.count, -(-block // share.step))
            most = [connections + each for connections in most]
            continue
        own = group.targets or range(targets)
        reached = len(own) // math.gcd(share.step, len(own))
        for target in own:
            most[target] += -(-share.count // reached)
    return max(most)


# Private brokers --------------------------------------------------------------------------------


def broker_descriptors(brokers: Brokers, groups: tuple[DeviceGroup, ...], targets: int = 1) -> int:
    """What the fullest broker process may have open; `targets` counts where URLs name them."""
    if brokers.private:
        targets = brokers.apart + brokers.backends
    most = _most_to_one_target(_everyone(groups), groups, targets, brokers.apart > 1)
    # The front of a bridge connects to each backend.
    return most + brokers.backends + BROKER_SPARE_DESCRIPTORS


def _require_brokers_fit(brokers: Brokers, host: Host, groups: tuple[DeviceGroup, ...]) -> None:
    """Refuse more connections than a broker that is started here may have open."""
    if not brokers.private:
        return
    needed = broker_descriptors(brokers, groups)
    if needed <= host.descriptors:
        return
    instances = _fitting_instances(brokers, host, groups)
    spread = f"use --instances {instances}, or " if instances else ""
    count = brokers.apart + brokers.backends
    whose = "the private broker" if count == 1 else f"one of the {count:,} private brokers"
    raise HostLimitError(
        f"{whose} would have {needed:,} files open, one for each connection, and may open "
        f"{host.descriptors:,}: {spread}raise the limit (ulimit -n {needed})"
    )


def _fitting_instances(brokers: Brokers, host: Host, groups: tuple[DeviceGroup, ...]) -> int | None:
    """The fewest private brokers that have few enough connections each, if any number does."""
    if not brokers.may_be_several:
        return None
    held = max(1, host.descriptors - BROKER_SPARE_DESCRIPTORS)
    fewest = max(brokers.instances + 1, -(-_devices(groups) // held))
    for instances in range(fewest, INSTANCES_LIMIT + 1):
        wider = tuple(
            replace(group, count=instances) if group.each_broker else group for group in groups
        )
        if broker_descriptors(replace(brokers, instances=instances), wider) <= host.descriptors:
            return instances
    return None


# Pacing ---------------------------------------------------------------------------------------


def _send_tick_us(
    wanted_us: int | None, groups: tuple[DeviceGroup, ...], workers: tuple[WorkerPlan, ...]
) -> int:
    """How long a due message may wait for others, in microseconds.

    Only timed groups decide: a background that must send in ticks would do so by falling behind,
    and the timed pair must not wait for it.
    """
    if wanted_us is not None:
        return wanted_us
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


# What a plan is -------------------------------------------------------------------------------


def needs_of(plan: RunPlan) -> Needs:
    """What this plan takes of its host."""

    def to_one_target(shares: Iterable[Share]) -> int:
        return _most_to_one_target(shares, plan.groups, len(plan.targets), plan.separate_brokers)

    held = [sum(share.count for share in worker.shares) for worker in plan.workers]
    each = DEVICE_BYTES + SOCKET_BYTES + (TLS_BYTES if plan.tls is not None else 0)
    return Needs(
        descriptors_per_worker=max(held, default=0) + SPARE_DESCRIPTORS,
        memory_bytes=len(plan.workers) * WORKER_BYTES + sum(held) * each,
        ports_per_source_address=_ports_used(plan.workers, to_one_target),
    )


def describe(plan: RunPlan) -> dict[str, object]:
    """The plan as plain JSON values, without user name and password.

    Holds `workers` (how many), `groups`, `run_tag` (hexadecimal),
    `send_tick_us`, `targets` (URLs), `shares` (each worker's devices and address) and `needs`.
    """
    return {
        "workers": len(plan.workers),
        "run_tag": f"{plan.run_tag:08x}",
        "seed": plan.seed,
        "mqtt": VERSION_NAMES[plan.version],
        "send_tick_us": plan.send_tick_us,
        "max_packet_bytes": plan.max_packet_bytes,
        "targets": [target_url(target) for target in plan.targets],
        "tls": plan.tls is not None,
        "groups": [_describe_group(group) for group in plan.groups],
        "shares": [
            {
                "worker": worker.worker,
                "source_address": worker.source_address,
                "devices": {plan.groups[share.group].name: share.count for share in worker.shares},
            }
            for worker in plan.workers
        ],
        "needs": asdict(needs_of(plan)),
    }


def _describe_group(group: DeviceGroup) -> dict[str, object]:
    own = ("name", "count", "timed", "clean_start", "keep_alive_s", "targets")
    sent = ("topics", "rate", "deliveries", "qos", "size_bytes", "arrivals", "unit")
    received = ("publishers", "qos", "wildcard", "shared", "acknowledge_every")
    described = _columns(group, own) or {}
    subscribes = _columns(group.subscribes, received)
    if subscribes is not None:
        subscribes["shared"] = subscribes["shared"] is not None
    return described | {"publishes": _columns(group.publishes, sent), "subscribes": subscribes}


def _columns(value: object, names: tuple[str, ...]) -> dict[str, object] | None:
    """These attributes as plain JSON values; None for None."""
    if value is None:
        return None
    found = {name: getattr(value, name) for name in names}
    return {name: list(one) if isinstance(one, tuple) else one for name, one in found.items()}
