"""From a workload to a plan that fits the host: workers, shares, source addresses, pacing.

The cost model behind the number of workers, measured on one core of a current x86 server: a socket
call costs some microseconds whatever it carries, a message well under one. So a publisher that
sends one message at a time costs about ten times one that sends what fell due in a millisecond.
"""

import ipaddress
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from loadgen.errors import HostLimitError, ScenarioError
from loadgen.workload.groups import (
    DeviceGroup,
    RunPlan,
    Share,
    Target,
    WorkerPlan,
    sent_rate,
    target_url,
)
from loadgen.workload.scenario import INSTANCES_LIMIT
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

CALL_US = 9.0
SEND_US = 1.0
RECEIVE_CALL_US = 4.0
RECEIVE_US = 0.6
BATCH_S = 0.001
"""Messages due on one connection within this time leave, or arrive, in one socket call."""
WORKER_LOAD = 0.3
"""Share of a core that a worker is planned for: bursts and the broker need the rest."""

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

    descriptors: int
    memory_bytes: int
    ports: int


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
    if password is not None and username is None and workload.version == 4:
        raise ScenarioError("a password needs a user name in MQTT 3.1.1; add one or use --mqtt 5")
    groups = rooted(workload.groups, f"lg{run_tag:08x}")
    _require_brokers_fit(workload.brokers, host, groups)
    crowd = _Crowd(workload, host, targets, tuple(_costed(group, groups) for group in groups))
    workers = _pinned(_fitting_workers(crowd), workload.processors)
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
        reconnect=workload.reconnect,
        separate_brokers=workload.brokers.apart > 1,
        churn_per_s=workload.churn_per_s,
        away_s=workload.away_s,
        client_id=workload.client_id,
        clients_file=workload.clients_file,
        payload_file=workload.payload_file,
        payload_template=workload.payload_template,
        per_device=workload.per_device,
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


# Load -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Costed:
    """A group with `cores`, what one device takes, and `parts`, into which it can be divided."""

    group: DeviceGroup
    cores: float
    parts: int


@dataclass(frozen=True, slots=True)
class _Crowd:
    """What is to be spread over workers, and where."""

    workload: Workload
    host: Host
    targets: tuple[Target, ...]
    costed: tuple[_Costed, ...]

    @property
    def groups(self) -> tuple[DeviceGroup, ...]:
        return tuple(one.group for one in self.costed)

    @property
    def cores(self) -> float:
        return sum(one.cores * one.group.count for one in self.costed)

    @property
    def has_background(self) -> bool:
        return any(not group.timed and group.responds is None for group in self.groups)


