"""What a run plays: groups of like devices, and which worker plays which of them.

A case turns a scenario into `DeviceGroup`s (`loadgen.cases`), a `RunPlan` spreads them over workers
(`plan.py`), and a worker expands its shares into arrays. Everything that can be derived from a
device's number is derived, so that a plan for a million devices is a few hundred bytes.

Device numbers count from 0 within their group. A publishing device i owns the stream
`first_stream + i`; its messages are numbered from 0 in that stream. With `count` devices over
`topics` topics, device i uses topic number `i * topics // count`, so that the streams of one
topic are contiguous and a subscriber needs two numbers to know what it must receive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Arrivals = Literal["constant", "uniform", "poisson"]
Version = Literal[3, 4, 5]


@dataclass(frozen=True, slots=True)
class Publishes:
    """What each device of a group sends.

    `rate` is messages a second of the whole group; `deliveries` how many subscribers must
    receive each message; `window` the messages a device may have unacknowledged (QoS 1 and 2).
    With a `unit` above 1 a device sends that many messages and waits until all of them are
    acknowledged before it sends the next (a JMS transaction, in MQTT's means). `size_bytes` is
    the payload's smallest and largest size, the 32-byte header included.
    """

    topic_prefix: str
    topics: int
    first_stream: int
    rate: float
    deliveries: int
    qos: int = 0
    retain: bool = False
    size_bytes: tuple[int, int] = (32, 32)
    arrivals: Arrivals = "constant"
    window: int = 100
    unit: int = 1


@dataclass(frozen=True, slots=True)
class Subscribes:
    """What each device of a group receives.

    `publishers` names the publishing group. A `wildcard` subscriber takes every topic of it with
    one filter; otherwise device j of `count` takes topic number `j * topics // count`. With
    `shared`, the devices of one topic are a queue by that share name: each message goes to one of
    them. A device acknowledges `acknowledge_every` messages at a time (QoS 1). With a
    `topic` every device asks for just that one, to which nobody publishes (`publishers` is "").
    `topic_prefix` takes the place of the publishers' own where a bridge renames their topics.
    With `answers` the group is the publishing one, and each of its devices takes just the topic
    `topic_prefix`/NUMBER of its own number, for the responses to what it sent. With a `read_rate`
    a device reads so many bytes a second at most, 0 for all that come.
    """

    publishers: str
    qos: int = 0
    wildcard: bool = False
    shared: str | None = None
    acknowledge_every: int = 1
    topic: str | None = None
    topic_prefix: str | None = None
    answers: bool = False
    read_rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Responds:
    """How each device of a subscribing group answers: the payload goes back where it came from.

    A message of device i of the publishing group is answered on topic `topic_prefix`/i.
    """

    topic_prefix: str
    qos: int = 0
    window: int = 100


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that differ only by their number.

    `timed` marks the group whose latencies are the case's result; the series of other groups are
    reported as background. `clean_start` False asks the broker to keep the session. `will` is the
    topic of a Will Message and may hold `{device}`, the device's number. With `targets`, numbers of
    the plan's targets, the devices use these in turn and no others.

    For the planner: `cores`, what one device takes of a processor, and `parts`, into how many parts
    of neighbouring devices the group may be divided among workers; both follow from rates and
    topics where they are None. With `each_broker` there is a device for each broker that stands
    for itself, however many there are.
    """

    name: str
    count: int
    publishes: Publishes | None = None
    subscribes: Subscribes | None = None
    responds: Responds | None = None
    timed: bool = True
    clean_start: bool = True
    keep_alive_s: int = 300
    will: str | None = None
    targets: tuple[int, ...] = ()
    cores: float | None = None
    parts: int | None = None
    each_broker: bool = False


@dataclass(frozen=True, slots=True)
class Tls:
    """How an encrypted connection is made; the score card says where `verify` is False.

    File names may hold `{device}`, the number of the device in its group. With `resume`
    connections resume a session of an earlier one.
    """

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    passphrase: str | None = field(default=None, repr=False)  # of an encrypted key
    verify: bool = True
    minimum: str | None = None
    maximum: str | None = None
    ciphers: str | None = None
    resume: bool = False


@dataclass(frozen=True, slots=True)
class Reconnect:
    """How a device that lost its connection comes back.

    It waits `delay_s`, twice as long after each attempt that failed and at most `maximum_s`, each
    time varied by `jitter` (0 to 1) so that devices that left together do not return together.
    """

    delay_s: float = 1.0
    maximum_s: float = 30.0
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """One address of the broker, resolved; device i of a group connects to target i mod targets."""

    host: str
    port: int
    transport: Literal["tcp", "tls", "ws", "wss"] = "tcp"
    path: str = "/mqtt"


_SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


def target_url(target: Target) -> str:
    """The target as URL, without any user or password."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    path = target.path if target.transport in ("ws", "wss") else ""
    return f"{_SCHEMES[target.transport]}://{host}:{target.port}{path}"


@dataclass(frozen=True, slots=True)
class Share:
    """Devices `start, start + step, ...` below `stop` of the group with this index."""

    group: int
    start: int
    stop: int
    step: int

    @property
    def devices(self) -> range:
        """Numbers of its devices in their group."""
        return range(self.start, self.stop, self.step)

    @property
    def count(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What one worker process plays, and the number of the host that it runs on."""

    worker: int
    shares: tuple[Share, ...]
    source_address: str | None = None
    processors: tuple[int, ...] = ()
    host: int = 0


def one_worker(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    """Return a worker that plays all devices of these groups."""
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


MESSAGING = "loadgen.worker.messaging"
"""Module of devices that publish, receive and respond as their groups say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceConduct:
    """What devices do beside their messages, the same in a workload and in its plan."""

    reconnect: Reconnect | None = None  # how they come back after a loss; None: they stay away
    churn_per_s: float = 0.0  # devices a second that leave on request
    away_s: float = 1.0  # and for about how long
    client_id: str | None = None  # with {device} and {group}; None for the run's own identifiers
    clients_file: str | None = None  # paths that the workers read
    # Whether each device has a user and a password of its own, derived from the plan's password.
    access_control: bool = False
    payload_file: str | None = None
    payload_template: str | None = None
    per_device: bool = False  # whether a worker's last answer has a row for each of its devices


@dataclass(frozen=True, slots=True)
class RunPlan(DeviceConduct):
    """Everything a worker needs to know of a run, but for the moment it starts.

    `run_tag` (32 bits) marks every payload of this run. `connected_by` is the tag of the run that
    connected its devices, after which they and their topics are named, None where it is this one.
    `send_tick_us` is the longest time a due
    message may wait to be sent together with others, 0 for each at its own moment. With
    `separate_brokers` each target is a broker of its own, over which the topics are spread;
    otherwise all targets lead to the same one. `behaviour` is the module that says what devices do
    (plan/behaviour.py), and `model` what only that module reads.
    """

    run_tag: int
    seed: int
    version: Version
    groups: tuple[DeviceGroup, ...]
    targets: tuple[Target, ...]
    workers: tuple[WorkerPlan, ...]
    username: str | None = None
    password: str | None = None
    tls: Tls | None = None
    send_tick_us: int = 0
    max_packet_bytes: int = 1 << 20
    separate_brokers: bool = False
    behaviour: str = MESSAGING
    model: Any = None
    connected_by: int | None = None

    @property
    def root(self) -> str:
        """First level of the topics that are the run's own, and begin of its identifiers."""
        return f"lg{self.run_tag if self.connected_by is None else self.connected_by:08x}"

    def group(self, name: str) -> DeviceGroup:
        return next(group for group in self.groups if group.name == name)


def largest_payload_bytes(groups: Iterable[DeviceGroup]) -> int:
    """Bytes of the largest message that any of the groups publishes; 0 where none does."""
    return max((one.publishes.size_bytes[1] for one in groups if one.publishes), default=0)


def client_id(plan: RunPlan, group: DeviceGroup, device: int) -> str:
    """MQTT client identifier of one device: by the plan's pattern, or unique to the run.

    The run's own kind has at most 23 bytes where the number allows it (MQTT 3.1.1, 3.1.3.1).
    """
    if plan.client_id is not None:
        own = plan.client_id.replace("{device}", str(device))
        return own.replace("{group}", str(plan.groups.index(group)))
    return f"{plan.root}{group.name[0]}{plan.groups.index(group)}-{device}"


def may_be_kept(plan: RunPlan) -> bool:
    """Whether devices that end a run as they began it can stay connected for the next one.

    Not those that leave on request, nor sessions that the broker is to keep: they would not be new.
    Nor slow readers: what their sockets may hold has grown when the window ended.
    """
    lasting = plan.churn_per_s == 0 and all(group.clean_start for group in plan.groups)
    publishing = any(group.publishes for group in plan.groups)
    alike = lasting and slow_group(plan.groups) is None
    return plan.behaviour == MESSAGING and alike and publishing


def without_rates(plan: RunPlan) -> RunPlan:
    """The plan without what a run can change on the same connections: its rates and its tag."""
    groups = tuple(
        replace(group, publishes=group.publishes and replace(group.publishes, rate=0.0))
        for group in plan.groups
    )
    return replace(plan, run_tag=0, connected_by=None, send_tick_us=0, groups=groups)


def topic_number(device: int, devices: int, topics: int) -> int:
    """Which of `topics` topics device number `device` of `devices` uses."""
    return device * topics // devices


def topic_name(publishes: Publishes, number: int) -> str:
    """Topic name with this number."""
    return f"{publishes.topic_prefix}/{number}"


def publishing_to(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> DeviceGroup | None:
    """The publishing group that a group subscribes to; None where there is no such group."""
    name = group.subscribes.publishers if group.subscribes is not None else ""
    found = (other for other in groups if other.name == name and other.publishes is not None)
    return next(found, None)


def topic_filter(plan: RunPlan, group: DeviceGroup, device: int) -> str:
    """Topic filter that a subscribing device asks for."""
    subscribes = group.subscribes
    if subscribes is None:
        raise ValueError(f"group {group.name} does not subscribe")
    if subscribes.topic is not None:
        return subscribes.topic
    publishes = plan.group(subscribes.publishers).publishes
    if publishes is None:
        raise ValueError(f"group {subscribes.publishers} does not publish")
    prefix = subscribes.topic_prefix or publishes.topic_prefix
    if subscribes.answers:
        return f"{prefix}/{device}"
    number = topic_number(device, group.count, publishes.topics)
    name = f"{prefix}/+" if subscribes.wildcard else f"{prefix}/{number}"
    return name if subscribes.shared is None else f"$share/{subscribes.shared}/{name}"


def slow_group(groups: Iterable[DeviceGroup]) -> DeviceGroup | None:
    """The group whose devices read slowly on request; None where there is none."""
    return next((one for one in groups if one.subscribes and one.subscribes.read_rate), None)


def sent_rate(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> float:
    """Messages a second that a group sends by plan: of its own accord, or one for each it gets."""
    sending = group if group.publishes is not None else None
    if sending is None and group.responds is not None:
        sending = publishing_to(group, groups)
    return sending.publishes.rate if sending is not None and sending.publishes is not None else 0.0


def sent_qos(group: DeviceGroup) -> int:
    """The QoS of what is counted as sent by a group: its own, its responses', or, of messages that
    others cause, that at which it receives them."""
    sending = group.publishes or group.responds or group.subscribes
    return sending.qos if sending is not None else 0


def target_number(plan: RunPlan, group: DeviceGroup, device: int) -> int:
    """Which target a device connects to."""
    if group.targets:
        return group.targets[device % len(group.targets)]
    targets = len(plan.targets)
    if not plan.separate_brokers:
        return device % targets
    topics = topics_of(group, plan.groups)
    return topic_number(device, group.count, topics) * targets // topics


def timed_between_hosts(plan: RunPlan) -> bool:
    """Whether latencies that are the run's result begin on one host and end on another."""

    def hosts(group: DeviceGroup) -> set[int]:
        number = plan.groups.index(group)
        return {w.host for w in plan.workers if any(s.group == number for s in w.shares)}

    for group in plan.groups:
        sender = publishing_to(group, plan.groups)
        if group.timed and sender is not None and len(hosts(group) | hosts(sender)) > 1:
            return True
    # Devices that answer by other rules may send to any group.
    return plan.behaviour != MESSAGING and len({worker.host for worker in plan.workers}) > 1


def topics_of(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> int:
    """Over how many topics the devices of a group are spread; each by itself where over none."""
    sending: DeviceGroup | None = group
    if group.publishes is None:
        whole = group.subscribes is None or group.subscribes.wildcard
        sending = None if whole else publishing_to(group, groups)
    if sending is None or sending.publishes is None:
        return max(1, group.count)
    return sending.publishes.topics


def streams_received(plan: RunPlan, group: DeviceGroup, device: int) -> tuple[int, int]:
    """First stream and number of streams that a subscribing device must receive."""
    subscribes = group.subscribes
    if subscribes is None or subscribes.topic is not None:
        return 0, 0
    senders = plan.group(subscribes.publishers)
    publishes = senders.publishes
    if publishes is None:
        raise ValueError(f"group {subscribes.publishers} does not publish")
    if subscribes.answers:
        return publishes.first_stream + device, 1
    topics = publishes.topics
    number, following = 0, topics
    if not subscribes.wildcard:
        number = topic_number(device, group.count, topics)
        following = number + 1
    elif plan.separate_brokers:
        # A wildcard at one of several brokers sees the topics that went there.
        targets = len(plan.targets)
        target = target_number(plan, group, device)
        number = -(-target * topics // targets)
        following = -(-(target + 1) * topics // targets)
    first = -(-number * senders.count // topics)
    last = -(-following * senders.count // topics)
    return publishes.first_stream + first, last - first
