"""The statement of a worker about its run."""

import socket
from typing import Any

import pytest

from loadgen.kernels.device import AWAY, CLOSED
from loadgen.mqtt.codec import encode
from loadgen.mqtt.packets import PubAck, PubComp, Publish, PubRec, PubRel
from loadgen.worker.closing import (
    MESSAGES_LIMIT,
    absent_streams,
    closing_statement,
    lost_ranges,
    missing_of,
    sent_by_streams,
    sent_on,
    unacknowledged,
)
from tests.kernels.test_responses import DEVICES, request
from tests.kernels.test_responses import Bench as RequestBench
from tests.kernels.test_responses import publish as publish_request
from tests.kernels.test_traffic import (
    MEASURE_FROM_NS,
    PERIOD_NS,
    PUBLISHERS,
    START_NS,
    Bench,
    message,
    publish,
)
from tests.worker import harness


def test_the_structures_say_what_the_counters_say() -> None:
    bench = Bench(qos=1, version=5, window=10)
    sent = bench.send(0, START_NS + 4 * PERIOD_NS)
    bench.receive(0, encode(PubAck(1), 5) + encode(PubAck(2, reason_code=0x97), 5))
    for packet in sent[:3]:
        bench.receive(bench.subscriber, publish(packet.payload, qos=1, packet_id=1, version=5))
    bench.receive(bench.subscriber, publish(b"?", version=5), now_ns=MEASURE_FROM_NS)
    said = closing_statement(bench.fleet, "why", "what")
    assert said == {
        "in_flight": 3,
        "distinct": 3,
        "damaged": 0,
        "publishes": 4,
        "unread": 0,
        "refusals": {"151": 1},
        "refusal": "why",
        "violation": "what",
        "violations": {},
        "unreleased": 0,
        "redelivered": 0,
        "overtaken": -1,
    }
    assert sent_by_streams(bench.fleet) == 5


def test_responses_are_among_what_was_sent() -> None:
    bench = RequestBench()
    bench.give(DEVICES, publish_request(request(0)) + publish_request(request(1)))
    assert sent_by_streams(bench.fleet) == 2


def test_connections_with_unread_bytes_are_counted() -> None:
    bench = Bench()
    near, far = socket.socketpair()
    with near, far:
        bench.fleet.devices[1].descriptor = near.fileno()
        assert closing_statement(bench.fleet, "", "")["unread"] == 0
        far.send(b"x")
        assert closing_statement(bench.fleet, "", "")["unread"] == 1


def test_messages_in_flight_are_named_and_their_missing_deliveries_counted() -> None:
    bench = Bench(qos=1, window=10, subscribers=2)
    first, second = bench.subscriber, bench.subscriber + 1
    bench.send(0, START_NS + 3 * PERIOD_NS)
    bench.send(1, START_NS + 1 * PERIOD_NS)
    bench.receive(0, encode(PubAck(2), 4))
    said = unacknowledged(bench.fleet)
    assert said["complete"]
    in_flight = said["messages"]
    assert sorted(in_flight) == [[10, 0], [10, 2], [10, 3], [11, 0]]
    assert missing_of(bench.fleet, in_flight) == 8
    # 1 was acknowledged and is missing, too.
    for row, stream, sequence in ((first, 10, 0), (first, 10, 3), (second, 11, 0)):
        bench.receive(row, publish(message(sequence, stream=stream), qos=1, packet_id=9))
    assert missing_of(bench.fleet, in_flight) == 5
    assert missing_of(bench.fleet, [[99, 0]]) == missing_of(bench.fleet, []) == 0
    assert said["sent"][:2] == [[10, 4], [11, 1]]
    lost = lost_ranges(bench.fleet, said["sent"], in_flight)
    whom = bench.fleet.group_of(first).name
    assert lost == [[10, 1, 1, whom, 0], [10, 1, 1, whom, 1]]
    assert lost_ranges(bench.fleet, [[10, 4]], ()) == [[10, 1, 2, whom, 0], [10, 0, 3, whom, 1]]


def test_a_queue_misses_a_message_once() -> None:
    bench = Bench(qos=1, subscribers=2, shared="$share/queue/")
    assert missing_of(bench.fleet, [[10, 0], [11, 0]]) == 2
    bench.receive(bench.subscriber + 1, publish(message(0), qos=1, packet_id=9))
    assert missing_of(bench.fleet, [[10, 0], [11, 0]]) == 1