def _costed(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> _Costed:
    cores, parts = group.cores, group.parts
    if cores is None:
        cores = _send_load(group, groups) + _receive_load(group, groups)
    return _Costed(group, cores, _parts(group, groups) if parts is None else parts)


def _messages_per_call(rate: float) -> float:
    return max(1.0, rate * BATCH_S)


def _send_load(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> float:
    """Cores that one device of the group takes to send."""
    if not group.count:
        return 0.0
    rate = sent_rate(group, groups) / group.count
    return rate * (CALL_US / _messages_per_call(rate) + SEND_US) * 1e-6


def _receive_load(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> float:
    """Cores that one device of the group takes to receive."""
    if group.subscribes is None or not group.count:
        return 0.0
    senders = next((other for other in groups if other.name == group.subscribes.publishers), None)
    if senders is None or senders.publishes is None:
        return 0.0
    rate = senders.publishes.rate * senders.publishes.deliveries / group.count
    return rate * (RECEIVE_CALL_US / _messages_per_call(rate) + RECEIVE_US) * 1e-6


def _parts(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> int:
    """Into how many parts a group can be divided: its devices, or the queues they consume.

    The consumers of one queue share its account, which one worker keeps.
    """
    if group.subscribes is None or group.subscribes.shared is None:
        return group.count
    if group.subscribes.wildcard or group.subscribes.topic is not None:
        return min(1, group.count)
    senders = next(other for other in groups if other.name == group.subscribes.publishers)
    queues = group.count if senders.publishes is None else senders.publishes.topics
    return min(queues, group.count)


# Workers and shares ---------------------------------------------------------------------------


def _fitting_workers(crowd: _Crowd) -> tuple[WorkerPlan, ...]:
    host, wanted = crowd.host, crowd.workload.workers
    held = host.descriptors - SPARE_DESCRIPTORS
    if held < 1:
        raise HostLimitError(
            f"a process may open only {host.descriptors} files here and a worker needs "
            f"{SPARE_DESCRIPTORS} and one for each device: raise the limit (ulimit -n)"
        )
    most = _most_workers(crowd)
    count = min(_workers_for_load(crowd) if wanted is None else wanted, most)
    while True:
        shares = _spread(crowd, count)
        problem = _descriptor_problem(shares, held, count)
        if not problem:
            workers, problem = _with_sources(crowd, shares)
            if not problem:
                return workers
        if wanted is not None or count >= min(most, WORKERS_LIMIT):
            raise HostLimitError(problem)
        # Descriptors bound the number from below; from there on one by one.
        count = max(min(-(-_devices(crowd.groups) // held), most, WORKERS_LIMIT), count + 1)


def _workers_for_load(crowd: _Crowd) -> int:
    hosts = crowd.workload.hosts
    spare = max(1, crowd.host.cores * hosts - 1)
    wanted = min(spare, max(1, math.ceil(crowd.cores / WORKER_LOAD)))
    if crowd.has_background:
        wanted = max(2, wanted)
    return -(-wanted // hosts) * hosts


def _most_workers(crowd: _Crowd) -> int:
    """How many workers there can be without one that has nothing to do."""
    if not crowd.has_background:
        return sum(one.parts for one in crowd.costed)
    return 1 + sum(one.parts for one in crowd.costed if not one.group.timed)


def _lanes(crowd: _Crowd, workers: int) -> list[tuple[range, list[int]]]:
    """Which workers play which groups (by index)."""
    everyone = list(range(len(crowd.costed)))
    if workers == 1:
        return [(range(1), everyone)]
    if crowd.has_background:
        timed = [index for index in everyone if crowd.costed[index].group.timed]
        others = [index for index in everyone if not crowd.costed[index].group.timed]
        return [(range(1), timed), (range(1, workers), others)]
    # One device that alone outweighs half a worker's part would lift its worker above the rest.
    heavy = [
        index
        for index, one in enumerate(crowd.costed)
        if one.group.count == 1 and one.cores > 0.5 * crowd.cores / workers
    ]
    if heavy and len(heavy) < min(workers, len(crowd.costed)):
        last = workers - len(heavy)
        alone = [(range(last + at, last + at + 1), [index]) for at, index in enumerate(heavy)]
        return [(range(last), [i for i in everyone if i not in heavy]), *alone]
    return [(range(workers), everyone)]


def _spread(crowd: _Crowd, workers: int) -> list[tuple[Share, ...]]:
    """Shares of each worker; a group's devices are dealt out one by one, like cards.

    Neighbouring devices have neighbouring places in the schedule, so dealing keeps the schedule of
    every worker even. Each group begins where the one before stopped, so that groups of a few
    devices do not all meet in the first worker. Queues are dealt whole, neighbours together.
    """
    shares: list[list[Share]] = [[] for _ in range(workers)]
    for lane, members in _lanes(crowd, workers):
        step = len(lane)
        dealt = 0
        for index in members:
            count, parts = crowd.costed[index].group.count, crowd.costed[index].parts
            for place, worker in enumerate(lane):
                start = (place - dealt) % step
                if start >= parts:
                    continue
                share = Share(index, start, count, step)
                if parts < count:
                    share = _whole_queues(index, count, parts, start, step)
                shares[worker].append(share)
            dealt += parts
    return [tuple(own) for own in shares]


def _whole_queues(index: int, count: int, queues: int, place: int, places: int) -> Share:
    """The consumers of the queues that fall to one of `places` workers, as one range."""
    each, more = divmod(queues, places)
    first = place * each + min(place, more)
    last = first + each + (place < more)
    # Device j consumes queue j * queues // count.
    return Share(index, -(-first * count // queues), -(-last * count // queues), 1)


def _descriptor_problem(shares: list[tuple[Share, ...]], held: int, workers: int) -> str:
    most = max(sum(share.count for share in own) for own in shares)
    if most <= held:
        return ""
    return (
        f"a worker of {workers} would hold {most:,} devices and may open {held:,} beside its own "
        f"files: use more --workers, or raise the limit (ulimit -n {most + SPARE_DESCRIPTORS})"
    )


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


# Ports and source addresses ---------------------------------------------------------------------


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
            topics = _topics_of(group, groups)
            block = -(-group.count * -(-topics // targets) // topics)
            each = min(share.count, -(-block // share.step))
            most = [connections + each for connections in most]
            continue
        own = group.targets or range(targets)
        reached = len(own) // math.gcd(share.step, len(own))
        for target in own:
            most[target] += -(-share.count // reached)
    return max(most)


def _topics_of(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> int:
    """Over how many topics the devices of a group are spread; each by itself where over none."""
    senders = group
    if group.subscribes is not None and not group.subscribes.wildcard:
        named = (other for other in groups if other.name == group.subscribes.publishers)
        senders = next(named, group)
    return max(1, group.count if senders.publishes is None else senders.publishes.topics)


def _with_sources(
    crowd: _Crowd, shares: list[tuple[Share, ...]]
) -> tuple[tuple[WorkerPlan, ...], str]:
    """Worker plans with a source address each where needed, or why more workers are needed.

    Raises HostLimitError where more workers would not help.
    """
    workload, groups, targets = crowd.workload, crowd.groups, crowd.targets
    separate = workload.brokers.apart > 1
    usable = int(crowd.host.local_ports * USABLE_PORT_SHARE)
    network = workload.source_address
    if network is None:
        shared = _most_to_one_target(_everyone(groups), groups, len(targets), separate)
        on_one_host = -(-shared // workload.hosts)
        if on_one_host <= usable:
            return tuple(WorkerPlan(w, own) for w, own in enumerate(shares)), ""
        if not all(_is_loopback(target.host) for target in targets):
            addresses = -(-on_one_host // max(1, usable))
            raise HostLimitError(
                f"{on_one_host:,} connections to one broker address need more than the {usable:,} "
                f"ports of one source address: give --source-address with {addresses} or more "
                "addresses of this host, or more --broker endpoints"
            )
        network = LOOPBACK_SOURCES
    available = ipaddress.ip_network(network)
    _check_family(available, targets)
    size, first = available.num_addresses, 0
    if size > 2:  # neither the network's own address nor its broadcast address
        size, first = size - 2, 1
    plans = tuple(
        WorkerPlan(w, own, str(available[first + w % size])) for w, own in enumerate(shares)
    )
    used: dict[str | None, int] = {}
    for plan in plans:
        most = _most_to_one_target(plan.shares, groups, len(targets), separate)
        used[plan.source_address] = used.get(plan.source_address, 0) + most
    worst = max(used.values())
    if worst > usable:
        example = "127.0.0.0/16" if available.is_loopback else "a larger network"
        problem = (
            f"{worst:,} connections from one source address to one broker address need more than "
            f"its {usable:,} ports: use more --workers, and --source-address with an address for "
            f"each ({example}), or widen net.ipv4.ip_local_port_range"
        )
        if len(shares) >= size:
            raise HostLimitError(problem)
        return (), problem
    return plans, ""


def _is_loopback(host: str) -> bool:
    return host.startswith("127.")


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
    most = 0
    ports: dict[str | None, int] = {}
    devices = 0
    for worker in plan.workers:
        own = sum(share.count for share in worker.shares)
        devices += own
        most = max(most, own)
        to_one = _most_to_one_target(
            worker.shares, plan.groups, len(plan.targets), plan.separate_brokers
        )
        ports[worker.source_address] = ports.get(worker.source_address, 0) + to_one
    each = DEVICE_BYTES + SOCKET_BYTES + (TLS_BYTES if plan.tls is not None else 0)
    return Needs(
        descriptors=most + SPARE_DESCRIPTORS,
        memory_bytes=len(plan.workers) * WORKER_BYTES + devices * each,
        ports=max(ports.values(), default=0),
    )


def describe(plan: RunPlan) -> dict[str, object]:
    """The plan as plain JSON values, without user name and password.

    Holds `workers` (how many), `groups`, `run_tag` (hexadecimal),
    `send_tick_us`, `targets` (URLs), `shares` (each worker's devices and address) and `needs`.
    """
    needs = needs_of(plan)
    return {
        "workers": len(plan.workers),
        "run_tag": f"{plan.run_tag:08x}",
        "seed": plan.seed,
        "mqtt": "3.1.1" if plan.version == 4 else "5",
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
        "needs": {
            "descriptors_per_worker": needs.descriptors,
            "memory_bytes": needs.memory_bytes,
            "ports_per_source_address": needs.ports,
        },
    }


def _describe_group(group: DeviceGroup) -> dict[str, object]:
    publishes, subscribes = group.publishes, group.subscribes
    return {
        "name": group.name,
        "count": group.count,
        "timed": group.timed,
        "clean_start": group.clean_start,
        "keep_alive_s": group.keep_alive_s,
        "targets": list(group.targets),
        "publishes": None
        if publishes is None
        else {
            "topics": publishes.topics,
            "rate": publishes.rate,
            "deliveries": publishes.deliveries,
            "qos": publishes.qos,
            "size_bytes": list(publishes.size_bytes),
            "arrivals": publishes.arrivals,
            "unit": publishes.unit,
        },
        "subscribes": None
        if subscribes is None
        else {
            "publishers": subscribes.publishers,
            "qos": subscribes.qos,
            "wildcard": subscribes.wildcard,
            "shared": subscribes.shared is not None,
            "acknowledge_every": subscribes.acknowledge_every,
        },
    }
