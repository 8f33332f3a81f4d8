"""The hot path's kernels: the effects of bytes on a device, without a socket or a clock."""

import random
import zlib
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.kernels import counting
from loadgen.kernels.counting import EVENT_LIMIT, MEASURE, WARMUP, slot_of
from loadgen.kernels.device import AWAIT_CONNACK, AWAY, CONNECTED, WAITING, WINDOW_FULL
from loadgen.kernels.in_flight import set_capacity
from loadgen.kernels.pacer import advance, with_rate
from loadgen.kernels.payload import HEADER_BYTES, stamp
from loadgen.kernels.reactor import MESSAGING_ENTRY_POINTS
from loadgen.kernels.receiver import release_held
from loadgen.kernels.sender import BATCH_LIMIT, reschedule
from loadgen.metrics.interval import COUNTERS, SERIES
from loadgen.mqtt import packets as mqtt
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.violations import MALFORMED, UNEXPECTED_PACKET, UNKNOWN_PUBREL
from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import Arrivals, DeviceGroup, Publishes, Subscribes
from loadgen.worker.build_fleet import build_fleet, plan_schedule
from loadgen.worker.upkeep import doubt, settle_doubts
from tests.examples import examples
from tests.fleets import total_of
from tests.kernel_calls import fill, record_sent, send_due
from tests.plans import small_plan
from tests.tables import table

TAG = 0xFEEDBEEF
START_NS = 1_000_000_000_000
MEASURE_FROM_NS = START_NS + 1_000_000
WINDOW_END_NS = START_NS + 10_000_000
PUBLISHERS = 3
PERIOD_NS = 1_000
PHASES = counting.INTENDED_PHASES


