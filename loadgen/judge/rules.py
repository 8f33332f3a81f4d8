"""The rules by which a run is judged, without those that only look up facts (codes.toml).

The parameters of a rule are the parts of the facts that it judges, by their names. It yields the
values of its sentence, or nothing if the run is sound.
"""

import math
from collections.abc import Callable, Iterator, Sequence

from loadgen.judge.backlog import Growth, Standstill, lasting
from loadgen.judge.facts import (
    RATE_SIGMAS,
    BackendFacts,
    Connects,
    Ending,
    Messages,
    Schedule,
    Service,
    SlowFacts,
)
from loadgen.judge.own_delay import DelayGap, Generator
from loadgen.sentences import Values, counted, listed

RATE_TOLERANCE = 0.01
"""The published figures have two to three digits; one per cent less is another load."""
CONNECT_GRACE_S = 0.1
"""The last connect of a paced burst ends one round trip after it began: twice the p99 of the
connects and a short delay of the host are allowed for it, at most this long."""
CONNECT_MOMENT_S = 0.005
STANDSTILLS_SHOWN = 5
LOST_SHOWN = 3  # ranges of lost messages in a sentence; run.json has more
CLOCK_LIMIT_NS = 100_000_000  # greatest difference between two hosts' clocks

Found = Iterator[Values]
Backends = Sequence[BackendFacts]


def workers_lost(ending: Ending) -> Found:
    if ending.workers_lost:
        yield {
            "workers": listed([*map(str, ending.workers_lost)], 10),
            "hosts": listed(ending.hosts_of_lost, 5),
            "cause": ending.loss,
        }


# Connections --------------------------------------------------------------------------------------


def connect_failed(connects: Connects, messages: Messages, backends: Backends) -> Found:
    if connects.failed:
        yield {
            "connected": connects.connected,
            "devices": connects.devices,
            "failures": connects.connect_failures,
            "backends": by_backend(backends, lambda backend: backend.connect_failures),
            "failure": connects.connect_failure,
            **_lost_through(connects, messages),
        }


def subscribe_failed(connects: Connects, messages: Messages) -> Found:
    if connects.subscribe_failures:
        lost = {"lost": None, "expected": None}
        yield {
            "failures": connects.subscribe_failures,
            "connected": connects.connected,
            "failure": connects.subscribe_failure,
            **(lost if connects.failed else _lost_through(connects, messages)),
        }


def disconnected(connects: Connects, slow: SlowFacts | None, backends: Backends) -> Found:
    # Slow subscribers that the broker disconnects are a remark.
    lost = connects.disconnects - (slow.disconnects if slow is not None else 0)
    unexplained = lost - connects.closed_at_subscribe
    if unexplained > 0 and not connects.disconnects_planned:
        yield {
            "lost": unexplained,
            "backends": by_backend(backends, lambda backend: backend.disconnects),
            "failure": connects.disconnect if unexplained == lost else "",
        }


def lost_by_absence(connects: Connects, messages: Messages) -> bool:
    """Return True if all lost deliveries went to devices that could not connect or subscribe."""
    absent = connects.failed or connects.subscribe_failures > 0
    return absent and 0 < messages.run.lost <= connects.lost_to_absent


def _lost_through(connects: Connects, messages: Messages) -> Values:
    caused = lost_by_absence(connects, messages) and messages.window.lost > 0
    return {
        "lost": messages.window.lost if caused else None,
        "expected": messages.window.expected,
    }


def by_backend(backends: Backends, count: Callable[[BackendFacts], int]) -> tuple[str, ...]:
    return tuple(f"{count(b):,} at {b.name}" for b in backends if count(b) > 0)


# The generator ------------------------------------------------------------------------------------


def mistimed(messages: Messages) -> Found:
    if (count := messages.window.unobserved - messages.run.unobserved) > 0:
        yield {"count": count}


def nothing_sent(schedule: Schedule, window_s: float, begun: int) -> Found:
    target = _target(schedule, window_s)
    if target > 0 and not begun:
        yield {"target": round(target)}


def sent_late(schedule: Schedule, window_s: float, on_time: int) -> Found:
    target = _target(schedule, window_s)
    excused = min(schedule.owed_at_window_end, schedule.owed_by_leave)
    if target - on_time - excused > _rate_allowance(schedule, target):
        yield {
            "on_time": round(on_time + excused),
            "target": round(target),
            "share": (on_time + excused) / target,
            "rate": schedule.target_rate,
            "unsent": schedule.owed_at_window_end,
        }


