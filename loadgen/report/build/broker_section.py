"""The broker during a run, from broker.jsonl: counters of its nodes, and its own counts of PUBLISH.

Its counts between its first and its last report are compared with ours. This shows a generator that
sends more than it counts, and a broker that repeats or drops.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
from loadgen.report.render.text import name
from loadgen.sentences import REPORT_TEXT

FILE = "broker.jsonl"
LARGEST_BYTES = 256 << 20
_LATE_NS = 1_500_000_000
"""Greatest age of a broker's report on arrival, or of a sample that stands for a moment."""
_LEAST_STEPS = 100
"""Least processor time in steps of its clock: less has fewer than two certain digits."""
_LEAST_MOMENT_NS = 900_000_000  # samples closer than this are drawn as one moment
_GRANTED = 0.001  # share by which two counts may differ in addition to messages in flight
RATES = ("disk_read_bytes", "disk_written_bytes", "network_received_bytes", "network_sent_bytes")
"""Counters of a node that are shown as rates."""
_OURS = {
    "publish_received": ("sent",),
    # Repeated, damaged and foreign messages came from the broker, too.
    "publish_sent": ("received", "duplicated", "corrupt", "foreign"),
}
"""Our counters of the messages that a broker counts: it receives what we sent."""


@dataclass(frozen=True, slots=True)
class ProcessSample:
    """The counters of a node at one moment, as `broker_counters.toml` names them."""

    time_ns: int
    process: Mapping[str, int]
    node: Annotated[str, AfterValidator(name)] = ""


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
    """Processors in use by a node (1.0 is one) from `at_s` on for `span_s`; memory after."""

    node: str
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
class NodeLoad:
    """A node of the broker over the window; `node` is "" for processes on this host.

    `cpu_seconds` is None if the node was not watched all the time. `rates` are the bytes a second
    of its disks and its network, by counter. `step_s` is the resolution of the processor time.
    """

    node: str
    cpu_seconds: float | None
    cores: float | None
    processors: int | None  # of the node; None for the load's host, 0 if unknown
    resident_bytes_max: int | None
    rates: Mapping[str, float]
    step_s: float


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The broker over the measurement window, as the sum of its nodes.

    `messages_per_core_second` are those into and out of it for each second of its processor time,
    None if a node was not watched all the time. `withheld` is the reason if that time is too short.
    """

    cpu_seconds: float | None
    cores: float | None
    resident_bytes_max: float | None
    processors: int | None
    messages_per_core_second: float | None
    nodes: tuple[NodeLoad, ...] = ()
    counts: tuple[CountCheck, ...] = ()
    dropped: int | None = None
    moments: tuple[BrokerMoment, ...] = ()
    troubles: tuple[str, ...] = ()
    withheld: str = ""


def read_bounded(path: Path, most: int, where: object) -> bytes | None:
    """Return a file of at most so many bytes, None if it is missing; raise RunDirectoryError."""
    try:
        if path.stat().st_size > most:
            raise RunDirectoryError(REPORT_TEXT.FILE_TOO_LARGE(where=where))
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RunDirectoryError(REPORT_TEXT.FILE_UNREADABLE(where=where, reason=error)) from None


def read_broker(run_dir: Path) -> BrokerRecords | None:
    """Return the records of a run directory, None without the file; raise RunDirectoryError."""
    path = run_dir / FILE
    data = read_bounded(path, LARGEST_BYTES, path)
    if data is None:
        return None
    lines = data.splitlines()
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

    `course` has `views.COURSE_SCHEMA`, for the whole run.
    """
    by_node: dict[str, list[ProcessSample]] = {}
    for sample in records.processes:
        by_node.setdefault(sample.node, []).append(sample)
    nodes = [_node(samples, start_ns, end_ns) for samples in by_node.values()]
    cpu_s, cores = (_sum(node.cpu_seconds for node in nodes), _sum(node.cores for node in nodes))
    processors = [node.processors for node in nodes]
    withheld = ""
    least_s = _LEAST_STEPS * max((node.step_s for node in nodes), default=0.0)
    if cpu_s is not None and cpu_s < least_s:
        step_s = least_s / _LEAST_STEPS
        withheld = REPORT_TEXT.CORES_COARSE(used=cpu_s, step=step_s, least=least_s)
    dropped = [last.value - first.value for first, last in _spans(records, "publish_dropped")[0]]
    moments = (moment for samples in by_node.values() for moment in _moments(samples, start_ns))
    return BrokerLoad(
        cpu_seconds=cpu_s,
        cores=cores,
        resident_bytes_max=_sum(node.resident_bytes_max for node in nodes),
        processors=None if None in processors else sum(filter(None, processors)),
        messages_per_core_second=messages / cpu_s if cpu_s and messages and not withheld else None,
        counts=tuple(_checks(records, course.filter(pc.equal(course["series"], "")))),
        dropped=sum(dropped) if dropped else None,
        nodes=tuple(nodes),
        moments=tuple(moments),
        troubles=records.troubles,
        withheld=withheld,
    )


