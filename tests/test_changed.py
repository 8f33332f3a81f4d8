"""Tests of what changed are those that mirror it, and those that import it."""

import re
import sys
import time
from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import pytest

import bootstrap
from tests.changed import ROOT, affected
from tests.tables import rows_of
from tests.tiers import GROUPS, NOT_PURE, PURE, SLOW, is_pure

FILES: Mapping[str, str] = {
    "loadgen/a/b.py": "",
    "loadgen/a/page.j2": "",
    "tests/a/test_b.py": "",
    "tests/a/test_c.py": "from loadgen.a import b",
    "tests/test_d.py": "from tests.helper import value",
    "tests/test_e.py": "import loadgen.a",
    "tests/test_documents.py": "",
}


@pytest.mark.parametrize(("changed", "tests"), rows_of("documents.changed"))
def test_the_affected_a_file(tmp_path: Path, changed: str, tests: list[str]) -> None:
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    assert affected([changed], tmp_path) == tests


def test_every_path_of_a_tier_exists() -> None:
    for path in (*PURE, *NOT_PURE, *SLOW, *chain(*GROUPS.values())):
        assert (ROOT / path).exists(), path
    assert is_pure("tests/plan/test_scenario.py") and not is_pure("tests/worker/test_loop.py")
    assert not any(is_pure(path) for path in NOT_PURE)


def test_the_set_up_shows_how_far_it_is_and_the_time_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bootstrap, "SECONDS", tmp_path / "seconds")
    monkeypatch.setattr(bootstrap, "ENVIRONMENT", tmp_path)
    monkeypatch.setattr(bootstrap, "EVERY_S", 0.1)
    (tmp_path / "seconds").write_text("60")
    package = tmp_path / "lib" / "python3" / "site-packages" / "x-1.dist-info"
    steps = ("print('Collecting y', flush=True)", "sleep(1)", f"os.makedirs({str(package)!r})")
    code = "; ".join(("import os", "from time import sleep", *steps, "sleep(1)", "exit(3)"))
    for spent_s, left in ((25, r"about 3\d s left"), (61, r"6\d s so far")):
        assert bootstrap.watched([sys.executable, "-c", code], time.monotonic() - spent_s) == 3
        shown = capsys.readouterr().err
        assert re.search(f"Collecting y; {left}\n", shown)
        assert re.search(rf"installed 1 of \d+ packages, now x-1; {left}\n", shown)
        package.rmdir()
