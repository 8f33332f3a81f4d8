"""What a broker did meanwhile, as broker.jsonl tells: processor time, memory, its own counts.

The broker's own counts are held against ours: between its first and its last word, how many
PUBLISH packets did it receive and send, and how many did we send and receive? A generator that
sends more than it says, or a broker that repeats or drops, shows here.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from loadgen.errors import RunDirectoryError
from loadgen.scorecard.text import name

FILE = "broker.jsonl"
LARGEST_BYTES = 256 << 20
_LATE_NS = 1_500_000_000
"""A broker's word can be this old when it comes, and a process sample this far from a moment."""
_GRANTED = 0.001
"""Share by which two counts may differ beside what was under way."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """Processor time since the processes started, and resident memory, at one moment."""

    time_ns: int
    cpu_ns: int
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class CountSample:
    """A broker's own count since it started; `watched` of it went to our watcher."""

    time_ns: int
    broker: int
    topic: str
    count: str
    value: int
    watched: int


@dataclass(frozen=True, slots=True)
class BrokerRecords:
    """broker.jsonl, in its order."""

    processes: tuple[ProcessSample, ...] = ()
    counts: tuple[CountSample, ...] = ()
    troubles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Traffic:
    """How many PUBLISH packets we sent to and received from the broker, over the whole run.

    Counts of intervals from `since_ns` to `until_ns`, ascending.
    """

    since_ns: Sequence[int]
    until_ns: Sequence[int]
    sent: Sequence[int]
    received: Sequence[int]


@dataclass(frozen=True, slots=True)
class BrokerMoment:
    """Processors in use by the broker (1.0 is one) from `at_s` on for `span_s`; memory after."""

    at_s: float
    span_s: float
    used: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class CountCheck:
    """One count of the broker against ours, between two of its words.

    `uncertain` is how many were under way at either word: so much may be counted on one side
    only. `agrees` is whether the difference is within that and a thousandth.
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

    `cpu_seconds` is the processor time it used, `messages_per_core_second` the messages into and
    out of it for each of them; None where its process was not watched all the time.
    """

    cpu_seconds: float | None
    cores: float | None
    resident_bytes_max: int | None
    messages_per_core_second: float | None
    counts: tuple[CountCheck, ...] = ()
    dropped: int | None = None
    moments: tuple[BrokerMoment, ...] = ()
    troubles: tuple[str, ...] = ()


def read_broker(run_dir: Path) -> BrokerRecords | None:
    """The records of a run directory, None where there are none; raises RunDirectoryError."""
    path = run_dir / FILE
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise RunDirectoryError(f"{path} is too large to be one")
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(f"{path} cannot be read: {error.strerror}") from None
    processes, counts, troubles = [], [], []
    for place, line in enumerate(lines, start=1):
        try:
            record = orjson.loads(line)
            at = int(record["time_ns"])
            if "process" in record:
                load = record["process"]
                processes.append(
                    ProcessSample(at, int(load["cpu_ns"]), int(load["resident_bytes"]))
                )
            elif "count" in record:
                counts.append(_count(at, record))
            elif "trouble" in record:
                troubles.append(name(record["trouble"]))
        except (ValueError, KeyError, TypeError) as error:
            if place == len(lines):
                break  # a killed run leaves half a line
            raise RunDirectoryError(
                f"{path}, line {place} is damaged: {type(error).__name__}"
            ) from None
    return BrokerRecords(tuple(processes), tuple(counts), tuple(troubles))


def _count(at: int, record: Mapping[str, Any]) -> CountSample:
    return CountSample(
        time_ns=at,
        broker=int(record.get("broker", 0)),
        topic=name(record["topic"]),
        count=str(record["count"]),
        value=int(record["value"]),
        watched=int(record.get("watched", 0)),
    )


def broker_load(
    records: BrokerRecords, traffic: Traffic, start_ns: int, end_ns: int, messages: int
) -> BrokerLoad:
    """The broker over a window; `messages` went into and out of it in the window."""
    cpu_s = _cpu_seconds(records.processes, start_ns, end_ns)
    inside = [s for s in records.processes if start_ns <= s.time_ns <= end_ns]
    return BrokerLoad(
        cpu_seconds=cpu_s,
        cores=None if cpu_s is None else cpu_s / ((end_ns - start_ns) / 1e9),
        resident_bytes_max=max((s.resident_bytes for s in inside), default=None),
        messages_per_core_second=messages / cpu_s if cpu_s and messages else None,
        counts=tuple(_checks(records.counts, traffic)),
        dropped=_dropped(records.counts),
        moments=tuple(_moments(records.processes, start_ns)),
        troubles=records.troubles,
    )


