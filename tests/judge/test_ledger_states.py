"""Every message that comes, and every acknowledgement, is in exactly one state of the ledger."""

import random
from collections.abc import Iterable
from typing import Any

import pytest

from loadgen.judge.ledger import Counted, ledger_of
from loadgen.kernels import counting
from loadgen.kernels.accounting import received_on
from loadgen.kernels.counting import WARMUP
from loadgen.kernels.device import WAITING, WINDOW_FULL
from loadgen.kernels.in_flight import redelivery_order
from loadgen.kernels.payload import COPIES_MOST
from loadgen.kernels.reactor import MESSAGING_ENTRY_POINTS
from loadgen.kernels.sender import give_up_all
from loadgen.metrics.interval import COUNTERS
from loadgen.mqtt import packets, violations
from loadgen.mqtt.codec import encode
from loadgen.mqtt.properties import Properties
from loadgen.worker.upkeep import doubt, withhold
from tests.fleets import total_of
from tests.kernels.test_traffic import (
    MEASURE_FROM_NS,
    PERIOD_NS,
    PUBLISHERS,
    START_NS,
    TAG,
    WINDOW_END_NS,
    Bench,
    header,
    message,
    publish,
    spoiled,
)
from tests.tables import rows_of


def counted(bench: Bench, group: int = 1) -> dict[str, int]:
    """Counters of all phases, but for bytes."""
    names = [name for name in COUNTERS if not name.endswith("_bytes")]
    found = {name: int(bench.fleet.counters[name][group].sum()) for name in names}
    return {name: value for name, value in found.items() if value}


def told(bench: Bench) -> list[int]:
    """The violations of which Python is told."""
    return [event[2] for event in bench.events() if event[0] == counting.VIOLATION]


def give(bench: Bench, data: bytes, now_ns: int = MEASURE_FROM_NS + 1_000) -> None:
    taken, _ = bench.receive(bench.subscriber, data, now_ns=now_ns)
    assert taken == len(data)


def balance(bench: Bench) -> None:
    """What arrived is counted once, and the pairs know of it."""
    arrived = ("received", "corrupt", "duplicated", "misrouted", "foreign")
    totals = bench.fleet.totals
    assert totals.publishes == sum(total_of(bench.fleet, name) for name in arrived)
    known = int(received_on(bench.fleet.pairs, bench.fleet.gaps).sum())
    assert known == total_of(bench.fleet, "received") + totals.damaged


# --- where a message belongs -----------------------------------------------------------------


@pytest.mark.parametrize(("stream", "topic"), rows_of("judge.misrouted"))
def test_a_message_of_another_stream_or_on_another_topic_is_misrouted(
    stream: int, topic: str
) -> None:
    bench = Bench()
    give(bench, publish(message(0, stream=stream), topic=topic))
    assert bench.counted() == {"measure": {"misrouted": 1}}
    assert (bench.fleet.pairs["expected"] == 0).all()
    balance(bench)


def test_a_message_to_a_device_that_does_not_subscribe_is_misrouted() -> None:
    bench = Bench()
    bench.receive(0, publish(message(0, intended_ns=WINDOW_END_NS)), now_ns=START_NS)
    assert bench.counted(0) == {"drain": {"misrouted": 1}}


def test_a_message_that_was_not_due_has_the_phase_in_which_it_arrived() -> None:
    bench = Bench()
    first = message(0, intended_ns=START_NS)
    for moment_ns in (START_NS + 1, MEASURE_FROM_NS + 9, WINDOW_END_NS + 9):
        give(bench, publish(first) + publish(first, topic="x"), moment_ns)
    assert bench.counted()["warmup"]["misrouted"] == 1
    assert bench.counted()["measure"] == {"misrouted": 2, "duplicated": 2}


# --- damaged ---------------------------------------------------------------------------------


def body_of(bench: Bench, size: int = 10) -> bytes:
    return bytes(bench.fleet.body[:size].tobytes())


