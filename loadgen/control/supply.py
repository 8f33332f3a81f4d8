"""After a run of the supply chain: its counts, its audit and specjms.json; beside it, a report.

The counts by message type are read from the run's own interval table, so that what is audited is
what is recorded; those by destination come from the workers' last answers.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from loadgen.brokers.watch import is_local
from loadgen.control.progress import Progress, Snapshot, describe
from loadgen.control.rundir import EventLog, write_json
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.metrics.reducer import reduce_table, summarize
from loadgen.specjms.audit import (
    PROGRESS_LIMIT_S,
    Audit,
    DestinationCount,
    Latencies,
    Observed,
    TypeCount,
    audit,
)
from loadgen.specjms.kernels import (
    SEEN_ALL_EXPECTED,
    SEEN_ALL_RECEIVED,
    SEEN_ALL_SENT,
    SEEN_DUPLICATED,
    SEEN_EXPECTED,
    SEEN_FIELDS,
    SEEN_RECEIVED,
    SEEN_SENT,
    SEEN_SLOW,
)
from loadgen.specjms.layout import first_destinations, parts_of
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES, TYPES
from loadgen.specjms.missing import name_missing
from loadgen.specjms.model import Model
from loadgen.specjms.plan import SupplyPlan
from loadgen.specjms.report import FILE_NAME, audit_summary, report
from loadgen.workload.verdict import CODES, Reason, Verdict

NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Review:
    """What came of a run: interactions begun, the audit, and what its document is made of."""

    begun: int
    audit: Audit
    summary: dict[str, Any]
    model: Model
    seen: Observed
    also_changed: tuple[str, ...]


def review(
    directory: Path,
    plan: SupplyPlan,
    finals: Mapping[int, Mapping[str, Any]],
    windows: Mapping[str, tuple[int, int]],
    *,
    clock_ns: int = 0,
    share: float | None = None,
    progress_s: float = PROGRESS_LIMIT_S,
) -> Review:
    """Audit the run in this directory.

    `share` is the mean of the rate steps as a share of the topology's rates, None for a run without
    steps; `progress_s` how often its progress was reported.
    """
    start_ns, end_ns = windows.get("measure", (0, 0))
    warm_ns, warmed_ns = windows.get("warmup", (0, 0))
    answers = [final["specjms"] for final in finals.values() if final.get("specjms")]
    silent = len(plan.workers) - len(answers)
    destinations, notes = _destinations(plan.model, answers, silent)
    if any(is_local(target.host) for target in plan.targets):
        notes.append("The broker ran on the client's host, which a submission must not do (3.9).")
    seen = Observed(
        window_s=(end_ns - start_ns) / NS,
        warmup_s=(warmed_ns - warm_ns) / NS,
        clock_ms=clock_ns / 1e6,
        types=_types(directory, plan.model),
        inside=_added(answers, "inside"),
        late=_added(answers, "late"),
        destinations=destinations,
        discarded=_sum(answers, "discarded"),
        discarded_bytes=_sum(answers, "discarded_bytes"),
        waited=_sum(answers, "waited"),
        calls_open=_sum(answers, "calls_open"),
        calls_dropped=_sum(answers, "calls_dropped"),
        unsent=_sum(answers, "unsent"),
        workers_silent=silent,
        duplicated=_sum(answers, "duplicated"),
        out_of_order=_sum(answers, "out_of_order"),
        progress_s=progress_s,
        notes=notes,
    )
    model = plan.model
    also: tuple[str, ...] = ()
    if share is not None:
        model = replace(model, rates=tuple(rate * share for rate in model.rates))
        also = (f"rate steps, {share:.1%} of the rates in the mean",)
    found = audit(model, seen)
    begun = sum(seen.types[first].sent for first in FIRST_OF_INTERACTION)
    return Review(begun, found, audit_summary(found), model, seen, also)


def write_review(directory: Path, found: Review, verdict: Verdict) -> dict[str, Any]:
    """Write specjms.json, which knows the verdict but for the audit; returns what run.json has."""
    document = report(
        found.model,
        found.seen,
        found.audit,
        also_changed=found.also_changed,
        failures=verdict.codes,
    )
    write_json(directory / FILE_NAME, document)
    # Of a large run the destinations alone are megabytes; they stay in their file.
    return {name: value for name, value in document.items() if name != "destinations"}


def with_audit(verdict: Verdict, audit: Audit) -> Verdict:
    """The verdict with the audit's reason, where it has one."""
    failed = audit.failed
    if not failed:
        return verdict
    first = failed[0]
    detail = (
        f"{len(failed)} of {len(audit.findings)} tests failed; {first.test} of {first.subject}: "
        f"expected {first.expected}, observed {first.observed}"
    )
    reasons = (*verdict.reasons, Reason("AUDIT", detail))
    return Verdict(tuple(sorted(reasons, key=lambda reason: CODES.index(reason.code))))


