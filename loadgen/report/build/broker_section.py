"""The broker during a run, from broker.jsonl: processor time, memory, its own counts.

The broker's own counts of PUBLISH packets between its first and its last report are compared with
ours. This shows a generator that sends more than it counts, and a broker that repeats or drops.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import AfterValidator, TypeAdapter

from loadgen.errors import RunDirectoryError
from loadgen.plan.reading import at
from loadgen.report.render.text import name
from loadgen.sentences import REPORT_TEXT

FILE = "broker.jsonl"
LARGEST_BYTES = 256 << 20
_LATE_NS = 1_500_000_000
"""Greatest age of a broker's report on arrival, and distance of a process sample from a moment."""
_LEAST_STEPS = 100
"""Least processor time in steps of its clock: less has fewer than two certain digits."""
_LEAST_MOMENT_NS = 900_000_000
"""Samples closer than this are drawn as one moment."""
_GRANTED = 0.001
"""Share by which two counts may differ in addition to messages in flight."""
_OURS = {
    "publish_received": ("sent",),
    # Repeated, damaged and foreign messages came from the broker, too.
    "publish_sent": ("received", "duplicated", "corrupt", "foreign"),
}
"""A broker's counts to our counters of the same messages, which have the opposite direction."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Processor time since the processes started, and resident memory, at one moment.

    `step_ns` is the resolution of the processor time; older runs without it used the ticks of
    /proc/PID/stat.
    """

    time_ns: int
    cpu_ns: Annotated[int, at("process", "cpu_ns")]
    resident_bytes: Annotated[int, at("process", "resident_bytes")]
    step_ns: Annotated[int, at("process", "step_ns")] = 10_000_000
    processors: Annotated[int | None, at("process", "processors")] = None


@dataclass(frozen=True, slots=True)
class CountSample:
    """A broker's own count since it started, of which `watched` went to our watcher."""

    time_ns: int
    topic: Annotated[str, AfterValidator(name)]
    count: str
    value: int
    broker: int = 0
    watched: int = 0


_PROCESS, _COUNT = TypeAdapter(ProcessSample), TypeAdapter(CountSample)


