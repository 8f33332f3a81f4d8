"""A case is added by its module alone: the one that docs/internals/adding-a-case.md shows."""

import json
import re
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from loadgen.cases.registry import CASES
from tests.programs import ROOT, python

PAGE = ROOT / "docs" / "internals" / "adding-a-case.md"
MODULE = ROOT / "docs" / "examples" / "broadcast.py"

PROGRAM = """
import sys
import loadgen.cases
loadgen.cases.__path__.append(sys.argv.pop(1))
from loadgen.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def loadgen(tmp_path: Path, *arguments: str) -> CompletedProcess[str]:
    """The program with the example in its package."""
    added = tmp_path / "cases"
    added.mkdir(exist_ok=True)
    (added / MODULE.name).write_text(MODULE.read_text())
    return python("-c", PROGRAM, str(added), *arguments, cwd=tmp_path, COLUMNS="120")


def test_the_page_shows_the_module_that_is_tested() -> None:
    assert f"```python\n{MODULE.read_text()}```" in PAGE.read_text()
    assert MODULE.stem not in CASES


@pytest.mark.parametrize("words", [(), ("plan",), ("search",), ("sweep",)])
def test_commands_and_help_follow(tmp_path: Path, words: tuple[str, ...]) -> None:
    shown = loadgen(tmp_path, *words, "broadcast", "--help-all").stdout
    assert "--subscribers" in shown and "[default: 1000]" in shown
    assert "--payload-template" in shown and "--ratio" not in shown


def test_refusals_follow(tmp_path: Path) -> None:
    refused = loadgen(tmp_path, "broadcast", "--subscribers", "0")
    assert refused.returncode == 2
    assert "--subscribers: '0'" in refused.stderr
    assert "broadcast" in loadgen(tmp_path, "fanin", "--set", "subscribers=1").stderr


def test_a_plan_follows(tmp_path: Path) -> None:
    done = loadgen(tmp_path, "plan", "broadcast", "--json", "--subscribers=70", "--workers=3")
    plan: dict[str, Any] = json.loads(done.stdout)
    assert {group["name"]: group["count"] for group in plan["groups"]} == {
        "publisher": 1,
        "subscribers": 70,
    }
    assert plan["groups"][0]["publishes"]["deliveries"] == 70
    assert plan["workers"] == 3


def test_a_run_and_its_score_card_follow(tmp_path: Path) -> None:
    words = "--broker=reflector --warmup=0.2 --duration=1 --subscribers=20 --rate=50 --settle=0.2"
    done = loadgen(tmp_path, "broadcast", *words.split(), "--json", "--out=run")
    card: dict[str, Any] = json.loads(done.stdout)
    assert card["run"]["case"] == "broadcast" and card["run"]["scenario"]["subscribers"] == 20
    counts = card["counts"]
    assert counts["expected"] == counts["received"] == 20 * counts["sent"] > 0
    (row,) = (row for row in card["rows"] if row["name"] == "BROADCAST")
    assert row["value"] == pytest.approx(card["rates"]["egress"]) and 0 < row["value"] < 1100
    assert "to 20 subscribers. Message size, 32 bytes." in row["description"]


# What a name in quotes may still be outside of `loadgen.cases`: a word of its own, or another
# program's.
WORDS = {
    "report/score_card.py": {"latency"},  # a key of scorecard.json
    "report/history.py": {"latency"},
    "report/build/rows.py": {"latency", "request"},  # a measure, and a unit
    "report/build/card.py": {"latency"},
    "report/build/run_section.py": {"latency"},  # a table
    "report/build/sections.py": {"latency", "queue"},  # of calibration; the number of a queue
    "report/build/charts.py": {"latency"},  # a chart of it
    "run/calibrate.py": {"latency"},
    "cli/calibrate.py": {"latency"},
    "cli/result_text.py": {"latency"},  # a histogram of it
    "run/tuning.py": {"latency"},  # what a setting of the host touches, and a file of sysfs
    "cases/case.py": {"latency"},  # a measure
    "specjms/build_model.py": {"queue", "persistent"},  # options of a message type
    "specjms/report.py": {"queue"},
    "specjms/scenario.py": {"specjms"},  # the scenario of this case
    "cli/mqttbench.py": {"connburst"},  # a list without publishers
    "run/testbed.py": {"fanin"},  # an example
    "api.py": {"fanin"},
}


def test_nothing_else_names_a_case() -> None:
    package = ROOT / "loadgen"
    found: dict[str, set[str]] = {}
    # "run" is a word of its own, and the name of a column.
    names = "|".join(CASES.keys() - {"run"})
    name = re.compile(rf"[\"']({names})[\"']")
    for path in sorted(package.rglob("*.py")):
        file = path.relative_to(package).as_posix()
        named = set(name.findall(path.read_text())) - WORDS.get(file, set())
        if named and not file.startswith("cases/"):
            found[file] = named
    assert found == {}
