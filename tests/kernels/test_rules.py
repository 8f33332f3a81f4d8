"""The rule of kernels/: compiled functions and what they read, and no compiled function elsewhere.

The hash that names the cache's directory covers these folders, so code that is compiled must not
depend on a file outside of them.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import loadgen
from loadgen.kernels.compiled.cache import SOURCES

ROOT = Path(str(loadgen.__file__)).parents[1]
FILES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): path
    for folder in ("loadgen", "tests", "bench")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if path.name != "__init__.py"
}
PACKAGES = ("loadgen.kernels.", "loadgen.specjms.kernels.")
KERNELS = {name for name in FILES if name.startswith(PACKAGES)}


@cache
def parsed(name: str) -> ast.Module:
    """Return the tree of a module; each process of a test run imports this file."""
    return ast.parse(FILES[name].read_text())


def imports(tree: ast.AST) -> Iterator[str]:
    """Return the modules that a module imports when it runs, not only for type checkers."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.ImportFrom):
            module = str(node.module)
            yield from (
                f"{module}.{name.name}" if f"{module}.{name.name}" in FILES else module
                for name in node.names
            )
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        yield from imports(node)


def compiles(name: str) -> bool:
    """Return True if a module has a compiled function."""
    return re.search("@(compiled|intrinsic)$", FILES[name].read_text(), re.MULTILINE) is not None


def test_only_kernels_are_compiled() -> None:
    outside = {name for name in FILES if compiles(name)} - KERNELS
    assert not [name for name in outside if name.startswith("loadgen.")]
    for name in outside:  # a file of the cache has the hash of its own module alone
        assert not outside & {*imports(parsed(name))}, name


def test_a_module_of_kernels_is_compiled_or_read_by_one_that_is() -> None:
    modules = {name for name in KERNELS if not name.startswith("loadgen.kernels.compiled")}
    needed = {name for name in modules if compiles(name)}
    while more := {read for name in needed for read in imports(parsed(name))} & modules - needed:
        needed |= more
    assert modules == needed


def test_kernels_read_nothing_outside_the_sources_that_name_the_cache() -> None:
    for name in sorted(KERNELS):
        for read in imports(parsed(name)):
            if read.startswith("loadgen."):
                path = ROOT / Path(*read.split("."))
                assert any(path.is_relative_to(folder) for folder in SOURCES), (name, read)