def _node(samples: Sequence[ProcessSample], start_ns: int, end_ns: int) -> NodeLoad:
    window_s, last = (end_ns - start_ns) / 1e9, samples[-1].process
    grown = {key: _grown(samples, key, start_ns, end_ns) for key in ("cpu_ns", *RATES)}
    cpu_ns = grown["cpu_ns"]
    inside = [s.process for s in samples if start_ns <= s.time_ns <= end_ns]
    return NodeLoad(
        node=samples[0].node,
        cpu_seconds=None if cpu_ns is None else cpu_ns / 1e9,
        cores=None if cpu_ns is None else cpu_ns / 1e9 / window_s,
        processors=last.get("processors"),
        resident_bytes_max=max((one.get("resident_bytes", 0) for one in inside), default=0) or None,
        rates={k: v / window_s for k, v in grown.items() if k in RATES and v is not None},
        # Older runs used the ticks of /proc/PID/stat.
        step_s=last.get("step_ns", 10_000_000) / 1e9,
    )


def _sum(values: Iterable[float | None]) -> float | None:
    listed = [*values]
    present = [value for value in listed if value is not None]
    return sum(present) if present and len(present) == len(listed) else None


def _grown(
    samples: Sequence[ProcessSample], counter: str, start_ns: int, end_ns: int
) -> float | None:
    """Return the growth of a counter over the window, None if it was not watched all the time."""
    counted = [sample for sample in samples if counter in sample.process]
    if len(counted) < 2:
        return None
    if counted[0].time_ns > start_ns + _LATE_NS or counted[-1].time_ns < end_ns - _LATE_NS:
        return None
    # Relative to the window: nanoseconds since boot would lose digits as floats.
    relative = np.array([sample.time_ns - start_ns for sample in counted], np.int64)
    edges = [0.0, float(end_ns - start_ns)]
    first, last = np.interp(edges, relative, _since_first(counted, counter))
    return float(last - first)


def _since_first(samples: Sequence[ProcessSample], counter: str) -> NDArray[np.int64]:
    """Return a counter since the first sample; that of a restarted broker begins at 0."""
    values = np.array([sample.process[counter] for sample in samples], np.int64)
    grown = np.diff(values)
    return np.cumsum(np.concatenate(([0], np.where(grown >= 0, grown, values[1:]))))


def _moments(samples: Sequence[ProcessSample], start_ns: int) -> Iterator[BrokerMoment]:
    spaced: list[ProcessSample] = []
    for sample in samples:
        close = spaced and sample.time_ns - spaced[-1].time_ns < _LEAST_MOMENT_NS
        if "cpu_ns" in sample.process and not close:
            spaced.append(sample)
    if not spaced:
        return
    grown = np.diff(_since_first(spaced, "cpu_ns"))
    for (before, after), used_ns in zip(pairwise(spaced), grown, strict=True):
        span_ns = after.time_ns - before.time_ns
        yield BrokerMoment(
            node=after.node,
            at_s=(before.time_ns - start_ns) / 1e9,
            span_s=span_ns / 1e9,
            used=float(used_ns / span_ns),
            resident_bytes=after.process.get("resident_bytes", 0),
        )


def _checks(records: BrokerRecords, counters: pa.Table) -> Iterator[CountCheck]:
    """Yield the broker's counts next to ours, which are taken as even over each interval."""
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
    """Return each topic's first and last report of a count, and True if no topic is left out."""
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
