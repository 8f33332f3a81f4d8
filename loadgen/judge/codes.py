"""The table of codes: each reason and remark with its rules and their sentences.

Meaning and advice of each code are in report/codes.toml, for readers.
"""

from collections.abc import Callable, Iterable
from inspect import signature

from loadgen.judge import own_delay, rules
from loadgen.judge.facts import RunFacts
from loadgen.sentences import Text, Values, render


class Rule:
    """A rule, and the template of its sentence in parts as `loadgen.sentences` has them."""

    def __init__(self, find: Callable[..., Iterable[Values]], *template: str) -> None:
        self.find = find
        self.template = template
        self.judged = tuple(signature(find).parameters)  # parts of the facts

    def findings(self, facts: RunFacts) -> list[Values]:
        return list(self.find(**{part: getattr(facts, part) for part in self.judged}))


class Code:
    """One code: of its rules, the first that finds something speaks for it."""

    def __init__(self, code: str, *rules: Rule) -> None:
        self.code = code
        self.rules = rules

    def sentences(self, facts: RunFacts) -> list[Text]:
        for rule in self.rules:
            if findings := rule.findings(facts):
                return [render(self.code, rule.template, values) for values in findings]
        return []


_MOST_FREQUENT = "; most frequent reason: {failure}"
_LOST_THROUGH_ABSENCE = "; as a result {lost:,} of {expected:delivery|deliveries} did not arrive"
_FIRST = "; the first: {first}"
_STALLS = (
    "worker {worker} stood still for {stalled_s:.2f} s of {window_s:.6g} s",
    ", for at most {longest_s:.2f} s at a time",
    ", from second {start_s:.1f} on",
)
_OWN_SHARE = (
    "up to {own_us:,.0f} µs of the latency is the generator's own delay",
    ", {share:.0%} of its p99 of {p99_us:,.0f} µs",
    ": {cause}",
)

