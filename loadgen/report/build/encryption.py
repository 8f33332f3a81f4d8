"""TLS in a score card: whether the broker's certificate was verified, and what was negotiated.

From `scenario.tls_verify` and `observed.tls` of run.json; a part that is not as expected is left
out.
"""

from typing import Any

from loadgen.plan.reading import count, objects, part, text
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord

UNVERIFIED = (
    "TLS without verification: the broker's certificate was not verified, any certificate would "
    "have done, and what verifying one costs is in no figure here."
)
"""What must stand before the figures of such a run."""

_MOST_SHOWN = 40

Entry = tuple[str, str, int]


def tls_notice(record: RunRecord) -> str:
    """What must stand before any figure of the run; empty for one that needs none."""
    return "" if _verified(record) or not record.encrypted else UNVERIFIED


def tls_details(record: RunRecord) -> dict[str, Any]:
    """For scorecard.json: `tls`, where connections were encrypted."""
    if not record.encrypted:
        return {}
    found: dict[str, Any] = {"verified": _verified(record)}
    connections, resumed = negotiated(record)
    if connections:
        found["connections"] = [
            dict(zip(("version", "cipher", "count"), entry, strict=True)) for entry in connections
        ]
        found["resumed"] = resumed
    return {"tls": found}


def tls_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """What the handshakes ended with; none where the run did not record it."""
    connections, resumed = negotiated(record)
    if not record.encrypted or not connections:
        return ()
    rows: tuple[tuple[TableCell, ...], ...] = connections
    verified = "was verified" if _verified(record) else "was NOT verified"
    note = (
        "What the handshakes of devices ended with, those of the whole run: "
        f"{resumed:,} of {sum(entry[2] for entry in connections):,} resumed an earlier session. "
        f"The broker's certificate {verified}."
    )
    return (DataTable("TLS", note, ("version", "cipher", "connections"), rows, texts=(0, 1)),)


def _verified(record: RunRecord) -> bool:
    return record.scenario.get("tls_verify") is not False


def negotiated(record: RunRecord) -> tuple[tuple[Entry, ...], int]:
    """Connections by version and cipher, and how many resumed a session."""
    tls = part(record.observed, "tls")
    entries = tuple(
        (text(one, "version"), text(one, "cipher"), count(one, "count"))
        for one in objects(tls.get("connections"))[:_MOST_SHOWN]
        if count(one, "count")
    )
    return entries, count(tls, "resumed")
