"""A run beside what the harness can do on its host."""

from types import SimpleNamespace
from typing import Any

from loadgen.metrics.reducer import LatencySummary
from loadgen.report.build.ceiling import ceiling_of

CALIBRATION = {
    "made": "2026-11-21T00:08:59Z",
    "load_average_before": 0.25,
    "connect": {"per_s": 10_000},
    "send": {"single": {"per_s": 60_000}, "batched": {"per_s": 1_200_000}},
    "receive": {"single": {"per_s": 220_000}, "batched": {"per_s": 1_900_000}},
    "latency": {"end_to_end_us": {"p50": 50.0, "p99": 700.0}, "transit_us": {"p50": 30.0}},
    "send_delay": {"single_us": {"p50": 18.0, "p99": 500.0}},
}


def record(calibration: Any) -> Any:
    environment = {} if calibration is None else {"calibration": calibration}
    return SimpleNamespace(environment=environment, workers=2, connected=1_000, connect_seconds=0.5)


LATENCY = {"end_to_end": LatencySummary(1, p50=75.0)}
RATES = {"sent": 5_000.0, "received": 10_000.0}


def test_each_figure_has_that_of_the_harness_beside_it() -> None:
    (section,) = ceiling_of(record(CALIBRATION), RATES, LATENCY)
    assert section.rows == (
        ("messages sent a second, a worker", 2_500.0, 60_000, 1_200_000),
        ("messages received a second, a worker", 5_000.0, 220_000, 1_900_000),
        ("connects a second", 2_000.0, 10_000, None),
        ("end_to_end 50P, µs", 75.0, 50.0, None),
        ("end_to_end 99P, µs", None, 700.0, None),
    )
    assert "2026-11-21T00:08:59Z (load average before it 0.25)" in section.note


def test_without_a_calibration_nothing_is_claimed() -> None:
    for calibration in (None, "x", 3):
        assert ceiling_of(record(calibration), RATES, LATENCY) == ()


def test_what_a_calibration_lacks_stays_empty() -> None:
    (section,) = ceiling_of(record({"made": "?", "send": 7}), RATES, LATENCY)
    assert all(row[2:] == (None, None) for row in section.rows)
