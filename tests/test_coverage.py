"""docs/internals/coverage.md: what of the published documents is here, kept true."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.case import Case
from loadgen.cases.registry import CASES
from loadgen.specjms.audit import Audit, Observed
from loadgen.specjms.messages import SPECIFICATION
from loadgen.specjms.rules import run_rules

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "docs/internals/coverage.md").read_text("utf-8")
DOCUMENTS = tomllib.loads((ROOT / "tests/data/documents.toml").read_text("utf-8"))
"""Contents of the documents themselves, by document."""

SECTIONS = tuple(DOCUMENTS["coverage"]["sections"])
PUBLISHED_ROWS: list[str] = DOCUMENTS["coverage"]["published_rows"]

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


def test_every_section_has_its_table() -> None:
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


def items(section: str) -> list[str]:
    return [cells[0] for part, cells in LINES if part.startswith(section)]


def test_each_run_rule_that_is_judged_is_listed_by_its_section() -> None:
    listed = {item.split()[0] for item in items("SPECjms2007: run")}
    seen = Observed(1.0, 0.0, 0.0, (), (), (), ())
    rules = [rule.rule for rule in run_rules(seen, Audit(()))]
    # The last is no section's: that nothing was changed.
    judged = {found for rule in rules[:-1] for found in re.findall(r"\d\.\d(?:\.\d)?", rule)}
    assert judged <= listed
    assert {"3.1", "3.4", "4.2.3", "5.1"} <= judged


def test_each_figure_of_the_case_study_is_the_papers() -> None:
    lines = {item.split(":")[0]: item for item in items("jms2009-PS")}
    for scenario, (base, share, delivery_ms) in SPECIFICATION["case_study"].items():
        said = lines[f"scenario {scenario}"]
        assert f"BASE {base}, {share} a BASE, {delivery_ms:.0f} ms" in said


def test_each_section_of_the_run_rules_has_a_line() -> None:
    listed = {item.split()[0] for item in items("SPECjms2007: run")}
    numbers = [title.split()[0] for title in DOCUMENTS["rules"]["sections"]]
    assert len(numbers) == len(set(numbers)) == 38
    assert [number for number in numbers if number not in listed] == []


def test_each_variable_and_switch_of_the_published_harness_has_a_line() -> None:
    text = " ".join(items("Appendix D"))
    words = set(re.findall(r"-?[A-Za-z]+", text))
    harness = DOCUMENTS["harness"]
    assert [
        name for name in (*harness["variables"], *harness["switches"]) if name not in words
    ] == []


def test_each_table_figure_and_scenario_of_the_case_study_has_a_line() -> None:
    listed = {item.split(":")[0] for item in items("jms2009-PS")}
    assert [name for name in DOCUMENTS["paper"]["items"] if name not in listed] == []


def test_each_interaction_has_a_line() -> None:
    lines = [item for item in items("SPECjms2007: the benchmark") if item.startswith("interaction")]
    named = {int(digit) for line in lines for digit in re.findall(r"\d", line)}
    assert named == set(DOCUMENTS["article"]["interactions"])
