"""Shares of a plan as arrays."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import BrokerUnreachableError
from loadgen.kernels.device import IDLE
from loadgen.mqtt.codec import decode
from loadgen.mqtt.packets import Connect
from loadgen.plan.addressing import client_id
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, Target, WorkerPlan
from loadgen.plan.plan import Plan
from loadgen.worker.build_fleet import build_fleet, plan_schedule, socket_address
from loadgen.worker.logins import connect_of
from tests.refusals import refused
from tests.worker.harness import one_worker_plan

S = 10**9
PUBLISHES = Publishes("p/{topic}", 12.0, 1, size_bytes=(40, 90), first_stream=10)


def sample(version: int = 4, **fields: Any) -> Plan:
    return one_worker_plan(
        DeviceGroup("publishers", 6, PUBLISHES, topics=3),
        DeviceGroup("quiet", 2, Publishes("q/{device}", 1.0, first_stream=100), clean_start=False),
        DeviceGroup("subscribers", 3, subscribes=Subscribes(("p/{topic}",), 2)),
        DeviceGroup("all", 1, subscribes=Subscribes(("p/#",))),
        DeviceGroup("idle", 2, subscribes=Subscribes(("news",)), keep_alive_s=7),
        version=version,
        **fields,
    )


def built(plan: Plan) -> PlannedFleet:
    return build_fleet(plan, plan.workers[0])


def test_devices_become_rows_of_their_group() -> None:
    fleet = built(sample())
    assert fleet.group.tolist() == [0] * 6 + [1] * 2 + [2] * 3 + [3] + [4] * 2
    assert fleet.device.tolist() == [*range(6), *range(2), *range(3), 0, 0, 1]
    rows = fleet.devices
    assert (rows["descriptor"] == -1).all()
    assert (rows["state"] == IDLE).all()
    assert rows["publisher"].tolist() == [*range(8), *[-1] * 6]
    assert rows["sender"].tolist() == [*range(6), *[-1] * 8]
    assert rows["qos2"].tolist() == [*[-1] * 8, 0, 1, 2, *[-1] * 3]
    assert fleet.publishers["device"].tolist() == list(range(8))
    assert fleet.publishers["stream"].tolist() == [10, 11, 12, 13, 14, 15, 100, 101]
    assert fleet.window.shape == (100, 6)
    assert fleet.group_of(9).name == "subscribers"


def test_topics_follow_from_the_numbers() -> None:
    fleet = built(sample())
    names = [
        fleet.topics[a:b].tobytes().decode()
        for a, b in zip(fleet.topic_ends[:-1], fleet.topic_ends[1:], strict=True)
    ]
    assert names == ["p/0", "p/0", "p/1", "p/1", "p/2", "p/2", "q/0", "q/1"]


def test_pairs_are_what_each_subscriber_must_receive() -> None:
    fleet = built(sample())
    assert fleet.devices["range_count"].tolist() == [*[0] * 8, 1, 1, 1, 1, 0, 0]
    assert fleet.devices["range_first"].tolist() == [*[0] * 8, 0, 1, 2, 3, 4, 4]
    rows = fleet.ranges
    assert rows["stream_first"].tolist() == [10, 12, 14, 10]
    assert rows["stream_count"].tolist() == [2, 2, 2, 6]
    assert fleet.publishers["deliveries"].tolist() == [*[2] * 6, 0, 0]
    assert len(fleet.pairs) == 12
    spans = [range(row.pair_first, row.pair_first + row.stream_count) for row in rows]
    assert sorted(pair for span in spans for pair in span) == list(range(12))


@pytest.mark.parametrize("version", [4, 5])
def test_every_device_has_its_connect_packet(version: int) -> None:
    plan = sample(version, username="user", password="secret")
    fleet = build_fleet(plan, plan.workers[0])
    seen = set()
    for row in range(len(fleet.devices)):
        start, end = fleet.connect_ends[row : row + 2].tolist()
        data = fleet.connect_packets[start:end].tobytes()
        decoded = decode(data, 0, len(data), version)
        assert decoded is not None
        packet, position = decoded
        assert position == len(data)
        assert isinstance(packet, Connect)
        group = fleet.group_of(row)
        assert packet.client_id == client_id(plan, group, int(fleet.device[row]))
        assert packet.protocol_version == version
        assert packet.keep_alive == group.keep_alive_s
        assert packet.clean_start == group.clean_start
        assert (packet.user_name, packet.password) == ("user", b"secret")
        kept = packet.properties.session_expiry_interval
        assert bool(kept) == (version == 5 and not group.clean_start)
        seen.add(packet.client_id)
    assert len(seen) == len(fleet.devices)
    durable = plan.groups[1]
    first = connect_of(plan, durable, 1, True, {})
    assert first.clean_start
    assert first.properties.session_expiry_interval is None


def test_shares_of_all_workers_make_the_whole() -> None:
    plan = sample()
    workers = tuple(
        WorkerPlan(n, tuple(Share(g, n, group.count, 2) for g, group in enumerate(plan.groups)))
        for n in range(2)
    )
    plan = replace(plan, workers=workers)
    fleets = [build_fleet(plan, worker) for worker in workers]
    assert sorted(stream for fleet in fleets for stream in fleet.publishers["stream"].tolist()) == [
        *range(10, 16),
        100,
        101,
    ]
    whole = built(sample())
    for fleet in (*fleets, whole):
        fleet.run.end_ns = 10**15
        plan_schedule(fleet, 10**12)
    dues = dict(zip(whole.publishers["stream"], whole.publishers["due_ns"], strict=True))
    for fleet in fleets:
        for publisher in fleet.publishers:
            assert publisher.due_ns == dues[publisher.stream]


def test_the_schedule_begins_when_told_and_leaves_out_what_never_comes() -> None:
    fleet = built(sample())
    fleet.run.end_ns = 10**12 + S
    plan_schedule(fleet, 10**12)
    # Six devices at 2 a second each; two at one each two seconds, the second a second later.
    assert fleet.publishers["due_ns"][:6].tolist() == [10**12 + n * S // 12 for n in range(6)]
    assert fleet.publishers["due_ns"][6:].tolist() == [10**12, 10**12 + S]
    assert fleet.totals.heap_size == 7
    assert fleet.heap[0].due_ns == 10**12
    assert sorted(fleet.heap["publisher"][:7].tolist()) == list(range(7))


def test_a_rate_of_almost_nothing_sends_almost_nothing() -> None:
    fleet = built(one_worker_plan(DeviceGroup("rare", 4, Publishes("p/{topic}", 1e-9))))
    fleet.run.end_ns = 10**12 + 3600 * S
    plan_schedule(fleet, 10**12)
    assert fleet.publishers["due_ns"].min() == 10**12
    assert sorted(fleet.publishers["due_ns"].tolist())[1] > 10**15
    assert fleet.totals.heap_size == 1


def test_targets_are_used_in_turn_and_addresses_are_resolved() -> None:
    targets = (Target("127.0.0.1", 1883), Target("127.0.0.2", 1884), Target("127.0.0.1", 1885))
    fleet = built(one_worker_plan(DeviceGroup("devices", 7), targets=targets))
    assert fleet.devices["target"].tolist() == [0, 1, 2, 0, 1, 2, 0]
    for row, size, target in zip(fleet.addresses, fleet.address_bytes, targets, strict=True):
        assert row[:size].tobytes() == socket_address(target.host, target.port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "", "a" * 300, "ü" * 80])
def test_a_host_that_does_not_resolve_is_one_clear_error(host: str) -> None:
    with refused("NO_NAME", BrokerUnreachableError, host=host) as caught:
        socket_address(host, 1883)
    assert "\n" not in str(caught.value)


def test_idle_devices_cost_little_memory() -> None:
    """Leave mapped tails untouched: 20,000 devices with 64 KiB each would be 1.3 GB."""
    plan = one_worker_plan(DeviceGroup("devices", 20_000), port=1, max_packet_bytes=1 << 20)
    status = Path("/proc/self/statm")
    before = int(status.read_text().split()[1])
    fleet = build_fleet(plan, plan.workers[0])
    grown = (int(status.read_text().split()[1]) - before) * 4096
    assert fleet.partial.shape == (20_000, (1 << 16) + 8)
    assert grown < 60 << 20
    fleet.partial[19_999, -1] = 7
    assert fleet.partial[19_999, -1] == 7
