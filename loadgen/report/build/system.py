"""The system under test on a score card: what was said of it, and when it stores messages."""

from typing import Any

from loadgen.plan.reading import Object, count, figure, part, text
from loadgen.plan.sut import LINES, PARTS
from loadgen.plan.tables import DataTable, TableCell
from loadgen.report.record import RunRecord
from loadgen.report.render.text import number

_DESCRIBED = "As it was described for this run (--sut); loadgen checked nothing of it."
_MOST_TEXTS = 20


def system_sections(record: RunRecord) -> tuple[DataTable, ...]:
    """A table for each part of the system that was described, and for storage where it matters."""
    described = [
        DataTable(
            f"System under test: {title}", _DESCRIBED, ("", "description"), rows, texts=(0, 1)
        )
        for key, title in PARTS.items()
        if (rows := _rows(part(record.sut, key)))
    ]
    return (*_note(record), *_access(record), *_storage(record), *described)


def system_details(record: RunRecord) -> dict[str, Any]:
    """For scorecard.json: `sut`, where the system was described."""
    return {"sut": dict(record.sut)} if record.sut else {}


def rack_units(record: RunRecord) -> float | None:
    """Height of the broker's machine, where it was described."""
    return figure(part(record.sut, "machine"), "rack_units")


def stored_first(record: RunRecord) -> bool | None:
    """Whether the broker stores a message before it acknowledges it; None where nobody said."""
    for said in (record.broker, part(record.sut, "broker")):
        found = said.get("stored_first")
        if isinstance(found, bool):
            return found
    return None


def _note(record: RunRecord) -> tuple[DataTable, ...]:
    note = text(record.broker, "note")
    return (DataTable("Broker", note, ("", ""), (), texts=(0, 1)),) if note else ()


def _access(record: RunRecord) -> tuple[DataTable, ...]:
    users = count(part(record.broker, "access_control"), "users")
    if not users:
        return ()
    note = (
        "Each device has a user of its own, a password, and the rights to publish and to receive "
        "its own topics alone; one more user looks after the broker. What the broker refuses to "
        "take is REFUSED in MQTT 5; before, MQTT has no answer for it, and it is lost."
    )
    return (DataTable("Access control", note, ("", ""), (("users that the broker knows", users),)),)


def _storage(record: RunRecord) -> tuple[DataTable, ...]:
    said = text(record.broker, "storage")
    if not said:
        return ()
    first = stored_first(record)
    answer = "not known" if first is None else "yes" if first else "no"
    rows: tuple[tuple[TableCell, ...], ...] = (("stored before it is acknowledged", answer),)
    return (DataTable("What the broker stores", said, ("", ""), rows, texts=(0, 1)),)


def _rows(described: Object) -> tuple[tuple[TableCell, ...], ...]:
    return tuple((title, _cell(described[key])) for key, title in LINES.items() if key in described)


def _cell(value: object) -> TableCell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return number(value)
    return "; ".join(map(str, value[:_MOST_TEXTS])) if isinstance(value, list) else str(value)
