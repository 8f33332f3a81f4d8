"""The tables of a supply chain in a report, from the case's part of run.json.

Their titles, notes and columns are in tables.toml.
"""

import pkgutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from loadgen.plan.reading import Object, figure, figures, objects, part, text
from loadgen.plan.tables import DataTable, TableCell
from loadgen.sentences import counted
from loadgen.specjms.audit import TESTS

_FAILED_SHOWN = 10
_TABLES: Final[Mapping[str, Mapping[str, Any]]] = tomllib.loads(
    (pkgutil.get_data("loadgen.specjms", "tables.toml") or b"").decode()
)

Row = tuple[TableCell, ...]


def _table(key: str, rows: Iterable[Row], **values: object) -> DataTable:
    """Return a table of tables.toml; `values` are those of its note."""
    table = _TABLES[key]
    note = table["note"].format(**values).strip()
    header, texts = tuple(table["header"]), tuple(table["texts"])
    return DataTable(table["title"], note, header, tuple(rows), texts=texts)


def _figures(key: str, row: Object) -> tuple[float | None, ...]:
    return tuple(figures(row, *_TABLES[key]["figures"]))


def _word(row: Mapping[str, Any]) -> str:
    return "PASS" if row.get("pass") is True else "FAIL"


def _audit(document: Object) -> DataTable:
    rows: list[Row] = []
    for test, result in part(document, "audit").items():
        if not isinstance(result, Mapping):
            continue
        rows.append((str(test), _word(result), *_figures("audit", result), "", ""))
        wrong = [finding for finding in objects(result.get("findings")) if not finding.get("pass")]
        rows += [
            (
                *("", "FAIL", None, None, text(finding, "subject")),
                f"expected {text(finding, 'expected')}, observed {text(finding, 'observed')}",
            )
            for finding in wrong[:_FAILED_SHOWN]
        ]
    return _table("audit", rows, transactions=text(document, "transactions"))


def _results(document: Object) -> DataTable:
    rows: list[Row] = []
    for row in objects(document.get("results")):
        tests = part(row, "tests")
        made = [tests.get(test) for test in TESTS]
        counts = [f"{one[0]} of {one[1]}" if isinstance(one, list) else "" for one in made]
        rows.append((text(row, "part"), _word(row), *counts))
    return _table("results", rows)


def _periods(document: Object) -> DataTable:
    rows = (
        (text(row, "phase"), *_figures("periods", row), text(row, "deepest"))
        for row in objects(document.get("periods"))
    )
    return _table("periods", rows)


def _message_types(document: Object) -> DataTable:
    rows = (
        (
            f"{row.get('interaction')}.{row.get('message')}",
            *_figures("types", row),
            *figures(part(row, "delivery_us"), "p50", "p90", "p99", "max"),
            *figures(row, "handler_p90_us"),
        )
        for row in objects(document.get("types"))
    )
    places = part(document, "locations")
    options = [str(text) for text in document.get("changed_options") or ()]
    refused = ""
    if discarded := figure(document, "discarded"):
        megabytes = (figure(document, "discarded_bytes") or 0) / 1e6
        refused = (
            f" Selectors at the receivers discarded {discarded:,.0f} deliveries of these, "
            f"{megabytes:,.1f} MB."
        )
    return _table(
        "types",
        rows,
        topology=text(document, "topology").capitalize(),
        base=document.get("base"),
        where=", ".join(f"{count} {kind}" for kind, count in places.items()),
        changed=f" Not as SPECjms2007 has it: {'; '.join(options[:40])}." if options else "",
        refused=refused,
    )


def _topics(document: Object) -> DataTable:
    traffic = part(document, "traffic")
    rows = (
        (text(row, "topic"), *_figures("traffic", row)) for row in objects(traffic.get("busiest"))
    )
    count, mean, most = figures(traffic, "topics", "sent_per_s_mean", "sent_per_s_most")
    topics = counted(int(count or 0), "topic")
    return _table("traffic", rows, count=topics, mean=mean or 0, most=most or 0)


def _message_mix(document: Object) -> DataTable:
    rows = (
        (
            ": ".join(filter(None, (str(row.get("group")), text(row, "name")))),
            *_figures("groups", row),
        )
        for row in objects(document.get("groups"))
    )
    return _table("groups", rows)


def _run_rules(document: Object) -> DataTable:
    rows = tuple(
        (
            text(one, "rule"),
            {"True": "kept", "False": "NOT KEPT"}.get(str(one.get("kept")), "not judged"),
            text(one, "observed"),
        )
        for one in objects(document.get("rules"))
    )
    words = [row[1] for row in rows]
    result = "Every rule was judged and kept: the run is compliant."
    if document.get("compliant") is not True:
        result = (
            f"The run is not compliant: {words.count('kept')} are kept, "
            f"{words.count('NOT KEPT')} are not, {words.count('not judged')} were not judged."
        )
    entries = document.get("notes")
    notes = [str(text)[:300] for text in entries[:10]] if isinstance(entries, list) else []
    return _table("rules", rows, result=result, notes=" ".join(notes))


_BUILDERS: Mapping[str, Callable[[Object], DataTable]] = {
    "audit": _audit,
    "results": _results,
    "periods": _periods,
    "types": _message_types,
    "groups": _message_mix,
    "traffic": _topics,
    "rules": _run_rules,
}
"""Builder of the table for each key of an observed document, in the order of the report."""


def supply_tables(observed: Object) -> tuple[DataTable, ...]:
    """Return the tables of a run of the supply chain, without empty ones."""
    tables = [build(observed) for key, build in _BUILDERS.items() if observed.get(key)]
    return tuple(table for table in tables if table.rows)