def test_a_damaged_body_is_put_where_its_header_says() -> None:
    bench = Bench(size=(42, 42))
    body = body_of(bench)
    whole = message(1, intended_ns=START_NS, body=body)
    give(bench, publish(message(0, body=body)) + publish(spoiled(whole, 35)))
    # Its phase is its own, and its place is filled: nothing of it is lost or in a gap.
    assert bench.counted()["warmup"] == {"corrupt": 1}
    assert bench.fleet.pairs["expected"].tolist() == [2, 0, 0]
    assert (bench.fleet.totals.damaged, bench.fleet.totals.missing) == (1, 0)
    balance(bench)
    # The same again, whole or damaged, is repeated.
    give(bench, publish(whole) + publish(spoiled(whole, 33)))
    assert counted(bench) == {"received": 1, "corrupt": 1, "duplicated": 2}
    balance(bench)


def test_no_damaged_repeat_is_excused() -> None:
    bench = Bench(size=(42, 42), qos=1, durable=True)
    body = body_of(bench)
    whole = publish(message(0, body=body), qos=1, packet_id=1)
    again = publish(message(0, body=body), qos=1, packet_id=2, dup=True)
    damaged = publish(spoiled(message(0, body=body), 40), qos=1, packet_id=3, dup=True)
    give(bench, whole)
    bench.come_back()
    for data in (again, damaged):
        give(bench, data)
    assert counted(bench) == {"connects": 1, "received": 1, "duplicated": 2, "excused": 1}
    ledger = ledger_of(Counted({"expected": 1, **counted(bench)}))
    assert (ledger.repeated_allowed, ledger.repeated) == (1, 1)
    balance(bench)


def test_a_body_of_another_length_is_put_there_too() -> None:
    bench = Bench(size=(42, 42))
    whole = message(0, body=body_of(bench))
    give(bench, publish(whole[:-3]) + publish(message(1, body=body_of(bench)) + b"more"))
    give(bench, publish(whole[:20]))  # without all of its header
    assert counted(bench) == {"corrupt": 3}
    assert bench.fleet.pairs["expected"].tolist() == [2, 0, 0]


@pytest.mark.parametrize("position", [*range(4, 32)])
def test_a_damaged_header_moves_no_pair(position: int) -> None:
    bench = Bench(size=(42, 42))
    whole = message(5, body=body_of(bench))
    give(bench, publish(spoiled(whole, position), topic="bench/t/0"))
    assert bench.counted() == {"measure": {"corrupt": 1}}
    assert (bench.fleet.pairs["expected"] == 0).all()
    assert (bench.fleet.totals.damaged, bench.fleet.totals.missing) == (0, 0)
    # What cannot be known: it keeps its gap, which is told when a later one comes.
    give(bench, publish(message(6, body=body_of(bench))))
    assert bench.fleet.totals.missing == 6
    balance(bench)


@pytest.mark.parametrize("position", range(4))
def test_with_a_damaged_tag_the_moment_says_whose_it_was(position: int) -> None:
    bench = Bench()
    for intended_ns, wanted in (
        (START_NS, "corrupt"),
        (START_NS - 1, "foreign"),
        (MEASURE_FROM_NS + 1_000, "corrupt"),
        (MEASURE_FROM_NS + 1_001, "foreign"),  # later than now
    ):
        bench.fleet.counters["corrupt"] = bench.fleet.counters["foreign"] = 0
        data = spoiled(message(0, intended_ns=intended_ns), position)
        give(bench, publish(data, topic="bench/t/0"))
        assert bench.counted() == {"measure": {wanted: 1}}


def test_a_damaged_message_in_the_wrong_place_is_misrouted() -> None:
    bench = Bench(size=(42, 42))
    give(bench, publish(spoiled(message(0, body=body_of(bench)), 35), topic="bench/t/2"))
    assert counted(bench) == {"misrouted": 1}


# --- repeated --------------------------------------------------------------------------------


