"""Steps of a search end when their verdict is certain, and not before."""

import random

import pytest

from loadgen.judge.certainty import certain_verdict

NS = 1_000_000_000
RATE = 2_000
TOLERATED = 200.0
WINDOW_S = 5.0


def samples(
    seconds: float, growth_per_s: float, noise: float, seed: int
) -> list[tuple[int, int, int]]:
    """A backlog that grows evenly, with a number of messages that come and go."""
    drawn = random.Random(seed)
    return [
        (at * NS // 100, 0, round(50 + growth_per_s * at / 100 + drawn.uniform(-noise, noise)))
        for at in range(int(seconds * 100))
    ]


def decided_s(growth_per_s: float, noise: float = 20.0, seed: int = 1) -> float:
    """Return when it is certain that the load holds or fails, the whole window if it never is."""
    whole = samples(WINDOW_S, growth_per_s, noise, seed)
    for at in range(10, int(WINDOW_S * 100), 10):
        if (verdict := certain_verdict(whole[:at], WINDOW_S, TOLERATED)) is not None:
            assert verdict == (growth_per_s == 0)
            return at / 100
    return WINDOW_S


@pytest.mark.parametrize("seed", range(20))
def test_a_load_that_is_served_is_certain_early(seed: int) -> None:
    assert 1 <= decided_s(0.0, seed=seed) <= 2


def test_an_overload_is_certain_when_it_has_grown_too_much() -> None:
    assert decided_s(RATE * 1.5) <= 1.2
    assert 1.5 <= decided_s(RATE * 0.1) <= 2.5
    assert all(decided_s(RATE * growth) >= 3 for growth in (0.025, 0.05))


def test_a_load_at_the_edge_is_not_decided() -> None:
    assert decided_s(TOLERATED / WINDOW_S) == WINDOW_S


def test_a_stall_decides_nothing() -> None:
    quiet = samples(WINDOW_S, 0.0, 5.0, 1)
    stalled = [
        (at, unsent, waiting + (400 if NS <= at < 1.3 * NS else 0)) for at, unsent, waiting in quiet
    ]
    assert certain_verdict(stalled[:130], WINDOW_S, TOLERATED) is None
    assert certain_verdict(stalled[:130], WINDOW_S, TOLERATED, late_share=0.01) is None
    assert certain_verdict(stalled[:130], WINDOW_S, TOLERATED, late_share=0.011) is False


def test_noise_alone_hardly_ever_fails_a_step() -> None:
    wrong = sum(
        certain_verdict(samples(seconds, 0.0, 150.0, seed), WINDOW_S, 1.0) is False
        for seed in range(200)
        for seconds in (1.2, 2.0, 4.0)
    )
    assert wrong <= 1
