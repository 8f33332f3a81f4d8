"""The runs of `loadgen report`: each measurement is a sweep in its directory.

    DIR/plan.json                  the plan, written first
    DIR/measured/ITEM/broker-N/    the sweep of an item on a broker

A second start on the same directory continues: a sweep runs only the missing points.
"""

import asyncio
import os
import shlex
import shutil
from asyncio.subprocess import DEVNULL
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import BrokerUnreachableError, ScenarioError
from loadgen.plan.fields import redact_url
from loadgen.run.rundir import exclusive
from loadgen.run.seal import digest_of
from loadgen.run.search import report_plan
from loadgen.run.search.journal import Journal
from loadgen.run.search.report_plan import Measurement, ReportPlan
from loadgen.run.search.search import silent_broker
from loadgen.run.search.sweep import PointResult, SweepResult, SweepState, sweep
from loadgen.run.testbed import Testbed
from loadgen.sentences import RUN_TEXT


@dataclass(frozen=True, slots=True)
class MeasuredItem:
    measurement: Measurement
    sweep: SweepResult


@dataclass(frozen=True, slots=True)
class ReportState:
    """Where a report stands: the measurement `number` of `total`, and about how long is left.

    While `restarting`, the broker cannot be reached; the command of the user restarts it.
    """

    measurement: Measurement
    number: int
    total: int
    left_s: float
    sweep: SweepState | None = None
    restarting: bool = False


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The measurements that were made, and those that were not, with their reasons."""

    directory: Path
    plan: ReportPlan
    measured: tuple[MeasuredItem, ...]
    left_out: tuple[Measurement, ...] = ()
    interrupted: bool = False


Watch = Callable[[ReportState], None]


def report_journal(directory: Path) -> Journal[PointResult]:
    """Return the files of a report, whose definition is the plan."""
    return Journal(directory, "plan", "points", "measured", PointResult)


def request_digest(
    brokers: Sequence[Sequence[str]],
    fields: Mapping[str, Any],
    only: Sequence[str],
    budget_s: float | None,
    suite: str = "",
) -> str:
    """Return the digest of a request, by which a second start is recognized as the same."""
    redacted = [[redact_url(url) for url in urls] for urls in brokers]
    # Another version may have other items.
    items = [item.name for item in report_plan.report_items(suite)]
    return digest_of([redacted, {k: str(v) for k, v in fields.items()}, [*only], budget_s, items])


def begun_plan(directory: Path, digest: str) -> dict[str, Any] | None:
    """Return the plan of an earlier start, None in a new directory; raise RunDirectoryError."""
    return report_journal(directory).begun(digest, RUN_TEXT.OTHER_REPORT)


def require_command(command: str) -> None:
    """Raise ScenarioError if a command to restart a broker cannot be started."""
    try:
        program = shlex.split(command)[0]
    except (ValueError, IndexError):
        raise ScenarioError(RUN_TEXT.RESTART_COMMAND()) from None
    if shutil.which(program) is None:
        raise ScenarioError(RUN_TEXT.RESTART_PROGRAM(program=program[:100]))


async def play_report(
    plan: ReportPlan,
    directory: Path,
    testbed: Testbed,
    digest: str,
    *,
    restart_command: str = "",
    watch: Watch = lambda _state: None,
) -> ReportResult:
    """Make the measurements of a plan that are missing in the directory.

    A broker gets a minute to answer again after a measurement. One that cannot be reached is
    restarted by the command, and gets another minute; if it stays away, its other measurements are
    left out.
    """
    journal = report_journal(directory)
    measured: list[MeasuredItem] = []
    left_out: list[Measurement] = []
    away: dict[int, str] = {}
    loaded: set[int] = set()  # brokers that had a load since this start
    used_s = 0.0
    with exclusive(directory):
        if journal.begun() is None:
            journal.begin({**report_plan.plan_document(plan), "digest": digest}, testbed.command)
        for place, measurement in enumerate(plan.measurements):
            folder = directory / journal.folder / measurement.folder
            rest = plan.measurements[place:]
            left_s = sum(each.item.seconds(plan.window_s) for each in rest)
            limit_s, reason = None, away.get(measurement.broker, "")
            if plan.budget_s is not None:
                share = measurement.item.seconds(plan.window_s) / left_s
                limit_s = (plan.budget_s - used_s) * share
                left_s = min(left_s, plan.budget_s - used_s)
                if limit_s < plan.window_s:
                    reason = reason or f"the budget of {plan.budget_s:,.0f} s was used up"
            if reason and not folder.exists():
                left_out.append(replace(measurement, reason=reason))
                continue
            state = ReportState(measurement, place + 1, len(plan.measurements), left_s)

            def show(sweep_state: SweepState, state: ReportState = state) -> None:
                loaded.add(state.measurement.broker)
                watch(replace(state, sweep=sweep_state))

            watch(state)
            grid = report_plan.sweep_of(measurement, plan, limit_s)
            if measurement.broker in loaded:
                await silent_broker(grid.scenario, testbed.interrupt)
            played = await sweep(grid, folder, testbed, watch=show)
            if _unreachable(played):
                await testbed.reset()
                watch(replace(state, restarting=True))
                if restart_command:
                    urls = plan.brokers[measurement.broker - 1].urls
                    await _restart(restart_command, urls)
                if not await silent_broker(grid.scenario, testbed.interrupt):
                    played = await sweep(grid, folder, testbed, watch=show)
            if error := _unreachable(played):
                away[measurement.broker] = error
            used_s += sum(each.seconds for each in played.measured)
            measured.append(MeasuredItem(measurement, played))
            if played.interrupted:
                return ReportResult(directory, plan, tuple(measured), tuple(left_out), True)
    return ReportResult(directory, plan, tuple(measured), tuple(left_out))


def _unreachable(played: SweepResult) -> str:
    """Return the error of a broker that could not be reached any more, "" if it was."""
    name = BrokerUnreachableError.__name__
    return next((each.error for each in played.measured if each.error.startswith(name)), "")


async def _restart(command: str, urls: Sequence[str]) -> None:
    environment = {**os.environ, "LOADGEN_BROKER": redact_url(urls[0])}
    with suppress(OSError):
        process = await asyncio.create_subprocess_exec(
            *shlex.split(command), env=environment, stdin=DEVNULL, stdout=DEVNULL
        )
        await process.wait()