def reported(progress: Progress, events: EventLog, every_s: float) -> Progress:
    """`progress` that also writes where the run stands into the event log, now and then."""
    last_s = time.monotonic()

    def show(snapshot: Snapshot) -> None:
        nonlocal last_s
        progress(snapshot)
        now_s = time.monotonic()
        if now_s - last_s >= every_s and snapshot.devices:
            last_s = now_s
            events.write(time.monotonic_ns(), "progress", describe(snapshot))

    return show


def _sum(answers: list[Any], name: str) -> int:
    return sum(int(one.get(name, 0)) for one in answers)


def _added(answers: list[Any], name: str) -> list[int]:
    """Sums over the workers, one an interaction."""
    return [sum(int(one.get(name, [0] * 7)[at]) for one in answers) for at in range(7)]


def _types(directory: Path, model: Model) -> list[TypeCount]:
    """Counts and latencies of each message type over the window."""
    names = {part.name: TYPES[part.subject] for part in parts_of(model) if part.role == "handlers"}
    counters: dict[str, Mapping[str, Any]] = {}
    series: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in _window_rows(directory):
        if row["group"] not in names:
            continue
        if row["series"] == "":
            counters[names[row["group"]]] = row
        else:
            series[names[row["group"]], row["series"]] = row
    found = []
    for message in MESSAGES:
        counted = counters.get(message.name, {})
        # A driver's lateness is charged; a caused message has no schedule that it could miss.
        delivery = "end_to_end" if message.cause is None else "transit"
        found.append(
            TypeCount(
                sent=int(counted.get("sent", 0)),
                expected=int(counted.get("expected", 0)),
                received=int(counted.get("received", 0)),
                duplicated=int(counted.get("duplicated", 0)),
                out_of_order=int(counted.get("out_of_order", 0)),
                delivery=_latencies(series.get((message.name, delivery))),
                end_to_end=_latencies(series.get((message.name, "end_to_end"))),
            )
        )
    return found


def _window_rows(directory: Path) -> list[dict[str, Any]]:
    parts = []
    for path in sorted((directory / "intervals").glob("part-*.parquet")):
        with pq.ParquetFile(path) as file:
            table = file.read().select(INTERVAL_SCHEMA.names)
        table = table.replace_schema_metadata(None).cast(INTERVAL_SCHEMA)
        table = table.filter(pc.equal(table["phase"], "measure"))
        parts.append(reduce_table(table, ("group", "phase", "series")))
    if not parts:
        return []
    # Reduced once a file and once over all: a long run never has all its rows in memory.
    whole = pa.concat_tables(parts)
    rows: list[dict[str, Any]] = reduce_table(whole, ("group", "phase", "series")).to_pylist()
    return rows


def _latencies(row: Mapping[str, Any] | None) -> Latencies:
    if row is None or not row["count"]:
        return {}
    summary = summarize(row)
    return {name: getattr(summary, name) for name in ("count", "avg", "p50", "p90", "p99", "max")}


def _destinations(
    model: Model, answers: list[Any], silent: int
) -> tuple[list[DestinationCount], list[str]]:
    """The workers' counts by destination, added up, and notes on what cannot be named."""
    firsts = first_destinations(model)
    counts: dict[int, list[int]] = {}
    for one in answers:
        for row, *values in one.get("seen", []):
            held = counts.setdefault(int(row), [0] * SEEN_FIELDS)
            for at, value in enumerate(values[:SEEN_FIELDS]):
                held[at] += int(value)
    lost = {row: held[SEEN_ALL_EXPECTED] - held[SEEN_ALL_RECEIVED] for row, held in counts.items()}
    streams = [one["streams"] for one in answers if one.get("streams")]
    complete = not silent and len(streams) == len(answers)
    holes = [hole for one in answers for hole in one.get("holes", [])]
    named = name_missing(model, lost, holes, streams if complete else None)
    notes = []
    if any(unnamed for _, unnamed in named.values()) and not complete:
        why = "a worker gave no answer" if silent else "there are too many streams to list"
        notes.append(f"Messages lost at the end of a stream are counted and not named: {why}.")
    found = []
    for row, held in sorted(counts.items()):
        number = next(n for n in range(len(MESSAGES)) if firsts[n] <= row < firsts[n + 1])
        missing, unnamed = named.get(row, ((), 0))
        found.append(
            DestinationCount(
                number=number,
                destination=row - firsts[number],
                sent=held[SEEN_SENT],
                expected=held[SEEN_EXPECTED],
                received=held[SEEN_RECEIVED],
                duplicated=held[SEEN_DUPLICATED],
                slow=held[SEEN_SLOW],
                sent_in_all=held[SEEN_ALL_SENT],
                expected_in_all=held[SEEN_ALL_EXPECTED],
                received_in_all=held[SEEN_ALL_RECEIVED],
                missing=missing,
                missing_unnamed=unnamed,
            )
        )
    return found, notes
