"""The system under test on a score card: its description, and when it stores messages."""

from typing import Any

from loadgen.plan.reading import Object, count, figure, part, text
from loadgen.plan.sut import LINES, PARTS
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord
from loadgen.report.render.text import number

_DESCRIBED = "As described for this run (--sut); loadgen did not check it."
_MOST_TEXTS = 20


def system_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """Return a table for each described part of the system, and for storage if it matters."""
    described = [
        DataTable(
            f"System under test: {title}", _DESCRIBED, ("", "description"), rows, texts=(0, 1)
        )
        for key, title in PARTS.items()
        if (rows := _rows(part(record.sut, key)))
    ]
    return (*_note(record), *_access(record), *_storage(record), *described)


def system_details(record: RunRecord) -> dict[str, Any]:
    """Return `sut` for scorecard.json, empty without a description."""
    return {"sut": dict(record.sut)} if record.sut else {}


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


def _note(record: RunRecord) -> tuple[DataTable, ...]:
    note = text(record.broker, "note")
    return (DataTable("Broker", note, ("", ""), (), texts=(0, 1)),) if note else ()


def _access(record: RunRecord) -> tuple[DataTable, ...]:
    users = count(part(record.broker, "access_control"), "users")
    if not users:
        return ()
    note = (
        "Each device has its user and password, with the rights to publish and to receive its own "
        "topics only; one more user administers the broker. A message that the broker rejects is "
        "REFUSED in MQTT 5; older versions have no answer for it, and it counts as lost."
    )
    return (DataTable("Access control", note, ("", ""), (("users of the broker", users),)),)


def _storage(record: RunRecord) -> tuple[DataTable, ...]:
    storage = text(record.broker, "storage")
    if not storage:
        return ()
    first = stored_first(record)
    answer = "not known" if first is None else "yes" if first else "no"
    rows: tuple[tuple[TableCell, ...], ...] = (("stored before it is acknowledged", answer),)
    return (DataTable("Storage of the broker", storage, ("", ""), rows, texts=(0, 1)),)


def _rows(described: Object) -> tuple[tuple[TableCell, ...], ...]:
    return tuple((title, _cell(described[key])) for key, title in LINES.items() if key in described)


def _cell(value: object) -> TableCell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return "; ".join(map(str, value[:_MOST_TEXTS])) if isinstance(value, list) else str(value)
