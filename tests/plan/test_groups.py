"""What can be derived from a device's number."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.mqtt.topics import filter_matches
from loadgen.plan.addressing import client_id, streams_received, topic_filter
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, topic_name, topic_number
from loadgen.plan.plan import Plan
from tests.plans import small_plan


def plan_of(publishers: int, topics: int, subscribers: int, wildcard: bool = False) -> Plan:
    """A plan of one publishing group, whose streams begin at 7, and one subscribing group."""
    return small_plan(
        (
            DeviceGroup("publishers", publishers, Publishes("r/t", topics, 7, 1.0, 1)),
            DeviceGroup("subscribers", subscribers, None, Subscribes("publishers", 0, wildcard)),
        ),
        targets=(),
        run_tag=0xABCDEF01,
    )


SIZES = st.integers(1, 40)


@given(SIZES, SIZES, SIZES, st.booleans())
@settings(max_examples=200, deadline=None)
def test_streams_received_are_exactly_those_whose_topic_matches(
    publishers: int, topics: int, subscribers: int, wildcard: bool
) -> None:
    plan = plan_of(publishers, topics, subscribers, wildcard)
    senders, receivers = plan.groups
    publishes = senders.publishes
    assert publishes is not None
    names = [
        topic_name(publishes, topic_number(device, publishers, topics))
        for device in range(publishers)
    ]
    for device in range(subscribers):
        wanted = topic_filter(plan, receivers, device)
        matching = [7 + i for i, name in enumerate(names) if filter_matches(wanted, name)]
        first, count = streams_received(plan, receivers, device)
        assert list(range(first, first + count)) == matching


@given(SIZES, SIZES)
def test_topics_are_used_in_order_and_evenly(devices: int, topics: int) -> None:
    numbers = [topic_number(device, devices, topics) for device in range(devices)]
    assert numbers == sorted(numbers)
    assert numbers[0] >= 0 and numbers[-1] < topics
    uses = [numbers.count(number) for number in range(topics)]
    assert max(uses) - min(uses) <= 1


def test_a_common_topic_has_no_streams() -> None:
    group = DeviceGroup("devices", 3, subscribes=Subscribes("", topic="r/c/0"))
    plan = small_plan((group,), targets=())
    assert topic_filter(plan, group, 2) == "r/c/0"
    assert streams_received(plan, group, 2) == (0, 0)


def test_a_group_that_only_publishes_receives_nothing_and_has_no_filter() -> None:
    plan = plan_of(3, 3, 1)
    assert streams_received(plan, plan.groups[0], 0) == (0, 0)
    with pytest.raises(ValueError, match="does not subscribe"):
        topic_filter(plan, plan.groups[0], 0)


def test_a_subscription_to_a_silent_group_is_an_error() -> None:
    silent = DeviceGroup("silent", 1)
    listener = DeviceGroup("listener", 1, subscribes=Subscribes("silent"))
    plan = small_plan((silent, listener), targets=())
    for derive in (topic_filter, streams_received):
        with pytest.raises(ValueError, match="silent does not publish"):
            derive(plan, listener, 0)


def test_client_identifiers_are_unique_and_fit_the_protocol() -> None:
    plan = plan_of(3, 3, 3)
    identifiers = {client_id(plan, group, i) for group in plan.groups for i in range(3)}
    assert len(identifiers) == 6
    # MQTT 3.1.1, section 3.1.3.1: every server accepts up to 23 bytes of letters and digits.
    longest = client_id(plan, plan.groups[1], 9_999_999)
    assert len(longest.encode()) <= 23


@given(st.integers(0, 20), st.integers(0, 100), st.integers(1, 9))
def test_a_share_counts_its_devices(start: int, stop: int, step: int) -> None:
    share = Share(0, start, stop, step)
    devices = list(range(start, stop, step))
    assert share.count == len(devices)
    assert list(share.devices) == devices
