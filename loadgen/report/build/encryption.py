"""TLS in a score card: the verification of the broker's certificate and the handshakes.

Both come from `scenario.tls_verify` and `observed.tls` of run.json; unexpected parts are left out.
"""

from typing import Any

from loadgen.plan.reading import count, objects, part, text
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord

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


def tls_details(record: RunRecord) -> dict[str, Any]:
    """Return `tls` for scorecard.json, empty without encrypted connections."""
    if not record.encrypted:
        return {}
    details: dict[str, Any] = {"verified": _verified(record)}
    connections, resumed = negotiated(record)
    if connections:
        details["connections"] = [
            dict(zip(("version", "cipher", "count"), entry, strict=True)) for entry in connections
        ]
        details["resumed"] = resumed
    return {"tls": details}


def tls_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return a table of the handshakes, if the run recorded them."""
    connections, resumed = negotiated(record)
    if not record.encrypted or not connections:
        return ()
    rows: tuple[tuple[TableCell, ...], ...] = connections
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
