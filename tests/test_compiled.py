"""`@compiled` keeps machine code until something that it is made of changes, and no longer.

A small package is compiled once; each test edits one line of a copy and looks, in a new process,
which kernels were compiled anew and what they now return.
"""

import json
import operator
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from loadgen.kernels.compiled.digest import Digest

pytestmark = pytest.mark.xdist_group("compiled")

SOURCES = {
    "constants.py": """
from enum import IntEnum
import numpy as np
NUMBER = 3
PAIR = (1, 2)
TABLE = np.array([10, 20], np.int64)
UNUSED = 7
class Colour(IntEnum):
    RED = 5
""",
    "calls.py": """
from loadgen.kernels.compiled import compiled
from .constants import NUMBER
def plain(x):
    return x + 1
@compiled
def leaf(x):
    return x * NUMBER
@compiled
def middle(x):
    return leaf(x) + 1
@compiled
def apart(x):
    return x - 1
""",
    "extension.py": """
from numba import types
from numba.core import cgutils
from numba.core.extending import intrinsic
from numba.extending import models, overload, overload_attribute, register_model
from .layout import LAYOUT
class Pointer(types.Type):
    def __init__(self):
        super().__init__(name="Pointer")
pointer_type = Pointer()
register_model(Pointer)(models.OpaqueModel)
@intrinsic
def pointer(context):
    def generate(context, builder, signature, arguments):
        return context.get_dummy_value()
    return pointer_type(), generate
@overload_attribute(Pointer, "field")
def pointer_field(value):
    offset = LAYOUT["field"]
    return lambda value: offset
def size_of(value):
    return 0
@overload(size_of)
def overload_size_of(value):
    return lambda value: 40
@intrinsic
def seven(context):
    def generate(context, builder, signature, arguments):
        return context.get_constant(types.int64, 7)
    return types.int64(), generate
""",
    "layout.py": 'LAYOUT = {"field": 100}\n',
    "kernels.py": """
import numpy as np
from loadgen.kernels.compiled import compiled
from . import calls, constants, extension
from .constants import Colour, TABLE
from .extension import pointer, seven, size_of
def made(step):
    @compiled
    def kernel(x):
        return x + step
    return kernel
DTYPE = np.dtype([("a", np.int64), ("b", np.int64)])
ROWS = np.ones(1, DTYPE)
@compiled
def own(x):
    return x + 2
@compiled
def default(x, y=4):
    return x + y
@compiled
def number(x):
    return x + constants.NUMBER
@compiled
def pair(x):
    return x + constants.PAIR[0]
@compiled
def table(x):
    return x + TABLE[0]
@compiled
def colour(x):
    return x + Colour.RED
@compiled
def deep(x):
    return calls.middle(x)
@compiled
def later(x):
    return defined_later(x)
@compiled
def defined_later(x):
    return x + 9
@compiled
def attribute(x):
    return pointer().field
@compiled
def overloaded(x):
    return size_of(x)
@compiled
def intrinsic(x):
    return seven()
@compiled
def record(rows):
    return rows[0].b
@compiled
def handed(function, x):
    return function(x)
closed = made(6)
CALLS = {
    "own": lambda: own(1), "default": lambda: default(1), "number": lambda: number(1),
    "pair": lambda: pair(1), "table": lambda: table(1), "colour": lambda: colour(1),
    "deep": lambda: deep(1), "later": lambda: later(1), "attribute": lambda: attribute(1),
    "overloaded": lambda: overloaded(1), "intrinsic": lambda: intrinsic(1),
    "record": lambda: record(ROWS), "handed": lambda: handed(calls.leaf, 1),
    "closed": lambda: closed(1),
}
""",
}
RUN = """
import json
from sample import kernels
results = {}
for name, call in kernels.CALLS.items():
    value = int(call())
    stats = getattr(kernels, name).stats
    results[name] = [value, bool(stats.cache_misses), bool(stats.cache_hits)]
print(json.dumps(results))
"""


class Result(NamedTuple):
    values: dict[str, int]
    compiled: set[str]
    loaded: set[str]


def write(directory: Path, changes: dict[str, tuple[str, str]]) -> Path:
    package = directory / "sample"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    for name, source in SOURCES.items():
        if name in changes:
            assert changes[name][0] in source
            source = source.replace(*changes[name])
        (package / name).write_text(source)
    return directory