def never_sent(schedule: Schedule, messages: Messages) -> Found:
    unsent = messages.window.owed
    if not schedule.connects_only and unsent > schedule.owed_by_leave:
        yield {"unsent": unsent}


def _target(schedule: Schedule, window_s: float) -> float:
    return 0.0 if schedule.connects_only else schedule.target_rate * window_s


def _rate_allowance(schedule: Schedule, target: float) -> float:
    """Return the messages by which a sound run may fall short of rate times window."""
    # Poisson counts have their mean as variance. A publisher with a constant schedule sends the
    # whole number below or above its mean, with the fraction as the chance of the one above.
    if schedule.arrivals_random:
        variance = target
    else:
        publishers = schedule.publishers
        fraction = math.modf(target / publishers)[0] if publishers else 0.0
        variance = publishers * fraction * (1 - fraction)
    return max(1.0, RATE_TOLERANCE * target, RATE_SIGMAS * math.sqrt(variance))


def connected_late(schedule: Schedule, connects: Connects, service: Service) -> Found:
    if not schedule.connects_only or connects.connect_rate is None:
        return
    allowed_s = connects.devices / connects.connect_rate
    grace_s = CONNECT_GRACE_S
    if service.latency_p99_us is not None:
        grace_s = min(grace_s, 2e-6 * service.latency_p99_us + CONNECT_MOMENT_S)
    if connects.connect_seconds > allowed_s * (1 + RATE_TOLERANCE) + grace_s:
        yield {
            "devices": connects.devices,
            "seconds": connects.connect_seconds,
            "rate": connects.connect_rate,
            "allowed_s": allowed_s,
        }


def resubscribed_late(connects: Connects, window_s: float) -> Found:
    target = connects.resubscribe_rate * window_s
    slack = connects.resubscribe_slack + connects.resubscribe_rate * CONNECT_GRACE_S
    if target - connects.resubscribed > max(slack, RATE_TOLERANCE * target):
        yield {
            "answered": connects.resubscribed,
            "target": round(target),
            "share": connects.resubscribed / target,
            "rate": connects.resubscribe_rate,
        }


# Messages -----------------------------------------------------------------------------------------


def refused(messages: Messages) -> Found:
    if messages.window.refused:
        yield {
            "refused": messages.window.refused,
            "sent": messages.window.sent,
            "codes": tuple(f"{count:,} {name}" for name, count in messages.refusals.items()),
            "first": messages.refusal,
            "delivered": messages.window.delivered_refused or None,
        }


def lost(
    messages: Messages, connects: Connects, slow: SlowFacts | None, backends: Backends
) -> Found:
    window = messages.window
    excused = slow.excused(messages.qos) if slow is not None else 0
    if window.lost > excused and not lost_by_absence(connects, messages):
        acknowledged = window.lost_acknowledged
        named = messages.lost_named[:LOST_SHOWN] if acknowledged is not None else ()
        yield {
            "lost": window.lost,
            "expected": window.expected,
            "share": window.lost / window.expected,
            "acknowledged": acknowledged,
            "first": tuple(map(str, named)),
            "sessions": messages.sessions_lost or None,
            "backends": by_backend(backends, lambda backend: backend.expected - backend.received),
        }


def not_redelivered(messages: Messages) -> Found:
    # Not acknowledged is not consumed, even if it was seen: such a message must come again.
    missing = messages.held_when_cut - messages.redelivered
    if missing > 0 and messages.proven:
        yield {"missing": missing, "held": messages.held_when_cut}


def repeated(messages: Messages) -> Found:
    window = messages.window
    if window.repeated:
        yield {
            "repeated": window.repeated,
            "qos": messages.qos,
            "allowed": window.repeated_allowed or None,
        }


def unbalanced(messages: Messages) -> Found:
    if messages.imbalances:
        more = len(messages.imbalances) - 1
        yield {"first": messages.imbalances[0], "more": more or None}


# Service ------------------------------------------------------------------------------------------


