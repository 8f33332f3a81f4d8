"""The table of codes: what each reason and remark means, its rules with their sentences, what next.

`python -m loadgen.judge.codes` prints docs/codes.md.
"""

from collections.abc import Callable, Iterable
from inspect import signature

from loadgen.judge import own_delay, rules
from loadgen.judge.facts import RunFacts
from loadgen.mqtt.violations import VIOLATIONS
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

    def __init__(self, code: str, seen: str, meaning: str, advice: str, *rules: Rule) -> None:
        self.code = code
        self.row = f"| `{code}` | {seen} | {meaning} | {advice} |"
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
        "the run was stopped or killed before its end",
        "its figures are those until then",
        "repeat it; everything measured is kept",
        Rule(
            rules.interrupted,
            "the run was stopped after {window_s:.1f} s of its measurement window",
        ),
    ),
    Code(
        "WORKER_LOST",
        "a worker of the generator, or its host, ended or fell silent",
        "deliveries that it did not see are *unobserved*, not lost",
        "look in `events.jsonl` for the cause (memory, a limit, a signal, the network)",
        Rule(
            rules.workers_lost,
            "lost workers: {workers}",
            "; their hosts: {hosts}",
            "; each ended or fell silent before the end of the run",
        ),
    ),
    Code(
        "CRASH",
        "with `--crash-broker`, the broker was not killed, kept connections, or did not serve "
        "again",
        "nothing is proven about a crash, and there is no recovery time",
        "read the last output of your command, which the reason contains",
        Rule(
            rules.not_crashed,
            "the broker did not crash and recover as requested: {failure}",
        ),
    ),
    Code(
        "CONNECT_FAILED",
        "devices could not connect",
        "the load was not the planned one; deliveries lost only by this count here",
        "read the reason that it names; check the broker's limits, users and listen backlog",
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
        "subscriptions were refused or not answered",
        "as above",
        "check the broker's access rules for the topic filters",
        Rule(
            rules.subscribe_failed,
            "{failures:,} of {connected:connected device|connected devices} could not subscribe",
            _MOST_FREQUENT,
            _LOST_THROUGH_ABSENCE,
        ),
    ),
    Code(
        "DISCONNECTED",
        "connections were lost, or devices whose return was due did not return",
        "the load was not the planned one",
        "look in the broker's log at that moment; `--reconnect` lets devices return",
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
        "a process of the generator was late, or did not run",
        "the figures, or a bound of yours that they exceed, describe this host and not the "
        "broker; a backlog that was not watched is unknown",
        "[find the cause](how-to/generator-saturated.md): add workers or cores, lower the load, "
        "or use a quieter host",
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
        "the broker violated the MQTT specification",
        "figures can be wrong, and other clients can break",
        "report the first violation, which it names, to the makers of the broker",
        Rule(
            rules.violated,
            "the broker violated the specification {count:time|times}",
            _FIRST,
        ),
    ),
    Code(
        "REFUSED",
        "the broker answered messages with a failure code",
        "it did not accept them, so that no delivery of them is expected",
        "read code and Reason String; check access rules and quotas",
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
        "handshakes of QoS 1 and 2 were open at the end of the drain, and their sessions exist",
        "the broker was too slow, or withholds acknowledgements",
        "allow a longer `--drain`",
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
        "messages were sent later than scheduled, or not at all",
        "the broker, or this host, cannot take the rate",
        "lower the rate",
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
        "messages arrived that this run did not send",
        "other clients, bridges or retained messages use these topics",
        "keep them off these topics",
        Rule(rules.states("foreign"), "{count:message|messages} arrived from other clients"),
    ),
    Code(
        "MISROUTED",
        "messages arrived on another topic than their own, or at a device without a "
        "subscription to it",
        "the broker routes wrongly, or was told to",
        "look at topic rewriting, bridges and shared subscriptions",
        Rule(
            rules.states("misrouted"),
            "{count:message|messages} arrived on another topic than their own, or at a device "
            "without a subscription to it",
        ),
    ),
    Code(
        "CORRUPT",
        "a payload arrived damaged",
        "something changes payloads",
        "look for plugins, proxies or faulty memory",
        Rule(rules.states("damaged"), "{count:delivery|deliveries} had a damaged payload"),
    ),
    Code(
        "LOST",
        "expected deliveries never arrived, or did not arrive again after a consumer was cut off",
        "the broker dropped them. At QoS 1 and 2 the reason says how many it had acknowledged, "
        "and so had to keep",
        "look for dropped messages in the broker: queue limits, overload, restarts, lost sessions",
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
        "a message was repeated although its QoS does not allow it there, or was repeated damaged",
        "the broker does not keep the promise of its QoS",
        "look for causes of repeats: bridges in a loop, overlapping subscriptions",
        Rule(
            rules.repeated,
            "{repeated:delivery was|deliveries were} repeated although QoS {qos} does not allow it",
            "; {allowed:more was|more were} allowed",
        ),
    ),
    Code(
        "OUT_OF_ORDER",
        "a message arrived after a later one of its publisher",
        "the broker does not keep the order of a topic",
        "look for parallel delivery in the broker or a cluster",
        Rule(
            rules.states("out_of_order"),
            "{count:delivery|deliveries} arrived after a later message of their publisher",
        ),
    ),
    Code(
        "QOS",
        "a delivery had a lower QoS than was granted",
        "the broker does not do what it granted",
        "check the broker's limits of QoS by client or topic",
        Rule(
            rules.states("below_qos"),
            "{count:delivery|deliveries} had a lower QoS than was granted",
        ),
    ),
    Code(
        "BACKLOG_GROWS",
        "more messages waited at the end of the window than at its start, or messages still "
        "arrived when the drain ended",
        "the load exceeds what the broker serves; missing messages are late, not lost",
        "lower the load (`loadgen search` finds the limit), or allow a longer `--drain`",
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
        "the 99th percentile of the latency is above `--latency-bound`",
        "the broker is too slow for your bound",
        "lower the load, or raise the bound",
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
        "a condition of `--require` does not hold; the reason has the measured value",
        "the run does not meet your requirement",
        "look at that figure; lower the load, or require less",
        Rule(rules.ended_by_threshold, "{missed}, and the run was ended for it"),
        Rule(rules.thresholds_missed, "{missed}"),
    ),
    Code(
        "CLOCK",
        "the clocks of two hosts are not known to within 100 ms",
        "latencies between them are wrong",
        "look for delays of packets between them, or use one host",
        Rule(
            rules.clocks_differ,
            "clocks of two hosts may differ by {difference_ms:,.1f} ms, above {limit_ms:,.1f} ms",
        ),
    ),
    Code(
        "LEDGER",
        "the generator's own counts contradict each other",
        "a defect of loadgen, never of a broker: no count can be trusted",
        "report it to the makers of loadgen, with the run directory",
        Rule(
            rules.unbalanced,
            "the counts contradict each other: {first}",
            "; and {more:,} more",
        ),
    ),
    Code(
        "AUDIT",
        "a rule of the workload's audit failed",
        "the run is not the standard workload",
        "read the audit on the score card",
    ),
    Code(
        "CHANGED",
        "a file of the run was changed, added or removed after it was sealed",
        "its figures may not be the measured ones",
        "restore the run as it was sealed, or repeat it",
    ),
    Code(
        "HOST_LIMIT",
        "a load of a search does not fit on this host",
        "the limit is that of the host",
        "raise the limit that it names, or use more hosts",
    ),
    Code(
        "RUNNING",
        "the run has not ended",
        "there is no verdict yet",
        "wait for its end",
    ),
)