class Bench:
    """The arrays of one worker: publishers in rows 0 to 2, a subscriber to all in row 3."""

    subscriber = PUBLISHERS

    def __init__(
        self,
        *,
        qos: int = 0,
        receive_qos: int = 2,
        version: int = 4,
        size: tuple[int, int] = (32, 32),
        window: int = 4,
        deliveries: int = 1,
        retain: bool = False,
        packet_limit: int = 4096,
        unit: int = 1,
        subscribers: int = 1,
        shared: str = "",
        acknowledge_every: int = 1,
        arrivals: Arrivals = "constant",
        durable: bool = False,
        header: str = "payload",
    ) -> None:
        rate = PUBLISHERS * 1e9 / PERIOD_NS
        self.publishes = Publishes(
            "bench/t/{topic}",
            rate,
            qos,
            retain,
            size,
            arrivals=arrivals,
            window=window,
            unit=unit,
            first_stream=10,
            deliveries=deliveries,
        )
        subscribes = Subscribes(
            (f"{shared}bench/t/+",), receive_qos, acknowledge_every=acknowledge_every
        )
        groups = (
            DeviceGroup("publishers", PUBLISHERS, publishes=self.publishes),
            DeviceGroup("subscriber", subscribers, subscribes=subscribes, clean_start=not durable),
        )
        plan = small_plan(
            groups,
            run_tag=TAG,
            version=5 if version == 5 else 4,
            header=header,
            max_packet_bytes=packet_limit,
        )
        self.version = version
        self.fleet: PlannedFleet = build_fleet(plan, plan.workers[0])
        self.settle_doubts = settle_doubts(self.fleet)
        f = self.fleet
        f.run.measure_ns = MEASURE_FROM_NS
        f.run.end_ns = WINDOW_END_NS
        f.devices["state"] = CONNECTED
        for row in range(len(f.senders)):
            set_capacity(f, row, window)
        plan_schedule(f, START_NS)

    def come_back(self, *, session_present: bool = True, now_ns: int = 0) -> None:
        """Let the subscriber lose its connection, and be accepted again."""
        device = self.fleet.devices[self.subscriber]
        now_ns = now_ns or MEASURE_FROM_NS + 500
        doubt(self.fleet, self.subscriber)
        device.state, device.returned_ns = AWAIT_CONNACK, AWAY
        device.left_ns = device.tcp_ns = now_ns
        self.receive(
            self.subscriber, encode(mqtt.ConnAck(session_present=session_present), 4), now_ns=now_ns
        )

    # --- receiving ------------------------------------------------------------------------

    def receive(self, connection: int, data: bytes, *, now_ns: int = START_NS) -> tuple[int, bytes]:
        """Pass `data` to a device; return (bytes taken, answers)."""
        f = self.fleet
        fill(f, data)
        position, written = MESSAGING_ENTRY_POINTS.receive(f, connection, len(data), now_ns)
        return int(position), f.out[:written].tobytes()

    def stream(self, connection: int, pieces: list[bytes], now_ns: int = START_NS) -> bytes:
        """Pass a byte stream in pieces, keeping incomplete packets; return the answers."""
        tail = b""
        answers = b""
        for piece in pieces:
            tail += piece
            taken, answer = self.receive(connection, tail, now_ns=now_ns)
            tail = tail[taken:]
            answers += answer
        self.tail = tail
        return answers

    def events(self) -> list[tuple[int, int, int, bytes, int]]:
        """Return and remove the queued events: (kind, connection, value, bytes, time)."""
        f = self.fleet
        found = []
        for kind, connection, value, offset, length, moment in f.events[: f.totals.events].tolist():
            data = f.control[offset : offset + length].tobytes() if length else b""
            found.append((kind, connection, value, data, moment))
        f.totals.events = 0
        f.totals.control_bytes = 0
        return found

    def counted(self, group: int = 1) -> dict[str, dict[str, int]]:
        """Return the counters that are not zero, by phase."""
        rows = self.fleet.counters[group].tolist()
        named = {
            phase: {name: value for name, value in zip(COUNTERS, row, strict=True) if value}
            for phase, row in zip(PHASES, rows, strict=True)
        }
        return {phase: row for phase, row in named.items() if row}

    def stat(self, group: int, series: str, phase: int) -> tuple[int, int, int, int]:
        count, total, least, most = self.fleet.stats[
            slot_of(group, SERIES.index(series), phase)
        ].item()
        return count, total, least, most

    # --- sending --------------------------------------------------------------------------

    def fill(
        self, publisher: int, now_ns: int, *, limit: int = BATCH_LIMIT, room: int = 0
    ) -> tuple[int, int, bytes]:
        """Return (end in `out`, messages, their bytes); `room` limits `out`."""
        f = self.fleet
        whole = f.out
        if room:
            f.out = whole[:room]
        end, count = send_due(f, publisher, now_ns, now_ns, limit)
        f.out = whole
        return int(end), int(count), f.out[:end].tobytes()

    def settle(self, publisher: int, count: int, sent: int, now_ns: int) -> None:
        record_sent(self.fleet, publisher, count, sent, now_ns)

    def send(self, publisher: int, now_ns: int) -> list[mqtt.Publish]:
        """Send all due messages."""
        _, count, data = self.fill(publisher, now_ns)
        self.settle(publisher, count, count, now_ns)
        return self.messages(data)

    def packets(self, data: bytes) -> list[mqtt.Packet]:
        found = []
        position = 0
        while position < len(data):
            decoded = decode(data, position, len(data), self.version)
            assert decoded is not None
            packet, position = decoded
            found.append(packet)
        return found

    def messages(self, data: bytes) -> list[mqtt.Publish]:
        packets = self.packets(data)
        found = [packet for packet in packets if isinstance(packet, mqtt.Publish)]
        assert len(found) == len(packets)
        return found

    def state(self) -> dict[str, bytes]:
        """Return every array that a received byte may change."""
        f = self.fleet
        names = (
            *("devices", "totals", "pairs", "counters", "histograms"),
            *("stats", "senders", "window", "received_ids", "publishers", "heap"),
        )
        gaps = f.gaps[: f.totals.used_gaps].tobytes()
        return {name: f.held[name].tobytes() for name in names} | {"gaps": gaps}


def header(payload: bytes) -> tuple[int, int, int, int]:
    """Return (run tag, stream, sequence, intended_ns) of an intact payload."""
    assert zlib.crc32(payload[:28], zlib.crc32(payload[32:])) == int.from_bytes(
        payload[28:32], "little"
    )
    numbers = (payload[0:4], payload[4:8], payload[8:16], payload[16:24])
    tag, stream, sequence, intended = (int.from_bytes(part, "little") for part in numbers)
    return tag, stream, sequence, intended


def message(
    sequence: int,
    *,
    stream: int = 10,
    tag: int = TAG,
    intended_ns: int = MEASURE_FROM_NS,
    sent_ns: int | None = None,
    body: bytes = b"",
    copy: int = 0,
) -> bytes:
    """Return an intact payload."""
    out = np.zeros(HEADER_BYTES + len(body), np.uint8)
    out[HEADER_BYTES:] = np.frombuffer(body, np.uint8)
    sent = intended_ns if sent_ns is None else sent_ns
    stamp(out, 0, tag, stream, sequence, intended_ns, sent, zlib.crc32(body), copy)
    return out.tobytes()


def publish(
    payload: bytes,
    *,
    qos: int = 0,
    packet_id: int = 0,
    version: int = 4,
    dup: bool = False,
    retain: bool = False,
    topic: str | None = None,
) -> bytes:
    """Return a PUBLISH, by default on the topic of the payload's stream."""
    topic = f"bench/t/{int.from_bytes(payload[4:8], 'little') - 10}" if topic is None else topic
    return encode(mqtt.Publish(topic, payload, qos, retain, dup, packet_id), version)


