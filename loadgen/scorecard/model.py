"""The score card of a run as data: what scorecard.json holds, and the curves that pages draw.

`build` is pure: it gets the run's record and the views of its interval table, and knows neither
Spark nor files. What only pages need is in `Curves` and stays out of the JSON.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.control.seal import Integrity
from loadgen.errors import RunDirectoryError
from loadgen.metrics.histogram import percentiles
from loadgen.metrics.interval import COUNTERS, PHASES
from loadgen.metrics.reducer import reduce_table
from loadgen.scorecard.broker import BrokerLoad, BrokerRecords, Traffic, broker_load
from loadgen.scorecard.ceiling import ceiling_of
from loadgen.scorecard.encryption import tls_details, tls_notice, tls_sections
from loadgen.scorecard.latency import Latency, latency_of
from loadgen.scorecard.outages import outage_sections
from loadgen.scorecard.power import OutletPower
from loadgen.scorecard.record import Group, RunFiles, RunRecord
from loadgen.scorecard.rows import Facts, Row, score_rows
from loadgen.scorecard.sections import Section, details_of, more_rows, sections_of
from loadgen.scorecard.supply import audit_of, notice_of, supply_details, supply_sections
from loadgen.scorecard.views import BACKGROUND, TIMED, Views

CONNECT_SERIES = ("connect", "tcp", "tls", "connack", "suback")
"""Latency series of devices, not of messages: they belong to no measurement window."""

_SERIES_ORDER = ("end_to_end", "transit", "send_delay", "acknowledge", *CONNECT_SERIES)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a run is not valid: an upper-case code of the contract and what was seen."""

    code: str
    detail: str


@dataclass(frozen=True, slots=True)
class Verdict:
    valid: bool
    reasons: tuple[Reason, ...]

    @property
    def word(self) -> str:
        return "VALID" if self.valid else "INVALID"


@dataclass(frozen=True, slots=True)
class Run:
    """Which run it was. `seconds` is the length of the measurement window, or for a run without
    one (CONNBURST) that of the connect phase."""

    id: str
    case: str
    started: str
    seconds: float
    hosts: int
    workers: int
    broker: Mapping[str, Any]
    protocol: str
    scenario: Mapping[str, Any]
    environment: Mapping[str, Any]
    program: str
    command: tuple[str, ...]
    seed: int | None

    @property
    def broker_name(self) -> str:
        """Name and version, as far as they are known."""
        return " ".join(
            str(self.broker[key]) for key in ("name", "version") if self.broker.get(key)
        )


@dataclass(frozen=True, slots=True)
class Counts:
    """Messages intended in the window and deliveries; connections over the whole run."""

    sent: int
    expected: int
    received: int
    lost: int
    duplicated: int
    out_of_order: int
    corrupt: int
    connects: int
    connect_failures: int
    disconnects: int
    high_water_mark: int | None
    acknowledged: int
    foreign: int


@dataclass(frozen=True, slots=True)
class NodePower:
    """The outlets that feed one machine, "" for those given without one."""

    name: str
    outlets: int
    watts: float


@dataclass(frozen=True, slots=True)
class Power:
    """Mean power over the window; `watts` is the sum over the outlets.

    Messages are those received: the report divides the rate of PERSISTENT by the watts.
    """

    outlets: tuple[OutletPower, ...]
    nodes: tuple[NodePower, ...]
    watts: float
    messages_per_watt: float | None
    joules_per_message: float | None
    watts_per_rack_unit: float | None


@dataclass(frozen=True, slots=True)
class Connecting:
    """How the devices came in; `seconds` None where the phase did not end."""

    connected: int
    failures: Mapping[str, int]
    seconds: float | None


@dataclass(frozen=True, slots=True)
class Curve:
    """Distribution of one series: (percentile, µs), ascending, the last at 100."""

    series: str
    count: int
    points: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Moment:
    """One second of a run, at `at_s` seconds after the window's start, `span_s` long.

    `sent` and `received` are rates a second of the part in which messages were due, `covered_s`
    long and beginning at `covered_at_s`; None where that part is too short to tell a rate.
    `connects`, `connect_failures` and `disconnects` are how many there were, `connected` how many
    devices were at its end.
    """

    at_s: float
    span_s: float
    covered_at_s: float
    covered_s: float
    sent: float | None
    received: float | None
    connects: int
    connect_failures: int
    disconnects: int
    connected: int
    p50_us: float | None
    p99_us: float | None
    max_us: float | None


