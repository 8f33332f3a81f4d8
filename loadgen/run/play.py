"""Plays a plan with real workers, without scenario, broker or verdict: for calibration and bench/.

Nothing is left behind; what the workers reported comes back merged.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from loadgen.errors import CannotRunError
from loadgen.metrics.reducer import reduce_table
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.run.hosts.worker_pool import start_workers
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.monitor import Monitor, RunFiles
from loadgen.run.phases import PhaseRunner
from loadgen.run.progress import Progress, silent
from loadgen.run.run_state import RunState
from loadgen.run.rundir import EventLog, IntervalWriter, claim
from loadgen.scratch import scratch_directory

_NOTHING: Final[Mapping[str, Any]] = {"count": 0}


@dataclass(frozen=True, slots=True)
class Played:
    """The result of a play: the state at its end, and its interval table."""

    state: RunState
    table: pa.Table
    rows: Mapping[tuple[int, str, str, str], Mapping[str, Any]]

    def row(self, worker: int, group: str, phase: str, series: str = "") -> Mapping[str, Any]:
        """Return the merged interval row of these; with count 0 if it is missing."""
        return self.rows.get((worker, group, phase, series), _NOTHING)

    def total(self, worker: int, group: str, counter: str) -> int:
        """Return a counter over the measured window."""
        return int(self.row(worker, group, "measure").get(counter, 0))

    def cpu_ns(self, worker: int, phase: str) -> int:
        """Return the processor time of a worker in a phase."""
        return int(self.row(worker, "", phase).get("cpu_ns", 0))


async def play(
    plan: Plan,
    phases: PhasePlan,
    *,
    interrupt: Interrupt | None = None,
    progress: Progress = silent,
) -> Played:
    """Play the plan's phases with its workers against brokers that run already.

    Raises CannotRunError when workers are lost, RunInterruptedError when `interrupt` came, and
    what `PhaseRunner.play` raises.
    """
    run = f"play-{plan.run_tag:08x}"
    with scratch_directory("play") as scratch:
        directory = claim(scratch / "run")
        events = EventLog(directory)
        record = RunFiles(run, time.monotonic_ns(), events, IntervalWriter(directory, run))
        monitor = Monitor(plan, record, progress)
        try:
            async with start_workers(len(plan.workers), monitor.on_frame) as pool:
                await PhaseRunner(plan, phases, pool, monitor, interrupt or Interrupt()).play()
        finally:
            events.close(time.monotonic_ns())
        ending = monitor.state.ending
        if ending == "interrupted":
            raise RunInterruptedError("interrupted; nothing is kept")
        if ending is not None:
            raise CannotRunError(f"the play ended early: {ending}")
        table = pq.read_table(directory / "intervals")
    by = ("worker", "group", "phase", "series")
    rows = {
        (row["worker"], row["group"], row["phase"], row["series"]): row
        for row in reduce_table(table, by).to_pylist()
    }
    return Played(monitor.state, table, rows)