def spoiled(payload: bytes, position: int = 12) -> bytes:
    return payload[:position] + bytes([payload[position] ^ 4]) + payload[position + 1 :]


# --- receive: what is counted ----------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_is_counted_timed_and_acknowledged(version: int, qos: int) -> None:
    bench = Bench(version=version, qos=qos)
    packet_id = 0x1234 if qos else 0
    intended_ns = MEASURE_FROM_NS + 5
    data = publish(
        message(0, intended_ns=intended_ns, sent_ns=intended_ns + 100, body=b"body"),
        qos=qos,
        packet_id=packet_id,
        version=version,
    )
    now_ns = intended_ns + 1100
    taken, answer = bench.receive(bench.subscriber, data, now_ns=now_ns)
    assert taken == len(data)
    wanted: dict[int, bytes] = {
        0: b"",
        1: encode(mqtt.PubAck(packet_id or 1), 4),
        2: encode(mqtt.PubRec(packet_id or 1), 4),
    }
    assert answer == wanted[qos]
    assert bench.counted() == {"measure": {"received": 1, "received_bytes": len(data)}}
    assert total_of(bench.fleet, "received") == 1
    assert bench.stat(1, "end_to_end", MEASURE) == (1, 1100, 1100, 1100)
    assert bench.stat(1, "transit", MEASURE) == (1, 1000, 1000, 1000)
    assert bench.events() == []


@pytest.mark.parametrize(
    ("intended_ns", "phase"),
    [
        (START_NS, "warmup"),
        (MEASURE_FROM_NS - 1, "warmup"),
        (MEASURE_FROM_NS, "measure"),
        (WINDOW_END_NS - 1, "measure"),
        (WINDOW_END_NS, "drain"),
    ],
)
def test_a_message_belongs_to_the_phase_it_was_intended_in(intended_ns: int, phase: str) -> None:
    bench = Bench()
    late_ns = WINDOW_END_NS + 10**9
    data = publish(message(0, intended_ns=intended_ns))
    bench.receive(bench.subscriber, data, now_ns=late_ns)
    bench.receive(
        bench.subscriber,
        publish(message(2, intended_ns=intended_ns)) + publish(message(1, intended_ns=intended_ns)),
        now_ns=late_ns,
    )
    assert bench.counted() == {
        phase: {"received": 3, "received_bytes": 3 * len(data), "out_of_order": 1}
    }
    assert bench.stat(1, "end_to_end", PHASES.index(phase))[0] == 3
    assert bench.stat(1, "transit", PHASES.index(phase))[0] == 3
    assert bench.fleet.stats["count"].sum() == 6 + 3  # and the own delay of all


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"no header at all",
        bytes(31),
        bytes(64),
        message(0, tag=TAG ^ 1),
        message(0, tag=TAG ^ 1, body=b"of another run"),
    ],
)
def test_what_nobody_of_this_run_sent_is_foreign(payload: bytes) -> None:
    bench = Bench()
    bench.receive(bench.subscriber, publish(payload), now_ns=MEASURE_FROM_NS)
    # It has no intended time: it counts in the phase of its arrival, or in the window.
    bench.receive(bench.subscriber, publish(payload), now_ns=WINDOW_END_NS + 1)
    bench.receive(bench.subscriber, publish(payload), now_ns=START_NS)
    assert bench.counted() == {"warmup": {"foreign": 1}, "measure": {"foreign": 2}}
    assert total_of(bench.fleet, "received") == 0
    assert bench.stat(1, "end_to_end", 1)[0] == bench.stat(1, "transit", 1)[0] == 0
    assert (bench.fleet.pairs["expected"] == 0).all()


def test_a_clock_that_is_behind_counts_as_no_latency() -> None:
    bench = Bench()
    early_ns = MEASURE_FROM_NS - 50
    bench.receive(bench.subscriber, publish(message(0)), now_ns=early_ns)
    assert bench.stat(1, "end_to_end", MEASURE) == (1, 0, 0, 0)
    assert bench.stat(1, "transit", MEASURE) == (1, 0, 0, 0)


# --- receive: QoS 2 --------------------------------------------------------------------------