@dataclass(frozen=True, slots=True)
class ProcessMoment:
    """One second of one worker: shares of a processor used and waited for, 0 to 1."""

    worker: str
    at_s: float
    used: float
    waited: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class GroupTotals:
    """Counters of one group of devices over the window."""

    name: str
    devices: int
    counters: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Histogram:
    """The merged histogram of one series: the exact sums, and the buckets of
    `metrics.histogram` that are not empty, ascending."""

    series: str
    count: int
    sum_ns: int
    min_ns: int
    max_ns: int
    bucket: tuple[int, ...]
    bucket_count: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Curves:
    """What pages draw and exports hold beside the numbers.

    Times are seconds after the window's start, which is `wall_start_ns` in UTC nanoseconds since
    the epoch, 0 where the run did not record its wall clock.
    """

    wall_start_ns: int = 0
    histograms: tuple[Histogram, ...] = ()

    phases: tuple[tuple[str, float, float], ...] = ()
    distribution: tuple[Curve, ...] = ()
    course: tuple[Moment, ...] = ()
    backlog: tuple[tuple[float, int, int], ...] = ()
    """(seconds, messages owed by publishers, deliveries outstanding)"""
    processes: tuple[ProcessMoment, ...] = ()
    groups: tuple[GroupTotals, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoreCard:
    """One run's result: scorecard.json, schema 1, and the curves beside it."""

    run: Run
    verdict: Verdict
    rows: tuple[Row, ...]
    counts: Counts
    latency: Mapping[str, Latency]
    power: Power | None
    connect: Connecting
    network: Mapping[str, int]
    rates: Mapping[str, float]
    """Messages a second, of those intended in the window: sent, expected, received."""
    curves: Curves = field(default_factory=Curves)
    audit: Mapping[str, Any] | None = None
    notice: str = ""
    """What must stand before any figure."""
    sections: tuple[Section, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict)
    """What only some cases have, under the names that scorecard.json gives it."""
    broker: BrokerLoad | None = None
    integrity: Integrity = Integrity("unsealed", {})  # noqa: RUF009 (frozen, never changed)


def build(
    run: RunFiles,
    views: Views,
    outlets: Sequence[OutletPower] | None = None,
    rack_units: float | None = None,
) -> ScoreCard:
    """The score card of one run from its record and views.

    `outlets` are over `wall_window`, None without power logs; `rack_units` is the height of what
    was measured. Raises RunDirectoryError where no row belongs to the measurement window.
    """
    record = run.record
    start_ns, end_ns = measured_window(record, views)
    seconds = (end_ns - start_ns) / 1e9
    messages = not _is_connect_only(record)
    totals = views.totals
    counters = totals.filter(pc.and_(pc.equal(totals["series"], ""), _not_process(totals)))
    in_window = counters.filter(pc.equal(counters["phase"], "measure"))
    sums = _sums(in_window)
    whole = _sums(counters)
    rates = {
        name: sums[name] / seconds if messages else 0.0 for name in ("sent", "expected", "received")
    }
    latency_rows = _latency_rows(totals, record.background)
    latency = {name: latency_of(row) for name, row in latency_rows.items()}
    broker = None
    if run.broker is not None:
        through = sums["sent"] + sums["received"] if messages else 0
        broker = _broker_load(run.broker, views.course, start_ns, end_ns, through)
    connect = Connecting(
        connected=whole["connects"] if record.connected is None else record.connected,
        failures=record.connect_failures,
        seconds=record.connect_seconds,
    )
    facts = Facts(
        record=record,
        rates=rates,
        latency=latency,
        connected=connect.connected,
        connect_seconds=record.connect_seconds,
        high_water_mark=_optional_int(record.observed.get("high_water_mark")),
        watts=sum(outlet.watts for outlet in outlets) if outlets else None,
        rack_units=rack_units,
        messages_per_core_second=None if broker is None else broker.messages_per_core_second,
    )
    course = _course(views.course, start_ns, _due(record, start_ns, end_ns))
    phases = _phases(record, start_ns, end_ns)
    power = None if outlets is None else _power(outlets, rates["received"], rack_units)
    notice = " ".join(filter(None, (notice_of(record), tls_notice(record))))
    return ScoreCard(
        run=_run(record, seconds),
        verdict=_verdict(record, run.integrity),
        rows=(*score_rows(facts), *more_rows(record)),
        counts=Counts(
            sent=sums["sent"],
            expected=sums["expected"],
            received=sums["received"],
            lost=sums["expected"] - sums["received"],
            duplicated=sums["duplicated"],
            out_of_order=sums["out_of_order"],
            corrupt=sums["corrupt"],
            connects=whole["connects"],
            connect_failures=whole["connect_failures"],
            disconnects=whole["disconnects"],
            high_water_mark=facts.high_water_mark,
            acknowledged=sums["acknowledged"],
            foreign=sums["foreign"],
        ),
        latency=latency,
        power=power,
        connect=connect,
        network=dict(sorted(record.network.items())),
        rates=rates,
        broker=broker,
        integrity=run.integrity,
        audit=audit_of(record),
        notice=notice,
        sections=(
            *outage_sections(record, course, phases),
            *sections_of(record, rates),
            *supply_sections(record),
            *tls_sections(record),
            *ceiling_of(record, rates, latency),
        ),
        details=details_of(record, rates)
        | supply_details(record)
        | tls_details(record)
        | ({"notice": notice} if notice else {}),
        curves=Curves(
            wall_start_ns=_wall_ns(record, start_ns),
            histograms=tuple(_histogram(name, row) for name, row in latency_rows.items()),
            phases=phases,
            distribution=tuple(_curve(name, row) for name, row in latency_rows.items()),
            course=course,
            backlog=_backlog(record, start_ns),
            processes=_processes(views.processes, start_ns),
            groups=_groups(record.groups, in_window),
        ),
    )


def measured_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """The measurement window on the monotonic clock, as (start_ns, end_ns).

    A run that was killed in it did not reach its end: then the last interval of messages intended
    in the window ends it. For a run without messages (CONNBURST) it is the connect phase. Raises
    RunDirectoryError where there is none or no row belongs to it.
    """
    phase = "connect" if _is_connect_only(record) else "measure"
    totals = views.totals
    rows = totals.filter(pc.and_(pc.equal(totals["phase"], phase), _not_process(totals)))
    bounds = record.windows.get(phase)
    if bounds is None or not rows.num_rows:
        raise RunDirectoryError(
            f"run {record.id[:80]} has no rows in its {phase} window; it ended before anything "
            "was measured"
        )
    start_ns, end_ns = bounds
    if end_ns is None or record.valid is None:
        last_ns = pc.max(pc.add(rows["time_ns"], rows["span_ns"])).as_py()
        end_ns = max(min(last_ns, end_ns or last_ns), start_ns + 1)
    if phase == "connect":
        # A burst that nobody answered has no length, but failures worth a card.
        end_ns = max(end_ns, start_ns + 1)
    if end_ns <= start_ns:
        raise RunDirectoryError(
            f"run {record.id[:80]} has a {phase} window that ends before it starts"
        )
    return start_ns, end_ns


def wall_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """The measurement window in UTC nanoseconds since the epoch, for logs of other machines."""
    start_ns, end_ns = measured_window(record, views)
    if not _wall_ns(record, start_ns):
        raise RunDirectoryError(
            f"run {record.id[:80]} does not tell its wall clock, so no power log can be joined"
        )
    return _wall_ns(record, start_ns), _wall_ns(record, end_ns)


def _wall_ns(record: RunRecord, moment_ns: int) -> int:
    """A moment in UTC nanoseconds since the epoch; 0 where the run has no wall clock."""
    monotonic_ns, wall_ns = record.clock
    return moment_ns - monotonic_ns + wall_ns if wall_ns else 0


def _is_connect_only(record: RunRecord) -> bool:
    """Whether the run publishes nothing: then its result is the connect phase."""
    return record.case == "connburst" or (bool(record.groups) and not record.publishing)


def _run(record: RunRecord, seconds: float) -> Run:
    broker = {name: value for name, value in record.broker.items() if name != "protocol"}
    return Run(
        id=record.id,
        case=record.case,
        started=record.started,
        seconds=seconds,
        hosts=record.hosts,
        workers=record.workers,
        broker=broker,
        protocol=str(record.broker.get("protocol") or ""),
        scenario=record.scenario,
        environment=record.environment,
        program=record.program,
        command=record.command,
        seed=record.seed,
    )


def _verdict(record: RunRecord, integrity: Integrity) -> Verdict:
    """The verdict of the run; one that never came means that the run was killed.

    A run that was changed after its end is not the run that was judged.
    """
    reasons = [Reason(code, detail) for code, detail in record.reasons]
    cut_off = record.valid is None or record.interrupted
    if cut_off and all(reason.code != "INTERRUPTED" for reason in reasons):
        detail = "stopped before its end" if record.interrupted else "ended without a verdict"
        reasons.append(Reason("INTERRUPTED", f"the run {detail}; what it measured until then"))
    if integrity.state == "changed":
        changes = "; ".join(integrity.changes)
        reasons.append(Reason("CHANGED", f"since the run ended: {changes}"))
    return Verdict(bool(record.valid) and not reasons, tuple(reasons))


def _not_process(table: pa.Table) -> pa.ChunkedArray:
    return pc.not_equal(table["group"], "")


def _sums(counters: pa.Table) -> dict[str, int]:
    return {name: pc.sum(counters[name]).as_py() or 0 for name in COUNTERS}


def _latency_rows(totals: pa.Table, background: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Name in the score card to the merged row, ordered: timed groups, then background."""
    is_connect = pc.is_in(totals["series"], pa.array(CONNECT_SERIES))
    counted = pc.or_(is_connect, pc.equal(totals["phase"], "measure"))
    is_series = pc.and_(pc.not_equal(totals["series"], ""), pc.greater(totals["count"], 0))
    rows = totals.filter(pc.and_(is_series, counted))
    is_background = pc.is_in(rows["group"], pa.array(sorted(background), pa.string()))
    merged: dict[str, dict[str, Any]] = {}
    for prefix, part in (
        ("", rows.filter(pc.invert(is_background))),
        (f"{BACKGROUND}.", rows.filter(is_background)),
    ):
        found = {row["series"]: row for row in reduce_table(part, ("series",)).to_pylist()}
        merged |= {f"{prefix}{name}": found[name] for name in sorted(found, key=_series_rank)}
    return merged


def _series_rank(series: str) -> tuple[int, str]:
    known = _SERIES_ORDER.index(series) if series in _SERIES_ORDER else len(_SERIES_ORDER)
    return known, series


_CURVE_STEPS_A_DECADE = 24


def _curve(name: str, row: Mapping[str, Any]) -> Curve:
    """Percentiles evenly spaced on the axis 1/(1-p), as far out as the count can tell."""
    count = int(row["count"])
    ps = [0.0]
    step = 1
    while (odds := 10 ** (step / _CURVE_STEPS_A_DECADE)) <= count:
        ps.append(100.0 * (1.0 - 1.0 / odds))
        step += 1
    values = percentiles(row["bucket_count"], ps, row["bucket"])
    highest_us = row["max_ns"] / 1000
    points = [(p, min(v / 1000, highest_us)) for p, v in zip(ps, values, strict=True)]
    points[0] = (0.0, row["min_ns"] / 1000)
    return Curve(name, count, (*points, (100.0, highest_us)))


def _histogram(name: str, row: Mapping[str, Any]) -> Histogram:
    return Histogram(
        series=name,
        count=int(row["count"]),
        sum_ns=int(row["sum_ns"]),
        min_ns=int(row["min_ns"]),
        max_ns=int(row["max_ns"]),
        bucket=tuple(row["bucket"]),
        bucket_count=tuple(row["bucket_count"]),
    )


def _power(
    outlets: Sequence[OutletPower], received_per_s: float, rack_units: float | None
) -> Power:
    nodes: dict[str, list[OutletPower]] = {}
    for outlet in outlets:
        nodes.setdefault(outlet.node, []).append(outlet)
    watts = sum(outlet.watts for outlet in outlets)
    return Power(
        outlets=tuple(outlets),
        nodes=tuple(
            NodePower(node, len(own), sum(outlet.watts for outlet in own))
            for node, own in nodes.items()
        ),
        watts=watts,
        messages_per_watt=received_per_s / watts if watts else None,
        joules_per_message=watts / received_per_s if received_per_s else None,
        watts_per_rack_unit=watts / rack_units if rack_units else None,
    )


def _broker_load(
    records: BrokerRecords, course: pa.Table, start_ns: int, end_ns: int, messages: int
) -> BrokerLoad:
    counters = course.filter(pc.equal(course["series"], ""))
    since_ns = counters["time_ns"].to_numpy()
    # What came more than once, damaged or from strangers came from the broker all the same.
    received = sum(
        counters[name].to_numpy() for name in ("received", "duplicated", "corrupt", "foreign")
    )
    traffic = Traffic(
        since_ns=since_ns,
        until_ns=since_ns + counters["span_ns"].to_numpy(),
        sent=counters["sent"].to_numpy(),
        received=received,
    )
    return broker_load(records, traffic, start_ns, end_ns, messages)


def _phases(record: RunRecord, start_ns: int, end_ns: int) -> tuple[tuple[str, float, float], ...]:
    known = [name for name in PHASES if name in record.windows]
    shaded = []
    for name in known:
        begin, end = record.windows[name]
        shaded.append((name, (begin - start_ns) / 1e9, ((end or end_ns) - start_ns) / 1e9))
    return tuple(shaded)


_SHORTEST_COVERED_S = 0.1
"""Of a shorter part of a second no rate is told."""


def _due(record: RunRecord, start_ns: int, end_ns: int) -> tuple[float, float]:
    """When messages were due, from and until, in seconds after the window's start."""
    first_ns = record.windows.get("warmup", (start_ns, None))[0]
    return (first_ns - start_ns) / 1e9, (end_ns - start_ns) / 1e9


def _course(course: pa.Table, start_ns: int, due: tuple[float, float]) -> tuple[Moment, ...]:
    moments: dict[int, Moment] = {}
    for row in course.filter(pc.equal(course["series"], "")).to_pylist():
        before = moments.get(row["second"])
        at_s, span_s = (row["time_ns"] - start_ns) / 1e9, row["span_ns"] / 1e9
        here = Moment(
            at_s=at_s,
            span_s=span_s,
            covered_at_s=at_s,
            covered_s=span_s,
            sent=row["sent_per_s"],
            received=row["received_per_s"],
            connects=row["connects"],
            connect_failures=row["connect_failures"],
            disconnects=row["disconnects"],
            connected=row["connected"],
            p50_us=None,
            p99_us=None,
            max_us=None,
        )
        moments[row["second"]] = here if before is None else _together(before, here)
    timed = pc.and_(pc.equal(course["group"], TIMED), pc.equal(course["series"], "end_to_end"))
    for row in course.filter(timed).to_pylist():
        if row["count"] and row["second"] in moments:
            moments[row["second"]] = replace(
                moments[row["second"]],
                p50_us=row["p50_ns"] / 1000,
                p99_us=row["p99_ns"] / 1000,
                max_us=row["max_ns"] / 1000,
            )
    covered = (_covered(moment, due) for moment in moments.values())
    return tuple(sorted(covered, key=lambda moment: moment.at_s))


def _covered(moment: Moment, due: tuple[float, float]) -> Moment:
    """The first and the last second of a schedule, as the rate of their part that was due.

    Drawn as whole seconds they would dip where nothing dipped.
    """
    since_s = max(moment.at_s, due[0])
    covered_s = min(moment.at_s + moment.span_s, due[1]) - since_s
    if covered_s <= 0 or covered_s >= moment.span_s:
        return moment
    if covered_s < _SHORTEST_COVERED_S:
        return replace(moment, covered_at_s=since_s, covered_s=covered_s, sent=None, received=None)
    scale = moment.span_s / covered_s
    return replace(
        moment,
        covered_at_s=since_s,
        covered_s=covered_s,
        sent=None if moment.sent is None else moment.sent * scale,
        received=None if moment.received is None else moment.received * scale,
    )


def _together(a: Moment, b: Moment) -> Moment:
    """Two classes of groups in the same second."""
    return replace(
        a,
        at_s=min(a.at_s, b.at_s),
        span_s=max(a.span_s, b.span_s),
        covered_at_s=min(a.at_s, b.at_s),
        covered_s=max(a.span_s, b.span_s),
        sent=(a.sent or 0.0) + (b.sent or 0.0),
        received=(a.received or 0.0) + (b.received or 0.0),
        connects=a.connects + b.connects,
        connect_failures=a.connect_failures + b.connect_failures,
        disconnects=a.disconnects + b.disconnects,
        connected=a.connected + b.connected,
    )


def _backlog(record: RunRecord, start_ns: int) -> tuple[tuple[float, int, int], ...]:
    samples: Iterable[Sequence[Any]] = record.observed.get("backlog_samples") or ()
    try:
        return tuple(((int(t) - start_ns) / 1e9, int(o), int(w)) for t, o, w in samples)
    except (TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"run {record.id[:80]}: run.json is damaged: backlog_samples: {error}"
        ) from None


def _processes(processes: pa.Table, start_ns: int) -> tuple[ProcessMoment, ...]:
    return tuple(
        ProcessMoment(
            worker=f"{row['host']}/{row['worker']}",
            at_s=(row["time_ns"] - start_ns) / 1e9,
            used=row["cpu_ns"] / max(row["span_ns"], 1),
            waited=row["wait_ns"] / max(row["span_ns"], 1),
            resident_bytes=row["resident_bytes"],
        )
        for row in processes.to_pylist()
    )


def _groups(groups: Sequence[Group], in_window: pa.Table) -> tuple[GroupTotals, ...]:
    found = {row["group"]: row for row in reduce_table(in_window, ("group",)).to_pylist()}
    devices = {group.name: group.count for group in groups}
    names = [*devices, *sorted(found.keys() - devices.keys())]
    return tuple(
        GroupTotals(
            name=name,
            devices=devices.get(name, 0),
            counters={counter: found.get(name, {}).get(counter, 0) for counter in COUNTERS},
        )
        for name in names
    )


def _optional_int(value: object) -> int | None:
    return None if value is None else int(str(value))
