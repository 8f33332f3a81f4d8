import io
import time

import pytest

from loadgen.run.progress import Snapshot, describe, progress_on

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


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_line_has_devices_rates_backlog_p99_and_time_left() -> None:
    assert describe(SNAPSHOT) == (
        "measure    9,990/10,000 connected  10 failed  out 10,000/s  in 8,000/s  "
        "backlog 1,234  p99 81 µs  7 s left"
    )


def test_line_leaves_out_what_is_not_known() -> None:
    assert describe(Snapshot("connect", 10, 3)) == "connect    3/10 connected"
    assert describe(Snapshot("workers")).startswith("starting workers")


def test_a_drain_takes_at_most_its_time() -> None:
    assert describe(Snapshot("drain", 1, 1, left_s=10.0)).endswith("  up to 10 s left")


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


def test_a_first_run_says_what_it_does() -> None:
    assert describe(Snapshot("compiling", compiled=(3, 25))) == (
        "compiling for this processor, once: 3 of 25 ..."
    )
