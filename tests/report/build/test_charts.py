"""Axes, and the connection curve: when each device was connected."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from loadgen.metrics.interval import CONNECT_SERIES, CONNECTED_AT, SERIES
from loadgen.report.build.charts import charts_of
from loadgen.report.build.figures import spread_axis, varied_axis
from loadgen.report.build.rows import DATA
from loadgen.report.build.summary import summarize_run
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make


def connecting(directory: Path, moments_ms: list[float]) -> ScoreCard:
    """A run whose devices were connected at these moments, by two workers."""
    rows = make.rows_of(case="connburst")
    place = [at for at, row in enumerate(rows) if row.series == CONNECTED_AT]
    for worker, at in enumerate(place):
        own = np.array(moments_ms[worker::2]) * 1e6
        bucket, count = make.histogram(own.astype(np.int64))
        rows[at] = replace(
            rows[at],
            count=len(own),
            sum_ns=int(own.sum()),
            min_ns=int(own.min()),
            max_ns=int(own.max()),
            bucket=bucket,
            bucket_count=count,
        )
    return summarize_run(make.write_run(directory, make.run_document(case="connburst"), rows))


def test_each_completion_is_where_it_was_to_a_millisecond(tmp_path: Path) -> None:
    moments = [3.0 + 1.5 * number for number in range(200)] + [900.0, 950.0]
    card = connecting(tmp_path / "run", moments)
    curve = card.curves.connected
    assert curve[0] == (0.0, 0) and curve[-1] == (0.95, 202)
    for at_s, connected in curve[1:]:
        exact = sum(moment <= 1000 * at_s for moment in moments)
        near = sum(moment <= 1000 * at_s + 1 for moment in moments)
        assert exact <= connected <= near
    assert all(later[0] > one[0] and later[1] > one[1] for one, later in pairwise(curve))
    assert len(curve) > 150
    (chart,) = [one for one in charts_of(card) if one.title == "Connection curve"]
    assert chart.figure["data"][0]["x"][-1] == 0.95
    assert "connected,0.003,1,devices," in chart.table
    assert CONNECTED_AT not in card.latency


def test_a_long_burst_has_points_ten_milliseconds_apart(tmp_path: Path) -> None:
    card = connecting(tmp_path / "run", [float(number) for number in range(1, 20_001)])
    curve = card.curves.connected
    assert 1_000 < len(curve) <= 2_002
    assert curve[-1] == (20.0, 20_000)


def test_each_series_has_a_colour_of_its_chart() -> None:
    messages = {*SERIES} - {*CONNECT_SERIES, CONNECTED_AT}
    for together in (messages, {*CONNECT_SERIES}):
        assert len({DATA["colors"][series] for series in together}) == len(together)


def test_axes_are_logarithmic_over_values_far_apart() -> None:
    assert varied_axis("size", [32, 256, 1024])["ticktext"] == ["32", "256", "1,024"]
    assert "type" not in varied_axis("rate", [100, 200])
    assert "type" not in varied_axis("rate", [0, 1e6])
    many = varied_axis("rate", [10.0**n for n in range(12)])
    assert many["type"] == "log" and "tickvals" not in many
    assert spread_axis("µs", [0, None, 5, 50])["type"] == "log"
    assert spread_axis("µs", [0, 50, 60])["rangemode"] == "tozero"
