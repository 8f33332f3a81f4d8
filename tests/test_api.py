import ast
import asyncio
import importlib
import pkgutil
import re
import textwrap
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from operator import attrgetter
from pathlib import Path
from typing import Self

import pytest

import loadgen
from loadgen import api
from loadgen.errors import LoadgenError, RunDirectoryError, ScenarioError, python_words
from loadgen.metrics.interval import INTERVAL_SCHEMA
from loadgen.plan.scenario import Scenario
from loadgen.report.build.sweep_table import SweepRow
from loadgen.run import rundir
from tests.programs import python
from tests.refusals import refused
from tests.report.fabricate import fabricate
from tests.tables import rows_of
from tests.test_sentences import TABLES
from tests.verdicts import faults, without_saturation

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "loadgen"
pytestmark = pytest.mark.usefixtures("stand_in_workers")
FANIN = {"broker": "reflector", "devices": 20, "warmup": 0.1, "duration": 0.5, "drain": 0.3}


def fanin(**fields: object) -> Scenario:
    return api.scenario("fanin", **(FANIN | {"rate": "1k"} | fields))


def test_scenario_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    path.write_text('case = "fanout"\nratio = 7\nrate = 10\n')
    read = api.scenario_file(path, rate=20)
    assert (read.case, read.ratio, read.rate) == ("fanout", 7, 20)
    path.write_text("ratio = 7\n")
    assert api.scenario_file(path, "fanout").ratio == 7
    with refused("NO_GROUPS", ScenarioError):
        api.run(api.scenario("run", rate=5))
    with refused("NO_CASE", ScenarioError):
        api.scenario_file(path)
    with refused("UNREADABLE_SCENARIO", reason="is a directory"):
        api.scenario_file(tmp_path)


def test_run_from_a_script(tmp_path: Path) -> None:
    phases: list[str] = []
    result = api.run(fanin(), tmp_path / "r", progress=lambda s: phases.append(s.phase))
    assert (faults(result.reasons), result.interrupted) == ((), False)
    assert result.valid == (not result.reasons)
    assert result.rates["received"] == pytest.approx(1000, rel=0.02)
    assert result.counts.lost == 0
    assert result.latency["end_to_end"].p99_us is not None
    table = result.intervals()
    assert table.schema.names == INTERVAL_SCHEMA.names
    assert table.num_rows > 0
    assert "measure" in phases
    assert api.read(tmp_path / "r") == result
    with refused("NO_DEVICES", RunDirectoryError):
        result.devices()


async def test_run_inside_a_running_loop(tmp_path: Path) -> None:
    threads = threading.active_count()
    assert not faults(api.run(fanin(), tmp_path / "blocked").reasons)
    with refused("NOT_EMPTY", RunDirectoryError):
        api.run(fanin(), tmp_path / "blocked")
    assert threading.active_count() <= threads


async def test_interrupt_ends_a_run_with_what_it_has(tmp_path: Path) -> None:
    interrupt = api.Interrupt()

    def press(snapshot: api.Snapshot) -> None:
        if snapshot.phase == "measure" and snapshot.sent_per_s > 0:
            interrupt.request()

    result = await asyncio.wait_for(
        api.run_async(fanin(duration=300), tmp_path / "r", progress=press, interrupt=interrupt), 60
    )
    assert result.interrupted
    assert [reason.code for reason in faults(result.reasons)] == ["INTERRUPTED"]
    assert api.read(tmp_path / "r").interrupted


