"""Adds up what workers report during a run: counts, series, processor time, messages under way."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from threading import Lock

from loadgen.metrics.histogram import lowest_values, merge, percentiles
from loadgen.metrics.interval import CONNECT_SERIES, COUNTERS, HISTOGRAM, Interval, with_latencies
from loadgen.metrics.reducer import LatencySummary, summarize

Series = dict[tuple[str, str], Interval]
"""The latencies of a phase's messages, by phase and series."""
_LATE_ROWS = 1_000


def p99_us(rows: Iterable[Interval]) -> float | None:
    """Return the 99th percentile in µs of the rows' latencies together, None if there are none."""
    parts = [(row.bucket, row.bucket_count) for row in rows if row.count]
    if not parts:
        return None
    bucket, count = merge(parts)
    return float(percentiles(count, (99,), bucket)[0]) / 1000


class Tally:
    """Sums over the interval rows of one run.

    Counters are by phase and group, series of the timed groups by (phase, series), both by host,
    too; processor time is by worker for the phases that matter, messages under way by second.
    """

    def __init__(self, timed_groups: Iterable[str], loop_phases: Sequence[str]) -> None:
        self._series: defaultdict[int | None, Series] = defaultdict(dict)
        self._late: list[Interval] = []
        self._lock = Lock()  # the live metrics are read in another thread
        self.window_of_host: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._counts: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        self._moved: defaultdict[int, Counter[str]] = defaultdict(Counter)
        self._ended_ns: Counter[int] = Counter()
        self._timed = frozenset(timed_groups)
        self._loop_phases = frozenset(loop_phases)
        self._busy_ns: Counter[int] = Counter()
        self._waited_ns: Counter[int] = Counter()
        self._span_ns: Counter[int] = Counter()

    def add(self, row: Interval) -> None:
        if row.group == "":
            if row.phase in self._loop_phases:
                self._busy_ns[row.worker] += row.cpu_ns + row.wait_ns
                self._waited_ns[row.worker] += row.wait_ns
                self._span_ns[row.worker] += row.span_ns
        elif row.series == "":
            counts = {name: value for name in COUNTERS if (value := getattr(row, name))}
            self._counts[row.phase, row.group].update(counts)
            if row.phase == "measure":
                self.window_of_host[row.host].update(counts)
            self._moved[row.second][row.group] += row.expected - row.received
            self._ended_ns[row.second] = max(self._ended_ns[row.second], row.time_ns + row.span_ns)
        elif row.group in self._timed and row.count:
            with self._lock:
                self._late.append(row)
            if len(self._late) > _LATE_ROWS:
                self.series_of()

    def series_of(self, host: int | None = None) -> Series:
        """Return the series of one host or of all.

        Rows are merged here: one at a time they would cost too much.
        """
        with self._lock:
            late, self._late = self._late, []
            parts: defaultdict[tuple[int | None, str, str], list[Interval]] = defaultdict(list)
            for row in late:
                parts[None, row.phase, row.series].append(row)
                parts[row.host, row.phase, row.series].append(row)
            for (at, *names), rows in parts.items():
                held, key = self._series[at], (names[0], names[1])
                held[key] = with_latencies(*([held[key]] if key in held else []), *rows)
        return self._series[host]

    @property
    def series(self) -> Series:
        return self.series_of()

    def counts(
        self, phase: str | None = None, groups: Collection[str] | None = None
    ) -> Counter[str]:
        """Return the counts of some groups in a phase; None stands for all."""
        total: Counter[str] = Counter()
        for (at, group), counted in self._counts.items():
            if phase in (None, at) and (groups is None or group in groups):
                total.update(counted)
        return total

    def total(self, group: str, name: str, phase: str | None = None) -> int:
        return self.counts(phase, (group,))[name]

    def under_way(self, groups: Iterable[str]) -> list[tuple[int, int]]:
        """Return (time in ns, expected and not received by then) at the end of each second."""
        chosen = tuple(groups)
        course = []
        count = 0
        for second in sorted(self._moved):
            count += sum(self._moved[second][group] for group in chosen)
            course.append((self._ended_ns[second], count))
        return course

    def p99_us(self, phase: str, series: str, host: int | None = None) -> float | None:
        """Return p99 in µs of a series, or `own_send`, of a host or all; None if it is empty."""
        own = series == "own_send"
        of = self.series_of(host)
        held = own_send(of, phase) if own else of.get((phase, series))
        return None if held is None else p99_us((held,))

    def above(self, phase: str, series: str, bound_ns: float) -> int:
        """Return the number of latencies of a series that are certainly above the bound."""
        held = self.series.get((phase, series), Interval())
        return int(held.bucket_count[lowest_values(held.bucket) > bound_ns].sum())

    def latencies(self) -> dict[str, LatencySummary]:
        """Return each series of the timed groups: of the window's messages, and of all connects."""
        held: dict[str, Interval] = {}
        if (own := own_send(self.series, "measure")) is not None:
            held["own_send"] = own
        for (phase, name), row in self.series.items():
            if phase == "measure" or name in CONNECT_SERIES:
                held[name] = with_latencies(held[name], row) if name in held else row
        return {
            name: summarize({column: getattr(row, column) for column in HISTOGRAM})
            for name, row in held.items()
        }

    def busy_share_max(self) -> float:
        """Return the greatest share of the time, over the workers, in which a loop was not idle.

        Waiting for a processor counts as busy: the loop had work and could not do it.
        """
        return max(self.busy_shares().values(), default=0.0)

    def busiest_s(self) -> tuple[float, float]:
        """Return the seconds that the busiest worker ran, and that it waited for a processor."""
        shares = self.busy_shares()
        row = max(shares, key=lambda worker: shares[worker], default=0)
        waited_ns = self._waited_ns[row]
        return (self._busy_ns[row] - waited_ns) / 1e9, waited_ns / 1e9

    def busy_shares(self) -> dict[int, float]:
        spans = self._span_ns.items()
        return {row: min(1.0, self._busy_ns[row] / span) for row, span in spans if span}


def own_send(series: Series, phase: str) -> Interval | None:
    """Return the send delay of publishers that did not wait for the broker, None without any."""
    sent, held = (series.get((phase, name)) for name in ("send_delay", "pushed_back"))
    if sent is None or held is None:
        return sent
    bucket, count = merge([(sent.bucket, sent.bucket_count), (held.bucket, -held.bucket_count)])
    if not count.sum():
        return None
    return replace(
        sent,
        count=int(count.sum()),
        sum_ns=sent.sum_ns - held.sum_ns,
        max_ns=min(sent.max_ns, int(percentiles(count, (100,), bucket)[0])),
        bucket=bucket,
        bucket_count=count,
    )
