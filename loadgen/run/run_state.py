"""The state of a run: what was seen of it so far."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from loadgen.judge.backlog_watch import BacklogWatch
from loadgen.judge.facts import LostRange
from loadgen.judge.live_sample import LiveSample
from loadgen.judge.recovery_watch import RecoveryWatch
from loadgen.plan.plan import Plan
from loadgen.run.host_watch import HostAttendance, HostSample
from loadgen.run.rate_step_watch import RateStepWatch
from loadgen.run.tally import Tally
from loadgen.sentences import printable

NS = 1_000_000_000
FAILURES_LIMIT = 20
"""Reasons of failures that are counted one by one; the rest is counted as "other"."""
Window = tuple[int, int]
Ending = Literal["interrupted", "worker lost", "threshold missed", "exception", "certain"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of connecting or subscribing: successes, failures by reason, and times."""

    done: int
    failures: Mapping[str, int]
    first_ns: int
    last_ns: int
    closed: int = 0  # failures to subscribe in which the connection ended
    kept_from: str = ""  # id of the earlier run that did it, "" for this run

    @property
    def seconds(self) -> float:
        """From the first attempt to the last answer."""
        return (self.last_ns - self.first_ns) / NS


def outcome_of(answers: Sequence[Mapping[str, Any]], name: str, start_ns: int) -> Outcome:
    """Sum the workers' answers; `name` is the field of their successes."""
    failures: Counter[str] = Counter()
    for answer in answers:
        for reason, count in (answer.get("failures") or {}).items():
            shown = printable(str(reason), 100)
            if shown not in failures and len(failures) >= FAILURES_LIMIT:
                shown = "other"
            failures[shown] += int(count)
    first_ns = min((int(a["first_ns"]) for a in answers if a.get("first_ns")), default=start_ns)
    return Outcome(
        done=sum(int(answer[name]) for answer in answers),
        failures=dict(failures.most_common()),
        first_ns=first_ns,
        last_ns=max((int(a["last_ns"]) for a in answers if a.get("last_ns")), default=first_ns),
        closed=sum(int(answer.get("closed") or 0) for answer in answers),
    )


@dataclass(frozen=True, slots=True)
class WorkerStall:
    """Time in which a worker did not look at its sockets (CLOCK_MONOTONIC).

    For `busy_ns` of it the worker ran, for `waited_ns` it waited for a processor.
    """

    worker: int
    start_ns: int
    end_ns: int
    busy_ns: int
    waited_ns: int
    host: int = 0

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns

    def within(self, start_ns: int, end_ns: int) -> "WorkerStall":
        """Return the part of it in this time, which can be empty."""
        first_ns, last_ns = max(self.start_ns, start_ns), min(self.end_ns, end_ns)
        part = max(last_ns - first_ns, 0) / self.ns
        busy_ns, waited_ns = int(self.busy_ns * part), int(self.waited_ns * part)
        return WorkerStall(self.worker, first_ns, last_ns, busy_ns, waited_ns, self.host)


@dataclass(slots=True)
class RunState:
    """Filled while a run is played; what did not take place stays as it is here.

    `windows` are [start, end] (CLOCK_MONOTONIC ns) of each phase that took place, `tally` the sums
    over the workers' interval rows, `finals` the workers' last answers by row.
    """

    messages: bool  # whether the run sends any
    tally: Tally
    windows: dict[str, Window] = field(default_factory=dict)
    connected: Outcome | None = None
    subscribed: Outcome | None = None
    ending: Ending | None = None  # what ended the run early
    missed: tuple[str, ...] = ()  # thresholds that ended it
    owed_at_window_end: int = 0  # messages due and not sent
    owed_at_end: int = 0
    lost_unacknowledged: int | None = None  # of the lost deliveries, None if unknown
    lost_named: tuple[LostRange, ...] = ()  # the first of the others
    lost_to_absent: int = 0  # of the lost deliveries, those to devices that were never there
    at_end: LiveSample | None = None  # when a drain ended in which not all messages arrived
    waiting: int = 0  # deliveries missing after a drain in which messages arrived to the end
    abandoned: bool = False  # True without a wait for messages under way
    backlog: BacklogWatch | None = None
    slow_waited: int = 0  # deliveries to slow subscribers when the window ended
    recovery: RecoveryWatch | None = None  # from a crash on request
    disconnect_reason: str = ""
    finals: dict[int, dict[str, Any]] = field(default_factory=dict)
    rate_steps: RateStepWatch | None = None
    stalls: list[WorkerStall] = field(default_factory=list)
    attendance: HostAttendance = field(default_factory=HostAttendance)  # of the coordinator
    clock_bound_ns: int = 0  # by how much the clocks of two hosts differed, at most
    clock_hosts: tuple[str, ...] = ()  # these two
    hosts: dict[int, list[HostSample]] = field(default_factory=dict)  # a second apart

    @property
    def result_window(self) -> Window:
        """The window whose figures are the result; (0, 0) if it did not take place."""
        return self.windows.get("measure" if self.messages else "connect", (0, 0))

    @property
    def measured(self) -> bool:
        """True if the window began, or without messages if devices connected."""
        return "measure" in self.windows if self.messages else self.connected is not None


def state_before(plan: Plan) -> RunState:
    messages = any(group.publishes for group in plan.groups)
    phases = ("measure",) if messages else ("connect", "subscribe")
    return RunState(messages=messages, tally=Tally(timed_groups(plan), phases))


def timed_groups(plan: Plan) -> frozenset[str]:
    return frozenset(group.name for group in plan.groups if group.timed)
