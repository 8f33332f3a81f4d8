"""The merged histograms as files: what the library and pyarrow read back."""

import io
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from loadgen.metrics.histogram import HIGHEST_NS, lowest_values
from loadgen.metrics.reducer import LatencySummary
from loadgen.report.build.summary import summarize_run
from loadgen.report.packing import packed
from loadgen.report.render.histograms import HISTOGRAM_SCHEMA, to_hgrm, to_hlog, to_parquet
from loadgen.report.score_card import ScoreCard
from tests.report import fabricate as make


@pytest.fixture(scope="module")
def card(tmp_path_factory: pytest.TempPathFactory) -> ScoreCard:
    return summarize_run(make.fabricate(tmp_path_factory.mktemp("runs") / "a", case="latency"))


def logged(cards: list[ScoreCard], directory: Path) -> list[tuple[str | None, HdrHistogram]]:
    """The intervals of the log of these cards, by the library's own reader."""
    to_hlog(cards, path := directory / "a.hlog")
    reference = HdrHistogram(1, HIGHEST_NS, 3)
    reader = HistogramLogReader(str(path), reference)
    found = []
    while (histogram := reader.get_next_interval_histogram()) is not None:
        found.append((histogram.get_tag(), histogram))
    reader.close()
    return found


def percentile(histogram: HdrHistogram, p: float, told: LatencySummary) -> float | None:
    """The library's percentile in µs, at most the greatest value; None if its rank is the last."""
    assert told.max_us is not None
    if max(int(p * told.count / 100 + 0.5), 1) == told.count:
        return None
    return float(min(histogram.get_value_at_percentile(p) / 1000, told.max_us))


def test_the_library_reads_the_log(card: ScoreCard, tmp_path: Path) -> None:
    found = logged([card], tmp_path)
    assert [tag for tag, _ in found] == [*card.latency]
    for tag, histogram in found:
        assert tag is not None
        told = card.latency[tag]
        assert histogram.get_total_count() == told.count
        assert percentile(histogram, 50, told) == told.p50_us
        assert percentile(histogram, 99.9, told) == told.p99_9_us
        # Second 3 of the run, by its wall clock.
        assert histogram.get_start_time_stamp() == (make.WALL_NS // 10**6) + 3000
        assert histogram.get_end_time_stamp() - histogram.get_start_time_stamp() == 4000


def test_tags_of_several_runs_name_the_run_and_stay_one_word(
    card: ScoreCard, tmp_path: Path
) -> None:
    other = replace(
        card,
        run=replace(card.run, id="b, c\n=1"),
        packed_curves=packed(replace(card.curves, wall_start_ns=card.curves.wall_start_ns - 10**9)),
    )
    found = logged([card, other], tmp_path)
    tags = [tag for tag, _ in found]
    assert len(tags) == 2 * len(card.latency)
    # In the order of time, and what would break a line is percent-encoded.
    assert tags[0] == "b%2C%20c%5Cn=1/end_to_end"
    assert tags[len(card.latency)] == f"{card.run.id}/end_to_end"
    starts = [histogram.get_start_time_stamp() for _, histogram in found]
    assert starts == sorted(starts) and starts[-1] - starts[0] == 1000


def test_the_table_holds_what_the_card_tells(card: ScoreCard, tmp_path: Path) -> None:
    other = replace(card, run=replace(card.run, id="other"))
    to_parquet([card, other], path := tmp_path / "a.parquet")
    table = pq.read_table(path)
    assert table.schema.names == HISTOGRAM_SCHEMA.names
    assert table.schema.metadata == HISTOGRAM_SCHEMA.metadata
    assert table.num_rows == 2 * len(card.latency)
    for row in table.to_pylist():
        told = card.latency[row["series"]]
        assert row["count"] == sum(row["bucket_count"]) == told.count
        assert row["max_ns"] / 1000 == told.max_us
        assert told.avg_us == pytest.approx(row["sum_ns"] / row["count"] / 1000)
        library = HdrHistogram(1, HIGHEST_NS, 3)
        values = lowest_values(row["bucket"]).tolist()
        for value, count in zip(values, row["bucket_count"], strict=True):
            library.record_value(value, count)
        assert percentile(library, 99, told) == told.p99_us


def test_a_run_without_latencies(tmp_path: Path) -> None:
    rows = [row for row in make.rows_of() if not row.series]
    card = summarize_run(make.write_run(tmp_path / "run", make.run_document(), rows))
    assert logged([card], tmp_path) == []
    to_parquet([card], tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").num_rows == 0


def test_distributions_are_the_librarys_own(card: ScoreCard) -> None:
    files = to_hgrm([card])
    assert [*files] == [f"hgrm/{series}.hgrm" for series in card.latency]
    for series, row in card.curves.histograms.items():
        library = HdrHistogram(1, HIGHEST_NS, 3)
        for value, count in zip(
            lowest_values(row["bucket"]).tolist(), row["bucket_count"].to_pylist(), strict=True
        ):
            library.record_value(value, count)
        out = io.BytesIO()
        library.output_percentile_distribution(out, 1000)
        theirs = out.getvalue().decode().splitlines()
        ours = files[f"hgrm/{series}.hgrm"].decode().splitlines()
        assert ours[-1].startswith("#[Unit    = microseconds.")
        # The library scales all but the deviation.
        deviation = f"{library.get_stddev():12.3f}]", f"{library.get_stddev() / 1000:12.3f}]"
        assert ours[:-1] == [line.replace(*deviation) for line in theirs]


def test_distributions_of_several_runs_have_names_of_their_own(card: ScoreCard) -> None:
    other = replace(card, run=replace(card.run, id="../b"))
    files = to_hgrm([card, other])
    assert len(files) == 2 * len(card.latency)
    assert "hgrm/..%2Fb.end_to_end.hgrm" in files
    many = [replace(card, run=replace(card.run, id=str(number))) for number in range(21)]
    assert to_hgrm(many) == {}
