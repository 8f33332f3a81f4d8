"""Remarks at the rows of a score card: the generator's share of a latency, and caused faults.

A latency counts from the moment at which a message should have been sent until it was read. Two
series show the generator's part: `transit` begins at the actual send, and `own_delay` is the time
for which a message was readable before it was read. Percentiles do not add up message by message,
so the share of a percentile is approximate. The share of the average is exact but for `own_delay`,
which is a sample.
"""

from collections.abc import Mapping

from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import figure, figures, part
from loadgen.report.build.rows import DATA
from loadgen.report.record import RunRecord
from loadgen.report.render.text import number

_MOSTLY = 0.5

_TAIL = "p99"
_SHOWN = {"p50": "50P", "p99": "99P", "avg": "AVG"}


def own_share_remark(latency: Mapping[str, LatencySummary]) -> str:
    """Return the figures of the end-to-end latency that are mostly our own, else the tail's part.

    It is "" if the required series are missing.
    """
    total, transit, waited = (latency.get(s) for s in ("end_to_end", "transit", "own_delay"))
    if total is None or transit is None:
        return ""
    parts: dict[str, str] = {}
    mostly = []
    for key, title in _SHOWN.items():
        total_us, sent_us = total.figure(key), transit.figure(key)
        if not total_us or sent_us is None:
            continue
        late_us = max(total_us - sent_us, 0.0)
        read_us = min((waited.figure(key) if waited else None) or 0.0, sent_us)
        parts[key] = (
            f"{title}, {number(late_us + read_us)} of {number(total_us)} µs "
            f"(sent late {number(late_us)}, read late {number(read_us)})"
        )
        if late_us + read_us > _MOSTLY * total_us:
            mostly.append(parts[key])
    if mostly:
        return f"Mostly the generator's own, not the broker's: {'; '.join(mostly)}."
    return f"The generator's own part of {parts[_TAIL]}." if _TAIL in parts else ""


def recovery_remark(record: RunRecord) -> str:
    """Return how far the recovery from a crash went; "" without a crash."""
    seen = part(record.observed, "recovery")
    if not seen:
        return ""
    words_of: Mapping[str, str] = DATA["recovery"]
    moments = zip(words_of.values(), figures(seen, *words_of), strict=True)
    steps = ", ".join(f"{words} {at_s:.2f} s" for words, at_s in moments if at_s is not None)
    rest = "more waited to the end than before the crash"
    remark = "; ".join(filter(None, (steps, rest if figure(seen, "drained_s") is None else "")))
    return f"{remark[0].upper()}{remark[1:]}." if remark else ""


def slow_remark(record: RunRecord) -> str:
    """Return the number of deliveries that waited for slow subscribers; "" without any."""
    waited = figure(part(record.observed, "slow"), "waited")
    words = "deliveries to slow subscribers waited when the window ended; those that came later"
    return f"{waited:,.0f} {words} count, too." if waited else ""