REASONS = (
    Code(
        "INTERRUPTED",
        Rule(
            rules.interrupted,
            "the run was stopped after {window_s:.1f} s of its measurement window",
        ),
    ),
    Code(
        "WORKER_LOST",
        Rule(
            rules.workers_lost,
            "lost workers: {workers}",
            "; their hosts: {hosts}",
            "; each ended or fell silent before the end of the run",
        ),
    ),
    Code(
        "CRASH",
        Rule(
            rules.not_crashed,
            "the broker did not crash and recover as requested: {failure}",
        ),
    ),
    Code(
        "CONNECT_FAILED",
        Rule(
            rules.connect_failed,
            "{connected:,} of {devices:device|devices} connected, "
            "{failures:attempt|attempts} failed",
            "; of these {backends}",
            _MOST_FREQUENT,
            _LOST_THROUGH_ABSENCE,
        ),
    ),
    Code(
        "SUBSCRIBE_FAILED",
        Rule(
            rules.subscribe_failed,
            "{failures:,} of {connected:connected device|connected devices} could not subscribe",
            _MOST_FREQUENT,
            _LOST_THROUGH_ABSENCE,
        ),
    ),
    Code(
        "DISCONNECTED",
        Rule(
            rules.disconnected,
            "{lost:established connection was|established connections were} lost",
            "; of these {backends}",
            "; the first: {failure}",
        ),
        Rule(
            rules.not_returned,
            "{missing:device|devices} that had left or lost their connection did not return",
        ),
    ),
    Code(
        "GENERATOR_SATURATED",
        Rule(own_delay.stalled, *_STALLS, ": {cause}"),
        Rule(
            own_delay.unwatched,
            "{process} did not run for {seconds:.2f} s, from second {start_s:.1f} of the window "
            "on, so that the backlog of that time is unknown: end other programs on this host, or "
            "add cores",
        ),
        Rule(
            own_delay.late,
            "the generator delayed messages by up to {own_us:,.0f} µs (p99), above its limit "
            "of {limit_us:,.0f} µs: {cause}",
        ),
        Rule(
            own_delay.busy,
            "the busiest worker had no time left for {share:.1%} of the window, above "
            "{limit:.0%}: {cause}",
        ),
        Rule(own_delay.dominant, *_OWN_SHARE),
        Rule(
            own_delay.breaks_bounds,
            "{bound}: up to {own_us:,.0f} µs of this latency is the generator's own delay: {cause}",
        ),
        Rule(
            rules.unread,
            "{connections:connection|connections} had bytes that no worker had read when the "
            "run ended: add workers or cores, or lower the load",
        ),
    ),
    Code(
        "PROTOCOL",
        Rule(
            rules.violated,
            "the broker violated the specification {count:time|times}",
            _FIRST,
        ),
    ),
    Code(
        "REFUSED",
        Rule(
            rules.refused,
            "the broker refused {refused:,} of {sent:message|messages}",
            "; in the whole run: {codes}",
            _FIRST,
            "; {delivered:delivery|deliveries} of refused messages arrived all the same",
        ),
    ),
    Code(
        "UNACKNOWLEDGED",
        Rule(
            rules.unacknowledged,
            "{count:,} of {sent:message|messages} had no acknowledgement at the end of the drain",
        ),
        Rule(
            rules.unreleased,
            "{count:message|messages} of QoS 2 had no PUBREL at the end of the drain: the broker "
            "did not finish their handshakes",
        ),
    ),
    Code(
        "RATE_MISSED",
        Rule(
            rules.connected_late,
            "{devices:connect|connects} took {seconds:.2f} s; {rate:,.6g}/s allows "
            "{allowed_s:.2f} s",
        ),
        Rule(rules.nothing_sent, "none of {target:message|messages} was sent"),
        Rule(
            rules.sent_late,
            "{on_time:,} of {target:message|messages} left in time, {share:.1%} of "
            "{rate:,.6g}/s; {unsent:message was|messages were} unsent when the window ended",
        ),
        Rule(
            rules.never_sent,
            "{unsent:message was|messages were} still unsent after the drain",
        ),
    ),
    Code(
        "FOREIGN",
        Rule(rules.states("foreign"), "{count:message|messages} arrived from other clients"),
    ),
    Code(
        "MISROUTED",
        Rule(
            rules.states("misrouted"),
            "{count:message|messages} arrived on another topic than their own, or at a device "
            "without a subscription to it",
        ),
    ),
    Code(
        "CORRUPT",
        Rule(rules.states("damaged"), "{count:delivery|deliveries} had a damaged payload"),
    ),
    Code(
        "LOST",
        Rule(
            rules.lost,
            "{lost:,} of {expected:delivery|deliveries} did not arrive ({share:.2%})",
            "; the broker had acknowledged {acknowledged:,} of these",
            "; the broker lost {sessions:stored session|stored sessions}, as CONNACK reported",
            _FIRST,
            "; of these {backends}",
        ),
        Rule(
            rules.not_redelivered,
            "{missing:,} of {held:message|messages} that a consumer had not acknowledged "
            "when it was cut off did not arrive again",
        ),
    ),
    Code(
        "DUPLICATED",
        Rule(
            rules.repeated,
            "{repeated:delivery was|deliveries were} repeated although QoS {qos} does not allow it",
            "; {allowed:more was|more were} allowed",
        ),
    ),
    Code(
        "OUT_OF_ORDER",
        Rule(
            rules.states("out_of_order"),
            "{count:delivery|deliveries} arrived after a later message of their publisher",
        ),
    ),
    Code(
        "QOS",
        Rule(
            rules.states("below_qos"),
            "{count:delivery|deliveries} had a lower QoS than was granted",
        ),
    ),
    Code(
        "BACKLOG_GROWS",
        Rule(
            rules.still_arriving,
            "{waiting:delivery|deliveries} had not arrived when the drain of {drain_s:.6g} s "
            "ended, and messages were still arriving: lower the load, or allow a longer --drain",
        ),
        Rule(
            rules.backlog_grows,
            "the backlog grew by {growth:message|messages} over the window, above "
            "{tolerated:,.0f}: the broker took less than was sent",
            "; nothing came back {standstill}",
        ),
    ),
    Code(
        "LATENCY_BOUND",
        Rule(
            rules.latency_unmeasured,
            "no latency was measured to compare with the bound of {bound_us:,.6g} µs",
        ),
        Rule(
            rules.latency_exceeded,
            "p99 latency is {p99_us:,.1f} µs",
            " ± {skew_us:,.1f} µs of two clocks",
            ", above the bound of {bound_us:,.6g} µs",
        ),
    ),
    Code(
        "THRESHOLD",
        Rule(rules.ended_by_threshold, "{missed}, and the run was ended for it"),
        Rule(rules.thresholds_missed, "{missed}"),
    ),
    Code(
        "CLOCK",
        Rule(
            rules.clocks_differ,
            "clocks of two hosts may differ by {difference_ms:,.1f} ms, above {limit_ms:,.1f} ms",
        ),
    ),
    Code(
        "LEDGER",
        Rule(
            rules.unbalanced,
            "the counts contradict each other: {first}",
            "; and {more:,} more",
        ),
    ),
    Code(
        "AUDIT",
    ),
    Code(
        "CHANGED",
    ),
    Code(
        "HOST_LIMIT",
    ),
    Code(
        "RUNNING",
    ),
)

