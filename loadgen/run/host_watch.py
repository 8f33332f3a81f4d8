"""The host's processors during a run: time taken by the hypervisor, quotas and other programs.

The kernel's counters are read once a second; each grows from some start, so that the difference of
two samples belongs to the time between them. None stands for a counter that the kernel lacks.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

NS = 1_000_000_000
_TICK_NS = NS // 100
"""Unit of /proc/stat: USER_HZ, a hundredth of a second on every Linux (proc(5))."""
_STEAL_COLUMN = 8
SAMPLES_LIMIT = 4096
"""Limit of the samples; above it, every other sample is dropped."""
GAP_NS = NS // 10
GAPS_LIMIT = 1000
"""Last gaps that are kept."""


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """The scheduler's account of a worker (proc(5), schedstat and status)."""

    busy_ns: int
    waited_ns: int
    voluntary_switches: int
    involuntary_switches: int


@dataclass(frozen=True, slots=True)
class HostSample:
    """The counters at one moment (CLOCK_MONOTONIC).

    `steal_ns` has an entry a processor, `throttled_ns` one a control group. `gaps` are the times in
    which the agent of the host did not run.
    """

    time_ns: int
    steal_ns: tuple[int, ...] = ()
    throttled_ns: Mapping[Path, int] = field(default_factory=dict)
    workers: Mapping[int, WorkerTimes] = field(default_factory=dict)
    gaps: tuple[tuple[int, int], ...] = ()


class HostAttendance:
    """The times in which this process did not run, each of `GAP_NS` or more."""

    def __init__(self) -> None:
        self.gaps: deque[tuple[int, int]] = deque(maxlen=GAPS_LIMIT)
        self._turn_ns = 0

    def turn(self) -> None:
        """Note that the process runs; call this many times within `GAP_NS`."""
        before_ns, self._turn_ns = self._turn_ns, time.monotonic_ns()
        if before_ns and self._turn_ns - before_ns >= GAP_NS:
            self.gaps.append((before_ns, self._turn_ns))


def steal_ns(stat: str) -> tuple[int, ...]:
    """Time that the hypervisor had each processor for others, from the text of /proc/stat."""
    found = []
    for line in stat.splitlines():
        name, *values = line.split() or [""]
        if name.startswith("cpu") and name != "cpu" and len(values) >= _STEAL_COLUMN:
            found.append(int(values[_STEAL_COLUMN - 1]) * _TICK_NS)
    return tuple(found)


def throttled_ns(cpu_stat: str) -> int | None:
    """Time that a quota held a control group back, from its cpu.stat of either version."""
    for line in cpu_stat.splitlines():
        name, _, value = line.partition(" ")
        if name == "throttled_time":
            return int(value)
        if name == "throttled_usec":
            return int(value) * 1000
    return None


def cpu_stat_files(pid: int | str = "self", proc: Path = Path("/proc")) -> tuple[Path, ...]:
    """Return cpu.stat of the control group of a process and of its parent groups, its own first.

    A quota limits a group with all its children, so each of them can be the one that throttles.
    """
    try:
        groups = (proc / str(pid) / "cgroup").read_text().splitlines()
        mounts = (proc / "self" / "mountinfo").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return ()
    directories: list[Path] = []
    for mount in mounts:
        fields, _, about = mount.partition(" - ")
        kind, _, options = (about.split() + [""] * 3)[:3]
        if kind not in ("cgroup", "cgroup2") or (kind == "cgroup" and not _has_cpu(options)):
            continue
        root, point = fields.split()[3:5]
        path = _group_path(groups, version_2=kind == "cgroup2")
        if path is not None:
            directories += _up_to(Path(_unescaped(point)), path, root)
    return tuple(one / "cpu.stat" for one in directories)


def _has_cpu(options: str) -> bool:
    return "cpu" in options.split(",")


def _group_path(groups: Iterable[str], *, version_2: bool) -> str | None:
    """Return this process's group in the hierarchy of version 2, or of the cpu controller."""
    for line in groups:
        number, controllers, path = (line.split(":", 2) + [""] * 2)[:3]
        if number == "0" and not controllers if version_2 else "cpu" in controllers.split(","):
            return path
    return None


