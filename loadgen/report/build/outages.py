"""Outages: lost connections of devices, their reconnects, and the lost messages."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from loadgen.plan.reading import figure, figures, objects, part
from loadgen.plan.tables import DataTable
from loadgen.report.record import RunRecord
from loadgen.report.render.text import name

_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Outage:
    """The time from the second in which devices were lost to that in which all were back.

    Times are seconds after the window's start; `until_s` is None if the run ended first. `lost`
    counts disconnects, `away` is the most devices without a connection at the end of a second, and
    `most_connects` the most that reconnected within a second, as a rate.
    """

    from_s: float
    until_s: float | None
    lost: int
    away: int
    returned: int
    failed_attempts: int
    most_connects: float


def outages_of(course: Iterable[Mapping[str, Any]]) -> tuple[Outage, ...]:
    """Return the outages of a run; `course` has its seconds after the connect phase, in order.

    Its rows are those of `score_card.Curves.course`. Connects and disconnects are used, because a
    late worker lacks the gauge of connected devices for some seconds.
    """
    outages: list[Outage] = []
    current: Outage | None = None
    for second in course:
        if current is None and not second["disconnects"]:
            continue
        current = current or Outage(second["at_s"], None, 0, 0, 0, 0, 0.0)
        lost = current.lost + second["disconnects"]
        returned = current.returned + second["connects"]
        current = replace(
            current,
            lost=lost,
            away=max(current.away, lost - returned),
            returned=returned,
            failed_attempts=current.failed_attempts + second["connect_failures"],
            most_connects=max(
                current.most_connects, second["connects"] / max(second["span_s"], 1e-3)
            ),
        )
        if returned >= lost:
            outages.append(replace(current, until_s=second["at_s"] + second["span_s"]))
            current = None
    return (*outages, *(() if current is None else (current,)))


def outage_sections(
    record: RunRecord, course: pa.Table, phases: Iterable[tuple[str, float, float]]
) -> tuple[DataTable, ...]:
    """Return a table of the run's outages; without churn, in which devices leave on request."""
    if record.scenario.get("churn"):
        return ()
    bounds = {phase: (start_s, end_s) for phase, start_s, end_s in phases}
    began_s = bounds.get("connect", (0.0, 0.0))[1]
    ended_s = max((end_s for _, end_s in bounds.values()), default=0.0)
    outages = outages_of(
        second
        for second in course.to_pylist()
        if second["at_s"] + second["span_s"] > began_s and second["at_s"] < ended_s
    )
    if not outages:
        return ()
    wanted = figure(record.scenario, "connect_rate")
    rate = "" if wanted is None else f", with a connect rate of {wanted:,g} a second"
    note = (
        "From the second in which devices lost their connections to the second in which all were "
        f"connected again{rate}. Times are in seconds after the window's start."
    )
    if len(outages) > _SHOWN:
        note += f" The first {_SHOWN} of {len(outages):,}."
    header = (
        "from s", "until s", "lasted s", "connections lost", "most devices away", "came back",
        "attempts that failed", "most connects/s",
    )  # fmt: skip
    rows = tuple(
        (
            round(outage.from_s, 1),
            "not over" if outage.until_s is None else f"{outage.until_s:,.1f}",
            None if outage.until_s is None else round(outage.until_s - outage.from_s, 1),
            outage.lost,
            outage.away,
            outage.returned,
            outage.failed_attempts,
            round(outage.most_connects),
        )
        for outage in outages[:_SHOWN]
    )
    return (DataTable("Outages", note, header, rows, texts=(1,)),)


_MOMENTS = {
    "first_back_s": "the first device was back after",
    "all_back_s": "all devices after",
    "first_delivery_s": "the first message came after",
}


def recovery_remarks(record: RunRecord) -> dict[str, str]:
    """Return the remark about the row of the recovery, by its measure; empty without a crash."""
    seen = part(record.observed, "recovery")
    if not seen:
        return {}
    moments = zip(_MOMENTS.values(), figures(seen, *_MOMENTS), strict=True)
    told = ", ".join(
        f"{words} {seconds:.2f} s" for words, seconds in moments if seconds is not None
    )
    if figure(seen, "drained_s") is None:
        told += f"{'; ' if told else ''}more waited to the end than before the crash"
    return {"recovery_seconds": f"{told[0].upper()}{told[1:]}."} if told else {}


def made_worse_remarks(record: RunRecord) -> dict[str, str]:
    """Return the remark about the row of the egress, by its measure, with slow subscribers."""
    waited = figure(part(record.observed, "slow"), "waited")
    if not waited:
        return {}
    words = "deliveries to slow subscribers waited when the window ended; those that came later"
    return {"egress_rate": f"{waited:,.0f} {words} count, too."}


def lost_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return a table of lost messages that the broker had acknowledged."""
    lost = part(record.observed, "lost")
    rows = tuple(
        (
            *figures(one, "stream", "first", "last"),
            f"{name(one.get('group'))} {one.get('device')}",
        )
        for one in objects(lost.get("named"))[:_SHOWN]
    )
    if not rows:
        return ()
    note = "The first that the broker had acknowledged; run.json has up to 100 ranges"
    more = figure(lost, "more")
    note += f", {more:,.0f} messages are not among them." if more else "."
    header = ("stream", "from message", "to message", "not received by")
    return (DataTable("Lost messages", note, header, rows, texts=(3,)),)