@dataclass(frozen=True, slots=True)
class BrokerRecords:
    """broker.jsonl, in its order."""

    processes: tuple[ProcessSample, ...] = ()
    counts: tuple[CountSample, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BrokerMoment:
    """Processors in use by the broker (1.0 is one) from `at_s` on for `span_s`; memory after."""

    at_s: float
    span_s: float
    used: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class CountCheck:
    """One count of the broker compared with ours, between two of its reports.

    `uncertain` is the number of messages in flight at either report, which may be counted on one
    side only. `agrees` is True if the difference is within that number and a thousandth.
    """

    count: str
    topic: str
    broker: int
    ours: int
    uncertain: int
    agrees: bool


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The broker over the measurement window.

    `cpu_seconds` is its processor time, `messages_per_core_second` the messages into and out of it
    for each second of that; both are None if its process was not watched all the time. `withheld`
    is the reason if the processor time is too short to divide by.
    """

    cpu_seconds: float | None
    cores: float | None
    resident_bytes_max: int | None
    processors: int | None  # of the broker's host; None for the load's host, 0 if unknown
    messages_per_core_second: float | None
    counts: tuple[CountCheck, ...] = ()
    dropped: int | None = None
    moments: tuple[BrokerMoment, ...] = ()
    troubles: tuple[str, ...] = ()
    withheld: str = ""


def read_broker(run_dir: Path) -> BrokerRecords | None:
    """Return the records of a run directory, None without the file; raises RunDirectoryError."""
    path = run_dir / FILE
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise RunDirectoryError(REPORT_TEXT.FILE_TOO_LARGE(where=path))
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = error.strerror
        raise RunDirectoryError(REPORT_TEXT.FILE_UNREADABLE(where=path, reason=reason)) from None
    processes, counts, troubles = [], [], []
    for place, line in enumerate(lines, start=1):
        try:
            record = orjson.loads(line)
            if "process" in record:
                processes.append(_PROCESS.validate_python(record))
            elif "count" in record:
                counts.append(_COUNT.validate_python(record))
            elif "trouble" in record:
                troubles.append(name(record["trouble"]))
        except (ValueError, TypeError) as error:
            if place == len(lines):
                break  # a killed run leaves half a line
            where, reason = f"{path}, line {place}", type(error).__name__
            raise RunDirectoryError(REPORT_TEXT.DAMAGED(where=where, reason=reason)) from None
    return BrokerRecords(tuple(processes), tuple(counts), tuple(troubles))


def broker_load(
    records: BrokerRecords, course: pa.Table, start_ns: int, end_ns: int, messages: int
) -> BrokerLoad:
    """Return the broker's load over a window with `messages` into and out of it.

    `course` covers the whole run; its schema is `views.COURSE_SCHEMA`.
    """
    samples, cpu_s, withheld = records.processes, None, ""
    watched_until = samples[-1].time_ns if len(samples) > 1 else 0
    if watched_until >= end_ns - _LATE_NS and samples[0].time_ns <= start_ns + _LATE_NS:
        # Relative to the window: nanoseconds since boot would lose digits as floats.
        relative = np.array([sample.time_ns - start_ns for sample in samples], np.int64)
        first, last = np.interp([0.0, float(end_ns - start_ns)], relative, _used_ns(samples))
        cpu_s = float(last - first) / 1e9
        step_s = max(sample.step_ns for sample in samples) / 1e9
        if cpu_s < _LEAST_STEPS * step_s:
            withheld = (
                f"Withheld: the broker used {cpu_s:.2g} s of processor time, counted in steps of "
                f"{step_s:g} s; at least {_LEAST_STEPS * step_s:g} s are needed."
            )
    inside = [s.resident_bytes for s in samples if start_ns <= s.time_ns <= end_ns]
    dropped = [last.value - first.value for first, last in _spans(records, "publish_dropped")[0]]
    return BrokerLoad(
        cpu_seconds=cpu_s,
        cores=None if cpu_s is None else cpu_s / ((end_ns - start_ns) / 1e9),
        resident_bytes_max=max(inside, default=0) or None,
        processors=samples[-1].processors if samples else None,
        messages_per_core_second=messages / cpu_s if cpu_s and messages and not withheld else None,
        counts=tuple(_checks(records, course.filter(pc.equal(course["series"], "")))),
        dropped=sum(dropped) if dropped else None,
        moments=tuple(_moments(samples, start_ns)),
        troubles=records.troubles,
        withheld=withheld,
    )


def _used_ns(samples: Sequence[ProcessSample]) -> NDArray[np.int64]:
    """Return processor time since the first sample; that of a restarted broker begins at 0."""
    cpu_ns = np.array([sample.cpu_ns for sample in samples], np.int64)
    grown = np.diff(cpu_ns)
    return np.cumsum(np.concatenate(([0], np.where(grown >= 0, grown, cpu_ns[1:]))))


def _moments(samples: Sequence[ProcessSample], start_ns: int) -> Iterator[BrokerMoment]:
    spaced: list[ProcessSample] = []
    for sample in samples:
        if not spaced or sample.time_ns - spaced[-1].time_ns >= _LEAST_MOMENT_NS:
            spaced.append(sample)
    for (before, after), used_ns in zip(pairwise(spaced), np.diff(_used_ns(spaced)), strict=True):
        span_ns = after.time_ns - before.time_ns
        yield BrokerMoment(
            at_s=(before.time_ns - start_ns) / 1e9,
            span_s=span_ns / 1e9,
            used=float(used_ns / span_ns),
            resident_bytes=after.resident_bytes,
        )


def _checks(records: BrokerRecords, counters: pa.Table) -> Iterator[CountCheck]:
    """Yield the broker's counts next to ours, which count as even over each interval."""
    since_ns = counters["time_ns"].to_numpy()
    length_ns = np.maximum(counters["span_ns"].to_numpy(), 1)
    for count, ours in _OURS.items():
        spans, complete = _spans(records, count)
        if not spans or not complete:
            continue
        passed = sum(counters[name].to_numpy() for name in ours)

        def by(moment_ns: int, passed: NDArray[np.int64] = passed) -> float:
            return float((np.clip((moment_ns - since_ns) / length_ns, 0.0, 1.0) * passed).sum())

        # Several brokers report at different moments: compare from the first to the last of these.
        first_ns, last_ns = min(s[0].time_ns for s in spans), max(s[1].time_ns for s in spans)
        counted = sum(last.value - first.value for first, last in spans)
        if count == "publish_sent":
            counted -= sum(last.watched - first.watched for first, last in spans)
        mine = by(last_ns) - by(first_ns)
        uncertain = sum(by(end + _LATE_NS) - by(end - _LATE_NS) for end in (first_ns, last_ns))
        yield CountCheck(
            count=count,
            topic=re.sub(r"\s", " ", spans[0][0].topic),
            broker=counted,
            ours=round(mine),
            uncertain=round(uncertain),
            agrees=abs(counted - mine) <= uncertain + _GRANTED * mine + 1,
        )


def _spans(
    records: BrokerRecords, count: str
) -> tuple[list[tuple[CountSample, CountSample]], bool]:
    """Return the first and the last report of a count, by broker and topic.

    Those with one report, or of a broker that restarted in between, are left out; True if there are
    none.
    """
    topics: dict[tuple[int, str], list[CountSample]] = {}
    for sample in records.counts:
        if sample.count == count:
            topics.setdefault((sample.broker, sample.topic), []).append(sample)
    spans = [
        (samples[0], samples[-1])
        for samples in topics.values()
        if len(samples) > 1 and all(a.value <= b.value for a, b in pairwise(samples))
    ]
    return spans, len(spans) == len(topics)