def repeats(bench: Bench, sequences: list[int], **fields: Any) -> tuple[int, int]:
    """Repeat messages; return the new duplicates and those of them that are excused."""
    before = counted(bench)
    fields = {"dup": True, "qos": 1, **fields}
    for sequence in sequences:
        give(bench, publish(message(sequence), packet_id=sequence % 100 + 1, **fields))
    balance(bench)
    found = counted(bench)
    names = ("duplicated", "excused")
    duplicated, excused = (found.get(name, 0) - before.get(name, 0) for name in names)
    return duplicated, excused


def deliver(bench: Bench, sequences: Iterable[int], *, topics: int = 1, qos: int = 1) -> None:
    for sequence in sequences:
        for stream in range(10, 10 + topics):
            payload = message(sequence, stream=stream)
            give(bench, publish(payload, qos=qos, packet_id=sequence % 100 + 1))


def test_a_delivery_is_excused_once_after_each_break_at_which_it_was_in_doubt() -> None:
    bench = Bench(qos=1, durable=True)
    deliver(bench, range(3))
    assert repeats(bench, [0]) == (1, 0)  # on the live connection
    bench.come_back()
    assert repeats(bench, [0, 2, 1]) == (3, 3)
    assert repeats(bench, [0, 1, 2]) == (3, 0)
    deliver(bench, [3])
    assert repeats(bench, [3]) == (1, 0)  # came after the break
    bench.come_back()
    assert repeats(bench, [3, 2, 3]) == (3, 2)


def test_messages_acknowledged_long_ago_are_never_excused() -> None:
    bench = Bench(qos=1, durable=True)
    deliver(bench, range(200))
    for second in range(3):
        bench.settle_doubts()
        deliver(bench, [200 + second])
    for _ in range(2):
        bench.come_back()
        assert repeats(bench, list(range(200))) == (200, 0)
    # A broker that stands still may not have read what it was sent: nothing is settled.
    for _ in range(5):
        bench.settle_doubts()
    bench.come_back()
    assert repeats(bench, [202]) == (1, 1)


def test_a_queue_passes_on_only_what_a_cut_consumer_had() -> None:
    bench = Bench(qos=1, receive_qos=1, subscribers=2, shared="$share/queue/")
    deliver(bench, [0, 2])
    bench.subscriber = PUBLISHERS + 1
    deliver(bench, [1, 3])
    bench.subscriber = PUBLISHERS
    bench.come_back()
    bench.subscriber = PUBLISHERS + 1
    assert repeats(bench, [0, 1, 2, 3, 0], dup=False) == (5, 2)


def test_a_broker_may_resume_topic_by_topic() -> None:
    """New messages of one topic may come before repeats of another (4.6)."""
    bench = Bench(qos=1, durable=True)
    deliver(bench, range(3), topics=3)
    bench.come_back()
    for stream in (10, 11, 12):
        for sequence in range(3):
            payload = message(sequence, stream=stream)
            give(bench, publish(payload, qos=1, packet_id=sequence + 1, dup=True))
        give(bench, publish(message(3, stream=stream), qos=1, packet_id=9))
    assert counted(bench) == {"connects": 1, "received": 12, "duplicated": 9, "excused": 9}


@pytest.mark.parametrize("case", ["no session", "no dup", "clean start", "QoS 2", "another device"])
def test_no_other_repeat_is_excused(case: str) -> None:
    qos = 2 if case == "QoS 2" else 1
    bench = Bench(qos=qos, subscribers=2, durable=case != "clean start")
    deliver(bench, [0], qos=qos)
    give(bench, encode(packets.PubRel(1), 4) if qos == 2 else b"")
    if case == "another device":
        bench.subscriber += 1
    bench.come_back(session_present=case != "no session")
    bench.subscriber = PUBLISHERS
    assert repeats(bench, [0], dup=case != "no dup", qos=qos) == (1, 0)


