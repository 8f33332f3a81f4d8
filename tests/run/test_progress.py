import io
import time

import pytest

from loadgen.run.progress import Snapshot, describe, progress_on
from tests.terminal import Terminal

SNAPSHOT = Snapshot(
    phase="measure",
    devices=10_000,
    connected=9_990,
    failed=10,
    sent_per_s=9_999.6,
    received_per_s=8_000,
    backlog=1_234,
    p99_us=81.4,
    left_s=7.2,
)


@pytest.mark.parametrize(
    ("snapshot", "said"),
    [
        (SNAPSHOT, "  out 10,000/s  in 8,000/s  backlog 1,234  p99 81 µs  7 s left"),
        (SNAPSHOT, "measure    9,990/10,000 connected  10 failed  out"),
        (Snapshot("connect", 10, 3), "connect    3/10 connected"),
        (Snapshot("workers"), "starting workers"),
        (Snapshot("drain", 1, 1, left_s=10.0), "  up to 10 s left"),
        (Snapshot("compiling", compiled=(3, 25)), "(only once): 3 of 25"),
    ],
)
def test_line_has_what_is_known(snapshot: Snapshot, said: str) -> None:
    assert said in describe(snapshot)


def test_plain_output_is_a_line_a_phase_and_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    stream = io.StringIO()
    with progress_on(stream) as show:
        for _ in range(100):
            show(SNAPSHOT)
            now += 0.25
        show(Snapshot("drain", 1, 1))
    lines = stream.getvalue().splitlines()
    assert [line.split()[0] for line in lines] == ["measure"] * 5 + ["drain"]


def test_terminal_shows_a_live_line() -> None:
    stream = Terminal()
    with progress_on(stream) as show:
        show(SNAPSHOT)
        assert "9,990/10,000 connected" in stream.getvalue()


def test_quiet_shows_nothing() -> None:
    stream = Terminal()
    with progress_on(stream, quiet=True) as show:
        show(SNAPSHOT)
    assert stream.getvalue() == ""
