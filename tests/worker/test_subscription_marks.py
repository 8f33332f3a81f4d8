"""Messages in flight to one subscription, from memory that workers share."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest

from loadgen.plan.behaviour import PlannedFleet
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Subscribes, WorkerPlan
from loadgen.worker.build_fleet import build_fleet
from loadgen.worker.subscription_marks import open_marks, share_streams
from tests.plans import small_plan


def workers(directory: Path, filters: str = "t/{topic}") -> list[PlannedFleet]:
    """Return three publishers in one worker, and two subscribers of each topic in two."""
    groups = (
        DeviceGroup("publishers", 3, publishes=Publishes("t/{topic}", 300.0)),
        DeviceGroup("subscribers", 6, subscribes=Subscribes((filters,)), topics=3),
    )
    shares = ((Share(0, 0, 3, 1), Share(1, 0, 6, 2)), (Share(1, 1, 6, 2),))
    plans = tuple(WorkerPlan(number, own) for number, own in enumerate(shares))
    plan = small_plan(groups, workers=plans, version=5)
    fleets = [build_fleet(plan, worker) for worker in plans]
    for number, fleet in enumerate(fleets):
        share_streams(fleet, directory / "live", number)
    return fleets


def test_the_most_under_way_is_that_of_one_subscription(tmp_path: Path) -> None:
    first, second = workers(tmp_path)
    marks = open_marks(tmp_path / "live", 2)
    assert marks is not None
    assert marks.most() == (0, 0)
    marks._next_ns = 0
    first.publishers["sent"] = [100, 50, 7]
    first.pairs["expected"] = first.publishers["sent"][: len(first.pairs)]
    streams = second.ranges["stream_first"].tolist()
    assert sorted(streams) == [0, 1, 2]
    second.pairs["expected"] = [(93, 47, 7)[stream] for stream in streams]
    assert marks.most() == (7, 6 / 100)
    assert marks.most() is None  # too soon after the last look
    marks._next_ns = 0
    # A message that is received but not yet seen as sent counts as 0.
    second.pairs["expected"] = [200, 200, 200]
    assert marks.most() == (0, 0)


def test_a_stream_waits_whatever_the_others_of_its_subscription_get(tmp_path: Path) -> None:
    first, second = workers(tmp_path, "t/+")
    marks = open_marks(tmp_path / "live", 2)
    assert marks is not None
    first.publishers["sent"] = [1_000, 1_000, 5]
    for fleet in first, second:
        fleet.pairs["expected"] = np.resize([1_000, 1_000, 1], len(fleet.pairs))
    assert marks.most() == (4, 3 / 5)


def test_nothing_is_known_of_a_queue_of_several_consumers_or_of_another_host(
    tmp_path: Path,
) -> None:
    workers(tmp_path, "$share/q/t/{topic}")
    assert open_marks(tmp_path / "live", 2) is None
    workers(tmp_path)
    assert open_marks(tmp_path / "live", 2) is not None
    assert open_marks(tmp_path / "live", 3) is None


def test_where_there_is_no_room_nothing_is_known_and_nobody_is_hurt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_descriptor: int, _offset: int, size_bytes: int) -> None:
        raise OSError(errno.ENOSPC, f"no room for {size_bytes} bytes")

    monkeypatch.setattr(os, "posix_fallocate", full)
    first, _ = workers(tmp_path)
    assert open_marks(tmp_path / "live", 2) is None
    first.publishers["sent"] = [1, 2, 3]
    first.pairs[2].expected += 1
    assert first.pairs["expected"].tolist() == [0, 0, 1]


@pytest.mark.parametrize("worker", [0, 1])
def test_a_worker_still_has_its_own_arrays(tmp_path: Path, worker: int) -> None:
    fleet = workers(tmp_path)[worker]
    assert len(fleet.pairs) == 3
    assert len(fleet.publishers) == (3, 0)[worker]
    fleet.pairs[0].expected += 1
    assert fleet.pairs["expected"].tolist() == [1, 0, 0]
