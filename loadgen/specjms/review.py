"""The observations of a finished run, from interval rows and the workers' last answers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadgen.judge.facts import RunFacts
from loadgen.judge.ledger import Ledger
from loadgen.metrics.course import Span
from loadgen.metrics.reducer import summarize
from loadgen.specjms import audit
from loadgen.specjms.chain_model import Model
from loadgen.specjms.kernels.chains import Seen
from loadgen.specjms.layout import first_destinations, parts_of
from loadgen.specjms.messages import MESSAGES, TYPES
from loadgen.specjms.missing import name_missing, type_at

NS = 1_000_000_000

_ADDED = (
    *("discarded", "discarded_bytes", "waited", "calls_open", "calls_dropped", "unsent"),
    *("duplicated", "out_of_order", "redelivered", "unmarked"),
)
"""Fields of `Observed` that are sums over the workers' answers."""


def supply_seen(
    model: Model,
    answers: Sequence[Mapping[str, Any]],
    rows: Sequence[Mapping[str, Any]],
    windows: tuple[Span, Span],
    *,
    workers: int,
    **circumstances: Any,
) -> audit.Observed:
    """Return the observations of a run.

    `answers` are the workers' counts by destination, `rows` the window's interval rows, merged by
    group and series, `windows` warm-up and measurement. `circumstances` are further fields.
    """
    (warm_ns, warmed_ns), (start_ns, end_ns) = windows
    destinations, notes = _destinations(model, answers, workers - len(answers))
    # One worker has all handlers of a type at a location.
    heard = sorted(row for answer in answers for row in answer.get("heard", []))
    begun: dict[str, Any] = {
        name: [sum(answer.get(name, [0] * 7)[at] for answer in answers) for at in range(7)]
        for name in ("inside", "late")
    }
    return audit.Observed(
        window_s=(end_ns - start_ns) / NS,
        warmup_s=(warmed_ns - warm_ns) / NS,
        windows=windows,
        types=_types(rows, model),
        destinations=destinations,
        heard=[audit.HandlerCount(*map(int, row)) for row in heard],
        workers=workers,
        workers_silent=workers - len(answers),
        notes=notes,
        **begun,
        **{name: sum(answer.get(name, 0) for answer in answers) for name in _ADDED},
        **circumstances,
    )


def recovery_of(
    limit_s: float, broken: Mapping[str, Any], answers: Sequence[Mapping[str, Any]]
) -> audit.Recovery:
    """Return the recovery after a kill; `broken` has the moments of the broker's end and return."""
    return audit.Recovery(
        limit_s=limit_s,
        killed_ns=int(broken.get("killed_ns", 0)),
        started_ns=int(broken.get("started_ns", 0)),
        returned_ns=max((int(one.get("returned_ns", 0)) for one in answers), default=0),
        away=sum(int(one.get("away", 0)) for one in answers),
        recovered=sum(int(one.get("recovered", 0)) for one in answers),
        recovered_ns=max((int(one.get("recovered_ns", 0)) for one in answers), default=0),
    )


def without_forgotten(
    facts: RunFacts, model: Model, destinations: Sequence[audit.DestinationCount]
) -> RunFacts:
    """Return the facts with missing messages that a killed broker may forget as unobserved."""
    gone = [one for one in destinations if not audit.is_persistent(model, one.number)]
    messages = replace(
        facts.messages,
        window=_forgiven(facts.messages.window, sum(one.expected - one.received for one in gone)),
        run=_forgiven(
            facts.messages.run, sum(one.expected_in_all - one.received_in_all for one in gone)
        ),
    )
    return replace(facts, messages=messages)


def _forgiven(ledger: Ledger, deliveries: int) -> Ledger:
    count = min(max(deliveries, 0), ledger.lost)
    return replace(ledger, lost=ledger.lost - count, unobserved=ledger.unobserved + count)


def _types(rows: Sequence[Mapping[str, Any]], model: Model) -> list[audit.TypeCount]:
    """Return the counts and latencies of each message type over the window."""
    names = {part.name: TYPES[part.subject] for part in parts_of(model) if part.role == "handlers"}
    # The row of a group without a series has its counters.
    series = {(names[row["group"]], row["series"]): row for row in rows if row["group"] in names}
    counts = []
    for message in MESSAGES:
        counted = series.get((message.name, ""), {})
        # The lateness of drivers counts; caused messages have no schedule.
        delivery = "end_to_end" if message.cause is None else "transit"
        counts.append(
            audit.TypeCount(
                **{name: int(counted.get(name, 0)) for name in audit.TYPE_COUNTS},
                delivery=_latencies(series.get((message.name, delivery))),
                end_to_end=_latencies(series.get((message.name, "end_to_end"))),
            )
        )
    return counts


def _latencies(row: Mapping[str, Any] | None) -> audit.Latencies:
    if row is None or not row["count"]:
        return {}
    summary = summarize(row)
    return {name: summary.figure(name) for name in ("count", "avg", "p50", "p90", "p99", "max")}


def _destinations(
    model: Model, answers: Sequence[Mapping[str, Any]], silent: int
) -> tuple[list[audit.DestinationCount], list[str]]:
    """Return the sums of the workers' counts by destination, and notes on unnamed messages."""
    firsts = first_destinations(model)
    counts: dict[int, Counter[str]] = {}
    for answer in answers:
        for row, *values in answer.get("seen", []):
            held = counts.setdefault(int(row), Counter())
            held.update(dict(zip(Seen.names(), values, strict=True)))
    lost = {row: held["expected_in_all"] - held["received_in_all"] for row, held in counts.items()}
    streams = [answer["streams"] for answer in answers if answer.get("streams")]
    complete = not silent and len(streams) == len(answers)
    gaps = [gap for answer in answers for gap in answer.get("gaps", [])]
    named = name_missing(model, lost, gaps, streams if complete else None)
    notes = []
    if any(unnamed for _, unnamed in named.values()) and not complete:
        why = "a worker gave no answer" if silent else "there are too many streams to list"
        notes.append(f"Messages lost at the end of a stream are counted and not named: {why}.")
    destinations = []
    for row, held in sorted(counts.items()):
        number = type_at(firsts, row)
        missing, unnamed = named.get(row, ((), 0))
        destinations.append(
            audit.DestinationCount(
                number=number,
                destination=row - firsts[number],
                missing=missing,
                missing_unnamed=unnamed,
                **{name: held[name] for name in Seen.names()},
            )
        )
    return destinations, notes
