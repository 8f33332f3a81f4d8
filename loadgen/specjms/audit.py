"""The audit: five tests of every interaction or destination (run rules, section 3.6).

A pure function of counts: what was sent and received in the measurement window, what the model
asks for, and how the drivers kept their time. Whether everything arrived is judged over the whole
run, warm-up and drain included. Every test says what was expected and observed.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args

from loadgen.specjms.destinations import destination_name
from loadgen.specjms.expected import interaction_messages
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES
from loadgen.specjms.model import Model, answers_to_calls, enabled_types, interactions_on

TOLERANCE_PERCENT: Final = 5
"""Input rate and number of messages: how far from what the topology asks for."""
MISSES_LIMIT_PERCENT: Final = 20
"""Interactions that their driver began too late."""
DELIVERY_PERCENTILE: Final = 90
DELIVERY_LIMIT_MS: Final = 5000
WARMUP_MINIMUM_S: Final = 600.0
MEASURE_MINIMUM_S: Final = 1800.0
CLOCK_LIMIT_MS: Final = 100.0
PROGRESS_LIMIT_S: Final = 300.0
DRAW_SIGMAS: Final = 4
"""How far the suppliers drawn for a few calls may be from their mean."""

Test = Literal["input_rate", "message_count", "pacing", "delivery_time", "delivered"]
TESTS: Final[tuple[Test, ...]] = get_args(Test)

Latencies = Mapping[str, float | int | None]
"""One series in µs: count, avg, p50, p90, p99, max; empty without deliveries."""


TYPE_COUNTS: Final = ("sent", "expected", "received", "duplicated", "out_of_order")
"""Counts of a message type, by their names in the interval table."""


@dataclass(frozen=True, slots=True)
class TypeCount:
    """What all workers counted of one message type in the window."""

    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    delivery: Latencies = field(default_factory=dict)
    end_to_end: Latencies = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DestinationCount:
    """What one destination saw: of the interactions begun in the window, and in the whole run.

    `expected` are deliveries; `slow` those that took longer than the limit. Counts `_in_all` are of
    every message of the run, warm-up and drain included. `missing` names messages that did not
    arrive, `missing_unnamed` counts those that it does not name.
    """

    number: int
    destination: int
    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    slow: int = 0
    sent_in_all: int = 0
    expected_in_all: int = 0
    received_in_all: int = 0
    missing: tuple[str, ...] = ()
    missing_unnamed: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run showed."""

    window_s: float
    warmup_s: float
    clock_ms: float
    # Of the interactions begun in the window; `inside` and `late` have one entry an interaction.
    types: Sequence[TypeCount]
    inside: Sequence[int]  # how many were begun
    late: Sequence[int]  # those of them that were begun behind schedule
    destinations: Sequence[DestinationCount]
    discarded: int = 0  # deliveries that a selector at the receiver refused
    discarded_bytes: int = 0
    waited: int = 0  # messages that had to wait for a place in the in-flight window
    # Of the whole run.
    calls_open: int = 0  # calls for offers that never had all of their offers
    calls_dropped: int = 0  # offers for which there was no place to wait in
    unsent: int = 0  # messages taken whose effects still waited to be sent at the end
    workers_silent: int = 0  # workers that ended without a report of what they sent and received
    duplicated: int = 0
    out_of_order: int = 0
    progress_s: float = PROGRESS_LIMIT_S  # how often the run reported its progress
    notes: Sequence[str] = ()  # what else a reader must know


@dataclass(frozen=True, slots=True)
class Finding:
    """One test of one interaction or destination."""

    test: Test
    subject: str
    passed: bool
    expected: str
    observed: str


@dataclass(frozen=True, slots=True)
class Audit:
    """All findings; the audit passes when each does."""

    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return not self.failed

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def of(self, test: Test) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.test == test)


def audit(model: Model, seen: Observed) -> Audit:
    """Every test of every interaction and destination that the model has."""
    findings: list[Finding] = []
    if seen.workers_silent:  # first, since it explains the others
        observed = f"{seen.workers_silent:,} reported nothing, so counts and names are incomplete"
        expected = "every worker reports what it sent and received"
        findings.append(Finding("delivered", "workers", False, expected, observed))
    for interaction in interactions_on(model):
        findings += _interaction_findings(model, seen, interaction)
    enabled = enabled_types(model)
    for count in sorted(seen.destinations, key=lambda one: (one.number, one.destination)):
        if count.number in enabled:
            p90_us = seen.types[count.number].delivery.get("p90")
            findings += _destination_findings(model, count, p90_us)
    return Audit((*findings, *_unfinished(model, seen)))


def _within(observed: float, expected: float, slack: float) -> bool:
    """Within the tolerance, or within what no window can be cut finer than."""
    return abs(observed - expected) <= max(expected * TOLERANCE_PERCENT / 100, slack)


def _begun_within(begun: int, expected: float) -> bool:
    """Within the tolerance, or one interaction beside a whole number next to what is expected.

    A schedule begins a whole number, and the moment of sending may cross an end of the window.
    """
    nearly = math.floor(expected) - 1 <= begun <= math.ceil(expected) + 1
    return nearly or _within(begun, expected, 0.0)


