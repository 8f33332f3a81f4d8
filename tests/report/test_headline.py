"""The headline of a result."""

from dataclasses import replace
from pathlib import Path

from loadgen.metrics.reducer import LatencySummary
from loadgen.report.build.rows import _short_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.headline import headline
from tests.report.fabricate import fabricate


def test_a_headline_has_rates_latencies_and_losses(tmp_path: Path) -> None:
    card = summarize_run(fabricate(tmp_path / "run"))
    timed = LatencySummary(5_000, p50_us=170.0, p99_us=3_700.0, p99_9_us=9_000.0, max_us=22_000.0)
    card = replace(
        card,
        latency={"end_to_end": timed},
        rates={"ingress": 500.0, "egress": 500.0},
        counts=replace(card.counts, lost=0, expected=5_000),
    )
    assert headline(card) == (
        "500 msg/s in and out · p50 0.17 ms · p99 3.7 ms · p99.9 9 ms · max 22 ms · 0 lost of 5,000"
    )
    card = replace(card, rates={"ingress": 200.0, "egress": 2_000.0, "asked": 200.0})
    assert headline(card).startswith("200 msg/s in, 2,000 out · ")
    late = replace(card, rates={"ingress": 8_721.0, "egress": 8_700.0, "asked": 50_000.0})
    assert headline(late).startswith("8,721 of 50,000 msg/s in, 8,700 out · ")
    assert _short_of("ingress_rate", late) and not _short_of("ingress_rate", card)
    assert headline(card, late, late).startswith("8,721 of 50,000 msg/s in, ")
    assert headline(card, late, late).endswith(" · 0 lost of 15,000")


def test_a_run_without_messages_shows_its_connects(tmp_path: Path) -> None:
    text = headline(summarize_run(fabricate(tmp_path / "run", case="connburst")))
    assert text.startswith("100 connected in 0.8 s, 125/s · p50 ")
    assert text.endswith(" · 0 failed")
