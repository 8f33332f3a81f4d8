"""docs/coverage.md: what of the published report is here, kept true."""

import ast
import re
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import CASES
from loadgen.workload.case import Case

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/coverage.md").read_text("utf-8")

SECTIONS = (
    "Key results",
    "Benchmark specifications: overview and test cases",
    "Methodology",
    "System under test",
    "Score card",
    "Additional test results data",
    "Appendix A: appliance configuration",
    "Appendix B: client machine tuning",
    "Appendix C: queue manager tuning",
    "Appendix D: test harness execution details",
)
"""The report's, in its order."""

PUBLISHED_ROWS = [
    "FANIN",
    "FANOUT",
    "PERSISTENT",
    "JMSPUBSUB",
    "JMSQUEUE",
    "JMSPERSISTENT",
    "JMSFANOUT",
    "WMQPUBSUB",
    "WMQDURABLE",
    "FANIN.SEC",
    "FANOUT.SEC",
    "LATENCY",
    "CONNBURST",
    "PERSISTENT.MPW",
    "PERSISTENT.MPU",
]
"""Of its score card."""

PARTS = re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]
LINES = [
    (part.partition("\n")[0], [cell.strip() for cell in line.strip("|").split(" | ")])
    for part in PARTS
    for line in part.splitlines()
    if line.startswith("| ") and not line.startswith("| item ")
]


def defined(path: Path) -> set[str]:
    """Names of a module's functions, classes and values, those of a class with its name before."""

    def names(body: list[ast.stmt], before: str = "") -> set[str]:
        found: set[str] = set()
        for node in body:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                found.add(before + node.name)
            if isinstance(node, ast.ClassDef):
                found |= names(node.body, f"{before}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets += [node.target] if isinstance(node, ast.AnnAssign) else []
            found |= {before + one.id for one in targets if isinstance(one, ast.Name)}
        return found

    return names(ast.parse(path.read_text("utf-8")).body)


def test_every_section_of_the_report_has_its_table() -> None:
    assert tuple(part.partition("\n")[0] for part in PARTS) == SECTIONS
    assert all(any(section == one for section, _ in LINES) for one in SECTIONS)
    assert "MessageSight Appliance v1.0 Performance Benchmarks" in TEXT and "2013" in TEXT


@pytest.mark.parametrize(("section", "cells"), LINES, ids=[cells[0] for _, cells in LINES])
def test_each_item_is_somewhere_and_says_why_it_deviates(section: str, cells: list[str]) -> None:
    item, here, state, why = [*cells, ""][:4]
    assert item and state in ("exact", "deviating", "left out")
    assert bool(why.strip("| ")) == (state != "exact"), "a reason, unless it is exact"
    place = re.fullmatch(r"`([\w./-]+)`(?: `([\w.]+)`)?", here)
    assert place is not None, here
    path, symbol = place.groups()
    assert (ROOT / path).is_file()
    assert symbol is None or symbol in defined(ROOT / path)


def test_no_row_no_scenario_and_no_figure_is_missing() -> None:
    card = {cells[0].split()[0] for section, cells in LINES if section == "Score card"}
    assert set(PUBLISHED_ROWS) <= card
    figures = {figure.name for case in CASES.values() for figure in case.published}
    assert figures == set(PUBLISHED_ROWS)
    cases = [cells for section, cells in LINES if section.startswith("Benchmark")]
    played = {re.split(r"[: ]", cells[0])[0] for cells in cases}
    assert {name for name in PUBLISHED_ROWS if ".MP" not in name} <= played
    published = {path.name for path in (ROOT / "scenarios").glob("*-published.toml")}
    for name in published - {"specjms-published.toml"}:
        text = (ROOT / "scenarios" / name).read_text("utf-8")
        assert "Source:" in text and "Performance Benchmarks" in text


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if case.published], ids=lambda case: case.name
)
def test_the_numbers_of_the_score_card_are_those_of_the_cases(case: Case[Any]) -> None:
    """What the document says of a row is what stands beside our figures."""
    lines = {cells[0].split()[0]: cells[0] for part, cells in LINES if part == "Score card"}
    seen: set[tuple[str, str]] = set()
    for figure in case.published:
        said = lines[figure.name]
        for value in (figure.value, figure.avg, figure.p50, figure.p99, figure.max, figure.stdev):
            # Of several lines of a row, such as the ratios of FANOUT.SEC, the first is the card's.
            if value is None or figure.bounds or (figure.name, figure.measure) in seen:
                continue
            assert _short(value) in re.findall(r"[\d.]+[KM]?", said), (said, value)
        seen |= {(figure.name, figure.measure)}


def _short(value: float) -> str:
    """As the report writes it: 400K, 16.2M, 65."""
    for unit, size in (("M", 1_000_000), ("K", 1_000)):
        if value >= size and not (size == 1_000 and value % size):
            return f"{value / size:g}{unit}"
    return f"{value:g}"