def _up_to(point: Path, path: str, root: str) -> list[Path]:
    """Return the directories from a group up to the mount point of its hierarchy."""
    inside = path
    if root != "/":
        inside = path[len(root) :] if path == root or path.startswith(f"{root}/") else "/"
    parts = [part for part in inside.split("/") if part]
    if ".." in parts:
        parts = []
    return [point.joinpath(*parts[:length]) for length in range(len(parts), -1, -1)]


def _unescaped(point: str) -> str:
    """Return a path of mountinfo, in which white space is written as three octal digits."""
    return point.replace("\\040", " ").replace("\\011", "\t").replace("\\134", "\\")


def worker_times(schedstat: str, status: str) -> WorkerTimes:
    """Return the times of a worker from the texts of /proc/PID/schedstat and /proc/PID/status."""
    busy, waited, *_ = schedstat.split()
    switches = {
        name: int(value)
        for name, _, value in (line.partition(":") for line in status.splitlines())
        if name.endswith("ctxt_switches")
    }
    return WorkerTimes(
        int(busy),
        int(waited),
        switches.get("voluntary_ctxt_switches", 0),
        switches.get("nonvoluntary_ctxt_switches", 0),
    )


def take_sample(pids: Mapping[int, int], proc: Path = Path("/proc")) -> HostSample:
    """Read the counters; `pids` are the processes of the workers by their row."""
    workers = {}
    for row, pid in pids.items():
        try:
            own = proc / str(pid)
            workers[row] = worker_times(
                (own / "schedstat").read_text(), (own / "status").read_text()
            )
        except (OSError, ValueError):
            continue
    # A worker can be moved into a separate group, even while it runs.
    files = {path for pid in pids.values() for path in cpu_stat_files(pid, proc)}
    held = {path: value for path in files if (value := _read_throttled(path)) is not None}
    try:
        steal = steal_ns((proc / "stat").read_text())
    except (OSError, ValueError):
        steal = ()
    return HostSample(time.monotonic_ns(), steal, held, workers)


def _read_throttled(path: Path) -> int | None:
    try:
        return throttled_ns(path.read_text())
    except (OSError, ValueError):
        return None


def thinned(samples: list[HostSample]) -> list[HostSample]:
    """Return the samples, half of them if there are too many; the last one stays."""
    return samples[-1::-2][::-1] if len(samples) > SAMPLES_LIMIT else samples


def between(
    samples: Sequence[HostSample], spans: Iterable[tuple[int, int]]
) -> tuple[float | None, float | None]:
    """Return the seconds of steal and of throttling in the intervals that touch any of the spans.

    Steal is that of the processor with most of it. None stands for a counter that the host lacks.
    """
    spans = tuple(spans)
    touched = [
        (before, after)
        for before, after in pairwise(samples)
        if any(start < after.time_ns and end > before.time_ns for start, end in spans)
    ]
    stolen: Counter[int] = Counter()
    for before, after in touched:
        for number, (earlier, later) in enumerate(
            zip(before.steal_ns, after.steal_ns, strict=False)
        ):
            stolen[number] += later - earlier
    held = [
        after.throttled_ns[path] - before.throttled_ns[path]
        for before, after in touched
        for path in before.throttled_ns.keys() & after.throttled_ns.keys()
    ]
    return (max(stolen.values()) / NS if stolen else None), (sum(held) / NS if held else None)


def observed_host(samples: Sequence[HostSample], window: tuple[int, int]) -> dict[str, Any]:
    """Return the entry of run.json: the host's counters over the window and its workers' times."""
    steal_s, throttled_s = between(samples, [window])
    before = [one for one in samples if one.time_ns <= window[0]] or samples[:1]
    after = [one for one in samples if one.time_ns >= window[1]] or samples[-1:]
    workers = []
    if samples:
        first, last = before[-1].workers, after[0].workers
        workers = [
            {"worker": row, **_difference(first[row], last[row])}
            for row in sorted(first.keys() & last.keys())
        ]
    return {"steal_s": steal_s, "throttled_s": throttled_s, "workers": workers}


def _difference(before: WorkerTimes, after: WorkerTimes) -> dict[str, float]:
    return {
        "busy_s": (after.busy_ns - before.busy_ns) / NS,
        "waited_s": (after.waited_ns - before.waited_ns) / NS,
        "voluntary_switches": after.voluntary_switches - before.voluntary_switches,
        "involuntary_switches": after.involuntary_switches - before.involuntary_switches,
    }
