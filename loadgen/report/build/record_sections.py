"""Tables of a run from its record: ledger, TLS, the system under test, limits of the harness.

Unexpected parts of run.json are left out.
"""

from collections.abc import Mapping
from typing import Any

from loadgen.judge.ledger import Counted, Ledger, ledgers_of
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.reading import count, figure, objects, part, text
from loadgen.plan.sut import LINES, PARTS
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.build.rows import DATA
from loadgen.report.record import RunRecord
from loadgen.report.render.text import name, number

Rows = tuple[tuple[TableCell, ...], ...]

# --- ledger ---------------------------------------------------------------------------------

_ALWAYS = ("sent", "expected", "intact", "lost")
"""States that are shown even if they are 0."""


def ledgers(record: RunRecord, window: Counted, run: Counted) -> tuple[Ledger, Ledger]:
    """Return the ledgers of the window and of the run, as the run closed them or from its rows.

    A run that was cut off did not determine where its messages ended.
    """
    if record.ledger is not None and record.run_ledger is not None:
        return record.ledger, record.run_ledger
    lost = record.observed.get("workers_lost")
    return ledgers_of(window, run, observed=record.valid is not None and not lost)


def ledger_sections(record: RunRecord, window: Ledger, run: Ledger) -> tuple[DataTable, ...]:
    """Return the ledger as a table, if the run has messages."""
    if not run.intended and not run.foreign:
        return ()
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
    note = "Where every message ended, in the phase in which it was due."
    if record.proven:
        note += " Every message is accounted for."
    elif record.imbalances:
        note += f" Not every message is accounted for: {'; '.join(record.imbalances)}."
    else:
        note += " The sums could not be checked: a worker did not send its last report."
    header = ("", "", "window", "whole run")
    return (DataTable("Ledger", note, header, tuple(rows), texts=(0, 1)),)


# --- TLS ------------------------------------------------------------------------------------

UNVERIFIED = (
    "TLS without verification: the broker's certificate was not verified, any certificate would "
    "have done, and what verifying one costs is in no figure here."
)
"""Notice before the figures of a run without verification."""

_MOST_SHOWN = 40

Entry = tuple[str, str, int]


def tls_notice(record: RunRecord) -> str:
    """Return the notice before any figure of the run; "" for a run that needs no notice."""
    return "" if _verified(record) or not record.encrypted else UNVERIFIED


def record_details(record: RunRecord) -> dict[str, Any]:
    """Return `tls` and `sut` for scorecard.json, if there is TLS and a description."""
    details: dict[str, Any] = {"sut": dict(record.sut)} if record.sut else {}
    if record.encrypted:
        details["tls"] = {"verified": _verified(record)}
        connections, resumed = negotiated(record)
        if connections:
            keys = ("version", "cipher", "count")
            entries = [dict(zip(keys, entry, strict=True)) for entry in connections]
            details["tls"] |= {"connections": entries, "resumed": resumed}
    return details


def tls_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return a table of the handshakes, if the run recorded them."""
    connections, resumed = negotiated(record)
    if not record.encrypted or not connections:
        return ()
    rows: Rows = connections
    verified = "was verified" if _verified(record) else "was NOT verified"
    note = (
        "Versions and ciphers that devices negotiated in the run: "
        f"{resumed:,} of {sum(entry[2] for entry in connections):,} resumed an earlier session. "
        f"The broker's certificate {verified}."
    )
    return (DataTable("TLS", note, ("version", "cipher", "connections"), rows, texts=(0, 1)),)


def _verified(record: RunRecord) -> bool:
    return record.scenario.get("tls_verify") is not False


def negotiated(record: RunRecord) -> tuple[tuple[Entry, ...], int]:
    """Return connections by version and cipher, and the number that resumed a session."""
    tls = part(record.observed, "tls")
    entries = tuple(
        (text(one, "version"), text(one, "cipher"), count(one, "count"))
        for one in objects(tls.get("connections"))[:_MOST_SHOWN]
        if count(one, "count")
    )
    return entries, count(tls, "resumed")


# --- the system under test ------------------------------------------------------------------

_ACCESS = (
    "Each device has its user and password, with the rights to publish and to receive its own "
    "topics only; one more user administers the broker. A message that the broker rejects is "
    "REFUSED in MQTT 5; older versions have no answer for it, and it counts as lost."
)
_DESCRIBED = "As described for this run (--sut); loadgen did not check it."
_MOST_TEXTS = 20


def system_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return tables of the broker's note, users and storage, and of each described part."""
    tables = []
    if note := text(record.broker, "note"):
        tables.append(DataTable("Broker", note, ("", ""), ()))
    if users := count(part(record.broker, "access_control"), "users"):
        rows: Rows = (("users of the broker", users),)
        tables.append(DataTable("Access control", _ACCESS, ("", ""), rows))
    if storage := text(record.broker, "storage"):
        first = stored_first(record)
        answer = "not known" if first is None else "yes" if first else "no"
        rows = (("stored before it is acknowledged", answer),)
        tables.append(DataTable("Storage of the broker", storage, ("", ""), rows, texts=(0, 1)))
    for key, title in PARTS.items():
        described = part(record.sut, key)
        rows = tuple((LINES[line], _cell(described[line])) for line in LINES if line in described)
        if rows:
            title = f"System under test: {title}"
            tables.append(DataTable(title, _DESCRIBED, ("", "description"), rows, texts=(0, 1)))
    return tuple(tables)


def rack_units(record: RunRecord) -> float | None:
    """Return the height of the broker's machine, if it was described."""
    return figure(part(record.sut, "machine"), "rack_units")


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


# --- limits of the harness ------------------------------------------------------------------


def ceiling_of(
    record: RunRecord, rates: Mapping[str, float], latency: Mapping[str, LatencySummary]
) -> tuple[DataTable, ...]:
    """Return a table of the run and of `environment.calibration`, if the host was calibrated.

    `rates` are messages a second of the whole run, `latency` its series in µs.
    """
    limits = part(record.environment, "calibration")
    if not limits:
        return ()
    workers = max(record.workers, 1)
    rows: list[tuple[TableCell, ...]] = []
    for done, direction in (("sent", "send"), ("received", "receive")):
        if rates.get(done):
            ceilings = (
                figure(part(limits, direction, kind), "per_s") for kind in ("single", "batched")
            )
            what = f"messages {done} a second, a worker"
            rows.append((what, rates[done] / workers, *ceilings))
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
            harness = part(limits, *where)
            rows += [
                (f"{series} 50P, µs", ours.p50, figure(harness, "p50"), None),
                (f"{series} 99P, µs", ours.p99, figure(harness, "p99"), None),
            ]
    load = figure(limits, "load_average_before")
    busy = "" if load is None else f" (load average before it {load:g})"
    note = (
        f"loadgen calibrate of {name(limits.get('made'))}{busy}, against instruments of our own "
        "on this host: what one worker with a core to itself sends and receives, each message by "
        "its own write or in batches; connects; the latency of one pair through the reflector."
    )
    header = ("", "this run", "harness", "harness, in batches")
    return (
        (DataTable("Next to the limits of the harness", note, header, tuple(rows)),) if rows else ()
    )