def test_qos_2_messages_pass_once_until_they_are_released() -> None:
    bench = Bench(qos=2)
    data = publish(message(0), qos=2, packet_id=7)
    again = bytes([data[0] | 8]) + data[1:]  # DUP
    _, answer = bench.receive(bench.subscriber, data + again)
    assert answer == encode(mqtt.PubRec(7), 4) * 2
    counted = bench.counted()["measure"]
    assert (counted["received"], counted["duplicated"]) == (1, 1)
    assert bench.fleet.totals.unreleased == 1
    _, answer = bench.receive(bench.subscriber, encode(mqtt.PubRel(7), 4) * 2)
    assert bench.fleet.totals.unreleased == 0
    assert answer == encode(mqtt.PubComp(7), 4) * 2
    # After the release the identifier may have another message, or a repeated one.
    bench.receive(bench.subscriber, publish(message(1), qos=2, packet_id=7))
    bench.receive(bench.subscriber, encode(mqtt.PubRel(7), 4))
    bench.receive(bench.subscriber, publish(message(1), qos=2, packet_id=7))
    counted = bench.counted()["measure"]
    assert (counted["received"], counted["duplicated"]) == (2, 2)
    assert "excused" not in counted


# --- receive: any split ----------------------------------------------------------------------


def _any_packet(rng: random.Random, version: int) -> bytes:
    def take(sequence: int) -> bytes:
        kind = rng.randrange(8)
        payload = message(
            sequence,
            stream=rng.choice([10, 11, 12, 99]),
            intended_ns=rng.choice([START_NS, MEASURE_FROM_NS, WINDOW_END_NS]),
            body=bytes(rng.randrange(0, 200)),
        )
        if kind == 0:
            payload = spoiled(payload, rng.randrange(len(payload)))
        elif kind == 1:
            payload = payload[: rng.randrange(len(payload))]
        qos = rng.randrange(3)
        packet_id = rng.randrange(1, 6) if qos else 0
        return publish(payload, qos=qos, packet_id=packet_id, version=version)

    packets: list[mqtt.Packet] = [
        mqtt.PubRel(rng.randrange(6, 9)),  # right behind its message it would be a violation
        mqtt.PubAck(rng.randrange(1, 6)),
        mqtt.PubRec(rng.randrange(1, 6)),
        mqtt.PubComp(rng.randrange(1, 6)),
        mqtt.PingResp(),
        mqtt.SubAck(9, (0,)),
    ]
    if rng.random() < 0.6:
        return take(rng.randrange(12))
    return encode(rng.choice(packets), version)


@pytest.mark.compiled
@given(
    st.integers(0, 2**32),
    st.sampled_from([4, 5]),
    st.lists(st.integers(0, 10**6), max_size=12),
    st.booleans(),
)
@examples(60)
def test_a_stream_split_anywhere_does_what_the_whole_does(
    seed: int, version: int, cuts: list[int], to_publisher: bool
) -> None:
    rng = random.Random(seed)
    data = b"".join(_any_packet(rng, version) for _ in range(rng.randrange(1, 25)))
    data += _any_packet(rng, version)[:-1]  # the last is not whole
    whole, split = Bench(qos=2, version=version), Bench(qos=2, version=version)
    connection = 0 if to_publisher else whole.subscriber
    for bench in (whole, split):
        bench.send(0, START_NS + 3 * PERIOD_NS)
        bench.receive(connection, b"".join(publish(message(9), qos=2, packet_id=n) for n in (6, 7)))
    edges = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    pieces = [data[a:b] for a, b in pairwise(edges)]
    assert whole.stream(connection, [data]) == split.stream(connection, pieces)
    assert whole.tail == split.tail
    assert whole.events() == split.events()
    assert whole.state() == split.state()


@pytest.mark.parametrize(("released", "early"), [((5,), 1), ((6, 5), 2), ((5, 5), 2), ((), 0)])
def test_a_pubrel_in_the_bytes_of_its_message_is_early(
    released: tuple[int, ...], early: int
) -> None:
    bench = Bench(qos=2)
    sent = b"".join(publish(message(n), qos=2, packet_id=5 + n) for n in (0, 1))
    bench.receive(bench.subscriber, sent + b"".join(encode(mqtt.PubRel(n), 4) for n in released))
    assert bench.fleet.violations[UNKNOWN_PUBREL] == early + (len({*released}) < len(released))
    assert not bench.fleet.fresh_ids.any()
    # What was in earlier bytes has its PUBREC.
    bench.receive(bench.subscriber, publish(message(2), qos=2, packet_id=9))
    before = bench.fleet.violations[UNKNOWN_PUBREL]
    bench.receive(bench.subscriber, encode(mqtt.PubRel(9), 4))
    assert bench.fleet.violations[UNKNOWN_PUBREL] == before


# --- receive: what breaks the protocol -------------------------------------------------------


