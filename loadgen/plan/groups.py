"""What a run plays: groups of like devices, and which worker plays which of them.

A case turns a scenario into `DeviceGroup`s (`loadgen.cases`), a `Plan` spreads them over workers
(`plan.py`), and a worker expands its shares into arrays. Everything that can be derived from a
device's number is derived, so that a plan for a million devices is a few hundred bytes.

Device numbers count from 0 within their group. A publishing device i owns the stream
`first_stream + i`; its messages are numbered from 0 in that stream. With `count` devices over
`topics` topics, device i uses topic number `i * topics // count`, so that the streams of one
topic are contiguous and a subscriber needs two numbers to know what it must receive.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

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


def largest_payload_bytes(groups: Iterable[DeviceGroup]) -> int:
    """Bytes of the largest message that any of the groups publishes; 0 where none does."""
    return max((one.publishes.size_bytes[1] for one in groups if one.publishes), default=0)


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


def topics_of(group: DeviceGroup, groups: Iterable[DeviceGroup]) -> int:
    """Over how many topics the devices of a group are spread; each by itself where over none."""
    sending: DeviceGroup | None = group
    if group.publishes is None:
        whole = group.subscribes is None or group.subscribes.wildcard
        sending = None if whole else publishing_to(group, groups)
    if sending is None or sending.publishes is None:
        return max(1, group.count)
    return sending.publishes.topics
