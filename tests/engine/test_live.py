"""The live page: what one process counts, another sees."""

from pathlib import Path

import numpy as np

from loadgen.engine.live import LIVE_FIELDS, Live, create_live_page, open_live_page
from loadgen.workload import traffic


def test_columns_are_distinct_and_lie_on_the_page() -> None:
    assert len(set(map(int, Live))) == len(list(Live))
    assert max(Live) < LIVE_FIELDS


def test_the_kernels_totals_are_columns_of_the_page() -> None:
    assert Live.SENT == traffic.SENT
    assert Live.EXPECTED == traffic.EXPECTED
    assert Live.RECEIVED == traffic.RECEIVED
    assert Live.IN_FLIGHT == traffic.IN_FLIGHT
    assert Live.CONNECTED == traffic.CONNECTED_COUNT
    own = {Live.BEAT_NS, Live.CONNECT_FAILURES, Live.SUBSCRIBED, Live.OWED, Live.FINISHED}
    assert min(own) >= traffic.TOTALS


def test_what_is_counted_through_one_view_is_seen_through_the_other(tmp_path: Path) -> None:
    page = create_live_page(tmp_path / "live", 3)
    assert page.shape == (3, LIVE_FIELDS)
    assert not page.any()
    row = np.asarray(open_live_page(tmp_path / "live", 3))[1]
    totals = row[: traffic.TOTALS]
    totals[traffic.SENT] += 5
    row[Live.FINISHED] = 1
    assert page[1, Live.SENT] == 5
    assert page[1, Live.FINISHED] == 1
    assert page[[0, 2]].sum() == 0
