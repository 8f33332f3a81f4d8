"""The host during a run: time taken by the hypervisor, quotas and other programs, and TCP.

The kernel's counters are read once a second; each grows from some start, so that the difference of
two samples belongs to the time between them.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from loadgen.run.control_groups import control_groups
from loadgen.sentences import read_table

NS = 1_000_000_000
_TICK_NS = NS // 100
"""Unit of /proc/stat: USER_HZ, a hundredth of a second on every Linux (proc(5))."""
_STEAL_COLUMN = 8
SAMPLES_LIMIT = 4096  # limit of the samples; above it, every other sample is dropped
GAP_NS = NS // 10
GAPS_LIMIT = 1000  # the last gaps are kept
SILENCE_NS = NS // 4
"""Least silence of an agent, plus a round trip: agents send every 20 to 100 ms."""


@dataclass(frozen=True, slots=True)
class HostSample:
    """The counters at one moment (CLOCK_MONOTONIC).

    `steal_ns` has an entry a processor, `throttled_ns` one a control group, `network` the TCP
    counters. `host` is "" for the coordinator's. `gaps` are the times in which its agent did not
    run, `silences` those in which nothing came from it, or it could not reach the broker.
    """

    time_ns: int
    steal_ns: tuple[int, ...] = ()
    throttled_ns: Mapping[Path, int] = field(default_factory=dict)
    network: Mapping[str, int] = field(default_factory=dict)
    host: str = ""
    gaps: tuple[tuple[int, int], ...] = ()
    silences: tuple[tuple[int, int], ...] = ()


class HostAttendance:
    """The times in which this process did not run, each of `GAP_NS` or more."""

    def __init__(self) -> None:
        self.gaps: deque[tuple[int, int]] = deque(maxlen=GAPS_LIMIT)
        self._turn_ns = 0

    def turn(self) -> None:
        """Note that the process runs; call this many times within `GAP_NS`."""
        before_ns, self._turn_ns = self._turn_ns, time.monotonic_ns()
        if before_ns > 0 and self._turn_ns - before_ns >= GAP_NS:
            self.gaps.append((before_ns, self._turn_ns))


def throttled_ns(cpu_stat: str) -> int | None:
    """Return the time that a quota held a control group back, from its cpu.stat."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_time":
            return int(value)
        if name == "throttled_usec":
            return int(value) * 1000
    return None


def take_sample(pids: Iterable[int], proc: Path = Path("/proc")) -> HostSample:
    """Read the counters; `pids` are the processes of the workers."""
    held = {}
    # A worker can be moved into a separate group, even while it runs.
    groups = {path for pid in pids for path in control_groups("cpu", pid, proc)}
    for path in {group / "cpu.stat" for group in groups}:
        with suppress(OSError, ValueError):
            if (value := throttled_ns(path.read_text("utf-8"))) is not None:
                held[path] = value
    steal = []
    with suppress(OSError, ValueError):
        for line in (proc / "stat").read_text("utf-8").splitlines():
            name, *values = line.split() or [""]
            # Before Linux 2.6.11 there was no such column.
            if name.startswith("cpu") and name != "cpu" and len(values) >= _STEAL_COLUMN:
                steal.append(int(values[_STEAL_COLUMN - 1]) * _TICK_NS)
    return HostSample(time.monotonic_ns(), tuple(steal), held, network_counters(proc))


def thinned(samples: list[HostSample]) -> list[HostSample]:
    """Return the samples, half of them if there are too many; the last one stays."""
    return samples[-1::-2][::-1] if len(samples) > SAMPLES_LIMIT else samples


def between(
    samples: Sequence[HostSample], spans: Iterable[tuple[int, int]]
) -> tuple[float | None, float | None]:
    """Return the seconds of steal and of throttling in the intervals that touch any of the spans.

    Steal is that of the processor with most of it. None stands for a counter that the host lacks.
    """
    touched = _touching(samples, spans)
    stolen: Counter[int] = Counter()
    for before, after in touched:
        pairs = zip(before.steal_ns, after.steal_ns, strict=False)
        stolen.update({number: later - first for number, (first, later) in enumerate(pairs)})
    held = [
        after.throttled_ns[path] - before.throttled_ns[path]
        for before, after in touched
        for path in before.throttled_ns.keys() & after.throttled_ns.keys()
    ]
    return (max(stolen.values()) / NS if stolen else None), (sum(held) / NS if held else None)


def network_within(samples: Sequence[HostSample], span: tuple[int, int]) -> Counter[str]:
    """Return the growth of the TCP counters in the intervals that touch the span."""
    grown: Counter[str] = Counter()
    for before, after in _touching(samples, [span]):
        grown.update(difference(before.network, after.network))
    return grown


def _touching(
    samples: Sequence[HostSample], spans: Iterable[tuple[int, int]]
) -> list[tuple[HostSample, HostSample]]:
    spans = tuple(spans)
    return [
        (before, after)
        for before, after in pairwise(samples)
        if any(start < after.time_ns and end > before.time_ns for start, end in spans)
    ]


_TCP_COUNTERS = read_table("loadgen.run", "tcp_counters.toml")
"""The TCP counters of the network namespace that explain most delays of a network
(networking/snmp_counter.rst of Linux)."""


def network_counters(proc: Path = Path("/proc")) -> dict[str, int]:
    """Return the TCP counters by our names, without those that this kernel lacks."""
    counters: dict[str, int] = {}
    for name in ("snmp", "netstat"):
        with suppress(OSError, ValueError):
            lines = (proc / "net" / name).read_text("ascii").splitlines()
            for names, values in zip(lines[::2], lines[1::2], strict=False):
                table, _, columns = names.partition(":")
                for column, value in zip(columns.split(), values.split()[1:], strict=False):
                    counters[f"{table}.{column}"] = int(value)
    return {name: counters[key] for name, key in _TCP_COUNTERS.items() if key in counters}


def retransmitted_data() -> int:
    """Return the number of retransmitted segments; an unanswered SYN can be the broker's fault."""
    counters = network_counters()
    return counters.get("retransmitted_segments", 0) - counters.get("syn_retransmits", 0)


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before if name in after}
