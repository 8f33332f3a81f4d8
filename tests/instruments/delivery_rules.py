"""Deliveries of groups by the rules of MQTT 5 alone, one device and one message at a time.

It reads the tables of a scenario file as docs/reference/groups.md describes them and uses nothing
of loadgen, whose law of deliveries is compared with it.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Device = tuple[str, int]
"""Group and number."""


@dataclass(frozen=True)
class Publication:
    sender: Device
    topic: str
    qos: int
    retain: bool
    broker: int


@dataclass(frozen=True)
class Subscription:
    receiver: Device
    share: str
    filter: str
    qos: int
    broker: int
    leaves: bool
    is_stored: bool

    def may_miss(self, publication: Publication) -> bool:
        """True if a message can come while the device is away and is not stored (4.1, 3.1.2.4).

        It has the QoS that was granted, if that is less (3.8.4).
        """
        return self.leaves and not (self.is_stored and min(publication.qos, self.qos))


@dataclass
class Deliveries:
    """Fewest and most deliveries, of each device and of all."""

    fewest: Counter[Device] = field(default_factory=Counter)
    most: Counter[Device] = field(default_factory=Counter)
    total: tuple[int, int] = (0, 0)


def matches(topic_filter: str, topic: str) -> bool:
    """Section 4.7: `+` is one level, `#` any number; neither is the first level of `$…`."""
    if topic[0] == "$" and topic_filter[0] in "+#":
        return False
    return _levels_match(topic_filter.split("/"), topic.split("/"))


def _levels_match(wanted: list[str], levels: list[str]) -> bool:
    if not wanted or wanted[0] == "#":
        return bool(wanted) or not levels
    return (
        wanted[0] in ("+", *levels[:1]) and bool(levels) and _levels_match(wanted[1:], levels[1:])
    )


class Mix:
    """Groups of a scenario file whose subscriptions are older than the first message.

    Separate brokers have the topics in equal parts, by their numbers.
    """

    def __init__(self, tables: Iterable[Mapping[str, Any]], brokers: int = 1, qos: int = 0) -> None:
        self.publications: list[Publication] = []
        self.subscriptions: list[Subscription] = []
        for table in tables:
            count, name = table["count"], table["name"]
            topics = table.get("topics", count)
            for number in range(count):
                topic_number = number * topics // count
                device, broker = (name, number), topic_number * brokers // topics
                named = {"{device}": str(number), "{topic}": str(topic_number), "{group}": name}
                if "topic" in table:
                    topic, retain = _expand(table["topic"], named), table.get("retain", False)
                    asked = table.get("qos", qos)
                    self.publications.append(Publication(device, topic, asked, retain, broker))
                asked = table.get("subscribe_qos", table.get("qos", qos))
                filters = table.get("subscribe", ())
                for one in [filters] if isinstance(filters, str) else filters:
                    share, plain = _unshared(_expand(one, named))
                    self.subscriptions.append(
                        Subscription(
                            *(device, share, plain, asked, broker),
                            leaves="stages" in table,
                            is_stored=not table.get("clean", True),
                        )
                    )

    def reached_by(self, publication: Publication) -> list[Subscription]:
        return [
            one
            for one in self.subscriptions
            if one.broker == publication.broker and matches(one.filter, publication.topic)
        ]

    def deliveries(self, sent: Callable[[Publication], int] = lambda _: 1) -> Deliveries:
        """Return the deliveries of as many messages of each publication.

        A device has one or more copies if several of its filters match (3.3.4); each shared
        subscription sends a message to one of its devices (4.8.2).
        """
        found = Deliveries()
        for publication in self.publications:
            count, reached = sent(publication), self.reached_by(publication)
            plain = Counter(one.receiver for one in reached if not one.share)
            queues: dict[tuple[str, str], set[Device]] = {}
            for one in reached:
                if one.share:
                    queues.setdefault((one.share, one.filter), set()).add(one.receiver)
            for device, copies in plain.items():
                found.fewest[device] += count
                found.most[device] += count * copies
            for devices in queues.values():
                each = dict.fromkeys(devices, count)
                found.most.update(each)
                found.fewest.update(each if len(devices) == 1 else ())
            fewest, most = len(plain) + len(queues), plain.total() + len(queues)
            found.total = found.total[0] + count * fewest, found.total[1] + count * most
        return found

    def is_open(self) -> bool:
        """True if a number is left open.

        That is so if two filters of a device match a topic, if groups share a subscription, of
        which any may have the message, and if a device may miss one.
        """
        owners: dict[tuple[str, str], set[str]] = {}
        for one in self.subscriptions:
            if one.share:
                owners.setdefault((one.share, one.filter), set()).add(one.receiver[0])
        for publication in self.publications:
            reached = self.reached_by(publication)
            if len({one.receiver for one in reached}) < len(reached):
                return True
            if any(one.may_miss(publication) for one in reached):
                return True
        return any(len(groups) > 1 for groups in owners.values())

    def retained_for(self, *filters: str) -> int:
        """Return the retained messages that a new subscriber gets for each filter (3.3.1.3)."""
        retained = {one.topic for one in self.publications if one.retain}
        plain = [one for one in filters if not _unshared(one)[0]]
        return sum(matches(one, topic) for one in plain for topic in retained)


def _expand(pattern: str, named: Mapping[str, str]) -> str:
    for name, text in named.items():
        pattern = pattern.replace(name, text)
    return pattern


def _unshared(topic_filter: str) -> tuple[str, str]:
    """Section 4.8.2: `$share/NAME/FILTER`."""
    first, *rest = topic_filter.split("/", 2)
    return (rest[0], rest[1]) if first == "$share" else ("", topic_filter)
