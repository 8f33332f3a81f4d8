"""One interval file of many: the same rows, each once, whatever happens in the meantime."""

import errno
import shutil
from pathlib import Path
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from loadgen.report.build.summary import summarize_run
from loadgen.report.record import load_intervals, open_run
from loadgen.run import interval_files
from loadgen.run.interval_files import compact
from loadgen.run.seal import seal
from tests.report.fabricate import fabricate


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return fabricate(tmp_path / "run", seconds=6)


def parts(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "intervals").iterdir())


def test_all_rows_are_in_one_file_and_the_card_is_the_same(run: Path) -> None:
    before, rows = summarize_run(run), load_intervals(open_run(run))
    assert len(parts(run)) == 10
    compact(run)
    assert parts(run) == ["part-000000.parquet"]
    assert sorted(path.name for path in run.iterdir()) == ["intervals", "run.json"]
    assert load_intervals(open_run(run)).equals(rows)
    assert summarize_run(run) == before
    seal(run)
    assert "intervals/part-000000.parquet" in (run / "SHA256SUMS").read_text()
    assert open_run(run).integrity.state == "intact"
    # Anybody's reader, by directory; and again, there is nothing left to do.
    assert pq.read_table(run / "intervals").num_rows == rows.num_rows
    compact(run)
    assert open_run(run).integrity.state == "intact"


def test_row_groups_are_bounded_and_ordered(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interval_files, "ROW_GROUP_ROWS", 40)
    # A worker that was late: its second is in a later file.
    (run / "intervals" / "part-000003.parquet").rename(run / "intervals" / "part-000044.parquet")
    rows = load_intervals(open_run(run)).num_rows
    compact(run)
    with pq.ParquetFile(run / "intervals" / "part-000000.parquet") as file:
        groups = [file.read_row_group(place) for place in range(file.num_row_groups)]
    assert len(groups) > 2 and sum(map(len, groups)) == rows
    for group in groups:
        seconds = group["second"].to_pylist()
        assert seconds == sorted(seconds)


def test_files_are_bounded_and_a_second_may_be_in_two(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that was late by a second: the card is the same."""
    monkeypatch.setattr(interval_files, "ROW_GROUP_ROWS", 20)
    monkeypatch.setattr(interval_files, "LARGEST_FILE_BYTES", 1000)
    for second in (2, 5, 7):
        part = run / "intervals" / f"part-{second:06d}.parquet"
        half = pq.read_table(part)
        pq.write_table(half.slice(0, len(half) // 2), part)
        pq.write_table(
            half.slice(len(half) // 2), part.with_name(f"part-{second + 1:06d}5.parquet")
        )
    before, rows = summarize_run(run), load_intervals(open_run(run)).num_rows
    compact(run)
    assert len(parts(run)) > 2
    opened = open_run(run)
    assert load_intervals(opened).num_rows == rows
    assert summarize_run(run) == before


def test_what_cannot_be_put_together_stays_as_it_is(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parts(run)
    refused = Mock(side_effect=OSError(errno.EINVAL, "the file system knows no exchange"))
    with monkeypatch.context() as patched:
        patched.setattr(interval_files, "_exchange", refused)
        compact(run)
    assert parts(run) == before
    (run / "intervals" / "part-000004.parquet").write_bytes(b"damaged")
    compact(run)
    assert parts(run) == before
    assert sorted(path.name for path in run.iterdir()) == ["intervals", "run.json"]


def test_killed_right_after_the_exchange(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left then is hidden, and no row counts twice."""
    before = summarize_run(run)
    monkeypatch.setattr(shutil, "rmtree", lambda *_, **__: None)
    compact(run)
    assert len(list(run.glob(".intervals.*/*.parquet"))) == 10
    assert summarize_run(run) == before
    seal(run)
    assert open_run(run).integrity.state == "intact"
