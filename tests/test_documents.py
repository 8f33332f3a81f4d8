"""The documents hold together: the site is built from them, and no link leads nowhere."""

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.py"))
CASE = ROOT / "docs" / "examples" / "broadcast.py"
"""A module of the package, which names other modules of it."""
PAGES = sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").rglob("*.md"))


def test_the_site_is_built_without_a_complaint(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    shown = (tmp_path / "codes" / "index.html").read_text()
    assert "GENERATOR_SATURATED" in shown


def test_every_page_is_in_the_navigation() -> None:
    def pages(entries: list[object]) -> set[str]:
        named: set[str] = set()
        for entry in entries:
            if isinstance(entry, dict):
                named |= pages(next(iter(entry.values())))
            else:
                named.add(str(entry))
        return named

    listed = pages(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])
    assert listed == {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_every_promise_names_tests_that_there_are() -> None:
    rows = [
        line
        for line in (ROOT / "docs" / "internals" / "promises.md").read_text().splitlines()
        if "`tests/" in line
    ]
    assert len(rows) > 10
    for row in rows:
        file = ""
        for named, test in re.findall(r"`(tests/[\w/]+\.py)?(?:::)?(\w*)`", row):
            file = named or file
            code = (ROOT / file).read_text()
            assert not test or f"def {test}(" in code, row


def imports_of_the_package(path: Path) -> list[tuple[str, str]]:
    """Return (module, name) of every import from loadgen in a page or a Python file."""
    text = path.read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL) if path.suffix == ".md" else [text]
    return [
        (node.module or "", alias.name)
        for block in blocks
        for node in ast.walk(ast.parse(block))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "loadgen"
        for alias in node.names
    ]


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_documents_import_from_the_api_alone(path: Path) -> None:
    imports = imports_of_the_package(path)
    for module, name in imports:
        assert hasattr(importlib.import_module(module), name), (module, name)
        assert name in getattr(importlib.import_module(module), "__all__", [name]), (module, name)
    inside = set(imports_of_the_package(CASE))
    assert {module for module, name in imports if (module, name) not in inside} <= {
        "loadgen",
        "loadgen.api",
    }
    # Names in the text.
    for dotted in re.findall(r"`(loadgen(?:\.\w+)+)", path.read_text("utf-8")):
        assert dotted.startswith("loadgen.api") or dotted.endswith((".main", ".warm")), dotted
