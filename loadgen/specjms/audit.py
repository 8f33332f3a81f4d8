"""The audit: five tests of every interaction or destination (run rules, section 3.6).

A pure function of counts: what was sent and received in the measurement window, what the model
asks for, and how the drivers kept their time. That everything arrived is judged of the whole run,
warm-up and drain included. Every test says what was expected and observed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from loadgen.specjms.destinations import destination_name
from loadgen.specjms.expected import interaction_messages
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES
from loadgen.specjms.model import Model, answers_to_calls, enabled_types, interactions_on

__all__ = [
    "DELIVERY_LIMIT_MS",
    "DELIVERY_PERCENTILE",
    "MEASURE_MINIMUM_S",
    "MISSES_LIMIT_PERCENT",
    "TESTS",
    "TOLERANCE_PERCENT",
    "WARMUP_MINIMUM_S",
    "Audit",
    "Conduct",
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
PROGRESS_LIMIT_S: Final = 300.0
DRAW_SIGMAS: Final = 4
"""How far the suppliers drawn for a few calls may be from their mean."""

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
    """What one destination saw: of the interactions begun in the window, and of the whole run.

    `expected` are deliveries; `slow` those that took longer than the limit. The counts with `all_`
    are those of every message of the run, warm-up and drain included. `missing` names what of them
    did not arrive, `unnamed` is how many messages more there are.
    """

    number: int
    destination: int
    sent: int = 0
    expected: int = 0
    received: int = 0
    duplicated: int = 0
    slow: int = 0
    all_sent: int = 0
    all_expected: int = 0
    all_received: int = 0
    missing: tuple[str, ...] = ()
    unnamed: int = 0


@dataclass(frozen=True, slots=True)
class Observed:
    """What a run showed, of the interactions begun within its window.

    sent, received   by message type
    inside           interactions begun while the window was open, one entry an interaction
    late             those of the window's that were begun behind schedule
    p90_ms           90th percentile of the delivery time by message type, None without deliveries
    calls_open       calls for offers of the whole run that never had all of their offers
    calls_dropped    offers for which there was no place to wait in
    unsent           messages taken whose effects still waited to be sent when the run ended
    workers_silent   workers that ended without telling what they sent and received
    """

    window_s: float
    sent: Sequence[int]
    received: Sequence[int]
    inside: Sequence[int]
    late: Sequence[int]
    p90_ms: Sequence[float | None]
    destinations: Sequence[DestinationCount]
    calls_open: int = 0
    calls_dropped: int = 0
    unsent: int = 0
    workers_silent: int = 0


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
    # What explains others comes first.
    findings = _silence(observed)
    for interaction in interactions_on(model):
        findings += _interaction_findings(model, observed, interaction)
    known = {(count.number, count.destination): count for count in observed.destinations}
    for number in enabled_types(model):
        rows = [count for (kind, _), count in sorted(known.items()) if kind == number]
        for count in rows:
            findings += _destination_findings(model, count, observed.p90_ms[number])
    return Audit((*findings, *_run_findings(model, observed)))


def _within(observed: float, expected: float, slack: float) -> bool:
    """Within the tolerance, or within what no window can be cut finer than."""
    return abs(observed - expected) <= max(expected * TOLERANCE_PERCENT / 100, slack)


def _begun_within(begun: int, expected: float) -> bool:
    """Within the tolerance, or one interaction beside a whole number next to what is expected.

    A schedule begins a whole number, and the moment of sending may cross an end of the window.
    """
    nearly = math.floor(expected) - 1 <= begun <= math.ceil(expected) + 1
    return nearly or _within(begun, expected, 0.0)


def _interaction_findings(model: Model, seen: Observed, interaction: int) -> list[Finding]:
    subject = f"interaction {interaction}"
    rate = model.rates[interaction - 1]
    begun = seen.sent[FIRST_OF_INTERACTION[interaction - 1]]
    window_s = seen.window_s or 1.0
    wanted = rate * window_s
    each = interaction_messages(model)[interaction - 1]
    sent = sum(seen.sent[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction)
    received = sum(seen.received[n] for n, m in enumerate(MESSAGES) if m.interaction == interaction)
    # Each supplier that a call asks is an offer sent; a call and an offer received.
    drawn = DRAW_SIGMAS * math.sqrt(wanted) * answers_to_calls(model)[1] * (interaction == 2)
    counted = _within(sent, wanted * each.sent, each.sent + drawn) and _within(
        received, wanted * each.received, each.received + 2 * drawn
    )
    inside = seen.inside[interaction - 1]
    late = seen.late[interaction - 1]
    if begun:
        # One that is late is no share yet.
        paced = late <= max(begun * MISSES_LIMIT_PERCENT / 100, 1)
        kept = f"{100.0 * late / begun:.3g} % ({late:,} of {begun:,})"
    else:
        paced, kept = _begun_within(0, wanted), "none begun"
    return [
        Finding(
            "input_rate",
            subject,
            _begun_within(inside, wanted),
            f"{rate:,.6g}/s within {TOLERANCE_PERCENT} %",
            f"{inside / window_s:,.6g}/s",
        ),
        Finding(
            "message_count",
            subject,
            counted,
            f"{wanted * each.sent:,.0f} sent and {wanted * each.received:,.0f} received within "
            f"{TOLERANCE_PERCENT} %",
            f"{sent:,} sent and {received:,} received",
        ),
        Finding(
            "pacing",
            subject,
            paced,
            f"at most {MISSES_LIMIT_PERCENT} % begun late",
            kept,
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
    lost = count.all_expected - count.all_received
    found = []
    if count.expected or count.received:
        found.append(
            Finding(
                "delivery_time",
                subject,
                in_time,
                f"{DELIVERY_PERCENTILE} % of {count.received:,} within {DELIVERY_LIMIT_MS:,} ms",
                told,
            )
        )
    found.append(
        Finding(
            "delivered",
            subject,
            lost == 0,
            f"{count.all_expected:,} deliveries of {count.all_sent:,} messages sent in the whole "
            "run",
            f"{count.all_received:,}" + _told_missing(count, lost),
        )
    )
    return found


def _told_missing(count: DestinationCount, lost: int) -> str:
    if lost < 0:
        return f", {-lost:,} more than sent"
    if lost == 0:
        return ""
    names = list(count.missing)
    if count.unnamed and names:
        names.append(f"and {count.unnamed:,} more")
    return f", {lost:,} missing" + (f": {', '.join(names)}" if names else "")


def _run_findings(model: Model, seen: Observed) -> list[Finding]:
    """What was never sent because something before it did not come to its end."""
    found = []
    if 2 in interactions_on(model):
        open_, dropped = seen.calls_open, seen.calls_dropped
        found.append(
            Finding(
                "delivered",
                "calls for offers",
                not open_ and not dropped,
                "every call with all of its offers, in the whole run",
                f"{open_:,} calls without all offers, {dropped:,} offers dropped",
            )
        )
    if seen.unsent:
        found.append(
            Finding(
                "delivered",
                "what messages cause",
                False,
                "all of it sent when the run ends",
                f"{seen.unsent:,} messages whose effects waited for the broker's acknowledgements",
            )
        )
    return found


def _silence(seen: Observed) -> list[Finding]:
    if not seen.workers_silent:
        return []
    return [
        Finding(
            "delivered",
            "workers",
            False,
            "every worker tells what it sent and received",
            f"{seen.workers_silent:,} told nothing, so that counts and names are not complete",
        )
    ]


@dataclass(frozen=True, slots=True)
class Conduct:
    """How a run went, as far as the run rules ask and a tool can tell.

    duplicated, out_of_order   deliveries of the whole run
    failures                   codes of the run's verdict, without the audit's own
    progress_s                 how often the run told where it stood
    """

    warmup_s: float
    measure_s: float
    clock_ms: float
    duplicated: int = 0
    out_of_order: int = 0
    failures: Sequence[str] = ()
    progress_s: float = PROGRESS_LIMIT_S
    default_options: bool = True


def run_rules(run: Conduct) -> tuple[tuple[str, bool, str], ...]:
    """Which run rules a run keeps, as (rule, kept, observed); shorter runs are not compliant."""
    return (
        (
            f"warm-up of at least {WARMUP_MINIMUM_S / 60:.0f} min (3.1)",
            run.warmup_s >= WARMUP_MINIMUM_S,
            f"{run.warmup_s:,.0f} s",
        ),
        (
            f"measurement of at least {MEASURE_MINIMUM_S / 60:.0f} min (3.1)",
            run.measure_s >= MEASURE_MINIMUM_S,
            f"{run.measure_s:,.0f} s",
        ),
        (
            f"clocks within {CLOCK_LIMIT_MS:.0f} ms (3.2)",
            run.clock_ms <= CLOCK_LIMIT_MS,
            f"{run.clock_ms:,.3f} ms",
        ),
        (
            f"progress reported every {PROGRESS_LIMIT_S / 60:.0f} min (3.3)",
            run.progress_s <= PROGRESS_LIMIT_S,
            f"{run.progress_s:,.6g} s",
        ),
        (
            "no failures or exceptions (3.5)",
            not run.failures,
            ", ".join(run.failures) or "none",
        ),
        (
            "messages in order and not duplicated (4.2)",
            not run.duplicated and not run.out_of_order,
            f"{run.duplicated:,} duplicated, {run.out_of_order:,} out of order",
        ),
        (
            "workload as specified, without options of freeform or jms2009-PS",
            run.default_options,
            "as specified" if run.default_options else "changed",
        ),
    )
