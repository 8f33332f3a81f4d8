"""Derivations from a device's number."""

from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.addressing import client_id, filters_of
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, wildcard_of
from tests.plans import small_plan

SIZES = st.integers(1, 40)


@given(SIZES, SIZES)
def test_topics_are_used_in_order_and_evenly(devices: int, topics: int) -> None:
    group = DeviceGroup("publishers", devices, topics=topics)
    numbers = [group.topic_number(device) for device in range(devices)]
    assert numbers == sorted(numbers)
    assert numbers[0] >= 0 and numbers[-1] < topics
    uses = [numbers.count(number) for number in range(topics)]
    assert max(uses) - min(uses) <= 1


def test_patterns_stand_for_the_numbers_of_a_device() -> None:
    group = DeviceGroup("devices", 6, subscribes=Subscribes(("a/{topic}/d{device}", "b")), topics=3)
    assert filters_of(group, 5) == ("a/2/d5", "b")
    assert filters_of(DeviceGroup("silent", 1), 0) == ()
    assert [group.distinct(one) for one in ("b", "a/{topic}", "{topic}/{device}")] == [1, 3, 6]
    assert wildcard_of("plant/{topic}/d{device}/x") == "plant/+/+/x"


def test_client_identifiers_are_unique_and_fit_the_protocol() -> None:
    groups = (
        DeviceGroup("publishers", 3, Publishes("t/{device}", 1.0)),
        DeviceGroup("subscribers", 3, None, Subscribes(("t/+",))),
    )
    plan = small_plan(groups, targets=(), run_tag=0xABCDEF01)
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
