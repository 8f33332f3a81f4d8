"""Repetitions of a run, and comparisons with it."""

from typing import Any

from loadgen.specjms.disclosure import FinishedRun, comparison, mismatch, shortfalls

NS = 1_000_000_000
INVALID = {"valid": False, "reasons": [{"code": "LOST", "detail": "5"}]}


def played(
    name: str, at_s: int, sent: int = 1000, received: int = 2000, **changes: Any
) -> FinishedRun:
    run = {
        "id": name,
        "scenario": {"base": 5, "seed": at_s, "report_every": at_s},
        "broker": {"name": "b", "version": "1", "urls": [f"mqtt://h:{at_s}"]},
        "clock": {"monotonic_ns": 0, "wall_ns": 0},
        "windows": {"measure": [at_s * NS, (at_s + 10) * NS]},
        "verdict": {"valid": True, "reasons": []},
    }
    types = [{"sent": sent - 1, "received": received - 1}, {"sent": 1, "received": 1}]
    supply = {"topology": "horizontal", "base": 5, "window_s": 10.0, "types": types}
    return FinishedRun(run | changes, supply)


MAIN = played("main", 0)


def test_a_second_run_right_after_is_a_repetition() -> None:
    assert mismatch(MAIN, played("again", 10)) == ""
    assert mismatch(played("again", 10), MAIN) == ""
    assert "overlap" in mismatch(MAIN, played("again", 9))
    # Of another host, or after a restart: only the wall clock is shared.
    later: dict[str, Any] = {"clock": {"monotonic_ns": 0, "wall_ns": 10 * NS}}
    assert mismatch(MAIN, played("again", 0, **later)) == ""
    earlier: dict[str, Any] = {"clock": {"monotonic_ns": 0, "wall_ns": -10 * NS}}
    assert "overlap" in mismatch(MAIN, played("again", 10, **earlier))


def test_many_differences_are_counted() -> None:
    other: dict[str, Any] = {"scenario": dict.fromkeys("abcde", 1)}
    why = mismatch(MAIN, played("again", 10, **other))
    assert why == "its a is 1, not None; its b is 1, not None; its base is None, not 5; 3 more"


def test_a_repetition_may_be_better_and_within_tolerance_slower() -> None:
    assert shortfalls(MAIN, played("again", 10, 950, 1900)) == ()
    assert shortfalls(MAIN, played("again", 10, 2000, 9000)) == ()
    assert shortfalls(played("main", 0, verdict=INVALID), played("again", 10)) == ()


def test_the_two_in_one_paragraph() -> None:
    assert comparison(MAIN, played("again", 10, 999, 2010)) == (
        "Reproducibility (run rules, section 3.4): main run and repetition sent 100.0 and 99.9 "
        "messages/s (-0.10 %), received 200.0 and 201.0 (+0.50 %); they are VALID and VALID; the "
        "repetition is equal or better."
    )
    worse = comparison(MAIN, played("again", 10, verdict=INVALID))
    assert worse.endswith(
        "they are VALID and INVALID; the repetition is NOT equal or better: repetition INVALID: "
        "LOST (5)."
    )
    cut_off = played("again", 10, windows={"measure": [0, 5 * NS]})
    why = "the second run does not repeat the first: it was measured for 5.0 s, not 10.0 s"
    assert why in comparison(MAIN, cut_off)
    assert "(+0.00 %)" in comparison(played("main", 0, 1, 1), played("again", 10, 1, 1))
