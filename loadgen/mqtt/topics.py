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
    """Return share name, or None, and filter of `$share/NAME/FILTER` (section 4.8.2)."""
    prefix, _, rest = topic_filter.partition("/")
    share_name, _, plain_filter = rest.partition("/")
    if prefix == "$share" and share_name and plain_filter:
        return share_name, plain_filter
    return None, topic_filter


def filter_matches(topic_filter: str, topic: str) -> bool:
    # Section 4.7.2: a wildcard at the start does not reach topics that begin with $.
    if topic.startswith("$") and is_wild(topic_filter[:1]):
        return False
    filters, levels = topic_filter.split("/"), topic.split("/")
    if filters[-1] == "#":
        # "a/#" also reaches "a" itself (section 4.7.1.2).
        filters.pop()
        levels = levels[: len(filters)]
    return len(filters) == len(levels) and all(
        one in ("+", level) for one, level in zip(filters, levels, strict=True)
    )