def test_search_and_sweep(tmp_path: Path) -> None:
    what = api.scenario("fanin", **FANIN)
    found = api.search(
        what, "rate", tmp_path / "s", start=1000, highest=1500, require={"p99": "off"}
    )
    if found.limit is None or not found.limit.of_generator:
        assert found.limit == api.Limit(1500, None, True, "top of range")
    assert found.search.require.p99_s is None
    with refused("NOTHING_SWEPT", ScenarioError):
        api.sweep(what, {}, tmp_path / "g")
    table = api.sweep(what, {"rate": [500, 1000.0], "size": [(32, 64)]}, tmp_path / "g")
    assert [row.values for row in table.rows] == [
        {"rate": "500", "size": "32-64"},
        {"rate": "1000.0", "size": "32-64"},
    ]
    assert [without_saturation(row.reasons) for row in table.rows] == [(), ()]
    assert table.rows[1].figures["egress"] == pytest.approx(1000, rel=0.02)
    renderings = {path.name for path in (tmp_path / "g").glob("table.*")}
    assert renderings == {"table.json", "table.csv", "table.md", "table.html"}


def test_a_search_is_the_same_with_integers() -> None:
    whole: api.SearchOptions = {"start": 100, "highest": 200, "precision": 1, "step_s": 2}
    real: api.SearchOptions = {"start": 100.0, "highest": 200.0, "precision": 1.0, "step_s": 2.0}
    searches = [api._search_of(fanin(), "rate", options) for options in (whole, real)]
    assert len({one.digest for one in searches}) == 1


async def test_runs_that_start_in_one_second_have_directories_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moment = datetime(2031, 5, 6, tzinfo=UTC)

    class Stopped(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Self:
            return cls.fromtimestamp(moment.timestamp(), tz)

    monkeypatch.setattr(rundir, "datetime", Stopped)
    results = await asyncio.gather(*(api.run_async(fanin()) for _ in range(2)))
    assert len({result.directory for result in results}) == 2
    with pytest.raises(ScenarioError):
        await api.sweep_async(fanin(), {"luck": [1]})
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "20310506T000000Z-fanin",
        "20310506T000000Z-fanin-2",
    }