def _interaction_findings(model: Model, seen: Observed, interaction: int) -> Iterator[Finding]:
    subject = f"interaction {interaction}"
    rate = model.rates[interaction - 1]
    window_s = seen.window_s or 1.0
    wanted = rate * window_s
    inside, late = seen.inside[interaction - 1], seen.late[interaction - 1]
    yield Finding(
        "input_rate",
        subject,
        _begun_within(inside, wanted),
        f"{rate:,.6g}/s within {TOLERANCE_PERCENT} %",
        f"{inside / window_s:,.6g}/s",
    )
    types = [seen.types[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction]
    sent, received = sum(one.sent for one in types), sum(one.received for one in types)
    each = interaction_messages(model)[interaction - 1]
    # Each supplier that a call asks is an offer sent; a call and an offer received.
    drawn = DRAW_SIGMAS * math.sqrt(wanted) * answers_to_calls(model)[1] * (interaction == 2)
    yield Finding(
        "message_count",
        subject,
        _within(sent, wanted * each.sent, each.sent + drawn)
        and _within(received, wanted * each.received, each.received + 2 * drawn),
        f"{wanted * each.sent:,.0f} sent and {wanted * each.received:,.0f} received within "
        f"{TOLERANCE_PERCENT} %",
        f"{sent:,} sent and {received:,} received",
    )
    begun = seen.types[FIRST_OF_INTERACTION[interaction - 1]].sent
    if begun:
        # A single late one is not a share yet.
        paced = late <= max(begun * MISSES_LIMIT_PERCENT / 100, 1)
        kept = f"{100.0 * late / begun:.3g} % ({late:,} of {begun:,})"
    else:
        paced, kept = _begun_within(0, wanted), "none begun"
    yield Finding("pacing", subject, paced, f"at most {MISSES_LIMIT_PERCENT} % begun late", kept)


def _destination_findings(
    model: Model, count: DestinationCount, p90_us: float | None
) -> Iterator[Finding]:
    name = MESSAGES[count.number].name
    subject = f"{name} at {destination_name(model, count.number, count.destination)}"
    if count.expected or count.received:
        # The percentile keeps the limit exactly when that share of the deliveries does.
        allowed = count.received * (100 - DELIVERY_PERCENTILE) / 100
        times = f"{count.slow:,} slower" if count.received else "nothing was received"
        if p90_us is not None:
            times += f"; {name} in all: {p90_us / 1000:,.3f} ms"
        yield Finding(
            "delivery_time",
            subject,
            count.slow <= allowed and (count.received > 0 or count.expected == 0),
            f"{DELIVERY_PERCENTILE} % of {count.received:,} within {DELIVERY_LIMIT_MS:,} ms",
            times,
        )
    yield Finding(
        "delivered",
        subject,
        count.expected_in_all == count.received_in_all,
        f"{count.expected_in_all:,} deliveries of {count.sent_in_all:,} messages sent in the whole "
        "run",
        f"{count.received_in_all:,}{_missing(count)}",
    )


def _missing(count: DestinationCount) -> str:
    lost = count.expected_in_all - count.received_in_all
    if lost <= 0:
        return f", {-lost:,} more than sent" if lost else ""
    more = [f"and {count.missing_unnamed:,} more"] if count.missing_unnamed else []
    names = f": {', '.join([*count.missing, *more])}" if count.missing else ""
    return f", {lost:,} missing{names}"


def _unfinished(model: Model, seen: Observed) -> Iterator[Finding]:
    """What was never sent because something before it did not come to its end."""
    if 2 in interactions_on(model):
        yield Finding(
            "delivered",
            "calls for offers",
            not seen.calls_open and not seen.calls_dropped,
            "every call with all of its offers, in the whole run",
            f"{seen.calls_open:,} calls without all offers, {seen.calls_dropped:,} offers dropped",
        )
    if seen.unsent:
        yield Finding(
            "delivered",
            "what messages cause",
            False,
            "all of it sent when the run ends",
            f"{seen.unsent:,} messages whose effects waited for the broker's acknowledgements",
        )


def run_rules(
    seen: Observed, failures: Sequence[str], *, as_specified: bool
) -> tuple[tuple[str, bool, str], ...]:
    """Which run rules a run keeps, as (rule, kept, observed); shorter runs are not compliant.

    `failures` are the codes of the run's verdict, without the audit's own; `as_specified` whether
    every option is SPECjms2007's.
    """
    return (
        (
            f"warm-up of at least {WARMUP_MINIMUM_S / 60:.0f} min (3.1)",
            seen.warmup_s >= WARMUP_MINIMUM_S,
            f"{seen.warmup_s:,.0f} s",
        ),
        (
            f"measurement of at least {MEASURE_MINIMUM_S / 60:.0f} min (3.1)",
            seen.window_s >= MEASURE_MINIMUM_S,
            f"{seen.window_s:,.0f} s",
        ),
        (
            f"clocks within {CLOCK_LIMIT_MS:.0f} ms (3.2)",
            seen.clock_ms <= CLOCK_LIMIT_MS,
            f"{seen.clock_ms:,.3f} ms",
        ),
        (
            f"progress reported every {PROGRESS_LIMIT_S / 60:.0f} min (3.3)",
            seen.progress_s <= PROGRESS_LIMIT_S,
            f"{seen.progress_s:,.6g} s",
        ),
        ("no failures or exceptions (3.5)", not failures, ", ".join(failures) or "none"),
        (
            "messages in order and not duplicated (4.2)",
            not seen.duplicated and not seen.out_of_order,
            f"{seen.duplicated:,} duplicated, {seen.out_of_order:,} out of order",
        ),
        (
            "workload as specified, without options of freeform or jms2009-PS",
            as_specified,
            "as specified" if as_specified else "changed",
        ),
    )