def test_a_new_subscription_brings_the_retained_message_of_a_topic_again() -> None:
    bench = Bench()
    bench.fleet.devices["subscribed_ns"] = 1 << 60
    give(bench, publish(message(0)))
    excused = []
    for returns in range(3):
        if returns:
            bench.come_back(session_present=False, now_ns=MEASURE_FROM_NS + (returns << 30))
        for retain in (False, True, True):
            give(bench, publish(message(0), retain=retain))
            excused.append(counted(bench).get("excused", 0))
    assert excused == [0, 0, 0, 0, 1, 1, 1, 2, 2]


def test_a_queue_repeats_the_messages_of_a_lost_consumer_to_another() -> None:
    bench = Bench(qos=1, receive_qos=1, subscribers=2, shared="$share/queue/", acknowledge_every=10)
    other = bench.subscriber + 1
    deliver(bench, range(4))
    assert withhold(bench.fleet, bench.subscriber) == 4
    doubt(bench.fleet, bench.subscriber)
    bench.subscriber = other
    assert repeats(bench, [1, 3, 1], dup=False) == (3, 2)
    withheld = bench.fleet.withheld[: bench.fleet.totals.withheld]
    assert withheld["came"].tolist() == [0, 1, 0, 1]


def test_each_copy_of_ours_may_arrive_once_and_the_original_after_it() -> None:
    bench = Bench(qos=1)

    def arrive(sequence: int, copy: int) -> dict[str, int]:
        data = message(sequence, copy=copy)
        give(bench, publish(data, qos=1, packet_id=1))
        return counted(bench)

    arrive(0, 0)
    for copies in (1, 2):
        assert arrive(0, copies).get("excused", 0) == copies
    for _ in range(4):
        arrive(0, 1)
    assert arrive(0, 0) == {"received": 1, "duplicated": 7, "excused": 2}
    arrive(1, 1)  # the original comes late, and once
    arrive(1, 1)
    arrive(1, 0)
    assert arrive(1, 0) == {"received": 2, "duplicated": 10, "excused": 3}
    # The header has no higher number: it is that of the copies that follow, too.
    for _ in range(5):
        arrive(1, COPIES_MOST)
    assert counted(bench) == {"received": 2, "duplicated": 15, "excused": 8}
    balance(bench)


@pytest.mark.parametrize(("qos", "session_present", "marked"), rows_of("judge.sent_again"))
def test_what_our_publisher_sends_again_is_marked_where_both_may_come(
    qos: int, session_present: bool, marked: bool
) -> None:
    bench = Bench(qos=qos, window=10)
    f = bench.fleet
    sent = bench.send(0, START_NS + 2 * PERIOD_NS)
    assert len(sent) == 3
    slots = redelivery_order(f, 0)
    handled, size, _ = MESSAGING_ENTRY_POINTS.redeliver(f, 0, session_present, slots, len(slots), 1)
    assert handled == 3
    again = bench.messages(f.out[:size].tobytes())
    assert [header(packet.payload) for packet in again] == [header(p.payload) for p in sent]
    assert [bool(packet.payload[27] & 0x80) for packet in again] == [marked] * 3
    assert [packet.dup for packet in again] == [session_present] * 3
    assert not any(packet.payload[27] & 0x80 for packet in sent)
    # A subscriber that gets both takes the copy for excused, however it comes.
    data = b"".join(publish(packet.payload) for packet in (*sent, *again))
    give(bench, data)
    found = counted(bench)
    assert (found["received"], found["duplicated"]) == (3, 3)
    assert found.get("excused", 0) == (3 if marked else 0)


# --- quality of service ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "granted", "delivered", "wanted"), rows_of("judge.granted_qos")
)
def test_the_qos_is_the_lower_of_published_and_granted(
    published: int, granted: int, delivered: int, wanted: dict[str, int]
) -> None:
    bench = Bench(qos=published, receive_qos=granted)
    packet_id = 1 if delivered else 0
    give(bench, publish(message(0), qos=delivered, packet_id=packet_id))
    assert counted(bench) == {"received": 1, **wanted}
    assert told(bench) == ([violations.QOS_RAISED] if "violations" in wanted else [])
    balance(bench)


# --- what a broker may not do ----------------------------------------------------------------


