"""The cache of compiled kernels, in a small package with a copy of `loadgen.kernels.compiled`.

Each test runs new processes, which compile what the package's directory does not have.
"""

import json
import os
import shutil
import subprocess
import sys
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numba
import pytest

from tests.tables import table

pytestmark = pytest.mark.xdist_group("compiled")

ROOT = Path(__file__).parents[2]
SOURCES = table("compiled")["sources"]
RUN = table("compiled")["run"]
VALUES = [3, 7, 6, 6, 106]
KERNELS = {
    *("loadgen.kernels.calls.adder.add", "loadgen.kernels.calls.handed"),
    *("loadgen.kernels.calls.middle", "loadgen.kernels.leaf.leaf", "outside.outer"),
}


class Package(NamedTuple):
    """A package and its cache."""

    root: Path
    cache: Path

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.root / file
        assert old in path.read_text()
        path.write_text(path.read_text().replace(old, new))

    def command(self, code: str, **environment: str) -> subprocess.Popen[str]:
        paths = {"PYTHONPATH": str(self.root), "NUMBA_CACHE_DIR": str(self.cache)}
        return subprocess.Popen(
            [sys.executable, "-c", code],
            env={**os.environ, **paths, "PYTHONDONTWRITEBYTECODE": "1"} | environment,
            cwd=self.root,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str = RUN, **environment: str) -> str:
        process = self.command(code, **environment)
        output, _ = process.communicate()
        assert process.returncode == 0
        return output

    def values(self) -> list[int]:
        values: list[int] = json.loads(self.run())
        return values

    def files(self) -> set[Path]:
        return {path for path in self.cache.glob("*/*") if path.suffix in (".kernel", ".bitcode")}

    def directories(self) -> set[Path]:
        return set(self.cache.glob("loadgen-*"))


@pytest.fixture
def package(tmp_path: Path) -> Package:
    root = tmp_path / "source"
    for name, source in SOURCES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(source)
    shutil.copytree(ROOT / "loadgen/kernels/compiled", root / "loadgen/kernels/compiled")
    return Package(root, tmp_path / "cache")


def names_of(files: set[Path]) -> set[str]:
    """Return the kernels whose code files have, without tags."""
    return {path.name.partition("-")[0].rpartition("_")[0] for path in files}


def test_what_one_process_compiled_is_loaded_until_its_source_changes(package: Package) -> None:
    assert package.values() == VALUES
    first = package.files()
    assert names_of(first) == KERNELS
    before = {path: path.stat().st_mtime_ns for path in first}
    assert json.loads(package.run(PYTHONHASHSEED="1")) == VALUES
    assert {path: path.stat().st_mtime_ns for path in package.files()} == before

    # All of them are cut: an intact file of machine code is loaded without its bitcode.
    for path, content in zip(before, cycle((b"", b"\0" * 100, None)), strict=False):
        path.write_bytes(path.read_bytes()[:100] if content is None else content)
    assert package.values() == VALUES
    assert package.files() == first
    assert all(path.stat().st_size > 100 for path in first)

    # Elsewhere: only kernels of that module.
    package.edit("loadgen/plain.py", "7", "8")
    package.edit("outside.py", "100", "200")
    assert package.values() == [3, 7, 6, 6, 206]
    second = package.files()
    assert names_of(second - first) == {"outside.outer"}
    assert len(package.directories()) == 1

    # In a kernel: all, in another directory.
    package.edit("loadgen/kernels/leaf.py", "x * 3", "x * 4")
    assert package.values() == [3, 7, 8, 8, 208]
    assert names_of(package.files() - second) == KERNELS
    assert len(package.directories()) == 2


def test_processes_that_start_at_once_compile_each_kernel_once(package: Package) -> None:
    first = package.command(RUN)
    others = [package.command(RUN) for _ in range(3)]
    for process in (first, *others):
        assert json.loads(process.communicate()[0]) == VALUES
    assert names_of(package.files()) == KERNELS
    assert not [*package.cache.glob("*/*.part")]


def test_a_source_that_changes_while_a_process_runs_is_not_stored(package: Package) -> None:
    edit = """
from pathlib import Path
from loadgen.kernels.leaf import leaf
path = Path("{}")
path.write_text(path.read_text().replace("x * 3", "x * 4"))
print(leaf(2))
"""
    path = package.root / "loadgen/kernels/leaf.py"
    assert package.run(edit.format(path)) == "6\n"
    assert package.files() == set()
    assert package.run("from loadgen.kernels.leaf import leaf; print(leaf(2))") == "8\n"


def test_directories_that_were_not_used_lately_are_removed_but_for_the_last_few(
    package: Package,
) -> None:
    for age in range(8):
        directory = package.cache / f"loadgen-{age}"
        directory.mkdir(parents=True)
        (directory / "leaf.kernel").touch()
        os.utime(directory, (1_000_000 - age, 1_000_000 - age))
    (package.cache / "loadgen-young").mkdir()
    (package.cache / "of-another-program").mkdir()
    assert package.values() == VALUES
    [new] = {path.parent.name for path in package.files() if path.stat().st_size}
    assert {path.name for path in package.cache.iterdir()} == {
        *("loadgen-0", "loadgen-1", "loadgen-young", "of-another-program", new)
    }


def test_a_process_whose_directory_is_removed_compiles_on(package: Package) -> None:
    remove = f"import shutil; shutil.rmtree({str(package.cache)!r})\n"
    first, rest = RUN.split("values =")
    assert json.loads(package.run(f"{first}calls.add_two(1)\n{remove}values ={rest}")) == VALUES


def test_a_directory_that_cannot_be_written_is_done_without(package: Package) -> None:
    package.cache.touch()
    assert package.values() == VALUES


def test_a_kernel_that_closes_over_what_has_no_name_is_refused(package: Package) -> None:
    code = """
from loadgen.kernels.calls import adder
try:
    adder(2.5)
except TypeError as error:
    print("refused")
"""
    assert package.run(code) == "refused\n"


def test_constants_of_one_kind_are_one_type(package: Package) -> None:
    code = "from loadgen.kernels.calls import *; print(middle(4), len(leaf.callee.signatures))"
    assert package.run(code) == "15 1\n"


def test_numba_is_of_a_version_whose_linking_was_tried() -> None:
    assert numba.__version__.rpartition(".")[0] in [f"0.{minor}" for minor in range(61, 69)]
