"""The score card of one run, built from its record and the views of its interval table.

Pure: it depends on neither Spark nor files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.cases.registry import CASES
from loadgen.errors import RunDirectoryError
from loadgen.judge.ledger import Counted, Ledger
from loadgen.judge.verdict import Reason, Remark, Verdict
from loadgen.metrics.interval import CONNECT_SERIES, COUNTERS
from loadgen.metrics.reducer import LatencySummary, reduce_table, summarize
from loadgen.plan.reading import figures
from loadgen.report.build.broker_section import BrokerLoad, broker_load
from loadgen.report.build.curves import curves_of, group_totals, rates_of
from loadgen.report.build.observed import (
    notice_of,
    observed_details,
    observed_rows,
    observed_sections,
)
from loadgen.report.build.outages import (
    lost_sections,
    made_worse_remarks,
    outage_sections,
    recovery_remarks,
)
from loadgen.report.build.own_share import own_share_remark
from loadgen.report.build.published_rows import published_details, published_sections
from loadgen.report.build.record_sections import (
    ceiling_of,
    ledger_sections,
    ledgers,
    record_details,
    system_sections,
    tls_notice,
    tls_sections,
)
from loadgen.report.build.record_sections import rack_units as described_units
from loadgen.report.build.rows import Facts, score_rows, with_latency
from loadgen.report.messages import Message
from loadgen.report.power.power import OutletPower, verdict_on
from loadgen.report.record import RunFiles, RunRecord
from loadgen.report.score_card import (
    Connecting,
    Counts,
    NodePower,
    PackedCurves,
    Power,
    Run,
    ScoreCard,
)
from loadgen.report.views import BACKGROUND, Views
from loadgen.run.seal import Integrity

"""Remarks of each kind that a row shows; the table of outlets has all of them."""

_LISTS = ["bucket", "bucket_count"]

_SERIES_ORDER = ("end_to_end", "transit", "send_delay", "own_delay", "acknowledge", *CONNECT_SERIES)


def build(
    run: RunFiles,
    views: Views,
    outlets: Sequence[OutletPower] | None = None,
    rack_units: float | None = None,
) -> ScoreCard:
    """Return the score card of one run from its record and views.

    `outlets` are over `wall_window`, None without power logs; `rack_units` is the height of the
    system under test. Raises RunDirectoryError if no row belongs to the measurement window.
    """
    record = run.record
    rack_units = described_units(record) if rack_units is None else rack_units
    start_ns, end_ns = measured_window(record, views)
    seconds = (end_ns - start_ns) / 1e9
    messages = not _is_connect_only(record)
    totals = views.totals
    counters = totals.filter(pc.and_(pc.equal(totals["series"], ""), _of_groups(totals)))
    in_window = counters.filter(pc.equal(counters["phase"], "measure"))
    sums, run_sums = _sums(in_window), _sums(counters)
    latency_rows = _latency_rows(totals, record.background)
    latency = {series: summarize(row) for series, row in latency_rows.items()}
    curves = curves_of(record, views, latency_rows, (start_ns, end_ns))
    rates = {
        name: sums[name] / seconds if messages else 0.0 for name in ("sent", "expected", "received")
    }
    rates |= rates_of(record, rates, curves.course, seconds)
    broker = None
    if run.broker is not None:
        through = sums["sent"] + sums["received"] if messages else 0
        broker = broker_load(run.broker, views.course, start_ns, end_ns, through)
    connect = Connecting(
        connected=run_sums["connects"] if record.connected is None else record.connected,
        failures=record.connect_failures,
        seconds=record.connect_seconds,
    )
    mark, of_one = figures(record.observed, "high_water_mark", "subscription_high_water_mark")
    if sum(group.count for group in record.groups if group not in record.publishing) == 1:
        of_one = mark  # the only clock; older runs do not record it
    power = None if outlets is None else _power(outlets, rates["egress"], rack_units)
    facts = Facts(
        record=record,
        rates=rates,
        latency=latency,
        connected=connect.connected,
        high_water_mark=None if mark is None else int(mark),
        subscription_high_water_mark=None if of_one is None else int(of_one),
        watts=power.watts if power and outlets and not power.withheld else None,
        rack_units=rack_units,
        messages_per_core_second=None if broker is None else broker.messages_per_core_second,
        remarks=_joined(
            made_worse_remarks(record),
            _remarks(broker, power, latency),
            recovery_remarks(record),
        ),
    )
    ledger, run_ledger = ledgers(record, Counted(sums), Counted(run_sums))
    notice = " ".join(filter(None, (notice_of(record), tls_notice(record))))
    return ScoreCard(
        run=_run(record, seconds),
        verdict=_verdict(record, run.integrity),
        rows=with_latency((*score_rows(facts), *observed_rows(record)), record.case, latency),
        counts=Counts(
            **{field.name: sums[field.name] for field in fields(Counts) if field.name in sums}
            | {key: run_sums[key] for key in ("connects", "connect_failures", "disconnects")},
            lost=ledger.lost,
            high_water_mark=facts.high_water_mark,
            subscription_high_water_mark=facts.subscription_high_water_mark,
        ),
        latency=latency,
        power=power,
        connect=connect,
        network=dict(sorted(record.network.items())),
        rates=rates,
        broker=broker,
        integrity=run.integrity,
        audit=record.audit or None,
        notice=notice,
        ledger=_ledger_document(record, ledger, run_ledger) if messages else None,
        sections=(
            *ledger_sections(record, ledger, run_ledger),
            *outage_sections(record, curves.course, curves.phases),
            *lost_sections(record),
            *published_sections(facts),
            *system_sections(record),
            *observed_sections(record),
            *tls_sections(record),
            *ceiling_of(record, rates, latency),
        ),
        details=published_details(facts) | observed_details(record) | record_details(record),
        packed_curves=PackedCurves(curves),
        groups=group_totals(record, in_window),
    )


def _ledger_document(record: RunRecord, window: Ledger, run: Ledger) -> dict[str, Any]:
    return {
        "window": window.document(),
        "run": run.document(),
        "refusals": dict(record.refusals),
        "proven": record.proven,
        "imbalances": list(record.imbalances),
    }


def measured_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """Return the measurement window on the monotonic clock, as (start_ns, end_ns).

    If the run was killed in the window, the last interval of messages intended in it is the end.
    For a run without messages (CONNBURST) the window is the connect phase. Raise
    RunDirectoryError if the run has no window or no row belongs to it.
    """
    phase = "connect" if _is_connect_only(record) else "measure"
    totals = views.totals
    rows = totals.filter(pc.and_(pc.equal(totals["phase"], phase), _of_groups(totals)))
    bounds = record.windows.get(phase)
    if bounds is None or not rows.num_rows:
        raise RunDirectoryError(Message.EMPTY_WINDOW(run=record.id[:80], phase=phase))
    start_ns, end_ns = bounds
    if end_ns is None or record.valid is None:
        last_ns = pc.max(pc.add(rows["time_ns"], rows["span_ns"])).as_py()
        end_ns = max(min(last_ns, end_ns or last_ns), start_ns + 1)
    if phase == "connect":
        # A burst without any answer has no length, but its failures deserve a card.
        end_ns = max(end_ns, start_ns + 1)
    if end_ns <= start_ns:
        raise RunDirectoryError(Message.REVERSED_WINDOW(run=record.id[:80], phase=phase))
    return start_ns, end_ns


def wall_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """Return the measurement window in UTC nanoseconds since the epoch, for power logs."""
    start_ns, end_ns = measured_window(record, views)
    if not record.wall_ns(start_ns):
        raise RunDirectoryError(Message.NO_WALL_CLOCK(run=record.id[:80]))
    return record.wall_ns(start_ns), record.wall_ns(end_ns)


def _is_connect_only(record: RunRecord) -> bool:
    """Return True if the run publishes nothing: its result is the connect phase."""
    case = CASES.get(record.case)
    connects_only = case is not None and case.connects_only
    return connects_only or (bool(record.groups) and not record.publishing)


def _run(record: RunRecord, seconds: float) -> Run:
    own = ("seconds", "broker", "protocol")
    same = {f.name: getattr(record, f.name) for f in fields(Run) if f.name not in own}
    broker = dict(record.broker)
    protocol = str(broker.pop("protocol", "") or "")
    return Run(**same, seconds=seconds, broker=broker, protocol=protocol)


def _joined(*remarks: Mapping[str, str]) -> dict[str, str]:
    """Return the remarks about each measure in one text."""
    measures = {measure: None for one in remarks for measure in one}
    return {
        measure: " ".join(one[measure] for one in remarks if measure in one) for measure in measures
    }


def _remarks(
    broker: BrokerLoad | None, power: Power | None, latency: Mapping[str, LatencySummary]
) -> dict[str, str]:
    """Return the remarks about rows, by their measure."""
    of_power = "" if power is None else power.remark
    remarks = {
        "latency": own_share_remark(latency),
        "messages_per_core_second": "" if broker is None else broker.withheld,
        "messages_per_watt": of_power,
        "joules_per_message": of_power,
    }
    return {measure: remark for measure, remark in remarks.items() if remark}


def _verdict(record: RunRecord, integrity: Integrity) -> Verdict:
    """Return the verdict of the run; a run without one was killed.

    The recorded verdict does not hold for a run whose files were changed after its end.
    """
    reasons = [Reason(cast("Any", code), detail) for code, detail in record.reasons]
    cut_off = record.valid is None or record.interrupted
    if cut_off and all(reason.code != "INTERRUPTED" for reason in reasons):
        detail = "stopped before its end" if record.interrupted else "ended without a verdict"
        reasons.append(Reason("INTERRUPTED", f"the run {detail}; what it measured until then"))
    if integrity.state == "changed":
        changes = "; ".join(integrity.changes)
        reasons.append(Reason("CHANGED", f"since the run ended: {changes}"))
    if record.valid is False and not reasons:
        reasons.append(Reason(cast("Any", "INVALID"), "the run gives no reason"))
    remarks = [Remark(cast("Any", code), detail) for code, detail in record.remarks]
    return Verdict(tuple(reasons), tuple(remarks))


def _of_groups(table: pa.Table) -> pa.ChunkedArray:
    return pc.not_equal(table["group"], "")


def _sums(counters: pa.Table) -> dict[str, int]:
    return {name: pc.sum(counters[name]).as_py() or 0 for name in COUNTERS}


def _latency_rows(totals: pa.Table, background: frozenset[str]) -> dict[str, dict[str, Any]]:
    """Map series, as named in the score card, to merged rows: timed groups, then background."""
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
        table = reduce_table(part, ("series",))
        by_series = {row["series"]: row for row in table.drop_columns(_LISTS).to_pylist()}
        for name in _LISTS:
            # As arrays: lists of integers would take six times as much memory.
            for row, cell in zip(by_series.values(), table[name], strict=True):
                row[name] = pa.array(cell.values.to_numpy().copy())
        others = sorted(by_series.keys() - {*_SERIES_ORDER})
        ordered = (*filter(by_series.get, _SERIES_ORDER), *others)
        merged |= {f"{prefix}{name}": by_series[name] for name in ordered}
    return merged


def _power(
    outlets: Sequence[OutletPower], received_per_s: float, rack_units: float | None
) -> Power:
    nodes: dict[str, list[OutletPower]] = {}
    for outlet in outlets:
        nodes.setdefault(outlet.node, []).append(outlet)
    watts = sum(outlet.watts for outlet in outlets)
    withheld, remark = verdict_on(outlets)
    return Power(
        outlets=tuple(outlets),
        nodes=tuple(
            NodePower(node, len(own), sum(outlet.watts for outlet in own))
            for node, own in nodes.items()
        ),
        watts=watts,
        messages_per_watt=received_per_s / watts if watts and not withheld else None,
        joules_per_message=watts / received_per_s if received_per_s and not withheld else None,
        watts_per_rack_unit=watts / rack_units if rack_units and not withheld else None,
        withheld=withheld,
        remark=remark,
    )