@pytest.mark.parametrize(("data", "reason"), table("breaches")["breaches"])
def test_a_breach_is_told_once_and_ends_the_scan(data: str, reason: int) -> None:
    bench = Bench()
    before = publish(message(0))
    stream = before + bytes.fromhex(data) + publish(message(1))
    taken, answer = bench.receive(bench.subscriber, stream, now_ns=START_NS + 9)
    assert taken == len(stream)
    assert answer == b""
    told = [(counting.BROKEN, bench.subscriber, reason, b"", START_NS + 9)]
    # A packet that is too large for us does not violate the protocol.
    kind = {0x81: MALFORMED, 0x82: UNEXPECTED_PACKET}.get(reason)
    breach = (counting.VIOLATION, bench.subscriber, kind, b"", START_NS + 9)
    wanted = [] if kind is None else [breach]
    assert bench.events() == wanted + told
    assert bench.counted().get("warmup", {}).get("violations", 0) == len(wanted)
    assert bench.counted()["measure"]["received"] == 1


def test_messages_waited_for_a_device_if_they_were_intended_in_its_absence() -> None:
    bench = Bench(durable=True)
    device = bench.fleet.devices[bench.subscriber]
    left_ns, back_ns = MEASURE_FROM_NS + 1_000, MEASURE_FROM_NS + 5_000
    device.state, device.returned_ns = AWAIT_CONNACK, AWAY
    device.left_ns, device.tcp_ns = left_ns, back_ns - 300  # a round trip of 300 ns
    # One that was late long before the device left, one in flight when it left, and so on.
    intended = [left_ns - 900, left_ns - 200, left_ns, back_ns - 1, back_ns]
    first, *others = [publish(message(n, intended_ns=at)) for n, at in enumerate(intended)]
    # A broker may send waiting messages together with its CONNACK.
    bench.receive(bench.subscriber, encode(mqtt.ConnAck(), 4) + first, now_ns=back_ns)
    for packet in others:
        bench.receive(bench.subscriber, packet, now_ns=back_ns + 1_000)
    assert bench.stat(1, "reconnect", MEASURE)[0] == 3
    assert bench.stat(1, "end_to_end", MEASURE)[0] == bench.stat(1, "transit", MEASURE)[0] == 2


def test_with_a_full_event_queue_packets_wait_and_none_is_lost() -> None:
    bench = Bench(qos=1)
    packets = [encode(mqtt.SubAck(1 + n % 60_000, (0,)), 4) for n in range(3 * EVENT_LIMIT)]
    tail = b"".join(packets) + publish(message(0), qos=1, packet_id=3)
    seen: list[bytes] = []
    answers = b""
    rounds = 0
    while tail:
        taken, answer = bench.receive(bench.subscriber, tail)
        assert bench.fleet.totals.events <= EVENT_LIMIT
        answers += answer
        found = bench.events()
        assert taken or found
        seen += [event[3] for event in found]
        tail = tail[taken:]
        rounds += 1
    assert seen == packets
    assert rounds >= 3
    assert answers == encode(mqtt.PubAck(3), 4)


# --- CONNACK ---------------------------------------------------------------------------------


def test_connack_completes_a_connect() -> None:
    bench = Bench()
    f = bench.fleet
    f.devices[1].state = AWAIT_CONNACK
    f.devices[1].syn_ns = START_NS
    f.devices[1].tcp_ns = START_NS + 30
    f.totals.connecting = 1
    data = encode(mqtt.ConnAck(), 4)
    bench.receive(1, data, now_ns=START_NS + 100)
    assert f.devices[1].state == CONNECTED
    assert f.totals.connecting == 0
    assert f.totals.connected == 1
    assert bench.counted(0) == {"connect": {"connects": 1}}
    assert bench.stat(0, "connect", 3) == (1, 100, 100, 100)
    assert bench.stat(0, "connack", 3) == (1, 70, 70, 70)
    assert [event[3] for event in bench.events()] == [data]
    # Another one is a violation and does not count.
    bench.receive(1, data, now_ns=START_NS + 200)
    assert f.totals.connecting == 0
    assert f.totals.connected == 1
    assert bench.counted(0) == {"connect": {"connects": 1}, "warmup": {"violations": 1}}


# --- send_due ------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_a_batch_holds_what_is_due_and_nothing_else(version: int, qos: int, retain: bool) -> None:
    bench = Bench(version=version, qos=qos, retain=retain, window=100, size=(40, 40))
    now_ns = START_NS + 9 * PERIOD_NS
    end, count, data = bench.fill(1, now_ns)
    assert (end, count) == (len(data), 9)  # its phase is a third of the period
    for index, packet in enumerate(bench.messages(data)):
        assert packet.topic_name == "bench/t/1"
        assert (packet.qos, packet.retain, packet.dup) == (qos, retain, False)
        assert packet.packet_id == (index + 1 if qos else 0)
        assert len(packet.payload) == 40
        due_ns = START_NS + PERIOD_NS // 3 + index * PERIOD_NS
        assert header(packet.payload) == (TAG, 11, index, due_ns)
        offset = np.frombuffer(packet.payload[24:28], np.float32)[0]
        assert offset == np.float32(now_ns - due_ns)
        assert packet.payload[32:] == bench.fleet.body[:8].tobytes()
    assert bench.fill(1, now_ns)[1] == 0
    assert bench.fill(1, now_ns + PERIOD_NS)[1] == 1


