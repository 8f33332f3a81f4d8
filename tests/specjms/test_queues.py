"""The depth of the queues over time, and its growth."""

from loadgen.specjms.queues import NS, periods, unstable

WINDOW = 10 * NS, 70 * NS
STEADY = [(at * NS, 3) for at in range(71)]
GROWING = [(at * NS, at * 5) for at in range(71)]


def test_a_queue_that_grows_is_named_with_its_growth() -> None:
    rates = {"order": (10.0, 10.0), "offer": (10.0, 10.0)}
    grown = unstable({"order": STEADY, "offer": GROWING}, rates, WINDOW)
    # Medians of the three seconds at each end.
    assert grown == {"offer": (69 - 11) * 5}
    assert unstable({"order": STEADY}, rates, WINDOW) == {}


def test_a_row_for_each_interval_of_warm_up_and_measurement() -> None:
    course = [(at * NS, (at + 1) * NS, 100) for at in range(70)]
    depths, stored = {"order": STEADY, "offer": GROWING}, [(20 * NS, 60), (45 * NS, 70)]
    rows = periods(depths, stored, course, ((0, 10 * NS), WINDOW), 40)
    assert [(row["phase"], row["from_s"], row["until_s"]) for row in rows] == [
        ("warm-up", 0, 10),
        ("measurement", 10, 50),
        ("measurement", 50, 70),
    ]
    assert all(row["received_per_s"] == 100 for row in rows)
    assert [row["depth_at_end"] for row in rows] == [53, 253, 353]
    assert [row["stored_at_end"] for row in rows] == [None, 70, 70]
    assert (rows[1]["deepest"], rows[1]["deepest_messages"]) == ("offer", 250)
