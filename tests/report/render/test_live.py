"""The page of a run that goes on."""

from pathlib import Path

from loadgen.report.render.live import page
from tests.report import fabricate as make


def test_a_run_that_goes_on_is_shown_and_not_judged(tmp_path: Path) -> None:
    document = make.run_document() | {"interrupted": True}
    del document["verdict"]
    run = make.write_run(tmp_path / "run", document, make.rows_of())
    shown = page(run).decode()
    assert '<span class="verdict running">RUNNING</span>' in shown
    assert "Not judged yet" in shown and "Not sealed yet" in shown
    assert "INVALID" not in shown and "INTERRUPTED" not in shown


def test_a_run_that_was_judged_meanwhile_has_its_verdict(tmp_path: Path) -> None:
    shown = page(make.fabricate(tmp_path / "run")).decode()
    assert "VALID</span>" in shown and "RUNNING" not in shown
