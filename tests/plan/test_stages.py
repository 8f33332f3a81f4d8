from loadgen.plan.stages import Stage, absences, presence, stage_fault

INFINITE = float("inf")
STAGES = (Stage(0, 1), Stage(10, 5, over_s=8), Stage(30, 0), Stage(40, 3, over_s=6))


def test_each_device_is_away_until_its_stage_needs_it() -> None:
    assert [list(absences(STAGES, device)) for device in range(5)] == [
        [(30, 40)],
        [(-INFINITE, 10), (30, 42)],
        [(-INFINITE, 12), (30, 44)],
        [(-INFINITE, 14), (30, INFINITE)],
        [(-INFINITE, 16), (30, INFINITE)],
    ]
    assert list(absences((), 3)) == []


def test_the_last_devices_leave_first() -> None:
    stages = (Stage(0, 4), Stage(10, 0, over_s=4))
    assert [next(absences(stages, device))[0] for device in range(4)] == [13, 12, 11, 10]


def test_presence_is_a_mean_over_devices_and_window() -> None:
    assert presence((), 4, 10) == 1
    assert presence((Stage(0, 0), Stage(4, 4)), 4, 10) == 0.6
    assert presence((Stage(0, 2), Stage(5, 1)), 4, 10) == 0.375
    # Two devices stop 3 s after the warm-up began, 1 s before the window, and two 3 s after 5 s.
    assert presence((), 4, 10, 2, 3) == 0.1
    assert presence((Stage(0, 2), Stage(5, 4)), 4, 10, 2, 3) == 0.2


def test_stages_follow_each_other() -> None:
    assert stage_fault(STAGES, 5) is None
    for wrong in ((Stage(1, 0),), (*STAGES[:2], Stage(17, 2)), (Stage(0, 6),)):
        assert stage_fault(wrong, 5)
