"""The tables of a supply chain in a report: audit, message types, mix, traffic and run rules.

Each is built from the case's part of run.json, which is specjms.json without its destinations.
"""

from collections.abc import Callable, Mapping

from loadgen.plan.reading import Object, figure, figures, objects, part, text
from loadgen.plan.tables import DataTable, TableCell
from loadgen.sentences import counted
from loadgen.specjms.audit import TESTS

_FAILED_SHOWN = 10


def _audit(document: Object) -> DataTable:
    rows: list[tuple[TableCell, ...]] = []
    for test, result in part(document, "audit").items():
        if not isinstance(result, Mapping):
            continue
        word = "PASS" if result.get("pass") is True else "FAIL"
        rows.append((str(test), word, *figures(result, "passed", "failed"), "", ""))
        wrong = [finding for finding in objects(result.get("findings")) if not finding.get("pass")]
        rows += [
            (
                *("", "FAIL", None, None, text(finding, "subject")),
                f"expected {text(finding, 'expected')}, observed {text(finding, 'observed')}",
            )
            for finding in wrong[:_FAILED_SHOWN]
        ]
    note = (
        "Five tests of each interaction or destination (run rules, section 3.6); delivered is of "
        "the whole run, the others are of the window. "
        f"{text(document, 'transactions')}"
    )
    header = ("test", "", "passed", "failed", "where", "")
    return DataTable("Audit", note, header, tuple(rows), texts=(0, 1, 4, 5))


def _results(document: Object) -> DataTable:
    rows: list[tuple[TableCell, ...]] = []
    for row in objects(document.get("results")):
        tests = part(row, "tests")
        made = [tests.get(test) for test in TESTS]
        counts = [f"{one[0]} of {one[1]}" if isinstance(one, list) else "" for one in made]
        word = "PASS" if row.get("pass") is True else "FAIL"
        rows.append((text(row, "part"), word, *counts))
    note = (
        "Tests passed of those made, of each interaction and of each agent; specjms.json has every "
        "finding."
    )
    return DataTable(
        "Audit by interaction and agent", note, ("", "", *TESTS), tuple(rows), texts=tuple(range(7))
    )


def _periods(document: Object) -> DataTable:
    keys = (
        "from_s",
        "until_s",
        "received_per_s",
        "depth_at_end",
        "stored_at_end",
        "deepest_messages",
    )
    rows = tuple(
        (text(row, "phase"), *figures(row, *keys), text(row, "deepest"))
        for row in objects(document.get("periods"))
    )
    note = (
        "A row for each interval of the progress reports. The depth of the queues is what was sent "
        "and not yet received, by our ledger: of all at the end, and the most of one message type. "
        "Next to it are the messages in the broker's store, retained ones too, if it reports them."
    )
    header = ("phase", "from, s", "until, s", "received/s", "depth", "stored", "deepest", "")
    return DataTable("Progress", note, header, rows, texts=(0, 7))


def _message_types(document: Object) -> DataTable:
    rows = tuple(
        (
            f"{row.get('interaction')}.{row.get('message')}",
            *figures(row, "sent", "received", "expected", "sent_per_s", "target_sent_per_s"),
            *figures(row, "received_per_s", "target_received_per_s"),
            *figures(part(row, "delivery_us"), "p50", "p90", "p99", "max"),
            *figures(row, "handler_p90_us"),
        )
        for row in objects(document.get("types"))
    )
    places = part(document, "locations")
    where = ", ".join(f"{count} {kind}" for kind, count in places.items())
    options = [str(text) for text in document.get("changed_options") or ()]
    changed = f" Not as SPECjms2007 has it: {'; '.join(options[:40])}." if options else ""
    discarded = figure(document, "discarded")
    refused = ""
    if discarded:
        megabytes = (figure(document, "discarded_bytes") or 0) / 1e6
        refused = (
            f" Selectors at the receivers discarded {discarded:,.0f} deliveries of these, "
            f"{megabytes:,.1f} MB."
        )
    note = (
        f"{text(document, 'topology').capitalize()} topology, BASE {document.get('base')}: "
        f"{where}.{changed} Messages of interactions begun in the window. Delivery time in µs: of "
        f"first messages from when they were due, of others from when they were sent.{refused}"
    )
    header = (
        *("message", "sent", "received", "expected", "sent/s", "target", "received/s", "target"),
        *("50P", "90P", "99P", "max", "90P, slowest handler"),
    )
    return DataTable("Message types", note, header, rows)


def _topics(document: Object) -> DataTable:
    traffic = part(document, "traffic")
    rows = tuple(
        (text(one, "topic"), *figures(one, "message_types", "sent_per_s", "received_per_s"))
        for one in objects(traffic.get("busiest"))
    )
    count, mean, most = figures(traffic, "topics", "sent_per_s_mean", "sent_per_s_most")
    note = (
        f"{counted(int(count or 0), 'topic')} at the broker; messages sent to one of these a "
        f"second: {mean or 0:,.3f} in the mean, {most or 0:,.3f} to the busiest. These are the "
        "busiest."
    )
    header = ("topic", "message types", "sent/s", "received/s")
    return DataTable("Traffic by topic", note, header, rows)


def _message_mix(document: Object) -> DataTable:
    keys = (
        *("sent_per_s", "target_sent_per_s", "received_per_s", "target_received_per_s"),
        *("percent", "target_percent"),
    )
    rows = tuple(
        (": ".join(filter(None, (str(row.get("group")), text(row, "name")))), *figures(row, *keys))
        for row in objects(document.get("groups"))
    )
    note = (
        "By how the messages were played, where options were changed too. Shares are of messages "
        "received, as the published 50/50 and 80/20 mixes are."
    )
    header = ("group", "sent/s", "target", "received/s", "target", "share, %", "target, %")
    return DataTable("Message mix", note, header, rows)


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
    result = "Every one was judged and kept: the run is compliant."
    if document.get("compliant") is not True:
        result = (
            f"The run is not compliant: {words.count('kept')} are kept, "
            f"{words.count('NOT KEPT')} are not, {words.count('not judged')} were not judged."
        )
    entries = document.get("notes")
    notes = [str(text)[:300] for text in entries[:10]] if isinstance(entries, list) else []
    note = " ".join((result, *notes))
    return DataTable("Run rules", note, ("rule", "", "observed"), rows, texts=(0, 1, 2))


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
