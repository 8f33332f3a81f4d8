"""The times at which a worker leaves compiled code, and the end of its reads."""

import os
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from loadgen.kernels.reactor import EntryPoints
from loadgen.worker import poller as poller_module
from loadgen.worker.channel import Channel
from loadgen.worker.poller import Attendance, Poller
from tests.worker.harness import HANG_S

MS = 1_000_000


class Scene:
    """A poller with its surroundings; `serve` plays the kernel, call by call."""

    def __init__(self, *found: str) -> None:
        self.found = list(found)
        self.stays_ns: list[int] = []
        self.due_ns: list[int] = []
        self.channel = SimpleNamespace(descriptor=-1, is_writing=False)
        totals = {name: np.zeros(1, np.int64) for name in ("events", "rearm", "ready")}
        self.events, self.publishes = totals["events"], 0
        self.fleet = SimpleNamespace(
            held={"totals": totals, "attention": {"stalls": np.zeros(1, np.int64)}},
            plan=SimpleNamespace(groups=()),
            group=np.zeros(0, np.int32),
            run=SimpleNamespace(),
            words=np.zeros(8, np.int32),
            totals=self,
        )
        kernels = cast("EntryPoints", SimpleNamespace(serve=self.serve))
        self.poller = Poller(cast("Any", self.fleet), cast("Any", self), kernels, self.handle)

    def serve(self, _fleet: object, stay_ns: int) -> None:
        self.stays_ns.append(stay_ns)
        if not self.found:
            time.sleep(stay_ns / 1e9)
        what = self.found.pop(0) if self.found else ""
        self.events[0] = what in ("message", "acknowledgement")
        self.publishes += what == "message"

    def handle(self) -> None:
        self.events[0] = 0

    # of the loop

    def add_reader(self, *_: object) -> None:
        pass

    def until_due_ns(self) -> int:
        return self.due_ns.pop(0) if self.due_ns else 1000 * MS


@pytest.fixture
def scenes() -> Iterator[list[Scene]]:
    made: list[Scene] = []
    yield made
    for scene in made:
        scene.poller.epoll.close()
        for timer in (scene.fleet.run.timer, scene.fleet.run.linger_timer):
            os.close(timer)


def test_what_the_loop_was_asked_for_has_its_turn_though_messages_come(scenes: list[Scene]) -> None:
    scenes.append(scene := Scene("message", "message", "message"))
    scene.due_ns = [0]  # and forgotten after the report
    scene.poller.on_ready()
    assert scene.stays_ns == [0]


def test_messages_that_python_reads_need_no_turn_of_the_loop(
    scenes: list[Scene], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poller_module, "_LEAST_STAY_NS", 500 * MS)
    scenes.append(scene := Scene("message", "message", "called"))
    scene.poller.on_ready()
    assert scene.stays_ns == [1000 * MS] * 3


def test_what_the_channel_has_not_taken_needs_the_loop(scenes: list[Scene]) -> None:
    scenes.append(scene := Scene("message"))
    scene.poller.attach(cast("Channel", scene.channel), cast("Attendance", None))
    scene.channel.is_writing = True
    scene.poller.on_ready()
    assert scene.stays_ns == [0]


@pytest.mark.parametrize("before", ["acknowledgement", "called"])
async def test_what_interrupts_the_rest_does_not_end_it(scenes: list[Scene], before: str) -> None:
    scenes.append(scene := Scene(before, before, "message"))
    await scene.poller.read_rest(HANG_S)
    assert (scene.publishes, scene.found) == (1, [])