def test_mqtt_3_1_may_repeat_a_pubrel_with_dup() -> None:
    bench = Bench(qos=2)
    bench.fleet.groups["version"] = 3
    deliver(bench, [0], qos=2)
    assert bench.receive(bench.subscriber, b"\x6a\2\0\1")[1] == encode(packets.PubComp(1), 4)
    assert told(bench) == []


def test_the_handshake_of_a_misrouted_message_is_no_violation() -> None:
    bench = Bench(qos=2)
    for _ in range(2):
        bench.receive(0, publish(message(0), qos=2, packet_id=3))
        assert bench.receive(0, encode(packets.PubRel(3), 4))[1] == encode(packets.PubComp(3), 4)
    assert counted(bench, 0) == {"misrouted": 2}


# --- acknowledgements ------------------------------------------------------------------------


def handshakes(bench: Bench) -> None:
    """Each message sent with a handshake is in one of its ends, or in flight."""
    ends = ("acknowledged", "refused", "given_up")
    in_flight = int(bench.fleet.senders["in_flight"].sum())
    assert in_flight == bench.fleet.totals.in_flight
    assert total_of(bench.fleet, "sent") == in_flight + sum(
        total_of(bench.fleet, name) for name in ends
    )


def test_a_refused_message_is_neither_acknowledged_nor_expected() -> None:
    bench = Bench(qos=1, version=5, window=10, deliveries=3)
    bench.send(0, START_NS + 3 * PERIOD_NS)
    assert counted(bench, 0) == {"sent": 4, "expected": 12}
    reason = Properties(reason_string="over quota")
    first = encode(packets.PubAck(1, reason_code=0x97, properties=reason), 5)
    bench.receive(
        0, first + encode(packets.PubAck(2, reason_code=0x97), 5) + encode(packets.PubAck(3), 5)
    )
    assert counted(bench, 0) == {"sent": 4, "expected": 6, "refused": 2, "acknowledged": 1}
    assert bench.fleet.refusals["count"][0x97] == bench.fleet.refusals["count"].sum() == 2
    assert bench.fleet.totals.withdrawn == 6
    # Of a storm of refusals Python hears once for each code.
    assert [(e[0], e[2], e[3]) for e in bench.events()] == [(counting.REFUSED_PACKET, 0x97, first)]
    bench.receive(0, encode(packets.PubAck(4, reason_code=0x87), 5))
    assert [event[2] for event in bench.events()] == [0x87]
    assert bench.stat(0, "acknowledge", WARMUP)[0] == 1
    handshakes(bench)


def test_no_matching_subscribers_is_a_success() -> None:
    bench = Bench(qos=1, version=5)
    bench.send(0, START_NS)
    bench.receive(0, encode(packets.PubAck(1, reason_code=0x10), 5))
    assert counted(bench, 0) == {"sent": 1, "expected": 1, "acknowledged": 1}


def test_qos_2_may_be_refused_by_pubrec_and_failed_by_pubcomp() -> None:
    bench = Bench(qos=2, version=5, window=10)
    bench.send(0, START_NS + 2 * PERIOD_NS)
    bench.receive(0, encode(packets.PubRec(1, reason_code=0x97), 5) + encode(packets.PubRec(2), 5))
    bench.receive(0, encode(packets.PubComp(2, reason_code=0x92), 5))
    assert counted(bench, 0) == {
        "sent": 3,
        "expected": 2,
        "refused": 1,
        "given_up": 1,
        "violations": 1,
    }
    assert told(bench) == [violations.FAILED_PUBCOMP]
    assert bench.fleet.refusals["count"].sum() == 1
    handshakes(bench)


