"""Tables of a run for its score card, from run.json; unexpected parts of it are left out."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import pyarrow as pa

from loadgen.cases.registry import CASES
from loadgen.judge.ledger import Ledger
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import Object, count, figure, figures, objects, part, text
from loadgen.plan.sut import LINES, PARTS
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.build.rows import DATA, Row, table
from loadgen.report.record import RunRecord
from loadgen.report.render.text import NOTICE_CHARACTERS, name, number
from loadgen.sentences import REPORT_TEXT, percent

_MOST_SHOWN = 20
_MOST_LINES = 60
_MOST_HANDSHAKES = 40


_ALWAYS = ("sent", "expected", "intact", "lost")  # states that are shown even if they are 0


def ledger_sections(record: RunRecord, window: Ledger, run: Ledger) -> Iterator[DataTable]:
    if not run.intended and not run.foreign:
        return
    columns = (window.document(), run.document())
    rows: list[tuple[TableCell, ...]] = []
    subject = ""
    for about, state, words in DATA["ledger"]:
        subject = about or subject
        counts = [column[state] for column in columns]
        # All intended messages were sent, unless the publishers still owe some.
        wanted = run.owed if state == "intended" else any(counts) or state in _ALWAYS
        if wanted:
            rows.append((subject, words, *counts))
            subject = ""
    sums = REPORT_TEXT.SUMS_CLOSE() if record.proven else REPORT_TEXT.SUMS_UNKNOWN()
    if record.imbalances and not record.proven:
        sums = REPORT_TEXT.SUMS_OPEN(imbalances="; ".join(record.imbalances))
    yield table("ledger", rows, sums=sums)


def lost_sections(record: RunRecord) -> Iterator[DataTable]:
    """Yield a table of lost messages that the broker had acknowledged."""
    lost = part(record.observed, "lost")
    rows = []
    for loss in objects(lost.get("named"))[:_MOST_SHOWN]:
        device = f"{name(loss.get('group'))} {loss.get('device')}"
        rows.append((*figures(loss, "stream", "first", "last"), device))
    if rows:
        yield table("lost", rows, more=figure(lost, "more") or None)


OutageRow = tuple[float, float | None, float | None, int, int, int, int, int]
"""From the second in which devices were lost to that in which all were back: columns of the table.

Times are seconds after the window's start; the end is None if the run ended first.
"""


def outages_of(course: Iterable[Mapping[str, Any]]) -> tuple[OutageRow, ...]:
    """Return the outages of a run; `course` has its rows of `Curves.course` after connecting.

    Connects and disconnects are used, because a late worker lacks the gauge of connected devices
    for some seconds.
    """
    outages: list[list[Mapping[str, Any]]] = []
    away = 0
    for second in course:
        if not away and second["disconnects"]:
            outages.append([])
        if away or second["disconnects"]:
            outages[-1].append(second)
            away = max(0, away + second["disconnects"] - second["connects"])
    return tuple(map(_outage, outages))


def _outage(seconds: Sequence[Mapping[str, Any]]) -> OutageRow:
    away = [*accumulate(second["disconnects"] - second["connects"] for second in seconds)]
    keys = ("disconnects", "connects", "connect_failures")
    lost, returned, failed = (sum(second[key] for second in seconds) for key in keys)
    from_s, until_s = seconds[0]["at_s"], seconds[-1]["at_s"] + seconds[-1]["span_s"]
    end = (None, None) if away[-1] > 0 else (until_s, round(until_s - from_s, 1))
    most = max(second["connects"] / max(second["span_s"], 1e-3) for second in seconds)
    return from_s, *end, lost, max(0, *away), returned, failed, round(most)


def outage_sections(
    record: RunRecord, course: pa.Table, phases: Iterable[tuple[str, float, float]]
) -> Iterator[DataTable]:
    """Yield a table of the run's outages; without churn, in which devices leave on request."""
    bounds = {phase: (start_s, end_s) for phase, start_s, end_s in phases}
    began_s = bounds.get("connect", (0.0, 0.0))[1]
    ended_s = max((end_s for _, end_s in bounds.values()), default=0.0)
    outages = outages_of(
        second
        for second in course.to_pylist()
        if second["at_s"] + second["span_s"] > began_s and second["at_s"] < ended_s
    )
    if not outages or record.scenario.get("churn"):
        return
    rows = [
        (round(from_s, 1), "not over" if until_s is None else f"{until_s:,.1f}", *counts)
        for from_s, until_s, *counts in outages[:_MOST_SHOWN]
    ]
    yield table(
        "outages",
        rows,
        rate=figure(record.scenario, "connect_rate"),
        first=_MOST_SHOWN if len(outages) > _MOST_SHOWN else None,
        outages=len(outages),
    )


