"""The live page: counts of one process that another reads."""

import errno
import os
from pathlib import Path

import pytest

from loadgen.errors import DiskError
from loadgen.run.rundir import disk_errors
from loadgen.worker.shared_counts import create_live_page


def test_outstanding_is_what_did_not_come_and_under_way_what_no_later_one_overtook(
    tmp_path: Path,
) -> None:
    page = create_live_page(tmp_path / "live", 2, 1)
    page.counts["expected"][0] = 10, 20, 0, 0
    page.counts["received"][1] = 8, 9, 0, 0
    page.counts["corrupt"][1] = 0, 1, 0, 0
    page.totals["lined_up"][1] = 2
    assert page.outstanding() == 14
    # The damaged one may be any of the three that are missing in their streams.
    page.totals["missing"][1] = 3
    assert page.under_way() == 12
    page.counts["expected"][0] -= 2, 0, 0, 0
    page.totals["withdrawn"][0] = 2
    assert (page.outstanding(), page.under_way()) == (12, 12)
    # If its place is known, it is not in a gap.
    page.totals["damaged"][1] = 1
    page.totals["missing"][1] = 2
    assert page.under_way() == 12
    page.counts["received"][0] = 100
    assert (page.outstanding(), page.under_way()) == (0, 0)


def test_a_full_memory_file_system_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DiskError) as caught, disk_errors():
        create_live_page(tmp_path / "live", 1, 1)
    assert str(tmp_path / "live") in str(caught.value)