@pytest.mark.parametrize(
    ("qos", "wrong"), [(1, "PubRec"), (1, "PubComp"), (2, "PubAck"), (2, "PubComp")]
)
def test_the_wrong_acknowledgement_gives_the_message_up_and_frees_its_place(
    qos: int, wrong: str
) -> None:
    bench = Bench(qos=qos, window=1)
    bench.send(0, START_NS + 3 * PERIOD_NS)
    bench.fleet.devices[0].flags |= WAITING
    bench.fleet.totals.heap_size = 0
    assert bench.fleet.devices[0].flags & WINDOW_FULL
    bench.receive(0, encode(getattr(packets, wrong)(1), 4))
    assert not bench.fleet.devices[0].flags & (WINDOW_FULL | WAITING)
    found = counted(bench, 0)
    assert (found["given_up"], found["violations"]) == (1, 1)
    assert "acknowledged" not in found
    right = ("PUBACK", "PUBREC")[qos - 1]
    answer = f"answered with {wrong.upper()} (the specification requires {right})"
    words = f"a PUBLISH of QoS {qos} {answer}"
    assert [violations.VIOLATIONS[kind].words for kind in told(bench)] == [words]
    handshakes(bench)


def test_handshakes_that_went_with_the_session_are_given_up() -> None:
    bench = Bench(qos=2, window=10)
    f = bench.fleet
    bench.send(0, START_NS + 3 * PERIOD_NS)
    bench.receive(0, encode(packets.PubRec(2), 4) + encode(packets.PubRec(3), 4))
    slots = redelivery_order(f, 0)
    MESSAGING_ENTRY_POINTS.redeliver(f, 0, False, slots, len(slots), 1)
    assert counted(bench, 0) == {"sent": 4, "expected": 4, "given_up": 2}
    handshakes(bench)
    give_up_all(f, 0)
    assert counted(bench, 0)["given_up"] == 4
    assert f.totals.in_flight == 0
    handshakes(bench)


# --- anything --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_whatever_comes_the_sums_close(seed: int) -> None:
    rng = random.Random(seed)
    qos, version = rng.choice([0, 1, 2]), rng.choice([4, 5])
    bench = Bench(qos=qos, version=version, size=(42, 42), window=20)
    body = body_of(bench)
    handled = 0
    for _ in range(400):
        stream = rng.choice([9, 10, 11, 12, 13])
        payload = message(
            rng.randrange(40), stream=stream, tag=rng.choice([TAG] * 9 + [1]), body=body
        )
        topic = f"bench/t/{stream - 10 if rng.random() < 0.9 else 1}"
        if rng.random() < 0.3:
            payload = spoiled(payload, rng.randrange(len(payload)))
        elif rng.random() < 0.1:
            payload = payload[: rng.randrange(len(payload))]
        level = rng.randrange(3)
        packet_id = rng.randrange(1, 9) if level else 0
        data = publish(
            payload,
            qos=level,
            packet_id=packet_id,
            version=version,
            dup=bool(level) and rng.random() < 0.5,
            topic=topic,
        )
        handled += 1
        if rng.random() < 0.3:
            data += encode(packets.PubRel(rng.randrange(1, 9)), version)
        give(bench, data, MEASURE_FROM_NS + handled)
        bench.send(rng.randrange(3), MEASURE_FROM_NS - 990_000 + handled * 700)
        if qos:
            reason = rng.choice([0, 0, 0x87, 0x97]) if version == 5 else 0
            number = rng.randrange(1, 24)
            answers: list[packets.Packet] = [
                packets.PubAck(number, reason_code=reason),
                packets.PubRec(number, reason_code=reason),
                packets.PubComp(number, reason_code=0x92 if reason else 0),
            ]
            ack = encode(rng.choice(answers), version)
            bench.receive(rng.randrange(3), ack, now_ns=MEASURE_FROM_NS + handled)
        bench.events()
    assert bench.fleet.totals.publishes == handled
    balance(bench)
    if qos:
        handshakes(bench)
        assert total_of(bench.fleet, "refused") == bench.fleet.refusals["count"].sum()
    expected = total_of(bench.fleet, "sent") - bench.fleet.totals.withdrawn
    assert total_of(bench.fleet, "expected") == expected
    assert total_of(bench.fleet, "violations") == bench.fleet.violations.sum()