REMARKS = (
    Code(
        "BROKER",
    ),
    Code(
        "STANDSTILL",
        Rule(rules.stood_still, "nothing came back {times}"),
    ),
    Code(
        "SLOW",
        Rule(
            rules.slow_subscribers,
            "{devices:slow subscriber|slow subscribers} read {bytes_per_s:,.6g} bytes/s at "
            "most. When the window ended {waited:delivery|deliveries} to them waited; "
            "{dropped:,} of {expected:,} never arrived, and "
            "{disconnects:connection was|connections were} lost. Of "
            "{other_expected:delivery|deliveries} to other devices {other_lost:,} did not "
            "arrive",
        ),
    ),
    Code(
        "OWN_DELAY",
        Rule(own_delay.noticeable, *_OWN_SHARE),
        Rule(
            own_delay.noticeable_stalls,
            *_STALLS,
            "; the greatest latencies contain this: {cause}",
        ),
    ),
    Code(
        "PROTOCOL",
        Rule(rules.remarked, "the broker sent {kinds}"),
    ),
    Code(
        "REPEATED",
        Rule(
            rules.repeated_as_allowed,
            "{count:delivery was|deliveries were} repeated after a reconnect, as QoS 1 allows",
        ),
    ),
    Code(
        "GIVEN_UP",
        Rule(
            rules.abandoned_handshakes,
            "{count:handshake|handshakes} of QoS 1 and 2 ended without an acknowledgement, with "
            "their session or with a wrong answer",
            "; {disconnects:connection was|connections were} lost",
            "; the broker violated the specification {violations:time|times}",
        ),
    ),
    Code(
        "CLOCK_ERROR",
        Rule(
            rules.clock_skew,
            "latencies between two hosts are known to within ±{skew_us:,.1f} µs",
            ", which is more than their p99 of {p99_us:,.1f} µs",
        ),
    ),
    Code(
        "BEFORE_WINDOW",
        Rule(
            rules.wrong_before_window,
            "messages that went wrong during the warm-up: {states}",
        ),
    ),
    Code(
        "UNPROVEN",
        Rule(
            rules.unproven,
            "the counts are not proven: a worker did not send its final report",
        ),
    ),
)

CODES = tuple(row.code for row in REASONS)
"""Codes of reasons in the order in which they are shown: causes before their effects."""