def notice_of(record: RunRecord) -> str:
    """Return the notice before any figure of the run; "" for a run that needs no notice."""
    notice = str(record.case_observations.get("notice") or "")[:NOTICE_CHARACTERS]
    unverified = record.encrypted and not _verified(record)
    return " ".join(filter(None, (notice, REPORT_TEXT.UNVERIFIED() if unverified else "")))


def record_details(record: RunRecord) -> dict[str, Any]:
    """Return the parts of scorecard.json that only some runs have."""
    case, sut = dict(record.case_observations), dict(record.sut)
    details: dict[str, Any] = {record.case: case} if case else {}
    details |= {"sut": sut} if sut else {}
    details |= {"load_hosts": [*record.agents]} if record.agents else {}
    if own_us := figure(part(record.observed, "own_delay"), "p99_us"):
        details["own_delay_p99_us"] = own_us
    if record.encrypted:
        details["tls"] = {"verified": _verified(record)}
        connections, resumed = negotiated(record)
        if connections:
            keys = ("version", "cipher", "count")
            entries = [dict(zip(keys, entry, strict=True)) for entry in connections]
            details["tls"] |= {"connections": entries, "resumed": resumed}
    return details


def tls_sections(record: RunRecord) -> Iterator[DataTable]:
    connections, resumed = negotiated(record)
    if record.encrypted and connections:
        verified = "was verified" if _verified(record) else "was NOT verified"
        connected = sum(entry[2] for entry in connections)
        yield table("tls", connections, resumed=resumed, all=connected, verified=verified)


def _verified(record: RunRecord) -> bool:
    return record.scenario.get("tls_verify") is not False


def negotiated(record: RunRecord) -> tuple[tuple[tuple[str, str, int], ...], int]:
    """Return connections by version and cipher, and the number that resumed a session."""
    tls = part(record.observed, "tls")
    entries = tuple(
        (text(kind, "version"), text(kind, "cipher"), count(kind, "count"))
        for kind in objects(tls.get("connections"))[:_MOST_HANDSHAKES]
        if count(kind, "count")
    )
    return entries, count(tls, "resumed")


_MOST_TEXTS = 20


def system_sections(record: RunRecord) -> Iterator[DataTable]:
    """Yield tables of the broker's note, users and storage, and of each described part."""
    if note := text(record.broker, "note"):
        yield table("broker_note", (), note=note)
    if users := count(part(record.broker, "access_control"), "users"):
        yield table("access", [("users of the broker", users)])
    if storage := text(record.broker, "storage"):
        first = stored_first(record)
        answer = "not known" if first is None else "yes" if first else "no"
        yield table("storage", [("stored before it is acknowledged", answer)], storage=storage)
    if record.configuration:
        lines = [line.strip() for line in record.configuration[:_MOST_LINES]]
        settings = [line.partition(" ")[::2] for line in lines if line != "}"]
        yield table("configuration", [(key.rstrip(":"), value) for key, value in settings])
    for key, title in PARTS.items():
        described = part(record.sut, key)
        rows = [(LINES[line], _cell(described[line])) for line in LINES if line in described]
        if rows:
            yield table("system", rows, part=title)


def stored_first(record: RunRecord) -> bool | None:
    """Return True if the broker stores a message before it acknowledges it; None if unknown."""
    for description in (record.broker, part(record.sut, "broker")):
        stored = description.get("stored_first")
        if isinstance(stored, bool):
            return stored
    return None


def _cell(value: object) -> TableCell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return "; ".join(map(str, value[:_MOST_TEXTS])) if isinstance(value, list) else str(value)


