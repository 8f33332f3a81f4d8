"""Topic Names and Filters (MQTT 5, 4.7 and 4.8)."""

from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.wire import escaped


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


def shape_of(topic_filter: str) -> tuple[str, ...]:
    """Return its levels, with "" for each one that is not a wildcard.

    The filters that a topic reaches differ in their shapes, and there are few of these.
    """
    return tuple(level if is_wild(level) else "" for level in topic_filter.split("/"))


def filter_of_shape(shape: tuple[str, ...], topic: str) -> str | None:
    """Return the only filter of a shape that reaches a topic, or None."""
    # Section 4.7.2: a wildcard at the start does not reach topics that begin with $.
    if shape[0] and topic.startswith("$"):
        return None
    levels = topic.split("/")
    fixed = len(shape) - (shape[-1] == "#")
    # "a/#" also reaches "a" itself (section 4.7.1.2).
    if len(levels) < fixed or (len(levels) > fixed and fixed == len(shape)):
        return None
    chosen = [wild or level for wild, level in zip(shape[:fixed], levels, strict=False)]
    return "/".join([*chosen, *shape[fixed:]])


def filter_matches(topic_filter: str, topic: str) -> bool:
    return filter_of_shape(shape_of(topic_filter), topic) == topic_filter