REMARKS = (
    Code(
        "BROKER",
        "a peculiarity of the broker that the check before the run found",
        "some options behave differently there",
        "choose options that the broker supports",
    ),
    Code(
        "STANDSTILL",
        "nothing was received or acknowledged for a time although messages were due",
        "the broker stood still and recovered",
        "look in the broker's log at that moment",
        Rule(rules.stood_still, "nothing came back {times}"),
    ),
    Code(
        "SLOW",
        "slow subscribers, requested by `--slow-subscribers`, and their treatment by the broker",
        "what a broker does to them is not judged",
        "compare with a run without slow subscribers",
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
        "the generator's own delay is a noticeable part of the latencies",
        "the broker is faster than the figures",
        "as for GENERATOR_SATURATED",
        Rule(own_delay.noticeable, *_OWN_SHARE),
        Rule(
            own_delay.noticeable_stalls,
            *_STALLS,
            "; the greatest latencies contain this: {cause}",
        ),
    ),
    Code(
        "PROTOCOL",
        "the broker violated the MQTT specification",
        "no figure changes and no client breaks by it",
        "report it to the makers of the broker",
        Rule(rules.remarked, "the broker sent {kinds}"),
    ),
    Code(
        "REPEATED",
        "messages were repeated after a reconnect",
        "QoS 1 allows it",
        "nothing",
        Rule(
            rules.repeated_as_allowed,
            "{count:delivery was|deliveries were} repeated after a reconnect, as QoS 1 allows",
        ),
    ),
    Code(
        "GIVEN_UP",
        "handshakes of QoS 1 and 2 ended with a session that the broker lost, or with a wrong "
        "answer",
        "nothing can finish them, unlike those of UNACKNOWLEDGED",
        "look for lost sessions in the broker's log",
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
        "latencies are measured by the clocks of two hosts",
        "they are exact to the given error",
        "use one host for more exact latencies",
        Rule(
            rules.clock_skew,
            "latencies between two hosts are known to within ±{skew_us:,.1f} µs",
            ", which is more than their p99 of {p99_us:,.1f} µs",
        ),
    ),
    Code(
        "BEFORE_WINDOW",
        "messages went wrong before the measurement window began",
        "no figure contains them",
        "find the cause if it recurs in the window",
        Rule(
            rules.wrong_before_window,
            "messages that went wrong during the warm-up: {states}",
        ),
    ),
    Code(
        "UNPROVEN",
        "a worker did not confirm the counts",
        "they are probably right, but not checked",
        "look in `events.jsonl` for a worker that ended",
        Rule(
            rules.unproven,
            "the counts are not proven: a worker did not send its final report",
        ),
    ),
)

