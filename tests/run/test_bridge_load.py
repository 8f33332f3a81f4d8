"""Counters of single groups, and the share of the time that processes were busy."""

import asyncio
import os
from typing import Any

from loadgen.cases.case import busy_shares
from loadgen.metrics.interval import Interval
from loadgen.run.bridge_load import loads_of
from loadgen.run.tally import GroupTally

SECOND_NS = 1_000_000_000


def row(
    second: int, group: str, worker: int = 0, phase: str = "measure", **counts: int
) -> Interval:
    return Interval(
        worker=worker,
        second=second,
        time_ns=second * SECOND_NS,
        span_ns=SECOND_NS,
        group=group,
        phase=phase,
        **counts,  # type: ignore[arg-type]
    )


def test_groups_are_counted_apart() -> None:
    tally = GroupTally(["a", "b"])
    tally.add(row(1, "a", expected=5))
    tally.add(row(1, "a", phase="warmup", expected=2, disconnects=1))
    tally.add(row(2, "b", worker=1, received=3))
    tally.add(row(2, "stranger", expected=100))
    assert tally.total("a", "expected", "measure") == 5
    assert tally.total("a", "expected") == 7
    assert tally.total("a", "disconnects") == 1
    assert tally.total("b", "received", "measure") == 3
    assert tally.total("stranger", "expected") == 0


def test_what_is_under_way_adds_up_over_seconds_and_workers() -> None:
    tally = GroupTally(["p", "c"])
    # Rows of a second come late and from several workers.
    counted: tuple[tuple[int, str, int, dict[str, Any]], ...] = (
        (1, "p", 0, {"expected": 10}),
        (2, "c", 1, {"received": 4}),
        (1, "p", 1, {"expected": 5}),
        (2, "p", 0, {"expected": 1}),
        (3, "c", 1, {"received": 12}),
    )
    for second, group, worker, counts in counted:
        tally.add(row(second, group, worker, **counts))
    assert tally.under_way(("p", "c")) == [
        (2 * SECOND_NS, 15),
        (3 * SECOND_NS, 12),
        (4 * SECOND_NS, 0),
    ]
    assert tally.under_way(("p",))[-1] == (4 * SECOND_NS, 16)


def test_busy_shares_are_those_of_the_window() -> None:
    loads: list[tuple[int, tuple[int | None, ...]]] = [
        (at, (at // 2, None, 7)) for at in range(0, 1001, 100)
    ]
    assert busy_shares(loads, (200, 800)) == (0.5, None, 0.0)
    assert busy_shares(loads, (210, 290)) == ()
    assert busy_shares([], (0, 1000)) == ()


async def test_processes_are_sampled_while_the_block_lasts() -> None:
    gone = 2**22 + 1
    async with loads_of((os.getpid(), gone)) as loads:
        while not loads:
            await asyncio.sleep(0.01)
    (_, (own, other)) = loads[0]
    assert own is not None and own > 0 and other is None
