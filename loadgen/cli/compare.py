"""`loadgen compare URL URL [-n 3] CASE ...`: brokers in turn, or finished runs, in one table."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from loadgen.cases.case import Case
from loadgen.cases.registry import CASES
from loadgen.cli import options
from loadgen.cli.cases import logs_of, score
from loadgen.cli.result_text import (
    Paper,
    advice_of,
    aligned,
    answer_lines,
    labelled,
    print_result,
    tell,
)
from loadgen.cli.sweep import one_of, played
from loadgen.errors import UsageError
from loadgen.report.build.compare import (
    Compared,
    ComparedSide,
    Line,
    compare_sides,
    comparison_document,
    sides_of,
)
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.log import require_readable
from loadgen.report.record import runs_in
from loadgen.report.render.text import name, notice_lines, number
from loadgen.report.render.write import write_comparison
from loadgen.run.search.sweep import SIDES, Sweep
from loadgen.sentences import CLI_TEXT, counted, duration


def compare_brokers(case: Case[Any], flags: options.Flags) -> int:
    brokers = flags["sides"]
    _require_sides(brokers)
    scenario = options.read_scenario(case, {**flags, "broker": one_of(brokers)})
    require_readable(logs_of(scenario))
    axes = (("broker", tuple(brokers)),)
    grid = Sweep(scenario, axes, flags["repeat"], again=True, strict=True, folder=SIDES)
    result = played(grid, f"compare-{case.name}", flags)
    sides = sides_of(result, lambda directory: score(directory, scenario))
    if len(sides) < len(brokers):
        tell([f"loadgen: interrupted before each broker had a run; see {result.directory}"])
        return 130
    status = _show(compare_sides(sides), result.directory, flags)
    return 130 if result.interrupted else status


def _require_sides(sides: Sequence[str]) -> None:
    if len(sides) < 2:
        raise UsageError(CLI_TEXT.FEW_SIDES())
    if len(set(sides)) < len(sides):
        raise UsageError(CLI_TEXT.SIDE_TWICE())


def compare_directories(flags: options.Flags) -> int:
    sides = flags["sides"]
    _require_sides(sides)
    if not any(Path(side).exists() for side in sides):
        raise UsageError(CLI_TEXT.NOT_A_SIDE(side=sides[0], cases=", ".join(CASES)))
    runs = [runs_in(Path(side)) for side in sides]
    compared = [
        ComparedSide(side, tuple(paths), tuple(map(summarize_run, paths)))
        for side, paths in zip(sides, runs, strict=True)
    ]
    return _show(compare_sides(compared), flags["out"], flags)


def _show(compared: Compared, directory: Path | None, flags: options.Flags) -> int:
    parts = []
    if directory is not None:
        parts.append(("files", f"{directory} · page {write_comparison(compared, directory)}"))
    if advice := advice_of(compared.codes):
        parts.append(("next", advice))
    brief = flags["quiet"]

    def lines(paper: Paper) -> Iterator[str]:
        yield from comparison_lines(compared, paper, brief=brief)
        yield from labelled(() if brief else parts, paper)

    print_result(flags, comparison_document(compared) if flags["json_"] else None, lines)
    return 0 if compared.valid else 1


def comparison_lines(compared: Compared, paper: Paper, *, brief: bool = False) -> Iterator[str]:
    """Yield a line for each side, and unless brief, the table of figures and remarks."""
    for notice in () if brief else compared.notices:
        yield from notice_lines(notice, paper.width)
    for side in compared.sides:
        runs = counted(len(side.cards), "run")
        codes = ", ".join(side.codes)
        details = runs if side.valid else f"{codes}, {side.invalid_runs} of {runs}"
        yield from answer_lines(side.valid, details, (side.name,), "", paper)
    if brief:
        return
    for comparison in compared.cases:
        sides = [name(side.label) for side in comparison.sides]
        heads = (comparison.case, sides[0], *(text for one in sides[1:] for text in (one, "")))
        yield ""
        yield from aligned([heads, *map(_cells, comparison.lines)], left=(0,), paper=paper)
        remarks = [("remark", name(remark)) for remark in comparison.remarks]
        yield from labelled(remarks, paper)
    if any(len(side.cards) < 2 for side in compared.sides):
        yield from labelled([("remark", "a side has one run: differences may be noise")], paper)
    yield ""


def _cells(line: Line) -> list[str]:
    """Return a line of the table: each figure, and after the first its difference from that."""
    timed = line.unit == "microseconds"
    cells = [name(line.title) + ("" if timed else f", {name(line.unit)}")]
    for cell, difference in zip(line.cells, (None, *line.differences), strict=True):
        cells.append("" if cell is None else (duration if timed else number)(cell.median))
        if difference is not None:
            noisy = difference.absolute and difference.exceeds is False
            equal = cells[-1] == cells[1]  # to the digits that are shown
            words = difference.certainty if noisy else difference.text
            cells.append("equal" if equal else words)
        elif len(cells) > 2:
            cells.append("")
    return cells