# --- processor time -------------------------------------------------------------------------


def _running(samples: Sequence[ProcessSample]) -> tuple[list[int], list[int]]:
    """Times and processor time used since the first; a broker started anew starts from 0."""
    times, used = [], []
    total = before = 0
    for place, sample in enumerate(samples):
        if place:
            grown = sample.cpu_ns - before
            total += grown if grown >= 0 else sample.cpu_ns
        before = sample.cpu_ns
        times.append(sample.time_ns)
        used.append(total)
    return times, used


def _cpu_seconds(samples: Sequence[ProcessSample], start_ns: int, end_ns: int) -> float | None:
    if (
        len(samples) < 2
        or samples[0].time_ns > start_ns + _LATE_NS
        or samples[-1].time_ns < end_ns - _LATE_NS
    ):
        return None
    times, used = _running(samples)
    # Relative to the window: nanoseconds since boot would lose digits as floats.
    relative = np.asarray(times, np.int64) - start_ns
    first, last = np.interp([0.0, float(end_ns - start_ns)], relative, used)
    return float(last - first) / 1e9


def _moments(samples: Sequence[ProcessSample], start_ns: int) -> Iterable[BrokerMoment]:
    times, used = _running(samples)
    for place in range(1, len(times)):
        span_ns = times[place] - times[place - 1]
        if span_ns > 0:
            yield BrokerMoment(
                at_s=(times[place - 1] - start_ns) / 1e9,
                span_s=span_ns / 1e9,
                used=(used[place] - used[place - 1]) / span_ns,
                resident_bytes=samples[place].resident_bytes,
            )


# --- counts ---------------------------------------------------------------------------------

_OURS = {"publish_received": "sent", "publish_sent": "received"}
"""The broker receives what we send."""


def _checks(samples: Sequence[CountSample], traffic: Traffic) -> Iterable[CountCheck]:
    for count, ours in _OURS.items():
        topics = dict.fromkeys((s.broker, s.topic) for s in samples if s.count == count)
        spans = [
            span
            for key in topics
            if (span := _span([s for s in samples if (s.broker, s.topic) == key])) is not None
        ]
        if not spans or len(spans) < len(topics):
            continue
        total = _Cumulative(traffic.since_ns, traffic.until_ns, getattr(traffic, ours))
        # Several brokers tell at different moments: between the first and the last of them.
        first_ns, last_ns = min(s[0].time_ns for s in spans), max(s[1].time_ns for s in spans)
        counted = 0
        for first, last in spans:
            counted += last.value - first.value
            if count == "publish_sent":
                counted -= last.watched - first.watched
        mine = total.until(last_ns) - total.until(first_ns)
        uncertain = sum(
            total.until(end + _LATE_NS) - total.until(end - _LATE_NS) for end in (first_ns, last_ns)
        )
        yield CountCheck(
            count=count,
            topic=re.sub(r"\s", " ", spans[0][0].topic),
            broker=counted,
            ours=round(mine),
            uncertain=round(uncertain),
            agrees=abs(counted - mine) <= uncertain + _GRANTED * mine + 1,
        )


def _dropped(samples: Sequence[CountSample]) -> int | None:
    topics = dict.fromkeys((s.broker, s.topic) for s in samples if s.count == "publish_dropped")
    spans = [_span([s for s in samples if (s.broker, s.topic) == key]) for key in topics]
    known = [last.value - first.value for first, last in filter(None, spans)]
    return sum(known) if known else None


def _span(samples: Sequence[CountSample]) -> tuple[CountSample, CountSample] | None:
    """First and last word of one topic; None where there is one only, or it started anew."""
    values = [sample.value for sample in samples]
    if len(samples) < 2 or values != sorted(values):
        return None
    return samples[0], samples[-1]


class _Cumulative:
    """How many by a moment, as if those of an interval came evenly over it."""

    def __init__(
        self, since_ns: Sequence[int], until_ns: Sequence[int], counts: Sequence[int]
    ) -> None:
        self._since = np.asarray(since_ns, np.int64)
        self._length = np.maximum(np.asarray(until_ns, np.int64) - self._since, 1)
        self._counts = np.asarray(counts, np.float64)

    def until(self, moment_ns: int) -> float:
        share = np.clip((moment_ns - self._since) / self._length, 0.0, 1.0)
        return float((share * self._counts).sum())
