"""What a worker was doing while the slowest messages were under way.

    python bench/tail.py                     one pair, 10,000 messages/s through Mosquitto, 10 s
    python bench/tail.py --seconds 30 --repeat 3

The moments of every message and of every turn that the worker's loop took away from compiled code
are written down and laid beside each other: of the slowest 1 %, how many met a turn of the loop and
which, how many left late, how many waited elsewhere (the broker, the kernel, the other processor);
and by how much they were slower than the median. The C program of bench/floor is run beside it.

Only a quiet host tells a cause: a worker that lost its processor finds a turn due when it is back.
On one that is not quiet, both sides ahead of everything else tell nearly as much (as root):

    chrt -f 5 python -m bench.tail --seconds 4 --repeat 3
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from bench import cost, floor, player
from loadgen.kernels import counting
from loadgen.kernels.arrays import Arrays, Int64Rows, Int64s, pointer_to, read_i64
from loadgen.kernels.compiled import compiled
from loadgen.kernels.payload import send_offset_ns
from loadgen.kernels.reactor import entry_points
from loadgen.kernels.receiver import MESSAGING
from loadgen.plan.behaviour import Behaviour, PlannedFleet, behaviour_module
from loadgen.plan.groups import DeviceGroup, Subscribes
from loadgen.worker import lifecycle, messaging, reporter, worker

_TURNS_MOST = 1_000_000
Numbers = npt.NDArray[Any]


class Notes(Arrays):
    """Intended, sent and received of every message, in the order of arrival."""

    moments: Int64Rows
    count: Int64s


notes_of = pointer_to(Notes)


@compiled
def _note_message(fleet: PlannedFleet, message: counting.ReceivedMessage, position: int) -> int:
    notes, buffer = notes_of(fleet.extension), fleet.buffer
    number = notes.count[0]
    if number < len(notes.moments):
        intended_ns = read_i64(buffer, message.payload + 16)
        notes.moments[number, 0] = intended_ns
        notes.moments[number, 1] = intended_ns + send_offset_ns(buffer, message.payload)
        notes.moments[number, 2] = message.now_ns
        notes.count[0] = number + 1
    return int(MESSAGING.on_message(fleet, message, position))


NOTING = entry_points(MESSAGING._replace(on_message=_note_message))


class Timeline:
    """What the loop did between two stays in compiled code: start, end and kind of each turn."""

    KINDS = ("loop", "rows of a second")

    def __init__(self) -> None:
        self.turns = np.zeros((_TURNS_MOST, 3), np.int64)
        self.count = 0
        self.left_ns = 0
        self.kind = 0

    def does(self, kind: str, action: Callable[..., Any]) -> Callable[..., Any]:
        number = self.KINDS.index(kind)

        def marked(*arguments: Any) -> Any:
            self.kind = max(self.kind, number)
            return action(*arguments)

        return marked

    def around(self, serve: Callable[..., None]) -> Callable[..., None]:
        def timed(fleet: PlannedFleet, linger_ns: int) -> None:
            if self.left_ns and self.count < _TURNS_MOST:
                self.turns[self.count] = self.left_ns, time.monotonic_ns(), self.kind
                self.count += 1
            self.kind = 0
            serve(fleet, linger_ns)
            self.left_ns = time.monotonic_ns()

        return timed


def play(port: int, seconds: float) -> tuple[Numbers, Numbers]:
    """(moments of the messages, turns of the loop) of one worker; times in ns."""
    timeline = Timeline()
    notes = Notes(
        moments=np.zeros((int(cost.RATE * seconds * 1.1), 3), np.int64), count=np.zeros(1, np.int64)
    )
    with TemporaryDirectory() as folder:
        told = Path(folder) / "told.npz"

        def noting(fleet: PlannedFleet) -> Behaviour:
            fleet.extension = notes

            def final() -> dict[str, Any]:
                np.savez(
                    told,
                    moments=notes.moments[: notes.count[0]],
                    turns=timeline.turns[: timeline.count],
                )
                return {}

            return replace(messaging.behave(fleet), final=final)

        rows = reporter.Reporter.each_second
        reporter.Reporter.each_second = timeline.does("rows of a second", rows)  # type: ignore[method-assign]
        kernels = NOTING._replace(serve=timeline.around(NOTING.serve))
        worker.behaviour_module = lambda _: SimpleNamespace(behave=noting)  # type: ignore
        lifecycle.entry_points = lambda _: kernels  # type: ignore
        try:
            groups = (
                cost.publishers(1, cost.RATE),
                DeviceGroup("subscribers", 1, subscribes=Subscribes(("floor/{topic}",))),
            )
            player.play(groups, port, seconds=seconds)
        finally:
            worker.behaviour_module = behaviour_module  # type: ignore[attr-defined]
            lifecycle.entry_points = entry_points  # type: ignore[attr-defined]
            reporter.Reporter.each_second = rows  # type: ignore[method-assign]
        with np.load(told) as found:
            return found["moments"], found["turns"]


def explain(moments: Numbers, turns: Numbers) -> None:
    """Print the percentiles, and what the slowest 1 % met."""
    intended, sent, received = moments.T
    latency = (received - intended) / 1e3
    for since, values in (("the send", (received - sent) / 1e3), ("when it was due", latency)):
        median, p99, p999 = np.percentile(values, (50, 99, 99.9))
        figures = f"p50 {median:7.1f}  p99 {p99:7.1f}  p99.9 {p999:7.1f}  max {values.max():7.1f}"
        print(f"loadgen  {figures} µs from {since}")
    within = (turns[:, 1] > intended[0]) & (turns[:, 0] < received[-1])
    turns = turns[within]
    length = (turns[:, 1] - turns[:, 0]) / 1e3
    for number, kind in enumerate(Timeline.KINDS):
        of_kind = length[turns[:, 2] == number]
        if len(of_kind):
            share = of_kind.sum() / ((received[-1] - intended[0]) / 1e3)
            print(
                f"  turns with {kind:<17} {len(of_kind):6} of {np.median(of_kind):6.1f} µs"
                f" (p99 {np.percentile(of_kind, 99):7.1f}), {share:6.2%} of the time"
            )
    slow = np.flatnonzero(latency > p99)
    met = np.searchsorted(turns[:, 1], intended[slow], side="right")
    met_any = (met < len(turns)) & (turns[np.minimum(met, len(turns) - 1), 0] < received[slow])
    cause = np.where(met_any, turns[np.minimum(met, len(turns) - 1), 2], -1)
    late_us = (sent[slow] - intended[slow]) / 1e3
    left_late = ~met_any & (late_us > (latency[slow] / 2))
    cause = np.where(left_late, -2, cause)
    names = dict(enumerate(f"a turn with {kind}" for kind in Timeline.KINDS))
    names |= {-2: "left late: timer, wake-up", -1: "elsewhere, after it was sent"}
    for number, name in names.items():
        rows = cause == number
        if rows.any():
            slower = np.median(latency[slow][rows]) - median
            print(f"  slowest 1 %: {rows.mean():6.1%} {name:<30} {slower:8.1f} µs above the median")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=10, help="length of each run (10)")
    parser.add_argument("--repeat", type=int, default=1, help="rounds of C and loadgen (1)")
    given = parser.parse_args()
    for _ in range(given.repeat):
        with cost.mosquitto() as port:
            c = floor.latency_floor(
                host="127.0.0.1", port=port, rate=cost.RATE, seconds=given.seconds
            )
            found = c["latency_ns"]
            figures = "  ".join(
                f"{name} {found[key] / 1e3:7.1f}"
                for name, key in (("p50", "p50"), ("p99", "p99"), ("p99.9", "p999"), ("max", "max"))
                if key in found
            )
            print(f"C        {figures} µs from the send")
            explain(*play(port, given.seconds))


if __name__ == "__main__":
    main()
