"""The way back from a crash, as samples of the live page show it."""

import pytest

from loadgen.judge.live_sample import LiveSample
from loadgen.judge.recovery_watch import RecoveryWatch
from tests.tables import rows_of

MS = 1_000_000


def watched(by_command: bool, *samples: tuple[int, int, int, int]) -> RecoveryWatch:
    """After samples of (ms, connected, received, backlog); the crash was asked for at 1,000 ms."""
    watch = RecoveryWatch(1000 * MS, 10, 5, by_command=by_command)
    for time_ms, connected, received, backlog in samples:
        sample = LiveSample(time_ms * MS, connected=connected, received=received, under_way=backlog)
        watch.sample(sample)
    return watch


WHOLE = [tuple(row) for row in rows_of("judge.recovery")]


@pytest.mark.parametrize(("by_command", "crashed_ms"), [(False, 1000), (True, 1010)])
def test_devices_then_messages_come_back(by_command: bool, crashed_ms: int) -> None:
    watch = watched(by_command, *WHOLE)
    assert (watch.devices, watch.fewest) == (10, 0)
    found = watch.document(500 * MS)
    assert found == pytest.approx(
        {
            "crashed_s": (crashed_ms - 500) / 1000,
            "first_back_s": (1040 - crashed_ms) / 1000,
            "first_delivery_s": (1050 - crashed_ms) / 1000,
            "all_back_s": (1060 - crashed_ms) / 1000,
            "drained_s": (1080 - crashed_ms) / 1000,
        }
    )


@pytest.mark.parametrize(("fewest", "lost", "brokers", "crashed"), rows_of("judge.crashes"))
def test_a_crash_takes_all_connections(fewest: int, lost: int, brokers: int, crashed: bool) -> None:
    watch = RecoveryWatch(0, 10, 0, by_command=True, lost_before=2)
    watch.sample(LiveSample(1, connected=fewest))
    assert watch.crashed(lost + 2, brokers) is crashed


def test_what_did_not_come_back_has_no_time() -> None:
    found = watched(False, *WHOLE[:6]).document(0)
    assert found["first_back_s"] and found["all_back_s"] is found["drained_s"] is None
    untouched = watched(True, WHOLE[0]).document(0)
    assert set(untouched.values()) == {None}