def test_examples_of_the_documentation_are_typed(tmp_path: Path) -> None:
    """As strictly as the package itself; `await` as a notebook has it needs a function here."""
    mypy = pytest.importorskip("mypy.api")
    text = (ROOT / "docs" / "reference" / "python.md").read_text("utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(blocks) == 7
    for number, block in enumerate(blocks):
        if re.search(r"^(\S.*\bawait|async with)\b", block, re.MULTILINE):
            block = f"async def main() -> None:\n{textwrap.indent(block, '    ')}"
        (tmp_path / f"example_{number}.py").write_text(block)
    (tmp_path / "mypy.ini").write_text("[mypy]\nstrict = true\nfollow_imports = silent\n")
    files = [str(path) for path in sorted(tmp_path.glob("*.py"))]
    options = [
        "--config-file",
        str(tmp_path / "mypy.ini"),
        "--cache-dir",
        str(ROOT / ".mypy_cache" / "docs"),
    ]
    told, wrong, status = mypy.run([*options, *files])
    assert status == 0, told + wrong


def test_package_tells_that_it_is_typed() -> None:
    assert (Path(api.__file__).parent / "py.typed").exists()


def raises_of_the_package() -> Iterator[tuple[Path, ast.Call]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "cli" not in path.relative_to(PACKAGE).parts:
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
                    yield path, node.exc


def test_every_error_of_the_package_is_one_of_this_module() -> None:
    for module in pkgutil.walk_packages(loadgen.__path__, "loadgen."):
        if ".cli" not in module.name and not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    found, unseen = set(), [LoadgenError]
    while unseen:
        found.add(unseen[-1])
        unseen += [*unseen.pop().__subclasses__()]
    own = {one for one in found if one.__module__.startswith("loadgen.")}
    public = {one.__name__ for one in own if not one.__name__.startswith("_")}
    assert public <= {*api.__all__}
    for name in public:
        assert getattr(api, name) in own
    raised = {ast.unparse(call.func) for _, call in raises_of_the_package()}
    others = {name for name in raised if name not in public and not name.startswith("_")}
    assert others <= {
        # Of values, for whoever calls a function wrongly, or caught where they are raised.
        *("ValueError", "TypeError", "KeyError", "OSError", "AttributeError", "SystemExit"),
        *("BrokenPipeError", "ConnectionError", "ConnectionResetError", "TimeoutError"),
        "InvalidHandshake",
        *("HeaderError", "UnclearDatesError", "RuntimeError", "AssertionError"),
        *("FrameViolationError", "LogError", "BadTimeError"),
        "ModuleNotFoundError",
    } | {name for name in others if name[0].islower()}


def test_no_message_that_python_sees_names_an_option() -> None:
    texts = [
        node.value
        for _, call in raises_of_the_package()
        for node in ast.walk(call)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    texts += [part for table in TABLES.values() for parts in table.values() for part in parts]
    for text in texts:
        assert not re.search("--[a-z]", python_words(text)), text
    assert sum("--" in text for text in texts) > 20


@pytest.mark.parametrize(("message", "told"), rows_of("api.python_words"))
def test_messages_name_what_a_caller_in_python_gives(message: str, told: str) -> None:
    assert python_words(message) == told


def test_every_verb_speaks_python(tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    with refused("NOT_EMPTY", RunDirectoryError):
        api.run(fanin(), tmp_path / "full")
    with refused("UNKNOWN_TARGET", ScenarioError):
        api.search("fanin", "speed", tmp_path / "s")
    with refused("SEARCH_ARGUMENT", ScenarioError):
        api.search(fanin(), "rate", tmp_path / "s", most_stepz=3)  # type: ignore[call-arg]
    with refused("NO_VALUE", ScenarioError):
        api.sweep(fanin(), {"size": []}, tmp_path / "s")
    for values in (5, "10,20", {"from": 10}):
        with refused("AXIS", ScenarioError, name="devices"):
            api.sweep(fanin(), {"devices": values}, tmp_path / "s")  # type: ignore[dict-item]


async def test_a_testbed_plays_runs_on_the_same_connections(tmp_path: Path) -> None:
    async with api.Testbed(broker="reflector") as testbed:
        slow = await testbed.run(fanin(), tmp_path / "slow")
        fast = await testbed.run(fanin(rate=2000), tmp_path / "fast")
        with refused("NOT_EMPTY", api.RunDirectoryError):
            await testbed.run(fanin(), tmp_path / "slow")
        server = testbed._testbed._server
        assert server is not None and server.is_alive
    assert not server.is_alive
    assert [faults(result.reasons) for result in (slow, fast)] == [(), ()]
    assert fast.card.connect.seconds is None and slow.card.connect.seconds is not None
    assert api.read(tmp_path / "fast") == fast


def test_scenarios_and_verbs_are_names_of_the_package() -> None:
    from loadgen import Fanin, run, sweep

    assert sweep is api.sweep and callable(run)
    scenario = Fanin(devices=1_000, rate=50_000)
    assert scenario == api.scenario("fanin", devices="1k", rate="50k")
    with refused("UNKNOWN_KEY", hint="; did you mean 'devices'?"):
        Fanin(devises=1)  # type: ignore[call-arg]
    with refused("VALUE", option="--devices", fault="-1 is negative"):
        Fanin(devices=-1)
    scenario = Fanin(devices=1000, broker=("mqtt://h",), user="env:ME", password="env:P")
    assert str(scenario) == "Fanin(devices=1000, broker=('mqtt://h',))"


def test_the_package_imports_nothing_heavy() -> None:
    code = (
        "import sys, loadgen; from loadgen import Fanin, run; "
        "heavy = {'numba', 'pyarrow', 'pyspark', 'loadgen.api'} & sys.modules.keys(); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_results_are_one_line(tmp_path: Path) -> None:
    result = api.read(fabricate(tmp_path / "run"))
    assert repr(result).startswith("Result(fanin VALID: ") and "\n" not in repr(result)
    rows = tuple(SweepRow(k, {}, {}, {}, 1, None, k == "a", ("LOST",)) for k in "ab")
    assert attrgetter("told")(rows[0]) == rows[0].reasons == ("LOST",)
    table = api.SweepTable("fanin", ("rate", "size"), (), rows)
    assert repr(table) == "SweepTable(fanin by rate, size: 1 of 2 rows VALID)"