@pytest.mark.parametrize("size", [(16, 16), (16, 40)])
def test_short_payloads_are_accounted_for(size: tuple[int, int]) -> None:
    bench, now_ns = Bench(size=size), MEASURE_FROM_NS + 10 * PERIOD_NS
    for publisher in range(PUBLISHERS):
        sent = bench.send(publisher, now_ns)
        payload = sent[-1].payload
        sent[-1] = mqtt.Publish(sent[-1].topic_name, payload[:13] + b"?" + payload[14:])
        bench.receive(3, b"".join(encode(one, 4) for one in sent), now_ns=now_ns + 2_000)
    for payload in (b"21.5", b"0123456789abcdef", b'{"celsius": 21.5}'):
        bench.receive(3, encode(mqtt.Publish("bench/t/1", payload), 4), now_ns=now_ns)
    sent_counts, counts = (bench.counted(group)["measure"] for group in (0, 1))
    assert (sent_counts["sent"], counts["received"]) == (31, 28)
    assert (counts["corrupt"], counts["foreign"]) == (3, 3) and len(counts) == 4
    # The first one of the window was due 10 µs before the last one.
    count, _, least_ns, most_ns = bench.stat(1, "end_to_end", MEASURE)
    assert (count, least_ns, most_ns) == (28, 3_000, 12_000)


def test_a_batch_stops_at_its_limit_and_at_the_end_of_the_window() -> None:
    bench = Bench()
    assert bench.fill(0, START_NS + 100 * PERIOD_NS, limit=7)[1] == 7
    assert bench.fill(0, START_NS + 100 * PERIOD_NS, limit=1000)[1] == 94
    bench.fleet.run.end_ns = START_NS + 110 * PERIOD_NS
    assert bench.fill(0, WINDOW_END_NS)[1] == 9  # the one due at the end itself is not
    assert bench.fleet.publishers[0].due_ns == START_NS + 110 * PERIOD_NS
    assert bench.fill(0, WINDOW_END_NS + 10**9)[1] == 0


@pytest.mark.parametrize("size", [(32, 33), (32, 300), (100, 4000)])
def test_sizes_cover_their_range_and_are_the_same_each_time(size: tuple[int, int]) -> None:
    def sizes(publisher: int) -> list[int]:
        bench = Bench(size=size, packet_limit=1 << 14)
        found: list[int] = []
        while len(found) < 1000:
            packets = bench.send(publisher, START_NS + 5000 * PERIOD_NS)
            for packet in packets:
                header(packet.payload)
                found.append(len(packet.payload))
        return found[:1000]

    found = sizes(0)
    least, most = size
    assert min(found) >= least
    assert max(found) <= most
    assert abs(np.mean(found) - (least + most) / 2) < (most - least + 1) * 0.05
    if most - least < 400:
        assert set(found) == set(range(least, most + 1)) or most - least > 100
    assert sizes(0) == found
    assert sizes(1) != found


# --- acknowledgements ------------------------------------------------------------------------


@pytest.mark.parametrize("version", [4, 5])
def test_puback_is_timed_from_the_send_in_the_phase_of_the_message(version: int) -> None:
    bench = Bench(qos=1, version=version, window=2000)
    sent_ns = MEASURE_FROM_NS
    count = len(bench.send(0, sent_ns))
    assert count == 1001
    bench.receive(0, encode(mqtt.PubAck(1000), version), now_ns=sent_ns + 70)
    bench.receive(0, encode(mqtt.PubAck(1001), version), now_ns=sent_ns + 90)
    assert bench.stat(0, "acknowledge", WARMUP) == (1, 70, 70, 70)
    assert bench.stat(0, "acknowledge", MEASURE) == (1, 90, 90, 90)
    assert bench.counted(0)["warmup"]["acknowledged"] == 1
    assert bench.counted(0)["measure"]["acknowledged"] == 1
    assert bench.fleet.totals.in_flight == 999


@pytest.mark.parametrize("version", [4, 5])
def test_qos_2_completes_in_two_steps(version: int) -> None:
    bench = Bench(qos=2, version=version)
    bench.send(0, START_NS)
    _, answer = bench.receive(0, encode(mqtt.PubRec(1), version), now_ns=START_NS + 10)
    assert answer == encode(mqtt.PubRel(1), 4)
    assert bench.fleet.totals.in_flight == 1
    assert bench.counted(0).get("warmup", {}).get("acknowledged", 0) == 0
    # A repeated PUBREC gets its PUBREL again (4.3.3).
    assert bench.receive(0, encode(mqtt.PubRec(1), version))[1] == encode(mqtt.PubRel(1), 4)
    bench.receive(0, encode(mqtt.PubComp(1), version), now_ns=START_NS + 30)
    assert bench.fleet.totals.in_flight == 0
    assert bench.counted(0)["warmup"]["acknowledged"] == 1
    assert bench.stat(0, "acknowledge", WARMUP) == (1, 30, 30, 30)