def test_devices_that_were_never_there_miss_what_was_sent_on_their_streams() -> None:
    bench = Bench(qos=1, window=10, subscribers=4)
    fleet, first = bench.fleet, bench.subscriber
    bench.send(0, START_NS + 3 * PERIOD_NS)
    bench.send(1, START_NS + 1 * PERIOD_NS)
    assert absent_streams(fleet, ()) == []
    # One never connected, one's subscription was refused; one came and went again.
    fleet.devices[first].state = CLOSED
    fleet.devices[first + 2].state = CLOSED
    fleet.devices[first + 2].returned_ns = AWAY
    missed = absent_streams(fleet, [first + 1])
    assert missed == [[10, PUBLISHERS, 2]]
    assert sent_on(fleet, missed) == {"sent": 10, "complete": True}
    assert sent_on(fleet, [[11, 1, 1], [99, 3, 1]])["sent"] == 1
    # A subscriber with a message was present.
    bench.receive(first + 1, publish(message(0)))
    assert absent_streams(fleet, [first + 1]) == [[10, PUBLISHERS, 1]]
    fleet.totals.withdrawn += 1  # a refused message is not expected
    assert not sent_on(fleet, missed)["complete"]


def test_a_queue_is_missed_once_and_only_by_all_its_consumers() -> None:
    bench = Bench(qos=1, subscribers=2, shared="$share/queue/")
    first = bench.subscriber
    assert absent_streams(bench.fleet, [first]) == []
    assert absent_streams(bench.fleet, [first, first + 1]) == [[10, PUBLISHERS, 1]]


def test_more_than_can_be_named_are_not_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    assert MESSAGES_LIMIT == 100_000
    monkeypatch.setattr("loadgen.worker.closing.MESSAGES_LIMIT", 3)
    bench = Bench(qos=2, window=10)
    bench.send(0, START_NS + 2 * PERIOD_NS)
    assert unacknowledged(bench.fleet)["complete"]
    bench.send(0, START_NS + 3 * PERIOD_NS)
    said = unacknowledged(bench.fleet)
    assert (len(said["messages"]), said["complete"]) == (3, False)


def test_what_responders_have_in_flight_is_not_named() -> None:
    bench = RequestBench(qos=1)
    bench.give(DEVICES, publish_request(request(0), qos=1, packet_id=1))
    said = unacknowledged(bench.fleet)
    assert (said["messages"], said["complete"]) == ([], False)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_worker_names_what_was_never_acknowledged(driver: harness.Driver, qos: int) -> None:
    """Deliver every third message without acknowledgement, and drop every third."""
    sessions: list[harness.Session] = []

    async def serve(session: harness.Session) -> None:
        await session.welcome()
        sessions.append(session)
        while True:
            packet = await session.packet()
            if isinstance(packet, Publish):
                number = int.from_bytes(packet.payload[8:16], "little")
                if number % 3 < 2:
                    for other in sessions:
                        if other.filters:
                            other.send(Publish(packet.topic_name, packet.payload))
                if number % 3 > 0:
                    session.send(PubAck(packet.packet_id) if qos == 1 else PubRec(packet.packet_id))
            elif isinstance(packet, PubRel):
                session.send(PubComp(packet.packet_id))
            else:
                session.respond(packet)

    broker = await driver.broker(serve)
    groups = harness.publishers(1, 60.0, qos=qos), harness.subscribers(1)
    await driver.connect(harness.one_worker_plan(*groups, port=broker.port))
    await driver.subscribe()
    await driver.start(warmup_ms=0, measure_ms=500)
    await driver.until(lambda: driver.window_ends and driver.now("received") == 20)
    await driver.until(lambda: driver.now("in_flight") == 10)
    said = await driver.ask("unacknowledged")
    assert said["complete"]
    assert sorted(said["messages"]) == [[0, number] for number in range(0, 30, 3)]
    # 10 were lost, all of them acknowledged.
    assert (await driver.ask("missing", messages=said["messages"]))["missing"] == 0
    acknowledged = [[0, number] for number in range(2, 30, 3)]
    assert (await driver.ask("missing", messages=acknowledged))["missing"] == 10
    told = await driver.ask("missing", messages=said["messages"], sent=said["sent"])
    assert [one[:3] for one in told["named"]] == [[0, n, n] for n in range(2, 30, 3)]
    final: dict[str, Any] = await driver.stop()
    assert final["closing"]["in_flight"] == 10
    assert final["closing"]["distinct"] == 20
