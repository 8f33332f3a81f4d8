"""Adds up what workers report during a run: counts, series, processor time, messages under way."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence

from loadgen.metrics.histogram import merge, percentiles
from loadgen.metrics.interval import CONNECT_SERIES, COUNTERS, HISTOGRAM, Interval, with_latencies
from loadgen.metrics.reducer import LatencySummary, summarize


def p99_us(rows: Iterable[Interval]) -> float | None:
    """Return the 99th percentile in µs of the rows' latencies together, None if there are none."""
    parts = [(row.bucket, row.bucket_count) for row in rows if row.count]
    if not parts:
        return None
    bucket, count = merge(parts)
    return float(percentiles(count, (99,), bucket)[0]) / 1000


def _counted(row: Interval) -> dict[str, int]:
    return {name: value for name in COUNTERS if (value := getattr(row, name))}


class Tally:
    """Sums over the interval rows of one run.

    Counters are kept by phase (`sent` by phase and group as well), the series of the timed groups
    by (phase, series), processor time by worker for the phase that matters.
    """

    def __init__(self, timed_groups: Iterable[str], loop_phases: Sequence[str]) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.sent: Counter[tuple[str, str]] = Counter()
        self.series: dict[tuple[str, str], Interval] = {}
        self._timed = frozenset(timed_groups)
        self._loop_phases = frozenset(loop_phases)
        self._busy_ns: Counter[int] = Counter()
        self._waited_ns: Counter[int] = Counter()
        self._span_ns: Counter[int] = Counter()

    def add(self, row: Interval) -> None:
        """Count one row."""
        if row.group == "":
            if row.phase in self._loop_phases:
                self._busy_ns[row.worker] += row.cpu_ns + row.wait_ns
                self._waited_ns[row.worker] += row.wait_ns
                self._span_ns[row.worker] += row.span_ns
        elif row.series == "":
            self.counts[row.phase].update(_counted(row))
            self.sent[row.phase, row.group] += row.sent
        elif row.group in self._timed and row.count:
            key = (row.phase, row.series)
            held = self.series.get(key)
            self.series[key] = row if held is None else with_latencies(held, row)

    def total(self, name: str) -> int:
        """Sum of a counter over all phases."""
        return sum(counts[name] for counts in self.counts.values())

    def totals(self) -> Counter[str]:
        """Return every counter over all phases."""
        return sum(self.counts.values(), Counter())

    def sent_by(self, groups: Collection[str], phase: str | None = None) -> int:
        """Return the messages that these groups sent, in all phases or one."""
        return sum(
            count for (at, of), count in self.sent.items() if of in groups and phase in (None, at)
        )

    def p99_us(self, phase: str, series: str) -> float | None:
        """Return the 99th percentile in µs of a series of the timed groups, None if it is empty."""
        held = self.series.get((phase, series))
        return None if held is None else p99_us((held,))

    def latencies(self) -> dict[str, LatencySummary]:
        """Return each series of the timed groups: of the window's messages, and of all connects."""
        held: dict[str, Interval] = {}
        for (phase, name), row in self.series.items():
            if phase == "measure" or name in CONNECT_SERIES:
                held[name] = with_latencies(held[name], row) if name in held else row
        return {
            name: summarize({column: getattr(row, column) for column in HISTOGRAM})
            for name, row in held.items()
        }

    def own_send_p99_us(self, phase: str) -> float | None:
        """Return the 99th percentile in µs of the send delay of publishers that did not wait.

        Publishers that waited for the broker do not count. None if all did, or nothing was sent.
        """
        sent, held = (self.series.get((phase, name)) for name in ("send_delay", "pushed_back"))
        if sent is None or held is None:
            return None if sent is None else p99_us((sent,))
        bucket, count = merge([(sent.bucket, sent.bucket_count), (held.bucket, -held.bucket_count)])
        return float(percentiles(count, (99,), bucket)[0]) / 1000 if count.sum() else None

    def busy_share_max(self) -> float:
        """Return the greatest share of the time, over the workers, in which a loop was not idle.

        Waiting for a processor counts as busy: the loop had work and could not do it.
        """
        return min(1.0, max(self._shares().values(), default=0.0))

    def busiest_s(self) -> tuple[float, float]:
        """Return the seconds that the busiest worker ran, and that it waited for a processor."""
        shares = self._shares()
        if not shares:
            return 0.0, 0.0
        row = max(shares, key=lambda worker: shares[worker])
        waited_ns = self._waited_ns[row]
        return (self._busy_ns[row] - waited_ns) / 1e9, waited_ns / 1e9

    def _shares(self) -> dict[int, float]:
        return {row: self._busy_ns[row] / span for row, span in self._span_ns.items() if span}


class GroupTally:
    """Counters of some groups, each by itself, and what was under way between them each second."""

    def __init__(self, groups: Iterable[str]) -> None:
        self._groups = frozenset(groups)
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._moved: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._ended_ns: Counter[int] = Counter()

    def add(self, row: Interval) -> None:
        """Count one row."""
        if row.group not in self._groups or row.series:
            return
        self._counts[row.group, row.phase].update(_counted(row))
        self._moved[row.second][row.group] += row.expected - row.received
        self._ended_ns[row.second] = max(self._ended_ns[row.second], row.time_ns + row.span_ns)

    def total(self, group: str, name: str, phase: str | None = None) -> int:
        """Sum of a counter of one group, over all phases or one."""
        return sum(
            counts[name]
            for (of, at), counts in self._counts.items()
            if of == group and phase in (None, at)
        )

    def under_way(self, groups: Iterable[str]) -> list[tuple[int, int]]:
        """Return (time in ns, expected and not received by then) at the end of each second."""
        chosen = tuple(groups)
        course = []
        count = 0
        for second in sorted(self._moved):
            count += sum(self._moved[second][group] for group in chosen)
            course.append((self._ended_ns[second], count))
        return course
