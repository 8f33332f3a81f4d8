"""`python -m tests.changed` prints the test files of what changed since main, by git.

A module's tests are the file that mirrors it (`loadgen/a/b.py`, `tests/a/test_b.py`) and the files
that import it. Data of a package, as a template, has the tests of its directory.
"""

import ast
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
_DOCUMENTS = "tests/test_documents.py"


def changed_files() -> set[str]:
    """Return the files that differ from where this branch left main, and those not in git yet."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    changed = _git("diff", "--name-only", "--diff-filter=d", base[0])
    return {*changed, *_git("ls-files", "--others", "--exclude-standard")}


def _git(*words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def imported(source: str) -> set[str]:
    """Return the modules that a source may import, `a.b.c` for `from a.b import c` as well."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def affected(changed: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the test files of the changed files, paths from the root, sorted."""
    tests: set[str] = set()
    modules: set[str] = set()
    for name in changed:
        path = Path(name)
        if path.parts[0] == "tests" and path.name.startswith("test_") and path.suffix == ".py":
            tests.add(name)
        elif path.suffix == ".py" and path.parts[0] in ("loadgen", "tests", "bench"):
            modules.add(".".join(path.with_suffix("").parts).removesuffix(".__init__"))
            mirror = Path("tests", *path.parts[1:]).with_name(f"test_{path.name}")
            tests.add(mirror.as_posix())
        elif path.parts[0] == "loadgen":
            mirrored = root.joinpath("tests", *path.parent.parts[1:])
            tests |= {file.relative_to(root).as_posix() for file in mirrored.glob("test_*.py")}
        elif path.suffix == ".md" or path.parts[0] == "docs":
            tests.add(_DOCUMENTS)
    for file in (root / "tests").rglob("test_*.py") if modules else ():
        if modules & imported(file.read_text("utf-8")):
            tests.add(file.relative_to(root).as_posix())
    return sorted(test for test in tests if (root / test).is_file())


if __name__ == "__main__":
    sys.stdout.writelines(f"{test}\n" for test in affected(changed_files()))
