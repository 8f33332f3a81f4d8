"""The score card of one run, built from its record and the views of its interval table.

Pure: it depends on neither Spark nor files.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from loadgen.cases.registry import CASES
from loadgen.errors import RunDirectoryError
from loadgen.judge.ledger import Counted, ledgers_of
from loadgen.judge.verdict import Reason, Remark, Verdict
from loadgen.metrics.interval import CONNECT_SERIES, COUNTERS
from loadgen.metrics.reducer import reduce_table, summarize
from loadgen.plan.reading import figure, figures, part
from loadgen.report import score_card
from loadgen.report.build import sections
from loadgen.report.build.broker_section import broker_load
from loadgen.report.build.curves import curves_of, rates_of
from loadgen.report.build.published_rows import published_details, published_sections
from loadgen.report.build.rows import Facts, score_rows, with_latency
from loadgen.report.packing import packed
from loadgen.report.power.power import OutletPower, verdict_on
from loadgen.report.record import PlannedGroup, RunFiles, RunRecord
from loadgen.report.score_card import Counts, ScoreCard
from loadgen.report.views import BACKGROUND, Views
from loadgen.run.seal import Integrity
from loadgen.sentences import REPORT_TEXT

_LISTS = ["bucket", "bucket_count"]
_SERIES_ORDER = ("end_to_end", "transit", "send_delay", "own_delay", "acknowledge", *CONNECT_SERIES)


def build(
    run: RunFiles,
    views: Views,
    outlets: Sequence[OutletPower] | None = None,
    rack_units: float | None = None,
) -> ScoreCard:
    """Return the score card of one run from its record and views.

    `outlets` are over `wall_window`, None without power logs. Raise RunDirectoryError if no row
    belongs to the measurement window.
    """
    record, totals = run.record, views.totals
    if rack_units is None:
        rack_units = figure(part(record.sut, "machine"), "rack_units")
    start_ns, end_ns = measured_window(record, views)
    seconds = (end_ns - start_ns) / 1e9
    counters = totals.filter(pc.and_(pc.equal(totals["series"], ""), _of_groups(totals)))
    in_window = counters.filter(pc.equal(counters["phase"], "measure"))
    sums, run_sums = _sums(in_window), _sums(counters)
    latency_rows = _latency_rows(totals, record.background)
    curves = curves_of(record, views, latency_rows, (start_ns, end_ns))
    messages = not _is_connect_only(record)
    due = ("sent", "expected", "received")
    rates = {name: sums[name] / seconds if messages else 0.0 for name in due}
    rates |= rates_of(record, rates, curves.course, seconds)
    ledger, run_ledger = record.ledger, record.run_ledger
    if ledger is None or run_ledger is None:
        # A run that was cut off did not determine where its messages ended.
        observed = record.valid is not None and not record.observed.get("workers_lost")
        ledger, run_ledger = ledgers_of(Counted(sums), Counted(run_sums), observed=observed)
    mark, of_one = figures(record.observed, "high_water_mark", "subscription_high_water_mark")
    if sum(group.count for group in record.groups if group not in record.publishing) == 1:
        of_one = mark  # of the only subscriber; older runs do not record it
    through = sums["sent"] + sums["received"] if messages else 0
    card = ScoreCard(
        run=_run(record, seconds),
        verdict=_verdict(record, run.integrity),
        rows=(),
        counts=Counts(
            **{field.name: sums[field.name] for field in fields(Counts) if field.name in sums}
            | {key: run_sums[key] for key in ("connects", "connect_failures", "disconnects")},
            lost=ledger.lost,
            high_water_mark=None if mark is None else int(mark),
            subscription_high_water_mark=None if of_one is None else int(of_one),
        ),
        latency={series: summarize(row) for series, row in latency_rows.items()},
        power=None if outlets is None else _power(outlets, rates["egress"], rack_units),
        connect=score_card.Connecting(
            connected=run_sums["connects"] if record.connected is None else record.connected,
            failures=record.connect_failures,
            seconds=record.connect_seconds,
        ),
        network=dict(sorted(item for item in record.network.items() if item[0] != "sent_segments")),
        rates=rates,
        broker=None
        if run.broker is None
        else broker_load(run.broker, views.course, start_ns, end_ns, through),
        integrity=run.integrity,
        audit=record.audit or None,
        notice=sections.notice_of(record),
        ledger={
            "window": ledger.document(),
            "run": run_ledger.document(),
            "refusals": dict(record.refusals),
            "proven": record.proven,
            "imbalances": list(record.imbalances),
        }
        if messages
        else None,
        packed_curves=packed(curves),
        groups=_groups(record, in_window),
    )
    facts = Facts(record, card, rack_units)
    rows = (*score_rows(facts), *sections.observed_rows(record))
    return replace(
        card,
        rows=with_latency(rows, record.case, card.latency),
        sections=(
            *sections.ledger_sections(record, ledger, run_ledger),
            *sections.outage_sections(record, curves.course, curves.phases),
            *sections.lost_sections(record),
            *published_sections(facts),
            *sections.system_sections(record),
            *sections.observed_sections(record),
            *sections.tls_sections(record),
            *sections.ceiling_of(record, rates, card.latency),
        ),
        details=published_details(facts) | sections.record_details(record),
    )


def measured_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """Return the measurement window on the monotonic clock, as (start_ns, end_ns).

    A run that was killed in it ends with its last interval there. For a run without messages it is
    the connect phase. Raise RunDirectoryError if it is missing or has no row.
    """
    phase = "connect" if _is_connect_only(record) else "measure"
    totals = views.totals
    rows = totals.filter(pc.and_(pc.equal(totals["phase"], phase), _of_groups(totals)))
    bounds = record.windows.get(phase)
    if bounds is None or not rows.num_rows:
        raise RunDirectoryError(REPORT_TEXT.EMPTY_WINDOW(run=record.id[:80], phase=phase))
    start_ns, end_ns = bounds
    if end_ns is None or record.valid is None:
        last_ns = pc.max(pc.add(rows["time_ns"], rows["span_ns"])).as_py()
        end_ns = max(min(last_ns, end_ns or last_ns), start_ns + 1)
    if phase == "connect":
        # A burst without any answer has no length, but its failures deserve a card.
        end_ns = max(end_ns, start_ns + 1)
    if end_ns <= start_ns:
        raise RunDirectoryError(REPORT_TEXT.REVERSED_WINDOW(run=record.id[:80], phase=phase))
    return start_ns, end_ns


def wall_window(record: RunRecord, views: Views) -> tuple[int, int]:
    """Return the measurement window in UTC nanoseconds since the epoch, for power logs."""
    start_ns, end_ns = measured_window(record, views)
    if not record.wall_ns(start_ns):
        raise RunDirectoryError(REPORT_TEXT.NO_WALL_CLOCK(run=record.id[:80]))
    return record.wall_ns(start_ns), record.wall_ns(end_ns)


def _is_connect_only(record: RunRecord) -> bool:
    """Return True if the run publishes nothing: its result is the connect phase."""
    case = CASES.get(record.case)
    connects_only = case is not None and case.connects_only
    return connects_only or (bool(record.groups) and not record.publishing)


def _run(record: RunRecord, seconds: float) -> score_card.Run:
    own = ("seconds", "broker", "protocol")
    same = {f.name: getattr(record, f.name) for f in fields(score_card.Run) if f.name not in own}
    broker = dict(record.broker)
    protocol = str(broker.pop("protocol", "") or "")
    return score_card.Run(**same, seconds=seconds, broker=broker, protocol=protocol)


def _verdict(record: RunRecord, integrity: Integrity) -> Verdict:
    """Return the verdict; a run without one, or changed after its end, is INVALID."""
    reasons = [Reason(code, detail) for code, detail in record.reasons]
    cut_off = record.valid is None or record.interrupted
    if cut_off and all(reason.code != "INTERRUPTED" for reason in reasons):
        detail = "stopped before its end" if record.interrupted else "ended without a verdict"
        reasons.append(Reason("INTERRUPTED", f"the run {detail}; figures end there"))
    if integrity.state == "changed":
        changes = "; ".join(integrity.changes)
        reasons.append(Reason("CHANGED", f"since the run ended: {changes}"))
    if record.valid is False and not reasons:
        reasons.append(Reason("INVALID", "the run gives no reason"))
    return Verdict(tuple(reasons), tuple(Remark(code, detail) for code, detail in record.remarks))


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
    for prefix, of_class in (("", pc.invert(is_background)), (f"{BACKGROUND}.", is_background)):
        table = reduce_table(rows.filter(of_class), ("series",))
        by_series = {row["series"]: row for row in table.drop_columns(_LISTS).to_pylist()}
        for name in _LISTS:
            # As arrays: lists of integers would take six times as much memory.
            for row, cell in zip(by_series.values(), table[name], strict=True):
                row[name] = pa.array(cell.values.to_numpy().copy())
        last = sorted(by_series.keys() - {*_SERIES_ORDER})
        ordered = (*filter(by_series.get, _SERIES_ORDER), *last)
        merged |= {f"{prefix}{name}": by_series[name] for name in ordered}
    return merged


def _groups(record: RunRecord, in_window: pa.Table) -> tuple[score_card.GroupTotals, ...]:
    """Return the counters in the window of the plan's groups, then of other groups with rows."""
    by_group = {row["group"]: row for row in reduce_table(in_window, ("group",)).to_pylist()}
    groups = {group.name: group for group in record.groups}
    return tuple(
        score_card.GroupTotals(
            planned=groups.get(name) or PlannedGroup(name, 0),
            counters={counter: by_group.get(name, {}).get(counter, 0) for counter in COUNTERS},
        )
        for name in (*groups, *sorted(by_group.keys() - groups.keys()))
    )


def _power(
    outlets: Sequence[OutletPower], received_per_s: float, rack_units: float | None
) -> score_card.Power:
    nodes: dict[str, list[OutletPower]] = {}
    for outlet in outlets:
        nodes.setdefault(outlet.node, []).append(outlet)
    watts = sum(outlet.watts for outlet in outlets)
    withheld, remark = verdict_on(outlets)
    return score_card.Power(
        outlets=tuple(outlets),
        nodes=tuple(
            score_card.NodePower(node, len(members), sum(outlet.watts for outlet in members))
            for node, members in nodes.items()
        ),
        watts=watts,
        messages_per_watt=received_per_s / watts if watts and not withheld else None,
        joules_per_message=watts / received_per_s if received_per_s and not withheld else None,
        watts_per_rack_unit=watts / rack_units if rack_units and not withheld else None,
        withheld=withheld,
        remark=remark,
    )
