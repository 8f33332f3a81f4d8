"""Messages larger than a buffer: head and body are sent separately, and received in parts."""

import random
import zlib
from itertools import pairwise

import numpy as np
import pytest

from loadgen.kernels import counting
from loadgen.kernels.device import AWAIT_CONNACK
from loadgen.kernels.in_flight import redelivery_order
from loadgen.kernels.reactor import MESSAGING_ENTRY_POINTS, keep_partial
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import Packet, PubAck, Publish, PubRec, PubRel, SubAck
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.mqtt.violations import UNEXPECTED_PACKET, UNKNOWN_PUBREL
from tests.kernels.test_traffic import MEASURE_FROM_NS, PERIOD_NS, START_NS, Bench, header

MIB = 1 << 20
SIZE = 300_000


def large_bench(size: tuple[int, int] = (SIZE, SIZE), *, qos: int = 0, version: int = 4) -> Bench:
    return Bench(size=size, packet_limit=4 * MIB, window=10, qos=qos, version=version)


def sent(bench: Bench, publisher: int, count: int) -> list[bytes]:
    """Return the next packets of a publisher: each its head and the following body."""
    found = []
    now_ns = START_NS + 1000 * PERIOD_NS
    for _ in range(count):
        _, messages, head = bench.fill(publisher, now_ns)
        body_bytes = bench.fleet.batch[0].body_bytes
        bench.settle(publisher, messages, messages, now_ns)
        assert messages == 1
        found.append(head + bench.fleet.body[:body_bytes].tobytes())
    return found


def read(bench: Bench, pieces: list[bytes], now_ns: int = MEASURE_FROM_NS + 5) -> bytes:
    """Return the answers of a device to a byte stream in these pieces, each in one read."""
    device = bench.fleet.devices[bench.subscriber]
    kept, answers = b"", b""
    for piece in pieces:
        data = kept + piece
        taken, answer = bench.receive(bench.subscriber, data, now_ns=now_ns)
        answers += answer
        if device.body_left:
            kept = bench.fleet.partial[bench.subscriber, : device.partial_bytes].tobytes()
            assert len(kept) < 200
        else:
            kept = data[taken:]
            device.partial_bytes = len(kept)
    assert not kept
    assert not device.body_left
    return answers


def cut(data: bytes, seed: int, most: int = 100_000) -> list[bytes]:
    """Cut bytes into pieces of any size."""
    draw = random.Random(seed)
    cuts = {0, len(data)}
    while max(b - a for a, b in pairwise(sorted(cuts))) > most:
        cuts.add(draw.randrange(len(data)))
    cuts.update(draw.randrange(min(len(data), 120)) for _ in range(3))
    return [data[a:b] for a, b in pairwise(sorted(cuts))]


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_that_streams_through_is_accounted_for_like_any_other(
    qos: int, version: int
) -> None:
    bench = large_bench(qos=qos, version=version)
    packets = sent(bench, 0, 4)
    assert [len(packet) > SIZE for packet in packets] == [True] * 4
    assert bench.messages(b"".join(packets))[3].payload[32:] == bench.fleet.body.tobytes()
    answers = read(bench, cut(packets[0] + encode(SubAck(9, (0,)), version) + packets[1], 1))
    answers += read(bench, cut(packets[2] + packets[3], 2))
    identifiers = [packet.packet_id for packet in bench.messages(b"".join(packets))]
    wanted: dict[int, list[Packet]] = {
        1: [PubAck(n) for n in identifiers],
        2: [PubRec(n) for n in identifiers],
    }
    assert answers == b"".join(encode(packet, 4) for packet in wanted.get(qos, []))
    counted = bench.counted(1)
    assert sum(phase["received"] for phase in counted.values()) == 4
    received = sum(phase["received_bytes"] for phase in counted.values())
    assert received == sum(map(len, packets))
    assert received == sum(phase["sent_bytes"] for phase in bench.counted(0).values())
    assert {name for phase in counted.values() for name in phase} == {"received", "received_bytes"}
    assert [event[0] for event in bench.events()] == [counting.CONTROL_PACKET]


