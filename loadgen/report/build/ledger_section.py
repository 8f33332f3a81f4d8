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
    ("beyond these", "repeated_allowed", "repeated, as QoS 1 allows"),
    ("", "repeated", "repeated"),
    ("", "misrouted", "on another topic, or to another device"),
    ("", "foreign", "of nobody in this run"),
)
"""What is told of, the state's name in the ledger and in words."""
_ALWAYS = ("sent", "expected", "intact", "lost")
"""States that are shown where there was none, too."""


def ledgers(record: RunRecord, window: Counted, whole: Counted) -> tuple[Ledger, Ledger]:
    """The window's and the whole run's: as the run closed them, or by its interval rows.

    A run that did not come to its end has seen nothing to its end.
    """
    if record.ledger is not None and record.run_ledger is not None:
        return record.ledger, record.run_ledger
    lost = record.observed.get("workers_lost")
    return ledgers_of(window, whole, observed=record.valid is not None and not lost)


def ledger_details(record: RunRecord, window: Ledger, whole: Ledger) -> dict[str, Any]:
    """For scorecard.json."""
    return {
        "window": window.document(),
        "run": whole.document(),
        "refusals": dict(record.refusals),
        "proven": record.proven,
        "imbalances": list(record.imbalances),
    }


def ledger_sections(record: RunRecord, window: Ledger, whole: Ledger) -> tuple[DataTable, ...]:
    """The ledger as a table; none for a run without messages."""
    if not whole.intended and not whole.foreign:
        return ()
    columns = (window.document(), whole.document())
    rows: list[tuple[TableCell, ...]] = []
    told = ""
    for about, name, words in _LINES:
        told = about or told
        found = [column[name] for column in columns]
        # What was to be sent is what was sent, unless something stayed owed.
        wanted = whole.owed if name == "intended" else any(found) or name in _ALWAYS
        if wanted:
            rows.append((told, words, *found))
            told = ""
    note = "Where every message ended, in the phase in which it was due."
    if record.proven:
        note += " The sums close: the workers' own structures say the same."
    elif record.imbalances:
        note += f" The sums do not close: {'; '.join(record.imbalances)}."
    else:
        note += " The sums were not proven: not every worker gave its last answer."
    header = ("", "", "window", "whole run")
    return (DataTable("Ledger", note, header, tuple(rows), texts=(0, 1)),)