def ceiling_of(
    record: RunRecord, rates: Mapping[str, float], latency: Mapping[str, LatencySummary]
) -> Iterator[DataTable]:
    """Yield a table of the run and of `environment.calibration`, if the host was calibrated.

    `rates` are messages a second of the whole run, `latency` its series in µs.
    """
    limits = part(record.environment, "calibration")
    if not limits:
        return
    workers = max(record.workers, 1)
    rows: list[tuple[TableCell, ...]] = []
    for done, direction in (("sent", "send"), ("received", "receive")):
        if rates.get(done):
            kinds = ("single", "batched")
            ceilings = (figure(part(limits, direction, kind), "per_s") for kind in kinds)
            rows.append((f"messages {done} a second, per worker", rates[done] / workers, *ceilings))
    if record.connected and record.connect_seconds:
        each = record.connected / record.connect_seconds
        rows.append(("connects a second", each, figure(part(limits, "connect"), "per_s"), None))
    for series, where in (
        ("end_to_end", ("latency", "end_to_end_us")),
        ("transit", ("latency", "transit_us")),
        ("send_delay", ("send_delay", "single_us")),
    ):
        ours = latency.get(series)
        if ours is not None:
            limit = part(limits, *where)
            rows += [
                (f"{series} p50, µs", ours.p50_us, figure(limit, "p50"), None),
                (f"{series} p99, µs", ours.p99_us, figure(limit, "p99"), None),
            ]
    if rows:
        load = figure(limits, "load_average_before")
        yield table("ceiling", rows, made=name(limits.get("made")), load=load)


def observed_sections(record: RunRecord) -> Iterator[DataTable]:
    """Yield the tables of the case's observations, for any case that records their keys."""
    document = record.case_observations
    if document.get("spread"):
        yield from _spread(document)
    if document.get("backends"):
        yield from _backends(document)
    if record.case in CASES:
        yield from CASES[record.case].tables(document)


def observed_rows(record: RunRecord) -> Iterator[Row]:
    """Yield further rows: the spread over consumers, and the rate to each backend."""
    document, title = record.case_observations, record.case.upper()
    if spread := part(document, "spread"):
        consumers = number(figure(spread, "consumers"))
        yield Row(
            "Throughput",
            title,
            f"Messages of the window that each of {consumers} consumers got; VALUE is the fewest.",
            "messages",
            value=figure(spread, "min"),
            avg=figure(spread, "mean"),
            max=figure(spread, "max"),
            stdev=figure(spread, "stdev"),
        )
    for backend in objects(document.get("backends")):
        where = f"backend {backend.get('number')} ({name(backend.get('url'))})"
        rate, mark = figures(backend, "rate", "high_water_mark")
        yield Row("Throughput", title, f"Forwarded to {where}.", "msgs/sec", value=rate)
        before = f"High-water mark before {where}."
        yield Row("Throughput", title, before, "messages", value=mark)


def _spread(document: Object) -> Iterator[DataTable]:
    keys = ("received", "min", "max", "mean", "stdev")
    spread, cut = part(document, "spread"), part(document, "cut_off")
    rows: list[tuple[TableCell, ...]] = [("all", *figures(spread, *keys))] if spread else []
    queues = objects(spread.get("queues"))
    rows += [(f"queue {queue.get('queue')}", *figures(queue, *keys)) for queue in queues]
    if rows:
        held = number(figure(cut, "held"))
        yield table("spread", rows, consumer=cut.get("consumer"), held=held)


def _backends(document: Object) -> Iterator[DataTable]:
    backends, limit = objects(document.get("backends")), part(document, "limit")
    rows: list[tuple[TableCell, ...]] = [
        (
            f"backend {backend.get('number')}",
            str(backend.get("url") or ""),
            *figures(backend, "rate", "expected", "received", "high_water_mark"),
            percent(figure(backend, "busy_share")),
        )
        for backend in backends
    ]
    if not backends:
        return
    keys = ("rate", "expected", "received")
    totals = [sum(figure(backend, key) or 0 for backend in backends) for key in keys]
    rows.append(("all", "front", *totals, None, percent(figure(document, "front_busy_share"))))
    side, detail = limit.get("side") or "not known", limit.get("detail") or "?"
    yield table("backends", rows, side=side, detail=detail)
