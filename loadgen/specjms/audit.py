"""The audit: five tests of every interaction or destination (run rules, section 3.6).

A pure function of counts: what was sent and received in the measurement window, what the model
asks for, and how the drivers kept their time. Every test says what was expected and observed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from loadgen.specjms.destinations import destination_name
from loadgen.specjms.expected import interaction_messages
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES
from loadgen.specjms.model import Model, enabled_types, interactions_on

__all__ = [
    "DELIVERY_LIMIT_MS",
    "DELIVERY_PERCENTILE",
    "MEASURE_MINIMUM_S",
    "MISSES_LIMIT_PERCENT",
    "TESTS",
    "TOLERANCE_PERCENT",
    "WARMUP_MINIMUM_S",
    "Audit",
    "DestinationCount",
    "Finding",
    "Observed",
    "Test",
    "audit",
    "run_rules",
]

TOLERANCE_PERCENT: Final = 5
"""Input rate and number of messages: how far from what the topology asks for."""
MISSES_LIMIT_PERCENT: Final = 20
"""Interactions that their driver began too late."""
DELIVERY_PERCENTILE: Final = 90
DELIVERY_LIMIT_MS: Final = 5000
WARMUP_MINIMUM_S: Final = 600.0
MEASURE_MINIMUM_S: Final = 1800.0
CLOCK_LIMIT_MS: Final = 100.0

Test = Literal["input_rate", "message_count", "pacing", "delivery_time", "delivered"]
TESTS: Final[tuple[Test, ...]] = (
    "input_rate",
    "message_count",
    "pacing",
    "delivery_time",
    "delivered",
)


@dataclass(frozen=True, slots=True)
class DestinationCount:
    """What one destination saw of the interactions begun in the window.

    `expected` are deliveries; `slow` those that took longer than the limit. `missing` names some
    of what did not arrive.
    """

    number: int
    destination: int
    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    slow: int = 0
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run showed, of the interactions begun within its window.

    sent, received   by message type
    inside           interactions begun while the window was open, one entry an interaction
    late             those of the window's that were begun behind schedule
    p90_ms           90th percentile of the delivery time by message type, None without deliveries
    """

    window_s: float
    sent: Sequence[int]
    received: Sequence[int]
    inside: Sequence[int]
    late: Sequence[int]
    p90_ms: Sequence[float | None]
    destinations: Sequence[DestinationCount]


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
        return all(finding.passed for finding in self.findings)

    @property
    def failed(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if not finding.passed)

    def of(self, test: Test) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.test == test)


def audit(model: Model, observed: Observed) -> Audit:
    """Every test of every interaction and destination that the model has."""
    findings: list[Finding] = []
    for interaction in interactions_on(model):
        findings += _interaction_findings(model, observed, interaction)
    known = {(count.number, count.destination): count for count in observed.destinations}
    for number in enabled_types(model):
        rows = [count for (kind, _), count in sorted(known.items()) if kind == number]
        for count in rows:
            findings += _destination_findings(model, count, observed.p90_ms[number])
    return Audit(tuple(findings))


def _within(observed: float, expected: float, whole: float) -> bool:
    """Within the tolerance, or off by one interaction, which no window can be cut finer than."""
    return abs(observed - expected) <= max(expected * TOLERANCE_PERCENT / 100, whole)


def _interaction_findings(model: Model, seen: Observed, interaction: int) -> list[Finding]:
    subject = f"interaction {interaction}"
    rate = model.rates[interaction - 1]
    begun = seen.sent[FIRST_OF_INTERACTION[interaction - 1]]
    window_s = seen.window_s or 1.0
    each = interaction_messages(model)[interaction - 1]
    sent = sum(seen.sent[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction)
    received = sum(seen.received[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction)
    want_sent, want_received = (rate * window_s * count for count in (each.sent, each.received))
    inside = seen.inside[interaction - 1]
    late = seen.late[interaction - 1]
    misses = 100.0 * late / begun if begun else 100.0
    return [
        Finding(
            "input_rate",
            subject,
            _within(inside, rate * window_s, 1.0),
            f"{rate:,.6g}/s within {TOLERANCE_PERCENT} %",
            f"{inside / window_s:,.6g}/s",
        ),
        Finding(
            "message_count",
            subject,
            _within(sent, want_sent, each.sent) and _within(received, want_received, each.received),
            f"{want_sent:,.0f} sent and {want_received:,.0f} received within {TOLERANCE_PERCENT} %",
            f"{sent:,} sent and {received:,} received",
        ),
        Finding(
            "pacing",
            subject,
            misses <= MISSES_LIMIT_PERCENT,
            f"at most {MISSES_LIMIT_PERCENT} % begun late",
            f"{misses:.3g} % ({late:,} of {begun:,})",
        ),
    ]


def _destination_findings(
    model: Model, count: DestinationCount, p90_ms: float | None
) -> list[Finding]:
    name = MESSAGES[count.number].name
    subject = f"{name} at {destination_name(model, count.number, count.destination)}"
    # The percentile keeps the limit exactly when that share of the deliveries does.
    allowed = count.received * (100 - DELIVERY_PERCENTILE) / 100
    in_time = count.slow <= allowed and (count.received > 0 or count.expected == 0)
    told = "nothing was received" if not count.received else f"{count.slow:,} slower"
    if p90_ms is not None:
        told += f"; {name} in all: {p90_ms:,.3f} ms"
    lost = count.expected - count.received
    missing = f": {', '.join(count.missing)}" if count.missing else ""
    return [
        Finding(
            "delivery_time",
            subject,
            in_time,
            f"{DELIVERY_PERCENTILE} % of {count.received:,} within {DELIVERY_LIMIT_MS:,} ms",
            told,
        ),
        Finding(
            "delivered",
            subject,
            lost == 0,
            f"{count.expected:,} deliveries of {count.sent:,} messages sent",
            f"{count.received:,}" + (f", {lost:,} missing{missing}" if lost else ""),
        ),
    ]


def run_rules(
    warmup_s: float, measure_s: float, clock_ms: float, *, default_options: bool
) -> tuple[tuple[str, bool, str], ...]:
    """Which run rules a run keeps, as (rule, kept, observed); shorter runs are not compliant."""
    return (
        (
            f"warm-up of at least {WARMUP_MINIMUM_S / 60:.0f} min (3.1)",
            warmup_s >= WARMUP_MINIMUM_S,
            f"{warmup_s:,.0f} s",
        ),
        (
            f"measurement of at least {MEASURE_MINIMUM_S / 60:.0f} min (3.1)",
            measure_s >= MEASURE_MINIMUM_S,
            f"{measure_s:,.0f} s",
        ),
        (
            f"clocks within {CLOCK_LIMIT_MS:.0f} ms (3.2)",
            clock_ms <= CLOCK_LIMIT_MS,
            f"{clock_ms:,.3f} ms",
        ),
        (
            "workload as specified, without options of freeform or jms2009-PS",
            default_options,
            "as specified" if default_options else "changed",
        ),
    )