CODES = tuple(row.code for row in REASONS)
"""Codes of reasons in the order in which they are shown: causes before their effects."""


_HEAD = ("", "| code | what was seen | what it means | what to do next |", "|---|---|---|---|")
_PAGE = """\
# Codes of the verdict

<!-- Made by `python -m loadgen.judge.codes > docs/codes.md`; a test compares it. -->

A run is VALID exactly if there is no reason against it. The score card lists reasons with
causes before their effects; this table begins with the most important code."""


def markdown() -> str:
    """Return docs/codes.md."""
    first = next(row for row in REASONS if row.code == "GENERATOR_SATURATED")
    reasons = [first, *(row for row in REASONS if row is not first)]
    remarks = ("", "## Remarks", "", "A remark does not affect the verdict.", *_HEAD)
    remarks = (*remarks, *(row.row for row in REMARKS))
    violations = (
        "",
        "## Violations of the specification",
        "",
        "Each is counted. It is a reason, `PROTOCOL`, if it can change a figure or break a client, and",
        "otherwise a remark. Numbers in brackets are statements or sections of MQTT 5.",
        "",
        "| the broker sent | counts as |",
        "|---|---|",
        *(f"| {one.words} | {'reason' if one.is_judged else 'remark'} |" for one in VIOLATIONS),
    )
    lines = (*_HEAD, *(row.row for row in reasons), *remarks, *violations, "")
    return "\n".join((_PAGE, *lines))


if __name__ == "__main__":
    print(markdown(), end="")
