"""Deliveries between the groups of a plan, from their topics and filters.

In these patterns the devices of a group differ only by their numbers. So the streams that a device
receives through one filter are one range, and so are the receivers of a stream in a group.
"""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from loadgen.errors import ScenarioError
from loadgen.mqtt.topics import is_wild, split_shared
from loadgen.plan.groups import NUMBER, DeviceGroup, finest_number
from loadgen.plan.units import shown
from loadgen.sentences import PLAN_TEXT

_SAMPLE = 1_000  # maximum number of streams of which deliveries are counted to know their mean

Condition = tuple[str, str, int]
"""Numbers of sender and receiver that are equal; if one is "", the other equals the value."""


@dataclass(frozen=True, slots=True)
class TopicSource:
    """The messages of a group's streams as subscribers see them, or the responses to them."""

    senders: DeviceGroup
    topic: str
    qos: int
    is_response: bool = False

    @property
    def rate(self) -> float:
        return self.senders.publishes.rate if self.senders.publishes is not None else 0.0


@dataclass(frozen=True, slots=True)
class Flow:
    """The deliveries of a source through one filter of a group, under some conditions."""

    source: TopicSource
    receivers: DeviceGroup
    filter: str
    conditions: tuple[Condition, ...]
    brokers: int

    @property
    def shared(self) -> bool:
        return split_shared(self.filter)[0] is not None

    def senders_to(self, receiver: int) -> range:
        """Return the publishing devices whose messages a device must receive."""
        conditions = ((theirs, ours, value) for ours, theirs, value in self.conditions)
        return self._across(conditions, self.receivers, receiver, self.source.senders)

    def receivers_of(self, sender: int) -> range:
        """Return the devices whose filters match the topic of a publishing device."""
        return self._across(self.conditions, self.source.senders, sender, self.receivers)

    def copies(self, sender: int) -> int:
        """Return the deliveries of each message of a publishing device: one a subscription."""
        receivers = self.receivers_of(sender)
        if not receivers or not self.shared:
            return len(receivers)
        first, last = (
            self._number(self.receivers, finest_number(self.filter), device)
            for device in (receivers[0], receivers[-1])
        )
        return min(last - first + 1, len(receivers))

    def mean_copies(self) -> float:
        """Return the mean of `copies`; that of a sample if there are many devices."""
        count = self.source.senders.count
        sample = range(0, count, -(-count // _SAMPLE) or 1)
        return sum(map(self.copies, sample)) / len(sample) if sample else 0.0

    def _across(
        self, conditions: Iterable[Condition], group: DeviceGroup, device: int, others: DeviceGroup
    ) -> range:
        count, topics = others.count, others.topic_count
        start, stop = 0, count
        for ours, theirs, value in conditions:
            number = self._number(group, ours, device) if ours else value
            if not theirs:
                if number != value:
                    return range(0)
                continue
            first, end = number, number + 1
            if theirs == "broker":
                first, end = (-(-one * topics // self.brokers) for one in (first, end))
            if theirs != "device":
                first, end = (-(-one * count // topics) for one in (first, end))
            start, stop = max(start, first), min(stop, end)
        return range(start, max(start, stop))

    def _number(self, group: DeviceGroup, name: str, device: int) -> int:
        if name in ("", "device"):
            return device if name else 0
        topic = group.topic_number(device)
        return topic * self.brokers // group.topic_count if name == "broker" else topic


@lru_cache(maxsize=32)
def matches_of(groups: tuple[DeviceGroup, ...], brokers: int = 1) -> tuple[Flow, ...]:
    """Return all deliveries of the groups, direct ones first, then the responses to them."""
    direct = [
        TopicSource(group, group.publishes.arrives_as or group.publishes.topic, group.publishes.qos)
        for group in groups
        if group.publishes is not None
    ]
    matches = list(_matches(direct, groups, brokers))
    responses = [
        TopicSource(match.source.senders, responds.topic, responds.qos, is_response=True)
        for match in matches
        if (responds := match.receivers.responds) is not None
    ]
    return (*matches, *_matches(responses, groups, brokers))


def _matches(
    sources: Iterable[TopicSource], groups: Iterable[DeviceGroup], brokers: int
) -> Iterator[Flow]:
    for source in sources:
        for group in groups:
            for one in group.subscribes.filters if group.subscribes is not None else ():
                conditions = _conditions(source.topic, split_shared(one)[1])
                if conditions is not None:
                    if brokers > 1:
                        conditions.append(("broker", "broker", 0))
                    yield Flow(source, group, one, tuple(conditions), brokers)


def _conditions(topic: str, wanted: str) -> list[Condition] | None:
    """Return the conditions under which a filter matches a topic; None if it never does."""
    levels, filter_levels = topic.split("/"), wanted.split("/")
    if topic.startswith("$") and is_wild(filter_levels[0]):
        return None  # MQTT 5, 4.7.2
    conditions: list[Condition] = []
    for place, level in enumerate(filter_levels):
        if level == "#":
            return conditions
        if place == len(levels):
            return None
        if level == "+":
            continue
        condition = _same(levels[place], level)
        if condition is None:
            return None
        conditions += condition
    return conditions if len(levels) == len(filter_levels) else None


def _same(level: str, wanted: str) -> list[Condition] | None:
    """Return the conditions under which two levels are equal; None if they never are."""
    ours, theirs = NUMBER.search(level), NUMBER.search(wanted)
    if ours and theirs:
        around = NUMBER.split(level)[::2] == NUMBER.split(wanted)[::2]
        return [(ours[1], theirs[1], 0)] if around else None
    if ours:
        value = _value(level, wanted)
        return None if value is None else [(ours[1], "", value)]
    if theirs:
        value = _value(wanted, level)
        return None if value is None else [("", theirs[1], value)]
    return [] if level == wanted else None


def _value(pattern: str, text: str) -> int | None:
    """Return the number with which a level of a pattern is this text; None if no number fits."""
    before, _, after = NUMBER.split(pattern)
    number = re.fullmatch(f"{re.escape(before)}(0|[1-9][0-9]{{0,11}}){re.escape(after)}", text)
    return int(number[1]) if number else None


def received_by(groups: tuple[DeviceGroup, ...], name: str, brokers: int = 1) -> Iterator[Flow]:
    return (match for match in matches_of(groups, brokers) if match.receivers.name == name)


def direct_senders(groups: tuple[DeviceGroup, ...], name: str) -> tuple[DeviceGroup, ...]:
    """Return the groups whose messages the group with this name receives, without responses."""
    direct = (match for match in received_by(groups, name) if not match.source.is_response)
    return tuple({match.source.senders.name: match.source.senders for match in direct}.values())


def mean_deliveries(group: DeviceGroup, groups: tuple[DeviceGroup, ...], brokers: int = 1) -> float:
    """Return the mean deliveries of each message that a group publishes, without responses."""
    if group.publishes is not None and group.publishes.deliveries is not None:
        return float(group.publishes.deliveries)
    return math.fsum(
        match.mean_copies()
        for match in matches_of(groups, brokers)
        if match.source.senders.name == group.name and not match.source.is_response
    )


@lru_cache(maxsize=32)
def delivered_rate(groups: tuple[DeviceGroup, ...], brokers: int = 1) -> float:
    return sum(
        group.publishes.rate * mean_deliveries(group, groups, brokers)
        for group in groups
        if group.publishes is not None
    )


def sent_rate(group: DeviceGroup, groups: tuple[DeviceGroup, ...]) -> float:
    """Return the messages a second that a group publishes, or sends as responses, by plan."""
    if group.publishes is not None:
        return group.publishes.rate
    if group.responds is None:
        return 0.0
    return sum(one.publishes.rate for one in direct_senders(groups, group.name) if one.publishes)


def require_exact(groups: tuple[DeviceGroup, ...], brokers: int = 1) -> None:
    """Refuse subscriptions whose number of deliveries MQTT leaves open."""
    sharing: dict[str, DeviceGroup] = {}
    for group in groups:
        matches = list(received_by(groups, group.name, brokers))
        for at, match in enumerate(matches):
            _require_stored(match, groups)
            for other in matches[:at]:
                if other.source == match.source and _overlap(match, other):
                    raise ScenarioError(
                        PLAN_TEXT.OVERLAP(
                            first=shown(other.filter), second=shown(match.filter), group=group.name
                        )
                    )
        shared = group.subscribes.shared if group.subscribes is not None else ()
        for pattern in shared:
            for earlier, owner in sharing.items():
                if _may_be_equal(earlier, pattern):
                    raise ScenarioError(
                        PLAN_TEXT.SHARED_BY_GROUPS(
                            first=owner.name, second=group.name, filter=shown(pattern)
                        )
                    )
        sharing |= dict.fromkeys(shared, group)


def _require_stored(match: Flow, groups: tuple[DeviceGroup, ...]) -> None:
    """Refuse messages that a device may miss while it is away by its stages."""
    group, subscribes = match.receivers, match.receivers.subscribes
    if not group.stages or subscribes is None or _is_retained(match, groups):
        return
    sender = match.source.senders
    expires = sender.publishes is not None and sender.publishes.expiry_s is not None
    if group.clean_start or expires or not min(subscribes.qos, match.source.qos):
        values = {"group": group.name, "filter": shown(match.filter), "sender": sender.name}
        raise ScenarioError(PLAN_TEXT.STAGES_NOT_STORED(**values))


def _is_retained(match: Flow, groups: tuple[DeviceGroup, ...]) -> bool:
    """Return True if each message is the only one of its topic, and a later subscriber gets it."""
    source, sent = match.source, match.source.senders.publishes
    if sent is None or sent.messages != 1 or match.shared or not _has_own_topics(source, groups):
        return False
    # A broker may discard a retained message of QoS 0 (MQTT 5, 3.3.1.3).
    return sent.retain and sent.qos > 0 and sent.expiry_s is None and not source.is_response


def _has_own_topics(source: TopicSource, groups: tuple[DeviceGroup, ...]) -> bool:
    """Return True if no two devices publish to the same topic of a source."""
    sent = [one.publishes for one in groups if one.publishes is not None]
    same = [one for one in sent if _may_be_equal(one.arrives_as or one.topic, source.topic)]
    return source.senders.distinct(source.topic) == source.senders.count and len(same) == 1


def require_ordered(
    groups: tuple[DeviceGroup, ...], brokers: int = 1, *, returns: bool = False
) -> None:
    """Refuse messages that topic and order do not identify.

    A stream needs separate topics, due times that follow from its numbers, and subscribers that get
    each message once. `returns`: devices may lose their connection and reconnect.
    """
    for match in matches_of(groups, brokers):
        source, senders, sent = match.source, match.source.senders, match.source.senders.publishes
        if sent is None:
            continue
        faults = {
            "responding": source.is_response,
            "unsteady": not sent.rate or sent.messages > 0 or sent.arrivals == "poisson",
            "retained": sent.retain,
            "joined": not _has_own_topics(source, groups),
            "shared": match.shared,
            "leaving": returns or senders.stages or match.receivers.stages,
        }
        if any(faults.values()):
            names = {name: senders.name if is_fault else None for name, is_fault in faults.items()}
            raise ScenarioError(PLAN_TEXT.NO_HEADER(**names))


def _may_be_equal(pattern: str, other: str) -> bool:
    """Return True if two patterns may be the same filter for some devices."""
    levels, others = pattern.split("/"), other.split("/")
    same = (_same(*pair) is not None for pair in zip(levels, others, strict=False))
    return len(levels) == len(others) and all(same)


def _overlap(match: Flow, other: Flow) -> bool:
    """Return True if a message reaches one device by both filters."""
    several = any(theirs for _, theirs, _ in (*match.conditions, *other.conditions))
    for device in range(match.receivers.count if several else 1):
        one, another = match.senders_to(device), other.senders_to(device)
        if max(one.start, another.start) < min(one.stop, another.stop):
            return True
    return False
