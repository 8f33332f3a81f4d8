"""The ledger on a score card: where every message ended, in the window and in the whole run."""

from typing import Any

from loadgen.judge.ledger import Counted, Ledger, ledgers_of
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord

_LINES = (
    ("messages", "intended", "to be sent"),
    ("", "sent", "sent"),
    ("", "owed", "still owed after the drain"),
    ("sent at QoS 1 and 2", "acknowledged", "acknowledged"),
    ("", "refused", "refused by the broker"),
    ("", "unacknowledged", "not acknowledged"),
    ("deliveries", "expected", "expected"),
    ("", "intact", "intact"),
    ("", "damaged", "damaged"),
    ("", "lost", "lost"),
    ("", "unobserved", "not seen to the end"),
    ("beyond these", "delivered_refused", "refused by the broker and delivered"),
    ("", "repeated_allowed", "repeated, as QoS 1 allows"),
    ("", "repeated", "repeated"),
    ("", "misrouted", "on another topic, or to another device"),
    ("", "foreign", "from other clients"),
)
"""Subject, name of the state in the ledger, and the state in words."""
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


def ledger_details(record: RunRecord, window: Ledger, run: Ledger) -> dict[str, Any]:
    """Return the ledgers for scorecard.json."""
    return {
        "window": window.document(),
        "run": run.document(),
        "refusals": dict(record.refusals),
        "proven": record.proven,
        "imbalances": list(record.imbalances),
    }


def ledger_sections(record: RunRecord, window: Ledger, run: Ledger) -> tuple[DataTable, ...]:
    """Return the ledger as a table, if the run has messages."""
    if not run.intended and not run.foreign:
        return ()
    columns = (window.document(), run.document())
    rows: list[tuple[TableCell, ...]] = []
    subject = ""
    for about, name, words in _LINES:
        subject = about or subject
        counts = [column[name] for column in columns]
        # All intended messages were sent, unless the publishers still owe some.
        wanted = run.owed if name == "intended" else any(counts) or name in _ALWAYS
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
