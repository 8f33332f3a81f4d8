from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import CannotRunError
from loadgen.plan.fit import Host
from loadgen.run.environment import host_of
from loadgen.run.host_watch import HostSample
from loadgen.run.hosts import messages
from loadgen.run.hosts.clocks import ClockEstimate
from loadgen.worker.frames import FrameReader
from tests.tables import rows_of

SAMPLE = HostSample(7, (1, 2), {Path("/sys/fs/cgroup/cpu.stat"): 3}, {"resets_sent": 1})

MESSAGES: list[messages.Message] = [
    messages.Joined(host_of(), "boot/1", {"python": "3"}, {"kernel": "6.1", "tuning": {"met": 1}}),
    messages.Joined(Host(cores=1, descriptors=2, memory_bytes=3, local_ports=4), "m", {}, {}),
    messages.Ping(5, None),
    messages.Ping(5, ClockEstimate(1, 2, 0.5, 3)),
    messages.Answer("Check"),
    messages.Answer("Check", error={"type": "HostLimitError", "message": "too small"}),
    messages.WorkerFrame(2, {"re": "connect", "connected": 3}, b"\0\xff"),
    messages.LiveTotals(bytes(24)),
    messages.HostCounters(SAMPLE),
    messages.CheckScenario({"case": "fanin", "broker": ["mqtt://a", "mqtt://b"]}),
    messages.ReachBroker([("10.0.0.1", 1883)], ["10.0.0.2"]),
    messages.WorkerCommand([0, 2], {"op": "connect", "rate": None}),
]


def sent(message: messages.Message) -> messages.Message:
    ((header, block),) = FrameReader().feed(messages.encode(message))
    return messages.decode(header, block)


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_a_message_arrives_as_it_was_sent(message: messages.Message) -> None:
    assert sent(message) == message


def test_a_plan_arrives_as_a_worker_reads_it() -> None:
    """An agent passes it on to workers, which expect the JSON values of a frame."""
    groups = resolve(build_scenario("fanin", None, {"devices": 2})).groups
    message = sent(messages.SharedPlan({"groups": groups}))
    assert isinstance(message, messages.SharedPlan)
    ((frame, _),) = FrameReader().feed(
        messages.encode(messages.WorkerFrame(0, {"groups": list(groups)}))
    )
    assert message.plan["groups"] == frame["frame"]["groups"]


@pytest.mark.parametrize("header", rows_of("run.no_messages"))
def test_a_header_that_is_not_a_message_is_refused(header: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="message"):
        messages.decode(header, b"")


def test_a_frame_has_a_bound() -> None:
    with pytest.raises(CannotRunError):
        FrameReader().feed(b"\xff" * 8)