def backlog_grows(growth: Growth, service: Service, window_s: float) -> Found:
    if growth.excessive:
        yield {
            "growth": round(growth.messages),
            "tolerated": None if growth.is_old else growth.tolerated,
            "waited_s": service.waited_s if growth.is_old else None,
            "standstill": _times(lasting(service.standstills, window_s)),
        }


def latency_unmeasured(service: Service) -> Found:
    if service.latency_bound_us is not None and service.latency_p99_us is None:
        yield {"bound_us": service.latency_bound_us}


def latency_exceeded(service: Service) -> Found:
    p99_us, skew_us = service.latency_p99_us, service.clock_skew_us
    bound_us = service.latency_bound_us
    if bound_us is not None and p99_us is not None and p99_us + skew_us > bound_us:
        yield {"p99_us": p99_us, "skew_us": skew_us or None, "bound_us": bound_us}


def thresholds_missed(service: Service) -> Found:
    ended = "ended at once" if service.ended_by_threshold else None
    yield from ({"missed": missed, "ended": ended} for missed in service.thresholds_missed)


def clocks_differ(service: Service) -> Found:
    if service.clock_bound_ns > CLOCK_LIMIT_NS:
        bounds_ms = {
            "difference_ms": service.clock_bound_ns / 1e6,
            "limit_ms": CLOCK_LIMIT_NS / 1e6,
        }
        yield {"hosts": listed(service.clock_hosts, 2), **bounds_ms}


# Remarks ------------------------------------------------------------------------------------------


def stood_still(growth: Growth, service: Service, generator: Generator, window_s: float) -> Found:
    # Without the standstill that the reason BACKLOG_GROWS shows, and without our own stalls.
    shown = lasting(service.standstills, window_s) if growth.excessive else ()
    delay = generator.own_delay
    pauses = [*delay.cuts]
    if delay.longest is not None:
        pauses.append(DelayGap("", delay.longest.start_s, delay.longest.seconds))
    standstills = []
    for standstill in service.standstills:
        half_s = (standstill.until_s - standstill.from_s) / 2
        is_own = any(one.within(standstill.from_s, standstill.until_s) > half_s for one in pauses)
        if standstill not in shown and not is_own:
            standstills.append(standstill)
    if standstills:
        yield {"times": _times(standstills)}


def _times(standstills: Sequence[Standstill]) -> str:
    texts = [
        f"from {s.from_s:.1f} s to {s.until_s:.1f} s (while {counted(s.waiting, 'message')} waited)"
        for s in standstills
    ]
    return listed(texts, STANDSTILLS_SHOWN, "more times")


def slow_subscribers(slow: SlowFacts | None, messages: Messages) -> Found:
    if slow is not None:
        yield {
            "devices": slow.devices,
            "bytes_per_s": slow.bytes_per_s,
            "waited": slow.waited,
            "expected": slow.expected,
            "dropped": slow.dropped,
            "disconnects": slow.disconnects,
            "other_expected": messages.window.expected - slow.expected,
            "other_lost": max(messages.window.lost - slow.dropped, 0),
        }


def remarked(messages: Messages) -> Found:
    if messages.remarked:
        kinds = messages.remarked.items()
        yield {"kinds": tuple(f"{words} ({counted(n, 'time')})" for words, n in kinds)}


def abandoned_handshakes(messages: Messages, connects: Connects) -> Found:
    if messages.window.given_up:
        yield {
            "count": messages.window.given_up,
            "disconnects": connects.disconnects or None,
            "violations": messages.run.violations or None,
        }


def clock_skew(service: Service) -> Found:
    p99_us, skew_us = service.latency_p99_us, service.clock_bound_ns / 1000
    if service.timed_between_hosts and p99_us is not None:
        yield {"skew_us": skew_us, "p99_us": p99_us if p99_us < skew_us else None}


WARMUP_STATES = (
    *("refused", "unacknowledged", "damaged", "lost", "repeated", "misrouted", "foreign"),
)


def wrong_before_window(messages: Messages) -> Found:
    # Messages of the warm-up disturbed nothing that was measured.
    early = {
        state: getattr(messages.run, state) - getattr(messages.window, state)
        for state in WARMUP_STATES
    }
    if any(early.values()):
        yield {"states": tuple(f"{count:,} {state}" for state, count in early.items() if count)}


def unproven(messages: Messages) -> Found:
    if not messages.proven:
        yield {}
