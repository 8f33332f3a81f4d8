"""The spread over the consumers of queues, put together from what the workers said."""

from typing import Any

import pytest

from loadgen.cases.queue import spread_of
from loadgen.plan.plan import Plan
from tests.plans import fitted_plan


def plan(workers: int = 2) -> Plan:
    return fitted_plan("queue", queues=3, consumers=2, workers=workers)


def finals(made: Plan, taken: list[int]) -> dict[int, dict[str, Any]]:
    """What each worker says when consumer number i took taken[i] messages."""
    said: dict[int, dict[str, Any]] = {}
    for row, worker in enumerate(made.workers):
        counts = [
            taken[device]
            for share in worker.shares
            if share.group == 1
            for device in range(share.start, share.stop, share.step)
        ]
        said[row] = {"spread": {"consumers": counts}}
    return said


@pytest.mark.parametrize("workers", [1, 2, 3, 6])
def test_all_workers_together(workers: int) -> None:
    made = plan(workers)
    spread = spread_of(made, finals(made, [1, 3, 10, 10, 0, 6]))
    assert spread is not None
    assert (spread["consumers"], spread["received"]) == (6, 30)
    assert (spread["min"], spread["max"], spread["mean"]) == (0, 10, 5.0)
    assert spread["stdev"] == pytest.approx(4.0, abs=0.05)
    queues = [(q["queue"], q["received"], q["min"], q["max"], q["stdev"]) for q in spread["queues"]]
    assert queues == [(0, 4, 1, 3, 1.0), (1, 20, 10, 10, 0.0), (2, 6, 0, 6, 3.0)]


def test_a_worker_that_said_nothing_leaves_the_spread_unknown() -> None:
    made = plan(2)
    said = finals(made, [1] * 6)
    del said[1]
    assert spread_of(made, said) is None