def run(source: Path, cache: Path, code: str = RUN, **environment: str) -> str:
    ended = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(source), "NUMBA_CACHE_DIR": str(cache)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def results(output: str) -> Result:
    found = json.loads(output)
    return Result(
        {name: value for name, (value, _, _) in found.items()},
        {name for name, (_, compiled, _) in found.items() if compiled},
        {name for name, (_, _, loaded) in found.items() if loaded},
    )


VALUES = {
    "own": 3,
    "default": 5,
    "number": 4,
    "pair": 2,
    "table": 11,
    "colour": 6,
    "deep": 4,
    "later": 10,
    "attribute": 100,
    "overloaded": 40,
    "intrinsic": 7,
    "record": 1,
    "handed": 3,
    "closed": 7,
}


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("compiled")
    first = results(run(write(directory / "first", {}), directory / "cache"))
    assert first == Result(VALUES, set(VALUES), set())
    return directory / "cache"


def test_another_process_loads_everything(tmp_path: Path, cache: Path) -> None:
    again = results(run(write(tmp_path, {}), cache, PYTHONHASHSEED="1"))
    assert again == Result(VALUES, set(), set(VALUES))


@pytest.mark.parametrize(
    ("file", "old", "new", "values"),
    [
        pytest.param("kernels.py", "x + 2", "x + 3", {"own": 4}, id="the function itself"),
        pytest.param("kernels.py", "y=4", "y=5", {"default": 6}, id="a default argument"),
        pytest.param("kernels.py", "made(6)", "made(8)", {"closed": 9}, id="a closure"),
        pytest.param("kernels.py", "x + 9", "x + 8", {"later": 9}, id="a function defined later"),
        pytest.param("constants.py", "(1, 2)", "(2, 2)", {"pair": 3}, id="a tuple"),
        pytest.param("constants.py", "[10,", "[11,", {"table": 12}, id="an array"),
        pytest.param("constants.py", "RED = 5", "RED = 6", {"colour": 7}, id="an enumeration"),
        pytest.param(
            "constants.py",
            "NUMBER = 3",
            "NUMBER = 4",
            {"number": 5, "deep": 5, "handed": 4},
            id="a number, also two calls away and through a function that is handed in",
        ),
        pytest.param(
            "calls.py",
            "x * NUMBER",
            "x + NUMBER",
            {"deep": 5, "handed": 4},
            id="a kernel two calls away, and one that is handed in",
        ),
        pytest.param(
            "extension.py", "types.int64, 7", "types.int64, 8", {"intrinsic": 8}, id="an intrinsic"
        ),
        pytest.param("layout.py", "100", "200", {"attribute": 200}, id="an attribute's layout"),
        pytest.param("extension.py", ": 40", ": 41", {"overloaded": 41}, id="an overload"),
        pytest.param(
            "kernels.py",
            '("b", np.int64)',
            '("b", np.int32)',
            {"record": 1},
            id="the dtype of an argument",
        ),
    ],
)
def test_what_a_kernel_depends_on_compiles_it_anew(
    tmp_path: Path, cache: Path, file: str, old: str, new: str, values: dict[str, int]
) -> None:
    source = write(tmp_path, {file: (old, new)})
    changed = results(run(source, cache))
    assert changed.values == VALUES | values
    if file in ("extension.py", "layout.py"):  # a module counts whole for what it extends
        assert set(values) <= changed.compiled <= {"attribute", "overloaded", "intrinsic"}
    else:
        assert changed.compiled == set(values)


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        pytest.param("constants.py", "UNUSED = 7", "UNUSED = 8", id="a constant of the same file"),
        pytest.param("calls.py", "x - 1", "x - 2", id="a kernel that nobody calls"),
        pytest.param("calls.py", "return x + 1", "return x + 2", id="a plain function"),
        pytest.param("kernels.py", "\nDTYPE", "\n\n# Rows.\nDTYPE", id="a comment, and lines"),
        pytest.param("kernels.py", "    return x + 2", '    """."""\n    return x + 2', id="words"),
    ],
)
def test_an_unrelated_edit_compiles_nothing(
    tmp_path: Path, cache: Path, file: str, old: str, new: str
) -> None:
    assert results(run(write(tmp_path, {file: (old, new)}), cache)).compiled == set()


