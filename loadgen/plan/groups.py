"""Groups of like devices, and their shares among the workers.

Everything follows from the number of a device in its group, so that a plan for a million devices is
a few hundred bytes. Of `count` devices over `topics` topics, device i has topic number `i * topics
// count`; its messages are numbered from 0 in the stream `first_stream + i`. In patterns of topics
and filters, `{device}` and `{topic}` stand for these numbers.
"""

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from loadgen.mqtt.topics import split_shared
from loadgen.plan.stages import Stage

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Arrivals = Literal["constant", "uniform", "poisson"]
Version = Literal[3, 4, 5]

ROOT = "$run"
"""First level of the run's topics until `plan.rooted` replaces it; no user's topic begins so."""

NUMBER = re.compile(r"\{(device|topic)\}")
"""The number of a device, or of its topic, in a pattern."""


def finest_number(pattern: str) -> str:
    """Return the number by which a pattern differs: "device", else "topic", "" for neither."""
    return min(NUMBER.findall(pattern), default="")


def sample_of(pattern: str) -> str:
    """Return one of the topics or filters that a user's pattern describes."""
    return NUMBER.sub("0", pattern).replace("{group}", "group")


def pattern_fault(pattern: str) -> str | None:
    """Return the fault of a user's pattern, which may hold `{group}`, too; None for a good one."""
    rest = NUMBER.sub("", pattern).replace("{group}", "")
    if "{" in rest or "}" in rest:
        return "has braces other than {device}, {topic} and {group}"
    for level in pattern.split("/"):
        texts = NUMBER.split(level)[::2]
        if len(texts) > 2:
            return "has two numbers in a level"
        if len(texts) == 2 and re.search("[0-9]", "".join(texts)):
            return "has a number next to digits"
    return None


def wildcard_of(topic: str) -> str:
    return "/".join("+" if NUMBER.search(level) else level for level in topic.split("/"))


@dataclass(frozen=True, slots=True)
class Publishes:
    """The messages that each device of a group sends."""

    topic: str  # a pattern
    rate: float  # messages a second of the entire group; 0: whenever the window has room
    qos: int = 0
    retain: bool = False
    size_bytes: tuple[int, int] = (32, 32)  # of payload and header, wherever the header is
    arrivals: Arrivals = "constant"
    window: int = 100  # messages that a device may have unacknowledged (QoS 1 and 2)
    unit: int = 1  # messages that are sent and acknowledged together, as a JMS transaction
    first_stream: int = 0
    arrives_as: str = ""  # topics at the subscribers if a bridge renames them
    deliveries: int | None = None  # of a message, if they do not follow from filters
    payload: str | None = None  # file of the body; the scenario's if neither is set
    payload_template: str | None = None
    expiry_s: int | None = None  # Message Expiry Interval
    user_properties: tuple[tuple[str, str], ...] = ()
    messages: int = 0  # that a device sends at most, 0 for no limit


@dataclass(frozen=True, slots=True)
class Subscribes:
    filters: tuple[str, ...]  # patterns; empty if the devices' behaviour has filters
    qos: int = 0
    acknowledge_every: int = 1  # messages acknowledged at a time (QoS 1)
    read_rate: float = 0.0  # most bytes a second that a device reads, 0 for no limit

    @property
    def shared(self) -> tuple[str, ...]:
        """The shared filters: each of their messages goes to one of the devices with the filter."""
        return tuple(one for one in self.filters if split_shared(one)[0] is not None)


@dataclass(frozen=True, slots=True)
class Responds:
    """The responses of each device of a subscribing group, with the payload of the request."""

    topic: str  # a pattern, with the numbers of the device that sent the request
    qos: int = 0
    window: int = 100


