"""The run rules of SPECjms2007: kept, not kept, or not judged, each with its observation.

A run is compliant only if each rule was judged and kept. Three are never kept: the kit, JMS and its
transactions. Rules that only people or a second run can confirm are not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from loadgen.metrics.course import Course, counted_in
from loadgen.sentences import counted, listed
from loadgen.specjms.audit import RULES_S, TOLERANCE_PERCENT, Audit, Observed, Recovery
from loadgen.specjms.messages import SPECIFICATION, TYPES
from loadgen.specjms.queues import unstable

WARMUP_MINIMUM_S: Final = 600.0
CLOCK_LIMIT_MS: Final = 100.0
PROGRESS_LIMIT_S: Final = 300.0
RECOVERY_LIMIT_S: Final = 900.0
STEADY_PARTS: Final = 10  # of the window that are compared to judge if it was steady
STEADY_LEAST_S: Final = 20.0
STEADY_SIGMAS: Final = 4

_RULES: Final = SPECIFICATION["run_rules"]
_OUTCOMES: Final = {True: "kept", False: "broken", None: "unjudged"}
REPETITION: Final[str] = _RULES["repetition"]["rule"]

Judged = tuple[bool | None, str]  # True if kept, None if it could not be judged; and why


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule and its section; `holds` is None if it could not be judged."""

    rule: str
    holds: bool | None
    observed: str


def run_rules(
    seen: Observed, audit: Audit, failures: Sequence[str] = (), *, as_specified: bool = True
) -> tuple[RunRule, ...]:
    """Return every rule of sections 3 to 5 that applies to a run.

    `failures` are the codes of its verdict, without the audit's. The run is `as_specified` if every
    option is SPECjms2007's.
    """
    failed = counted(len(audit.failed), "test")
    workers = counted(seen.workers, "worker")
    # JMSRedelivered is the DUP flag of MQTT.
    marked = f"{seen.redelivered:,} with DUP, {seen.unmarked:,} without"
    came_again = bool(seen.redelivered or seen.unmarked)
    judged: dict[str, Judged] = {
        "warm_up": (seen.warmup_s >= WARMUP_MINIMUM_S, f"{seen.warmup_s:,.0f} s"),
        "measurement": (seen.window_s >= RULES_S, f"{seen.window_s:,.0f} s"),
        "clocks": (seen.clock_ms <= CLOCK_LIMIT_MS, f"{seen.clock_ms:,.3f} ms"),
        "steady": steady(seen.course, *seen.windows),
        "stable": _stable(seen),
        "progress": (seen.progress_s <= PROGRESS_LIMIT_S, f"{seen.progress_s:,.6g} s"),
        "failures": (not failures, ", ".join(failures)),
        "audit": (audit.passed, f"{failed} failed"),
        "separate": (not seen.broker_is_local, ""),
        "agents": (not seen.mixed_workers, f"several types in {seen.mixed_workers:,} of {workers}"),
        "address": (not seen.endpoints, ""),
        "order": _in_order(seen),
        "marked": (not seen.unmarked, marked) if came_again else (None, ""),
        "recovery": _recovered(seen.recovery),
        "storage": (False if seen.broker_is_private else None, ""),
        "specified": (as_specified, ""),
    }
    rules = []
    for key, row in _RULES.items():
        # Others have the same outcome in every run.
        kept, observed = judged.get(key, (False if "broken" in row else None, ""))
        rules.append(RunRule(row["rule"], kept, observed or row[_OUTCOMES[kept]]))
    return tuple(rules)


_STORE: Final = "the broker's store"


def _stable(seen: Observed) -> Judged:
    """Judge if no queue grew over the window; the article requires it of a valid run."""
    if not seen.depths or not seen.window_s:
        return None, "no depths of queues"
    rates = {
        name: (count.sent / seen.window_s, count.received / seen.window_s)
        for name, count in zip(TYPES, seen.types, strict=True)
    }
    sent, received = zip(*rates.values(), strict=True)
    rates[_STORE] = sum(sent), sum(received)
    grown = unstable({**seen.depths, _STORE: seen.stored}, rates, seen.windows[1])
    if grown:
        return False, listed([f"{name} by {growth:,.0f}" for name, growth in grown.items()], 5)
    inside = [
        depth
        for course in seen.depths.values()
        for at, depth in course
        if seen.windows[1][0] <= at <= seen.windows[1][1]
    ]
    return True, f"at most {counted(max(inside, default=0), 'message')} of a type in flight"


def _in_order(seen: Observed) -> Judged:
    counts = f"{seen.duplicated:,} duplicated, {seen.out_of_order:,} out of order"
    if seen.recovery is not None:
        return None, f"{counts}, around a requested failure"
    if seen.workers_silent:
        return None, "a worker gave no answer"
    return not seen.duplicated and not seen.out_of_order, counts


def _recovered(recovery: Recovery | None) -> Judged:
    if recovery is None:
        return None, "not tried; see --recovery"
    if recovery.limit_s < RECOVERY_LIMIT_S:
        return None, f"tried with {recovery.limit_s:,.6g} s only"
    return recovery.complete, recovery.observed


def steady(course: Course, warmup: tuple[int, int], window: tuple[int, int]) -> Judged:
    """Judge if similar numbers arrived in each part of the window and at the end of the warm-up."""
    start_ns, end_ns = window
    each_ns = (end_ns - start_ns) // STEADY_PARTS
    if end_ns - start_ns < STEADY_LEAST_S * 1e9:
        return None, f"a window of less than {STEADY_LEAST_S:.0f} s is too short to tell"
    if warmup[1] - warmup[0] < each_ns:
        return None, f"a warm-up of less than {each_ns / 1e9:,.6g} s is too short to tell"
    edges = range(start_ns - each_ns, end_ns - each_ns + 1, each_ns)
    parts = [counted_in(course, (at, at + each_ns)) for at in edges][: STEADY_PARTS + 1]
    mean = sum(parts[1:]) / STEADY_PARTS
    if not mean:
        return False, "nothing was received"
    allowed = max(mean * TOLERANCE_PERCENT / 100, STEADY_SIGMAS * mean**0.5)
    least, most = min(parts), max(parts)
    observed = f"{100 * (least / mean - 1):+.1f} to {100 * (most / mean - 1):+.1f} % of the mean"
    return mean - least <= allowed and most - mean <= allowed, observed
