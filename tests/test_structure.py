"""Rules about the shape of the sources that no linter of ours knows."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_ARGUMENTS = 10
MOST_LINES = 100
LONG_ONES: frozenset[str] = frozenset()
"""At most three functions that may be longer, as `file:name`, each with its reason."""

ONE_NAME_TWO_CLASSES = {"Testbed"}
"""Names of several classes: the testbed of the Python API has that of `run` inside."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


@cache
def definitions() -> dict[str, list[Function | ast.ClassDef]]:
    """Return the functions and classes of each file of the package."""
    return {
        str(path.relative_to(ROOT)): [
            node
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, Function | ast.ClassDef)
        ]
        for path in sorted((ROOT / "loadgen").rglob("*.py"))
    }


def functions() -> Iterator[tuple[str, Function]]:
    for path, nodes in definitions().items():
        for node in nodes:
            if isinstance(node, Function):
                yield f"{path}:{node.name}", node


def arguments_of(function: Function) -> int:
    """Arguments that a caller gives; `*args` counts as one, `self` and `cls` do not count."""
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    is_method = bool(named) and named[0].arg in ("self", "cls")
    return len(named) - is_method + bool(given.vararg) + bool(given.kwarg)


def test_no_function_takes_more_than_ten_arguments() -> None:
    wide = {name: arguments_of(function) for name, function in functions()}
    assert {name: count for name, count in wide.items() if count > MOST_ARGUMENTS} == {}


def test_no_function_is_longer_than_a_hundred_lines() -> None:
    lines = {name: (f.end_lineno or 0) - f.lineno + 1 for name, f in functions()}
    assert {name for name, count in lines.items() if count > MOST_LINES} == LONG_ONES
    assert len(LONG_ONES) <= 3


def test_no_file_changes_where_modules_are_looked_for() -> None:
    own = Path(__file__)
    for directory in ("loadgen", "tests", "bench"):
        for path in (ROOT / directory).rglob("*.py"):
            text = path.read_text()
            assert path == own or "sys.path.insert" not in text, path
            assert path == own or "syspath_prepend" not in text, path


def test_directories_of_results_are_made_in_one_place() -> None:
    """What the other folders make are caches, and what is in a temporary directory."""
    package = ROOT / "loadgen"
    makers = {
        str(path.relative_to(package))
        for layer in ("run", "report", "cli")
        for path in (package / layer).rglob("*.py")
        if re.search(r"\bmkdir\(|\bmakedirs\(", path.read_text())
    }
    assert makers == {"run/rundir.py"}


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name
        for nodes in definitions().values()
        for node in nodes
        if isinstance(node, ast.ClassDef)
    )
    assert {name for name, count in names.items() if count > 1} == ONE_NAME_TWO_CLASSES