def test_processes_that_need_the_same_at_once_compile_it_once(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    environment = {
        **os.environ,
        "PYTHONPATH": str(source),
        "NUMBA_CACHE_DIR": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-c", RUN]
    running = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) for _ in range(3)]
    compiled: list[str] = []
    for process in running:
        output, _ = process.communicate()
        assert process.returncode == 0
        assert results(output.decode()).values == VALUES
        compiled += results(output.decode()).compiled
    assert sorted(compiled) == sorted(VALUES)
    assert results(run(source, tmp_path / "cache")).loaded == set(VALUES)
    assert {path.suffix for path in (tmp_path / "cache").glob("*-*")} == {".kernel", ".bitcode"}


def test_a_damaged_file_is_compiled_anew(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    code = "from sample.kernels import own; print(own(1), bool(own.stats.cache_hits))"
    assert run(source, tmp_path / "cache", code) == "3 False\n"
    [path] = (tmp_path / "cache").glob("*.kernel")
    path.write_bytes(path.read_bytes()[:100])
    assert run(source, tmp_path / "cache", code) == "3 False\n"
    assert run(source, tmp_path / "cache", code) == "3 True\n"


def test_old_files_are_removed_but_for_the_last_few(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    cache = tmp_path / "cache"
    cache.mkdir()
    code = "from sample.kernels import own; own(1)"
    for age in range(20):
        path = cache / f"sample.kernels.own-{age}.kernel"
        path.touch()
        os.utime(path, (1_000_000 - age, 1_000_000 - age))
    (cache / "sample.kernels.own-young.kernel").touch()
    (cache / "sample.kernels.owner-1.kernel").touch()
    run(source, cache, code)
    kept = {path.name for path in cache.glob("*.kernel")}
    assert len(kept) == 9
    assert {"sample.kernels.own-young.kernel", "sample.kernels.owner-1.kernel"} < kept
    assert "sample.kernels.own-5.kernel" in kept
    assert "sample.kernels.own-6.kernel" not in kept


def test_a_directory_that_cannot_be_written_is_done_without(tmp_path: Path) -> None:
    source = write(tmp_path / "source", {})
    code = "from sample.kernels import own; print(own(1))"
    closed = tmp_path / "closed"
    closed.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
    assert run(source, closed, code) == "3\n"
    blocked = tmp_path / "blocked"
    blocked.touch()
    assert run(source, blocked / "cache", code) == "3\n"


def test_what_may_change_unnoticed_is_refused(tmp_path: Path) -> None:
    source = write(
        tmp_path,
        {
            "kernels.py": (
                "@compiled\ndef own(x):",
                "class Thing:\n    pass\nTHING = Thing()\n"
                "@compiled\ndef own(x):\n    if x > 1:\n        return THING",
            )
        },
    )
    code = """
from sample.kernels import own
try:
    own(1)
except TypeError as error:
    print(error)
"""
    message = run(source, tmp_path / "cache", code)
    assert message == "own reads THING: cannot tell whether a Thing has changed\n"


def test_without_compilation_it_is_the_function_itself(tmp_path: Path) -> None:
    source = write(tmp_path, {"extension.py": ("@intrinsic\ndef seven", "def seven")})
    code = "from sample.kernels import own; print(type(own).__name__, own(1))"
    assert run(source, tmp_path / "cache", code, NUMBA_DISABLE_JIT="1") == "function 3\n"


def test_constants_of_one_kind_are_one_type(tmp_path: Path) -> None:
    three = "@compiled\ndef middle(x):\n    return leaf(0) + leaf(1) + leaf(x)"
    source = write(
        tmp_path, {"calls.py": ("@compiled\ndef middle(x):\n    return leaf(x) + 1", three)}
    )
    code = "from sample.calls import leaf, middle; print(middle(4), len(leaf.callee.signatures))"
    assert run(source, tmp_path / "cache", code) == "15 1\n"


class NamedProperty(property):
    """A property as Python 3.13 has them: with a name."""

    __name__ = "area"


def test_a_property_counts_by_its_function_though_it_has_a_name() -> None:
    def digest(value: object) -> str:
        made = Digest("loadgen.errors", {})
        made.add(value)
        return made.hexdigest()

    assert digest(NamedProperty(operator.neg)) != digest(NamedProperty(operator.pos))
