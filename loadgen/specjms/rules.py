"""The run rules of SPECjms2007: kept, not kept, or not judged, each with its observation.

Pure. A run is compliant only if each rule was judged and kept. Three are never kept: the kit, JMS
and its transactions. Rules that only people or a second run can confirm are not judged.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from loadgen.sentences import counted, listed
from loadgen.specjms.audit import RULES_S, TOLERANCE_PERCENT, Audit, Observed, Recovery
from loadgen.specjms.messages import TYPES
from loadgen.specjms.queues import Depths, ReceivedCourse, Span, received_in, unstable

WARMUP_MINIMUM_S: Final = 600.0
CLOCK_LIMIT_MS: Final = 100.0
PROGRESS_LIMIT_S: Final = 300.0
RECOVERY_LIMIT_S: Final = 900.0
STEADY_PARTS: Final = 10
"""Parts of the window that are compared to judge if it was steady."""
STEADY_LEAST_S: Final = 20.0
STEADY_SIGMAS: Final = 4

REPETITION: Final = "repetition equal or better (3.4)"
KIT: Final = "the kit of SPECjms2007 over JMS (3.7, 4.1)"


@dataclass(frozen=True, slots=True)
class RunRule:
    """A rule and its section; `kept` is None if it could not be judged."""

    rule: str
    kept: bool | None
    observed: str


@dataclass(frozen=True, slots=True)
class Circumstances:
    """Facts that the rules need in addition to the counts of the workers."""

    failures: Sequence[str] = ()  # codes of the run's verdict, without the audit's
    as_specified: bool = True  # every option is SPECjms2007's
    course: ReceivedCourse = ()
    depths: Depths = field(default_factory=dict)
    windows: tuple[Span, Span] = ((0, 0), (0, 0))  # warm-up and measurement
    broker_is_local: bool = False
    broker_is_private: bool = False  # started by loadgen for the run
    mixed_workers: int = 0  # workers with agents of several kinds of locations
    workers: int = 1
    endpoints: bool = False  # some devices use separate addresses
    case_study: object = None  # scenario of the paper of jms2009-PS that was played
    changed: Sequence[str] = ()  # changes of the workload that the model does not show


def run_rules(seen: Observed, audit: Audit, around: Circumstances) -> tuple[RunRule, ...]:
    """Return every rule of sections 3 to 5 that applies to a run."""
    failures = ", ".join(around.failures) or "none"
    changed = "as specified" if around.as_specified else "changed"
    return (
        _at_least("warm-up", WARMUP_MINIMUM_S, seen.warmup_s),
        _at_least("measurement", RULES_S, seen.window_s),
        RunRule(
            f"clocks within {CLOCK_LIMIT_MS:.0f} ms (3.2)",
            seen.clock_ms <= CLOCK_LIMIT_MS,
            f"{seen.clock_ms:,.3f} ms",
        ),
        RunRule("steady state (3.1, 3.3)", *steady(around.course, *around.windows)),
        RunRule("all queues stable (3.6.2)", *_stable(seen, around)),
        RunRule(
            f"progress reported every {PROGRESS_LIMIT_S / 60:.0f} min (3.3)",
            seen.progress_s <= PROGRESS_LIMIT_S,
            f"{seen.progress_s:,.6g} s",
        ),
        RunRule(REPETITION, None, "that is of two runs; see --repeat"),
        RunRule("no failures or exceptions (3.5)", not around.failures, failures),
        RunRule("audit passed (3.6)", audit.passed, f"{counted(len(audit.failed), 'test')} failed"),
        RunRule(KIT, False, "another harness, over MQTT"),
        RunRule("no optimization for the benchmark (3.8)", None, "not seen by a tool"),
        RunRule(
            "broker and clients on separate machines (3.9)",
            not around.broker_is_local,
            "broker on the client's host" if around.broker_is_local else "separate",
        ),
        RunRule(
            "agents of different types in separate processes (3.9)",
            not around.mixed_workers,
            f"several types in {around.mixed_workers:,} of {counted(around.workers, 'worker')}",
        ),
        RunRule(
            "all clients address the server identically (3.10)",
            not around.endpoints,
            "endpoints given" if around.endpoints else "the same addresses in turn",
        ),
        RunRule("messages in order and not duplicated (4.2)", *_in_order(seen)),
        RunRule(
            "one message at a time outside of transactions (4.2.1)", None, "QoS 0 has no answers"
        ),
        # JMSRedelivered is the DUP flag of MQTT.
        RunRule(
            "messages that come again are marked (4.2.2)",
            not seen.unmarked if seen.redelivered or seen.unmarked else None,
            f"{seen.redelivered:,} with DUP, {seen.unmarked:,} without"
            if seen.redelivered or seen.unmarked
            else "none came again",
        ),
        RunRule(
            f"recovery within {RECOVERY_LIMIT_S / 60:.0f} min (4.2.3)", *_recovered(seen.recovery)
        ),
        RunRule("atomic transactions (4.3)", False, "at least once as one unit, not atomic"),
        RunRule(
            "persistent messages in non-volatile storage (5.1)",
            False if around.broker_is_private else None,
            "a private broker acknowledges before it stores"
            if around.broker_is_private
            else "a matter of the broker",
        ),
        RunRule(
            "workload as specified, without options of freeform or jms2009-PS",
            around.as_specified,
            changed,
        ),
    )


def _at_least(period: str, least_s: float, seen_s: float) -> RunRule:
    text = f"{period} of at least {least_s / 60:.0f} min (3.1)"
    return RunRule(text, seen_s >= least_s, f"{seen_s:,.0f} s")


def _stable(seen: Observed, around: Circumstances) -> tuple[bool | None, str]:
    """Judge if no queue grew over the window; the article demands it of a valid run."""
    if not around.depths or not seen.window_s:
        return None, "no depths of queues"
    rates = {
        name: (count.sent / seen.window_s, count.received / seen.window_s)
        for name, count in zip(TYPES, seen.types, strict=True)
    }
    grown = unstable(around.depths, rates, around.windows[1])
    if grown:
        return False, listed([f"{name} by {growth:,.0f}" for name, growth in grown.items()], 5)
    inside = [
        depth
        for course in around.depths.values()
        for at, depth in course
        if around.windows[1][0] <= at <= around.windows[1][1]
    ]
    return True, f"at most {counted(max(inside, default=0), 'message')} of a type under way"


def _in_order(seen: Observed) -> tuple[bool | None, str]:
    counts = f"{seen.duplicated:,} duplicated, {seen.out_of_order:,} out of order"
    if seen.recovery is not None:
        return None, f"{counts}, around a failure that was asked for"
    if seen.workers_silent:
        return None, "a worker gave no answer"
    return not seen.duplicated and not seen.out_of_order, counts


def _recovered(recovery: Recovery | None) -> tuple[bool | None, str]:
    if recovery is None:
        return None, "not tried; see --recovery"
    if recovery.limit_s < RECOVERY_LIMIT_S:
        return None, f"tried with {recovery.limit_s:,.6g} s only"
    return recovery.complete, recovery.observed


def steady(
    course: ReceivedCourse, warmup: tuple[int, int], window: tuple[int, int]
) -> tuple[bool | None, str]:
    """Judge if similar numbers arrived in each part of the window and at the end of the warm-up.

    Return (True, False, or None if it cannot be judged; observation). A part may differ from the
    mean by the audit's tolerance, or by chance.
    """
    start_ns, end_ns = window
    each_ns = (end_ns - start_ns) // STEADY_PARTS
    if end_ns - start_ns < STEADY_LEAST_S * 1e9:
        return None, f"a window of less than {STEADY_LEAST_S:.0f} s is too short to tell"
    if warmup[1] - warmup[0] < each_ns:
        return None, f"a warm-up of less than {each_ns / 1e9:,.6g} s is too short to tell"
    edges = range(start_ns - each_ns, end_ns - each_ns + 1, each_ns)
    parts = [received_in(course, (at, at + each_ns)) for at in edges][: STEADY_PARTS + 1]
    mean = sum(parts[1:]) / STEADY_PARTS
    if not mean:
        return False, "nothing was received"
    allowed = max(mean * TOLERANCE_PERCENT / 100, STEADY_SIGMAS * mean**0.5)
    least, most = min(parts), max(parts)
    observed = f"{100 * (least / mean - 1):+.1f} to {100 * (most / mean - 1):+.1f} % of the mean"
    return mean - least <= allowed and most - mean <= allowed, observed