# --- units, queues, withheld acknowledgements ------------------------------------------------


def test_a_unit_waits_until_the_one_before_is_acknowledged_whole() -> None:
    bench = Bench(qos=1, window=10, unit=3)
    f = bench.fleet
    now_ns = START_NS + 8 * PERIOD_NS
    assert [header(p.payload)[2] for p in bench.send(0, now_ns)] == [0, 1, 2]
    assert f.devices[0].flags & WINDOW_FULL
    f.devices[0].flags |= WAITING
    f.totals.heap_size = 0
    for packet_id in (3, 1):
        bench.receive(0, encode(mqtt.PubAck(packet_id), 4))
        assert f.devices[0].flags & WINDOW_FULL
        assert bench.fill(0, now_ns)[1] == 0
    bench.receive(0, encode(mqtt.PubAck(2), 4))
    assert not f.devices[0].flags & (WINDOW_FULL | WAITING)
    assert f.totals.heap_size == 1
    assert [header(p.payload)[2] for p in bench.send(0, now_ns)] == [3, 4, 5]


def test_a_unit_taken_back_in_part_is_completed_later() -> None:
    bench = Bench(qos=1, window=10, unit=3)
    now_ns = START_NS + 8 * PERIOD_NS
    _, count, _ = bench.fill(0, now_ns)
    assert count == 3
    bench.settle(0, count, 1, now_ns)
    assert [header(p.payload)[2] for p in bench.send(0, now_ns)] == [1, 2]
    assert bench.fill(0, now_ns)[1] == 0
    for packet_id in (1, 2, 3, 4, 5, 6):
        bench.receive(0, encode(mqtt.PubAck(packet_id), 4))
    assert bench.fleet.totals.in_flight == 0
    assert [header(p.payload)[2] for p in bench.send(0, now_ns)] == [3, 4, 5]


def test_a_queue_is_accounted_for_over_its_consumers() -> None:
    bench = Bench(subscribers=2, shared="$share/queue/")
    first, second = PUBLISHERS, PUBLISHERS + 1
    for connection, sequence in ((first, 1), (second, 0), (second, 3), (first, 2), (second, 2)):
        bench.receive(connection, publish(message(sequence)))
    counted = bench.counted()["measure"]
    assert counted["received"] == 4
    assert counted["duplicated"] == 1
    # The order of two consumers does not matter.
    assert "out_of_order" not in counted
    assert bench.fleet.devices["taken"][[first, second]].tolist() == [2, 2]


def test_acknowledgements_are_withheld_until_there_are_enough() -> None:
    bench = Bench(receive_qos=1, acknowledge_every=3)
    answers = [
        bench.receive(bench.subscriber, publish(message(n), qos=1, packet_id=40 + n))[1]
        for n in range(7)
    ]
    batches = [
        b"".join(encode(mqtt.PubAck(40 + n), 4) for n in part) for part in ((0, 1, 2), (3, 4, 5))
    ]
    assert answers == [b"", b"", batches[0], b"", b"", batches[1], b""]
    assert bench.fleet.devices[bench.subscriber].held == 1
    f = bench.fleet
    size = release_held(f, bench.subscriber, 0)
    assert f.out[:size].tobytes() == encode(mqtt.PubAck(46), 4)
    assert release_held(f, bench.subscriber, 0) == 0
    assert bench.counted()["measure"]["received"] == 7


# --- record_sent ----------------------------------------------------------------------------


def test_what_was_sent_is_counted_by_phase_with_its_delay() -> None:
    bench = Bench(deliveries=5)
    now_ns = MEASURE_FROM_NS + 2 * PERIOD_NS
    _, count, data = bench.fill(0, now_ns)
    assert count == 1003
    bench.settle(0, count, count, now_ns)
    per_message = len(data) // count
    assert bench.counted(0) == {
        "warmup": {"sent": 1000, "sent_bytes": 1000 * per_message, "expected": 5000},
        "measure": {"sent": 3, "sent_bytes": 3 * per_message, "expected": 15},
    }
    assert total_of(bench.fleet, "sent") == 1003
    assert total_of(bench.fleet, "expected") == 5015
    delays = [2 * PERIOD_NS, PERIOD_NS, 0]
    assert bench.stat(0, "send_delay", MEASURE) == (3, sum(delays), 0, max(delays))
    assert bench.fleet.devices[0].written_ns == now_ns


