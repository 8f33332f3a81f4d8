"""Topic Names and Filters (MQTT 5, 4.7 and 4.8), and the subscriptions that a topic reaches.

The tree holds subscriptions, not connections: a `member` is any object of the caller.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.wire import escaped

MemberT = TypeVar("MemberT", bound=Hashable)
OptionsT = TypeVar("OptionsT")


def is_wild(topic: str) -> bool:
    """Return True if it has a wildcard (section 4.7.1), which a Topic Name must not."""
    return "+" in topic or "#" in topic


def topic_name_fault(topic_name: str) -> str | None:
    """Return the fault of a Topic Name that a message is published to (spec 4.7), or None."""
    if not topic_name:
        return "is empty"
    if is_wild(topic_name):
        return f"contains a wildcard: {escaped(topic_name)}"
    return None


def topic_filter_fault(topic_filter: str, version: int) -> str | None:
    """Return the fault of a Topic Filter (spec 4.7.1; for version 5 also 4.8.2), or None."""
    if not topic_filter:
        return "is empty"
    if version == MQTT_5 and topic_filter.startswith("$share/"):
        _, share_name, *levels = topic_filter.split("/")
        if not share_name or is_wild(share_name):
            return f"has no valid ShareName: {escaped(topic_filter)}"
        if not levels or levels == [""]:
            return f"shares no filter: {escaped(topic_filter)}"
    if "#" in topic_filter and topic_filter.index("#") != len(topic_filter) - 1:
        return f"has '#' before its end: {escaped(topic_filter)}"
    for level in topic_filter.split("/"):
        if len(level) > 1 and is_wild(level):
            return f"has a wildcard next to other characters: {escaped(topic_filter)}"
    return None


def split_shared(topic_filter: str) -> tuple[str | None, str]:
    """Return share name (None if not shared) and filter of `$share/NAME/FILTER` (section 4.8.2).

    Clients of MQTT 3.1.1 may share too, as most brokers allow. An incomplete shared filter is an
    ordinary one, which their codec accepts.
    """
    prefix, _, rest = topic_filter.partition("/")
    share_name, _, plain_filter = rest.partition("/")
    if prefix == "$share" and share_name and plain_filter:
        return share_name, plain_filter
    return None, topic_filter


class Group(Generic[MemberT, OptionsT]):
    """The members of one Shared Subscription, taken in turn."""

    __slots__ = ("_cursor", "_order", "members")

    def __init__(self) -> None:
        self.members: dict[MemberT, OptionsT] = {}
        self._order: list[MemberT] = []
        self._cursor = 0

    def set(self, member: MemberT, options: OptionsT) -> None:
        """Add `member`, or change its options."""
        self.members[member] = options
        self._order = list(self.members)

    def remove(self, member: MemberT) -> bool:
        """Remove a member; return True if it was there."""
        if self.members.pop(member, None) is None:
            return False
        self._order = list(self.members)
        return True

    def turn(self) -> Iterator[MemberT]:
        """Return each member once, beginning with the next in turn; the turn moves on."""
        order = self._order
        start = self._cursor % len(order)
        self._cursor = start + 1
        for offset in range(len(order)):
            yield order[(start + offset) % len(order)]


@dataclass(slots=True)
class Match(Generic[MemberT, OptionsT]):
    """The subscriptions that a topic reaches: single ones, and groups that serve one member."""

    single: list[tuple[MemberT, OptionsT]] = field(default_factory=list)
    groups: list[Group[MemberT, OptionsT]] = field(default_factory=list)


class _Node(Generic[MemberT, OptionsT]):
    __slots__ = ("children", "groups", "single")

    def __init__(self) -> None:
        self.children: dict[str, _Node[MemberT, OptionsT]] = {}
        self.single: dict[MemberT, OptionsT] = {}
        self.groups: dict[str, Group[MemberT, OptionsT]] = {}

    @property
    def empty(self) -> bool:
        return not (self.children or self.single or self.groups)


class SubscriptionTree(Generic[MemberT, OptionsT]):
    """All subscriptions of a broker. Filters are valid: the codec has checked them."""

    __slots__ = ("_root",)

    def __init__(self) -> None:
        self._root: _Node[MemberT, OptionsT] = _Node()

    def subscribe(self, topic_filter: str, member: MemberT, options: OptionsT) -> None:
        """Add a subscription, or replace the member's earlier one to the same filter."""
        share_name, plain_filter = split_shared(topic_filter)
        node = self._root
        for level in plain_filter.split("/"):
            node = node.children.setdefault(level, _Node())
        if share_name is None:
            node.single[member] = options
        else:
            node.groups.setdefault(share_name, Group()).set(member, options)

    def unsubscribe(self, topic_filter: str, member: MemberT) -> bool:
        """Remove a subscription; return True if there was one."""
        share_name, plain_filter = split_shared(topic_filter)
        path = [self._root]
        levels = plain_filter.split("/")
        for level in levels:
            child = path[-1].children.get(level)
            if child is None:
                return False
            path.append(child)
        node = path[-1]
        if share_name is None:
            existed = node.single.pop(member, None) is not None
        else:
            group = node.groups.get(share_name)
            existed = group is not None and group.remove(member)
            if group is not None and not group.members:
                del node.groups[share_name]
        for parent, level in zip(path[-2::-1], levels[::-1], strict=True):
            if not parent.children[level].empty:
                break
            del parent.children[level]
        return existed

    def match(self, topic: str) -> Match[MemberT, OptionsT]:
        """Return all that `topic` reaches; a member may appear for several of its filters."""
        match: Match[MemberT, OptionsT] = Match()
        levels = topic.split("/")
        # Section 4.7.2: a wildcard at the start does not reach topics that begin with $.
        nodes = [self._root]
        for depth, level in enumerate(levels):
            wild = depth > 0 or not topic.startswith("$")
            following: list[_Node[MemberT, OptionsT]] = []
            for node in nodes:
                if wild and (rest := node.children.get("#")) is not None:
                    _collect(rest, match)
                if (child := node.children.get(level)) is not None:
                    following.append(child)
                if wild and (child := node.children.get("+")) is not None:
                    following.append(child)
            nodes = following
        for node in nodes:
            _collect(node, match)
            # "a/#" also reaches "a" itself (section 4.7.1.2).
            if (rest := node.children.get("#")) is not None:
                _collect(rest, match)
        return match


def _collect(node: _Node[MemberT, OptionsT], match: Match[MemberT, OptionsT]) -> None:
    match.single.extend(node.single.items())
    match.groups.extend(node.groups.values())


def filter_matches(topic_filter: str, topic: str) -> bool:
    """Return True if a filter reaches a topic."""
    tree: SubscriptionTree[str, None] = SubscriptionTree()
    tree.subscribe(topic_filter, "", None)
    return bool(tree.match(topic).single)
