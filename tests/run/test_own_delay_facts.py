"""Stalls of workers, samples of the host and interval rows become the facts of a window."""

import numpy as np
import pytest

from loadgen.judge.own_delay import DelayGap, OwnDelay, TimeTaken
from loadgen.kernels.counting import bucket_index
from loadgen.metrics.interval import Interval
from loadgen.run.host_watch import HostSample, WorkerTimes
from loadgen.run.own_delay_facts import WorkerStall, own_delay_of
from loadgen.run.tally import Tally

S = 10**9
MS = 10**6
WINDOW = (100 * S, 110 * S)


def latencies(series: str, *values_ns: int) -> Interval:
    bucket, count = np.unique([bucket_index(value) for value in values_ns], return_counts=True)
    return Interval(
        group="timed", phase="measure", series=series, count=len(values_ns),
        sum_ns=sum(values_ns), min_ns=min(values_ns), max_ns=max(values_ns),
        bucket=bucket.astype(np.int32), bucket_count=count,
    )  # fmt: skip


def tally_of(*rows: Interval) -> Tally:
    tally = Tally(["timed"], ["measure"])
    for row in rows:
        tally.add(row)
    return tally


def test_the_worker_that_stood_still_most_counts_and_only_within_the_window() -> None:
    stalls = [
        WorkerStall(0, 101 * S, 102 * S, 0, 0),
        WorkerStall(1, 99 * S, 101 * S, S, S // 2),
        WorkerStall(1, 103 * S, 103 * S + 300 * MS, 0, 300 * MS),
        WorkerStall(1, 120 * S, 180 * S, 0, 0),
    ]
    found = own_delay_of(stalls, [], tally_of(), WINDOW)
    assert found.stalled_s == 1.3
    assert found.longest is not None
    assert (found.longest.worker, found.longest.start_s, found.longest.seconds) == (1, 0.0, 1.0)
    assert found.in_stalls == TimeTaken(None, None, 0.55, 0.5)


def test_a_silent_host_was_cut_off_unless_its_agent_or_the_coordinator_stood_still() -> None:
    silences = ((101 * S, 103 * S), (104 * S, 105 * S))
    samples = [HostSample(110 * S, host="1 (left)", silences=silences)]
    gaps = [("the coordinator", 104 * S, 105 * S - 400 * MS)]
    found = own_delay_of([], [samples], tally_of(), WINDOW, gaps)
    assert found.cuts == (DelayGap("host 1 (left)", 1.0, 2.0, watcher=False),)


def test_the_host_is_asked_about_the_seconds_of_the_stalls() -> None:
    samples = [HostSample(at * S, (at * S // 2,)) for at in range(99, 112)]
    found = own_delay_of(
        [WorkerStall(0, 103 * S + 1, 104 * S - 1, 0, 0)], [samples], tally_of(), WINDOW
    )
    assert found.in_stalls.steal == 0.5
    assert own_delay_of([], [samples], tally_of(), WINDOW).in_window.steal == 5.0


def test_of_several_hosts_only_that_of_the_worker_tells() -> None:
    workers = {7: WorkerTimes(0, 0, 0, 0)}
    idle = [HostSample(at * S, (0,)) for at in range(99, 112)]
    stolen = [HostSample(at * S, (at * S // 2,), {}, workers) for at in range(99, 112)]
    stalls = [WorkerStall(7, 103 * S, 104 * S, 0, 0)]
    for hosts in ([idle, stolen], [stolen, idle]):
        assert own_delay_of(stalls, hosts, tally_of(), WINDOW).in_stalls.steal == 0.5
        other = [WorkerStall(1, 103 * S, 104 * S, 0, 0)]
        assert own_delay_of(other, hosts, tally_of(), WINDOW).in_stalls.steal is None


def test_of_the_whole_window_the_busiest_worker_tells() -> None:
    rows = (
        Interval(phase="measure", worker=0, cpu_ns=S, wait_ns=S, span_ns=10 * S),
        Interval(phase="measure", worker=1, cpu_ns=4 * S, wait_ns=S, span_ns=10 * S),
        Interval(phase="warmup", worker=0, cpu_ns=9 * S, wait_ns=S, span_ns=10 * S),
    )
    found = own_delay_of([], [], tally_of(*rows), WINDOW)
    nothing = TimeTaken(None, None, 0.0, 0.0)
    assert found == OwnDelay(in_stalls=nothing, in_window=TimeTaken(None, None, 1.0, 4.0))


def test_what_waited_for_the_broker_is_no_send_delay_of_ours() -> None:
    sent = [5 * MS] * 20 + [50_000] * 980
    tally = tally_of(latencies("send_delay", *sent), latencies("own_delay", 7 * MS))
    found = own_delay_of([], [], tally, WINDOW)
    assert found.send_p99_us == pytest.approx(5_000, rel=0.001)
    assert found.read_p99_us == pytest.approx(7_000, rel=0.001)
    tally.add(latencies("pushed_back", *sent[:15]))
    held = own_delay_of([], [], tally, WINDOW).send_p99_us
    assert held == pytest.approx(50, rel=0.001)
    tally.add(latencies("pushed_back", *sent[15:]))
    assert own_delay_of([], [], tally, WINDOW).send_p99_us is None