@pytest.mark.compiled
@given(
    st.integers(0, 2),
    st.integers(0, 2**32),
    st.integers(1, 8),
    st.sampled_from(["constant", "uniform", "poisson"]),
)
@examples(60)
def test_what_is_taken_back_is_sent_later_unchanged(
    qos: int, seed: int, window: int, arrivals: Arrivals
) -> None:
    """Send any part of each batch, acknowledge in any order: no gap, no repetition."""
    rng = random.Random(seed)
    bench = Bench(qos=qos, window=window, size=(32, 50), arrivals=arrivals)
    f = bench.fleet
    untouched = Bench(arrivals=arrivals).fleet
    dues = [int(untouched.publishers[0].due_ns)]
    now_ns = START_NS
    sent: list[mqtt.Publish] = []
    open_ids: list[int] = []
    size_bytes = 0
    for _ in range(60):
        now_ns += rng.randrange(4 * PERIOD_NS)
        _, count, data = bench.fill(0, now_ns, limit=rng.choice([1, 3, BATCH_LIMIT]))
        packets = bench.messages(data)
        assert len(packets) == count
        part = rng.randrange(count + 1) if rng.random() < 0.5 else count
        bench.settle(0, count, part, now_ns)
        sent += packets[:part]
        size_bytes += sum(len(encode(packet, 4)) for packet in packets[:part])
        ids = [packet.packet_id for packet in packets[:part] if qos]
        assert not set(ids) & set(open_ids)
        open_ids += ids
        assert len(open_ids) <= window
        assert f.totals.in_flight == len(open_ids)
        if qos and part < count:
            assert not f.devices[0].flags & WINDOW_FULL
        rng.shuffle(open_ids)
        for packet_id in open_ids[: rng.randrange(len(open_ids) + 1)]:
            if qos == 2:
                bench.receive(0, encode(mqtt.PubRec(packet_id), 4), now_ns=now_ns)
            last: mqtt.Packet = mqtt.PubAck(packet_id) if qos == 1 else mqtt.PubComp(packet_id)
            bench.receive(0, encode(last, 4), now_ns=now_ns)
            open_ids.remove(packet_id)
    headers = [header(packet.payload) for packet in sent]
    seed_used = int(untouched.run.seed)
    dues += [advance(untouched.publishers[0], untouched.program, seed_used) for _ in sent]
    assert headers == [(TAG, 10, n, dues[n]) for n in range(len(sent))]
    counted = bench.counted(0).get("warmup", {})
    assert counted.get("sent", 0) == total_of(f, "sent") == len(sent)
    assert counted.get("sent_bytes", 0) == size_bytes
    assert counted.get("acknowledged", 0) == (len(sent) - len(open_ids) if qos else 0)
    assert f.publishers[0].due_ns == dues[len(sent)]


# --- waiting publishers ----------------------------------------------------------------------


def test_a_rate_change_orders_the_heap_anew_and_forgives_nothing() -> None:
    bench = Bench()
    f = bench.fleet
    now_ns = START_NS + 5 * PERIOD_NS
    bench.send(0, now_ns)  # publisher 0 is up to date, 1 owes, 2 waits
    f.devices[2].flags |= WAITING
    f.program = with_rate(f.program, now_ns, 0.5)
    reschedule(f)
    assert f.totals.heap_size == 2
    dues = f.publishers["due_ns"].tolist()
    assert dues[0] == START_NS + 7 * PERIOD_NS
    assert dues[1] == START_NS + PERIOD_NS // 3
    assert f.heap[0].item() == (dues[1], 1)
    assert f.heap[1].item() == (dues[0], 0)
    owed = bench.send(1, now_ns)
    assert [header(packet.payload)[2] for packet in owed] == list(range(5))


def test_a_schedule_that_stands_still_leaves_the_heap_and_comes_back() -> None:
    bench = Bench()
    f = bench.fleet
    for publisher in range(PUBLISHERS):
        bench.send(publisher, START_NS + PERIOD_NS)

    def change(at_ns: int, factor: float) -> None:
        f.program = with_rate(f.program, at_ns, factor)
        reschedule(f)

    change(START_NS + PERIOD_NS, 1e-6)
    f.run.end_ns = START_NS + 300 * PERIOD_NS
    change(START_NS + PERIOD_NS, 1e-6)
    assert f.totals.heap_size == 0
    assert bench.fill(0, START_NS + 290 * PERIOD_NS)[1] == 0
    change(START_NS + 200 * PERIOD_NS, 1.0)
    assert f.totals.heap_size == PUBLISHERS
    assert bench.fill(0, START_NS + 202 * PERIOD_NS)[1] == 2
