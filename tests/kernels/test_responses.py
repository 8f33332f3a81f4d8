"""Responders: the messages that they send for requests, and the counts."""

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.kernels import counting
from loadgen.kernels.device import CONNECTED
from loadgen.kernels.in_flight import set_capacity
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.mqtt.packets import Packet, PubAck, Publish
from loadgen.plan.groups import Target
from loadgen.plan.plan import Plan
from loadgen.worker.build_fleet import build_fleet
from tests.fleets import groups_of
from tests.kernels import test_traffic
from tests.plans import small_plan

FROM_NS = 1_000_000
UNTIL_NS = 2_000_000
DEVICES, RESPONDERS = 6, 2


def plan_of(qos: int = 0, version: int = 4, window: int = 4) -> Plan:
    scenario = build_scenario(
        "request",
        None,
        {
            "devices": DEVICES,
            "responders": RESPONDERS,
            "qos": qos,
            **({"max_unacknowledged": window} if qos else {}),
            "rate": 60,
            "mqtt": VERSION_NAMES[version],
        },
    )
    groups = groups_of(scenario, "run")
    target = Target("127.0.0.1", 1)
    return small_plan(
        groups, targets=(target,), run_tag=test_traffic.TAG, version=5 if version == 5 else 4
    )


class Bench(test_traffic.Bench):
    """The arrays of one worker: devices that request, then responders."""

    def __init__(self, qos: int = 0, version: int = 4, window: int = 4) -> None:
        plan = plan_of(qos, version, window)
        self.version = version
        self.fleet = build_fleet(plan, plan.workers[0])
        f = self.fleet
        f.run.measure_ns = FROM_NS
        f.run.end_ns = UNTIL_NS
        f.devices["state"] = CONNECTED
        for row in range(len(f.senders)):
            set_capacity(f, row, window)

    def give(self, connection: int, data: bytes, now_ns: int = FROM_NS + 500) -> list[Packet]:
        """Pass bytes to a device; return the packets that it writes."""
        taken, answer = self.receive(connection, data, now_ns=now_ns)
        assert taken == len(data)
        return self.packets(answer)

    def measured(self, group: int) -> dict[str, int]:
        return self.counted(group)["measure"]


def request(device: int, sequence: int = 0) -> bytes:
    return test_traffic.message(
        sequence, stream=device, intended_ns=FROM_NS + 100, sent_ns=FROM_NS + 110, body=b"what?"
    )


def publish(payload: bytes, *, qos: int = 0, packet_id: int = 0, version: int = 4) -> bytes:
    """Half of the devices ask one responder, half the other."""
    responder = payload[4] * 2 // DEVICES
    topic = f"run/request/{responder}"
    return encode(Publish(topic, payload, qos=qos, packet_id=packet_id), version)


@pytest.mark.parametrize("version", [4, 5])
def test_a_request_is_answered_to_the_device_that_asked(version: int) -> None:
    bench = Bench(version=version)
    responder = DEVICES + 1  # devices 3 to 5 ask it
    payload = request(4)
    (answer,) = bench.give(responder, publish(payload, version=version))
    assert answer == Publish("run/response/4", payload)
    told = encode(answer, version)
    assert bench.measured(1) == {
        "received": 1,
        "received_bytes": len(publish(payload, version=version)),
        "sent": 1,
        "sent_bytes": len(told),
    }
    # The response was expected when the request was sent.
    assert bench.fleet.publishers["deliveries"].tolist() == [2] * DEVICES
    # The requesting device counts it as a message, with a latency from the request.
    assert bench.give(4, told, FROM_NS + 900) == []
    assert bench.measured(0) == {"received": 1, "received_bytes": len(told)}
    assert bench.stat(0, "end_to_end", counting.MEASURE) == (1, 800, 800, 800)


def test_the_answer_to_another_is_misrouted() -> None:
    bench = Bench()
    bench.give(3, encode(Publish("run/response/3", request(4)), 4))
    bench.give(3, encode(Publish("run/response/4", request(3)), 4))
    assert bench.measured(0) == {"misrouted": 2}


def test_what_comes_again_or_is_damaged_is_not_answered() -> None:
    bench = Bench()
    responder = DEVICES
    payload = request(0)
    assert len(bench.give(responder, publish(payload) * 3)) == 1
    assert bench.give(responder, publish(payload[:-1] + b"!")) == []
    assert bench.give(responder, publish(request(5))) == []  # of the other responder
    counted = bench.measured(1)
    assert (counted["sent"], counted["duplicated"]) == (1, 2)
    assert (counted["corrupt"], counted["misrouted"]) == (1, 1)


def test_answers_at_qos_1_keep_to_the_window() -> None:
    bench = Bench(qos=1, window=2)
    responder = DEVICES
    data = b"".join(publish(request(device), qos=1, packet_id=device + 1) for device in range(3))
    packets = bench.give(responder, data)
    answers = [packet for packet in packets if isinstance(packet, Publish)]
    assert [packet.packet_id for packet in packets if isinstance(packet, PubAck)] == [1, 2, 3]
    assert [(answer.topic_name, answer.qos) for answer in answers] == [
        ("run/response/0", 1),
        ("run/response/1", 1),
    ]
    assert [event[0] for event in bench.events()] == [counting.UNANSWERED]
    assert bench.measured(1)["sent"] == 2
    assert bench.fleet.totals.in_flight == 2
    # An acknowledged response makes room.
    bench.give(responder, encode(PubAck(answers[0].packet_id), 4))
    assert bench.fleet.totals.in_flight == 1
    (_, answer) = bench.give(responder, publish(request(2, 1), qos=1, packet_id=9))
    assert isinstance(answer, Publish)
    assert answer.topic_name == "run/response/2"