@dataclass(frozen=True, slots=True)
class DeviceGroup:
    """Devices that differ only by their number."""

    name: str
    count: int
    publishes: Publishes | None = None
    subscribes: Subscribes | None = None
    responds: Responds | None = None
    topics: int = 0  # over which the devices are spread, 0 for one each
    timed: bool = True  # their latencies are the case's result, and not background
    clean_start: bool = True  # False: the broker keeps the session
    session_expiry_s: int = 3600
    keep_alive_s: int = 300
    version: Version | None = None  # the scenario's unless stated
    clients_file: str | None = None  # of identifiers and logins
    login: tuple[str | None, str | None] | None = field(default=None, repr=False)
    will: str | None = None  # topic of a Will Message, may hold `{device}`
    source: str | None = None  # network, from which each worker takes an address
    stages: tuple[Stage, ...] = ()  # empty for devices that stay
    targets: tuple[int, ...] = ()  # numbers of the targets that are used in turn; empty for all
    cores: float = 0.0  # share of a processor that one device takes
    parts: int = -1  # most workers that can share it; negative: derive this and `cores`
    each_broker: bool = False  # one device for each separate broker
    kind: str = ""  # name that several groups share for `--place`

    @property
    def is_closed(self) -> bool:
        """True if acknowledgements set the pace of the devices."""
        return self.publishes is not None and self.publishes.rate == 0

    @property
    def topic_count(self) -> int:
        return self.topics or max(1, self.count)

    def topic_number(self, device: int) -> int:
        return device * self.topic_count // max(1, self.count)

    def distinct(self, pattern: str) -> int:
        """Return the number of different topics or filters that a pattern stands for."""
        return {"device": self.count, "topic": min(self.topic_count, self.count), "": 1}[
            finest_number(pattern)
        ]

    def expand(self, pattern: str, device: int) -> str:
        topic = str(self.topic_number(device))
        return pattern.replace("{device}", str(device)).replace("{topic}", topic)


@dataclass(frozen=True, slots=True)
class Tls:
    """Settings of encrypted connections; file names may hold `{device}`."""

    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    passphrase: str | None = field(default=None, repr=False)  # of an encrypted key
    verify: bool = True  # the score card notes False
    version: str | None = None  # the only one that is offered; None for all
    ciphers: str | None = None
    alpn: str | None = None
    resume: bool = False  # connections resume the TLS session of an earlier one


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Delays of a device that reconnects after a loss of its connection."""

    delay_s: float = 1.0  # doubled after each failed attempt
    maximum_s: float = 30.0
    jitter: float = 0.5  # share (0 to 1) by which each wait varies, to spread returns


@dataclass(frozen=True, slots=True)
class Target:
    """A resolved address of the broker; device i of a group connects to target i mod targets."""

    host: str
    port: int
    transport: Literal["tcp", "tls", "ws", "wss"] = "tcp"
    path: str = "/mqtt"


_SCHEMES = {"tcp": "mqtt", "tls": "mqtts", "ws": "ws", "wss": "wss"}


def target_url(target: Target) -> str:
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


def usable_addresses(network: Network) -> tuple[int, int]:
    """Return the first address of hosts in a network, and their number."""
    size = network.num_addresses
    # Without the network address and the broadcast address.
    return (1, size - 2) if size > 2 else (0, size)


def source_of(group: DeviceGroup, worker: WorkerPlan) -> str | None:
    """Return the address from which a worker connects the devices of a group; None for any."""
    if group.source is None:
        return worker.source_address
    network = ipaddress.ip_network(group.source)
    first, size = usable_addresses(network)
    return str(network[first + worker.worker % size])


def one_worker(groups: tuple[DeviceGroup, ...]) -> WorkerPlan:
    return WorkerPlan(0, tuple(Share(at, 0, group.count, 1) for at, group in enumerate(groups)))


MESSAGING = "loadgen.worker.messaging"
"""Module of devices that publish, receive and respond as their groups define."""


def largest_payload_bytes(groups: Iterable[DeviceGroup]) -> int:
    """Return the largest payload size that the groups publish; 0 if none of them publishes."""
    return max((one.publishes.size_bytes[1] for one in groups if one.publishes), default=0)


def slow_group(groups: Iterable[DeviceGroup]) -> DeviceGroup | None:
    return next((one for one in groups if one.subscribes and one.subscribes.read_rate), None)


def may_leave(group: DeviceGroup) -> bool:
    """Return True if a device of the group can be away without a lost message."""
    if group.subscribes is not None:
        return not group.clean_start and group.subscribes.qos > 0
    return group.publishes is not None


def sent_qos(group: DeviceGroup) -> int:
    """Return the QoS of the messages that a group sends, else that of its subscription."""
    sending = group.publishes or group.responds or group.subscribes
    return sending.qos if sending is not None else 0
