"""The live page: what one process counts, another sees."""

from pathlib import Path

from loadgen.engine.live import create_live_page, open_live_page
from loadgen.workload.fleet import Totals


def test_the_page_has_the_totals_of_each_worker(tmp_path: Path) -> None:
    page = create_live_page(tmp_path / "live", 2)
    assert page.dtype.names == Totals.names()


def test_what_is_counted_through_one_view_is_seen_through_the_other(tmp_path: Path) -> None:
    page = create_live_page(tmp_path / "live", 3)
    assert page.shape == (3,)
    assert not any(page[name].any() for name in Totals.names())
    totals = open_live_page(tmp_path / "live", 3)[1:2][0]
    totals.sent += 5
    totals.finished = 1
    assert page["sent"].tolist() == [0, 5, 0]
    assert page["finished"].tolist() == [0, 1, 0]
    assert page["received"].sum() == 0
