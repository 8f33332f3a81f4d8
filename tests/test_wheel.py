"""The wheel is what users install: built, put into an environment of its own, and used there.

It is built from the source archive, as packagers do, so that the archive holds what it needs.
"""

import json
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from loadgen import PROGRAM

ROOT = Path(__file__).parents[1]


def built(kind: str, source: Path, directory: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(directory)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (made,) = directory.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, unpacked."""
    archive = built("sdist", ROOT, tmp_path_factory.mktemp("sdist"))
    place = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as packed:
        # CPython 3.11.3 and older have no filters.
        packed.extraction_filter = getattr(tarfile, "data_filter", None)
        packed.extractall(place)
    (top,) = place.iterdir()
    return top


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", sdist, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def loadgen(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in a fresh environment, which sees this one's packages except our own."""
    place = tmp_path_factory.mktemp("fresh")
    venv.create(place, with_pip=False, symlinks=True)
    packages = place / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    # The interpreter that .venv was made from has pip; a .pth file within the added directories,
    # such as that of an editable install, is not read.
    pip = [getattr(sys, "_base_executable", sys.executable), "-m", "pip"]
    subprocess.run(
        [*pip, "--python", str(place), "install", "--no-deps", "--no-index", str(wheel)],
        check=True,
        capture_output=True,
    )
    seen = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(seen))
    return place / "bin" / "loadgen"


def run(program: Path, *arguments: str, directory: Path, limit: int = 0) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    ended = subprocess.run(
        [str(program), *arguments],
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode <= limit, ended.stderr
    return ended.stdout


def test_it_holds_the_files_that_are_not_code(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for directory in ("scenarios", "tuning"):
        for path in filter(Path.is_file, (ROOT / directory).rglob("*")):
            assert f"loadgen/{path.relative_to(ROOT).as_posix()}" in names
    for path in (ROOT / "loadgen").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            assert path.relative_to(ROOT).as_posix() in names


def test_the_source_archive_holds_what_its_tests_need_and_no_more(sdist: Path) -> None:
    held = {path.relative_to(sdist).as_posix() for path in sdist.rglob("*") if path.is_file()}
    for directory in ("loadgen", "scenarios", "tuning", "tests", "bench", "docs"):
        for path in filter(Path.is_file, (ROOT / directory).rglob("*")):
            name = path.relative_to(ROOT)
            made = "__pycache__" in name.parts or name.parts[:2] == ("bench", "build")
            assert (name.as_posix() in held) != made, name
    assert {"bootstrap.py", "requirements.lock", "pyproject.toml", "CHANGELOG.md"} <= held
    assert not any(name.startswith((".venv", "runs", ".ci")) for name in held)


def test_the_licence_is_in_it(wheel: Path) -> None:
    (named,) = (name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("/LICENSE"))
    assert zipfile.ZipFile(wheel).read(named) == (ROOT / "LICENSE").read_bytes()


def test_it_is_the_installed_package_that_runs(loadgen: Path, tmp_path: Path) -> None:
    python = loadgen.with_name("python")
    code = "import loadgen; print(loadgen.__file__)"
    assert run(python, "-c", code, directory=tmp_path).startswith(str(loadgen.parents[1]))
    assert run(loadgen, "--version", directory=tmp_path) == f"{PROGRAM}\n"


def test_a_scenario_that_came_with_it_is_planned(loadgen: Path, tmp_path: Path) -> None:
    scenario = ("--scenario", "scenarios/fanin.toml")
    assert "1,000  publishers" in run(loadgen, "plan", "fanin", *scenario, directory=tmp_path)


def test_a_run_against_the_reflector(loadgen: Path, tmp_path: Path) -> None:
    given = ("--broker=reflector", "--devices=20", "--warmup=0.2", "--duration=1", "--json")
    # A busy host may miss the rate, which makes the run invalid: status 1.
    found = json.loads(run(loadgen, "fanin", *given, directory=tmp_path, limit=1))
    assert found["counts"]["received"] == found["counts"]["sent"] > 0
