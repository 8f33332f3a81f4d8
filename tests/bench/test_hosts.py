"""The bench of many hosts plays real runs: its stand-ins must do what the coordinator expects."""

from bench.hosts import measure


async def test_two_hosts_are_played() -> None:
    line = await measure(2, 2, window_s=1.0)
    assert (line.hosts, line.workers) == (2, 4)
    assert line.rows_per_s > 0 and line.clock_bound_us > 0
