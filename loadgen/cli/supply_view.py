"""The supply chain's tables as lines of text: messages, mix, audit and run rules."""

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["notice_lines", "supply_lines"]

Document = Mapping[str, Any]

_DELIVERY = ("50P ms", "90P ms", "99P ms")


def notice_lines(document: Document) -> list[str]:
    """What must stand before any figure."""
    return [str(document["notice"]), ""]


def supply_lines(document: Document) -> list[str]:
    """The tables of a specjms.json."""
    lines = [_head(document), ""]
    lines += _table(
        ("", "SENT", "RECEIVED", "EXPECTED", "SENT/s", "TARGET", "RECV/s", "TARGET", *_DELIVERY),
        [
            (
                f"{row['interaction']}.{row['message']}",
                f"{row['sent']:,}",
                f"{row['received']:,}",
                f"{row['expected']:,}",
                f"{row['sent_per_s']:,.2f}",
                f"{row['target_sent_per_s']:,.2f}",
                f"{row['received_per_s']:,.2f}",
                f"{row['target_received_per_s']:,.2f}",
                *(_ms(row["delivery_us"].get(name)) for name in ("p50", "p90", "p99")),
            )
            for row in document["types"]
        ],
    )
    lines += ["", *_table(
        ("group", "SENT/s", "TARGET", "RECV/s", "TARGET", "MIX %", "TARGET %"),
        [
            (
                str(row["group"]),
                f"{row['sent_per_s']:,.1f}",
                f"{row['target_sent_per_s']:,.1f}",
                f"{row['received_per_s']:,.1f}",
                f"{row['target_received_per_s']:,.1f}",
                f"{row['percent']:.2f}",
                f"{row['target_percent']:.2f}",
            )
            for row in document["groups"]
        ],
    )]  # fmt: skip
    if document["discarded"]:
        lines += [
            "",
            f"discarded by selectors at the receiver: {document['discarded']:,} messages, "
            f"{document['discarded_bytes'] / 1e6:,.1f} MB",
        ]
    lines += ["", *audit_lines(document), ""]
    kept = "compliant" if document["compliant"] else "not compliant"
    lines.append(f"run rules: {kept}")
    lines += [
        f"  {'kept' if rule['kept'] else 'NOT KEPT'}: {rule['rule']}: {rule['observed']}"
        for rule in document["rules"]
    ]
    return lines


def audit_lines(document: Document) -> list[str]:
    """Each test, and what failed in it."""
    lines = []
    for name, test in document["audit"].items():
        passed = "PASS" if test["pass"] else "FAIL"
        lines.append(f"audit {name}: {passed} ({test['passed']} passed, {test['failed']} failed)")
        failed = [one for one in test["findings"] if not one["pass"]]
        lines += [
            f"  {one['subject']}: expected {one['expected']}, observed {one['observed']}"
            for one in failed[:10]
        ]
        if len(failed) > 10:
            lines.append(f"  and {test['failed'] - 10} more")
    return lines


def _head(document: Document) -> str:
    places = ", ".join(f"{count:,} {kind}" for kind, count in document["locations"].items())
    changed = document["changed_options"]
    options = f"; {len(changed)} options of jms2009-PS or freeform" if changed else ""
    return f"supply chain {document['topology']}, BASE {document['base']:,}: {places}{options}"


def _ms(value_us: float | None) -> str:
    return "" if value_us is None else f"{value_us / 1000:,.2f}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns side by side, the first to the left, numbers to the right."""
    widths = [max(len(row[at]) for row in (head, *rows)) for at in range(len(head))]
    return [
        "  ".join(
            cell.ljust(width) if at == 0 else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]