def test_sizes_on_both_sides_of_the_buffer_come_in_any_pieces() -> None:
    bench = large_bench((32, SIZE))
    for seed in range(12):
        packets = sent(bench, seed % 3, 5)
        headers = [header(packet.payload) for packet in bench.messages(b"".join(packets))]
        assert {stream for _, stream, _, _ in headers} == {10 + seed % 3}
        read(bench, cut(b"".join(packets), seed))
    totals = bench.counted(1)
    assert sum(phase["received"] for phase in totals.values()) == 60
    assert {name for phase in totals.values() for name in phase} == {"received", "received_bytes"}


def test_a_long_message_is_judged_like_a_short_one() -> None:
    bench = large_bench(qos=2)
    (packet,) = sent(bench, 0, 1)
    pubrel = encode(PubRel(bench.messages(packet)[0].packet_id), 4)
    read(bench, [packet[:100_000], packet[100_000:] + pubrel])  # before its PUBREC
    assert np.flatnonzero(bench.fleet.violations).tolist() == [UNKNOWN_PUBREL]
    bench.fleet.devices[bench.subscriber].state = AWAIT_CONNACK
    bench.receive(bench.subscriber, packet[:100_000])
    assert bench.fleet.violations[UNEXPECTED_PACKET] == 1


@pytest.mark.parametrize("place", [9, 60, 100_000, SIZE - 1])
def test_a_byte_that_is_wrong_is_found_wherever_it_is(place: int) -> None:
    bench = large_bench()
    first, second = sent(bench, 0, 2)
    payload = len(first) - SIZE
    damaged = bytearray(first)
    damaged[payload + place] ^= 4
    read(bench, cut(bytes(damaged) + second, 3))
    counted = bench.counted(1)
    assert sum(phase.get("corrupt", 0) for phase in counted.values()) == 1
    assert sum(phase.get("received", 0) for phase in counted.values()) == 1


def test_a_message_of_a_mebibyte_and_more_needs_no_buffer_of_its_size() -> None:
    bench = large_bench((3 * MIB, 3 * MIB))
    assert len(bench.fleet.buffer) == 256 * 1024
    assert len(bench.fleet.out) < 300_000
    assert bench.fleet.partial.shape[1] < 70_000
    read(bench, cut(sent(bench, 1, 1)[0], 4, most=250_000))
    assert sum(phase["received"] for phase in bench.counted(1).values()) == 1


def test_a_foreign_message_is_foreign_and_one_that_is_too_long_ends_the_connection() -> None:
    bench = large_bench()
    foreign = encode(Publish("bench/t/0", np.random.default_rng(1).bytes(SIZE)), 4)
    read(bench, cut(foreign, 5))
    assert sum(phase["foreign"] for phase in bench.counted(1).values()) == 1
    bench.receive(bench.subscriber, encode(Publish("bench/t/0", bytes(5 * MIB)), 4)[:100])
    assert [event[0] for event in bench.events()] == [counting.BROKEN]


def test_a_head_that_is_itself_too_long_ends_the_connection_and_touches_no_other_device() -> None:
    bench = Bench(version=5, packet_limit=4 * MIB, subscribers=3)
    f, row, now_ns = bench.fleet, bench.subscriber + 1, MEASURE_FROM_NS
    properties = Properties(user_property=(("k", "v" * 50_000), ("k", "w" * 50_000)))
    data = encode(Publish("bench/t/0", bytes(SIZE), properties=properties), 5)[:150_000]
    taken, _ = bench.receive(row, data, now_ns=now_ns)
    assert not keep_partial(f, row, taken, len(data), now_ns)
    assert [event[:3] for event in bench.events()] == [
        (counting.BROKEN, row, ReasonCode.PACKET_TOO_LARGE)
    ]
    assert not f.partial.any()


def test_what_was_unacknowledged_goes_again_with_the_body_behind_it() -> None:
    bench = large_bench(qos=1)
    f = bench.fleet
    packets = bench.messages(b"".join(sent(bench, 0, 2)))
    slots = redelivery_order(f, 0)
    again = b""
    while len(slots):
        handled, size, body_bytes = MESSAGING_ENTRY_POINTS.redeliver(
            f, 0, True, slots, len(slots), 1
        )
        assert (handled, body_bytes) == (1, SIZE - 32)
        again += f.out[:size].tobytes() + f.body[:body_bytes].tobytes()
        slots = slots[handled:].copy()
    repeated = bench.messages(again)
    assert [header(one.payload) for one in repeated] == [header(one.payload) for one in packets]
    assert all(one.dup for one in repeated)
    assert zlib.crc32(repeated[0].payload[32:]) == zlib.crc32(packets[0].payload[32:])
