"""Axes: logarithmic ones have ticks that can be read, over whatever values."""

import math

import pytest

from loadgen.report.build.figures import log_axis, varied_axis


@pytest.mark.parametrize(
    ("values", "ticks"),
    [
        ([50, 2000], ["50", "100", "200", "500", "1,000", "2,000"]),
        ([0.03, 8000], ["0.01", "0.1", "1", "10", "100", "1,000", "10,000"]),
        ([0.97, 1.05], ["0.96", "0.98", "1", "1.02", "1.04", "1.06"]),
        ([1, 3.9], ["1", "1.5", "2", "2.5", "3", "3.5", "4"]),
        ([100], ["90", "95", "100", "105", "110"]),
        ([1000, 1_000_000, 0, None], ["1,000", "10,000", "100,000", "1,000,000"]),
        ([0, None], ["0.9", "0.95", "1", "1.05", "1.1"]),
    ],
)
def test_ticks_are_round_and_around_the_values(
    values: list[float | None], ticks: list[str]
) -> None:
    axis = log_axis("µs", values)
    assert axis["ticktext"] == ticks
    low, high = axis["range"]
    assert all(low - 1e-6 <= math.log10(one) <= high + 1e-6 for one in values if one)
    assert axis["tickvals"] == [float(text.replace(",", "")) for text in ticks]


@pytest.mark.parametrize("decade", range(-3, 7))
@pytest.mark.parametrize("factor", [1.001, 1.9, 3.99, 4.0, 7, 99, 299, 301, 1e7])
def test_no_axis_is_without_ticks_or_full_of_them(decade: int, factor: float) -> None:
    low = 1.7 * 10.0**decade
    axis = log_axis("", [low, factor * low])
    assert 2 <= len(axis["tickvals"]) <= 12
    assert axis["tickvals"][0] <= low * (1 + 1e-5) < axis["tickvals"][-1] * (1 + 2e-5)


def test_what_was_varied_has_its_values_as_ticks() -> None:
    assert varied_axis("size", [32, 256, 1024])["ticktext"] == ["32", "256", "1,024"]
    assert "type" not in varied_axis("rate", [100, 200])
    assert "type" not in varied_axis("rate", [0, 1e6])
    many = varied_axis("rate", [10.0**n for n in range(12)])
    assert (many["type"], len(many["tickvals"])) == ("log", 12)
