from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import CannotRunError
from loadgen.plan.fit import Host
from loadgen.run.environment import host_of
from loadgen.run.host_watch import HostSample
from loadgen.run.hosts.clocks import ClockEstimate
from loadgen.run.hosts.messages import (
    Answer,
    CheckScenario,
    HostCounters,
    Joined,
    LiveTotals,
    Message,
    Ping,
    ReachBroker,
    SharedPlan,
    WorkerCommand,
    WorkerFrame,
    decode,
    encode,
)
from loadgen.worker.frames import FrameReader

SAMPLE = HostSample(7, (1, 2), {Path("/sys/fs/cgroup/cpu.stat"): 3}, {"resets_sent": 1})

MESSAGES: list[Message] = [
    Joined(host_of(), "boot/1", {"python": "3"}, {"kernel": "6.1", "tuning": {"met": 1}}),
    Joined(Host(cores=1, descriptors=2, memory_bytes=3, local_ports=4), "m", {}, {}),
    Ping(5, None),
    Ping(5, ClockEstimate(1, 2, 0.5, 3)),
    Answer("Check"),
    Answer("Check", error={"type": "HostLimitError", "message": "too small"}),
    WorkerFrame(2, {"re": "connect", "connected": 3}, b"\0\xff"),
    LiveTotals(bytes(24)),
    HostCounters(SAMPLE),
    CheckScenario({"case": "fanin", "broker": ["mqtt://a", "mqtt://b"]}),
    ReachBroker([("10.0.0.1", 1883)], ["10.0.0.2"]),
    WorkerCommand([0, 2], {"op": "connect"}, [{"rate": None}, {"rate": 0.5}]),
]


def sent(message: Message) -> Message:
    ((header, block),) = FrameReader().feed(encode(message))
    return decode(header, block)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: Message) -> None:
    assert sent(message) == message


def test_a_plan_arrives_as_a_worker_reads_it() -> None:
    """An agent passes it on to workers, which expect the JSON values of a frame."""
    groups = resolve(build_scenario("fanin", None, {"devices": 2})).groups
    message = sent(SharedPlan({"groups": groups}))
    assert isinstance(message, SharedPlan)
    ((frame, _),) = FrameReader().feed(encode(WorkerFrame(0, {"groups": list(groups)})))
    assert message.plan["groups"] == frame["frame"]["groups"]


@pytest.mark.parametrize(
    "header",
    [
        {},
        {"kind": "Shutdown"},
        {"kind": ["Ping"]},
        {"kind": "Ping", "sent_ns": "soon", "clock": None},
        {"kind": "StartWorkers", "rows": 7, "behaviour": "messaging"},
        {"kind": "Joined", "offer": {}, "versions": {}, "machine": "m", "environment": {}},
    ],
)
def test_a_header_that_is_not_a_message_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="message"):
        decode(header, b"")


def test_a_frame_has_a_bound() -> None:
    with pytest.raises(CannotRunError):
        FrameReader().feed(b"\xff" * 8)
