"""Groups of like devices, and their shares among the workers.

A case turns a scenario into `DeviceGroup`s (`loadgen.cases`), a `Plan` spreads them over workers
(`plan.py`), and a worker expands its shares into arrays. Everything that can be derived from a
device's number is derived, so that a plan for a million devices is a few hundred bytes.

Device numbers count from 0 within their group. A publishing device i owns the stream
`first_stream + i`; its messages are numbered from 0 in that stream. With `count` devices over
`topics` topics, device i uses topic number `i * topics // count`. So the streams of one topic are
contiguous, and two numbers define the streams that a subscriber must receive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

Arrivals = Literal["constant", "uniform", "poisson"]
Version = Literal[3, 4, 5]


@dataclass(frozen=True, slots=True)
class Publishes:
    """The messages that each device of a group sends.

    `rate` is in messages a second of the entire group. `deliveries` is the number of subscribers
    that must receive each message, `window` the messages that a device may have unacknowledged (QoS
    1 and 2). With a `unit` above 1 a device sends that many messages, and the next when all of them
    are acknowledged, which stands for a JMS transaction. `size_bytes` is the payload's smallest and
    largest size, the 32-byte header included.
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
    """The subscription of each device of a group.

    publishers         name of the publishing group; "" with a `topic`
    wildcard           a device subscribes to all topics of the publishers with one filter;
                       otherwise device j of `count` subscribes to topic `j * topics // count`
    shared             share name by which the devices of a topic are the consumers of a queue:
                       each message goes to one of them
    acknowledge_every  messages that a device acknowledges at a time (QoS 1)
    topic              the only topic of every device, without a publisher
    topic_prefix       replaces that of the publishers if a bridge renames their topics
    answers            the group itself publishes; a device subscribes to `topic_prefix`/NUMBER,
                       with its number, for the responses to its messages
    read_rate          most bytes a second that a device reads; 0 for no limit
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
    """The responses of each device of a subscribing group, with the payload of the request.

    A message of device i of the publishing group is answered on topic `topic_prefix`/i.
    """

    topic_prefix: str
    qos: int = 0
    window: int = 100


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that differ only by their number.

    `timed` marks the group whose latencies are the case's result; other groups are reported as
    background. With `clean_start` False the broker keeps the session. `will` is the topic of a Will
    Message and may hold `{device}`, the device's number. `targets` are numbers of the plan's
    targets that the devices use in turn; empty for all.

    The planner uses `cores` and `parts`. `cores` is the share of a processor that one device takes.
    `parts` is the largest number of parts, of neighbouring devices, into which workers may divide
    the group. Both are derived from rates and topics if they are None. With `each_broker` there is
    one device for each separate broker.
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
    """Settings of encrypted connections; the score card notes a `verify` of False.

    File names may hold `{device}`, the number of the device in its group. With `resume`,
    connections resume the TLS session of an earlier one.
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
    """Delays of a device that reconnects after a loss of its connection.

    It waits `delay_s`, doubled after each failed attempt up to `maximum_s`. Each wait varies by
    `jitter` (0 to 1), so that devices that left together do not return together.
    """

    delay_s: float = 1.0
    maximum_s: float = 30.0
    jitter: float = 0.5


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved address of the broker; device i of a group connects to target i mod targets."""

    host: str
    port: int
    transport: Literal["tcp", "tls", "ws", "wss"] = "tcp"
    path: str = "/mqtt"


_SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


def target_url(target: Target) -> str:
    """Return the target as URL, without user and password."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    path = target.path if target.transport in ("ws", "wss") else ""
    return f"{_SCHEMES[target.transport]}://{host}:{target.port}{path}"


@dataclass(frozen=True, slots=True)
class Share:
    """The devices `start, start + step, ...` below `stop` of the group with this index."""

    group: int
    start: int
    stop: int
    step: int

    @property
    def devices(self) -> range:
        """Numbers of the devices in their group."""
        return range(self.start, self.stop, self.step)

    @property
    def count(self) -> int:
        return len(self.devices)


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """The shares of one worker process, and the number of its host."""

    worker: int
    shares: tuple[Share, ...]
    source_address: str | None = None
    processors: tuple[int, ...] = ()
    host: int = 0


def one_worker(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    """Return a worker that plays all devices of these groups."""
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


MESSAGING = "loadgen.worker.messaging"
"""Module of devices that publish, receive and respond as their groups define."""


def largest_payload_bytes(groups: Iterable[DeviceGroup]) -> int:
    """Return the largest payload size that the groups publish; 0 if none of them publishes."""
    return max((one.publishes.size_bytes[1] for one in groups if one.publishes), default=0)


def topic_number(device: int, devices: int, topics: int) -> int:
    """Return the number of the topic, of `topics`, that device `device` of `devices` uses."""
    return device * topics // devices


def topic_name(publishes: Publishes, number: int) -> str:
    return f"{publishes.topic_prefix}/{number}"


def publishing_to(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> DeviceGroup | None:
    """Return the publishing group that a group subscribes to; None if there is no such group."""
    name = group.subscribes.publishers if group.subscribes is not None else ""
    found = (other for other in groups if other.name == name and other.publishes is not None)
    return next(found, None)


def slow_group(groups: Iterable[DeviceGroup]) -> DeviceGroup | None:
    """Return the group of slow readers; None if there is no such group."""
    return next((one for one in groups if one.subscribes and one.subscribes.read_rate), None)


def may_leave(group: DeviceGroup) -> bool:
    """Return True if a device of the group can be away without a lost message."""
    if group.subscribes is not None:
        return not group.clean_start and group.subscribes.qos > 0
    return group.publishes is not None


def sent_rate(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> float:
    """Return the messages a second that a group publishes, or sends as responses, by plan."""
    sending = group if group.publishes is not None else None
    if sending is None and group.responds is not None:
        sending = publishing_to(group, groups)
    return sending.publishes.rate if sending is not None and sending.publishes is not None else 0.0


def sent_qos(group: DeviceGroup) -> int:
    """Return the QoS of the messages that are counted as sent by a group.

    It is that of its publications, else of its responses. A group without either has that of its
    subscription.
    """
    sending = group.publishes or group.responds or group.subscribes
    return sending.qos if sending is not None else 0


def topics_of(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> int:
    """Return the number of topics over which a group is spread; without topics that of devices."""
    sending: DeviceGroup | None = group
    if group.publishes is None:
        whole = group.subscribes is None or group.subscribes.wildcard
        sending = None if whole else publishing_to(group, groups)
    if sending is None or sending.publishes is None:
        return max(1, group.count)
    return sending.publishes.topics
