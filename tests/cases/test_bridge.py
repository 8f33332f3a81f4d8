"""Which side of a bridge was the limit, and how backends are named in a verdict."""

import pytest

from loadgen.cases.bridge import bottleneck_of
from loadgen.cases.case import busy_shares
from loadgen.judge.facts import BackendFacts
from loadgen.judge.rules import by_backend
from loadgen.judge.verdict import judge
from tests.ledgers import changed, facts_with

ONE = BackendFacts(1, "mqtt://a:1", 5, expected=100, received=100, busy_share=0.3)
TWO = BackendFacts(2, "mqtt://b:2", 5, expected=100, received=100, busy_share=0.4)


def test_a_run_without_a_fault_has_no_limit_but_a_nearest_side() -> None:
    limit = bottleneck_of((ONE, TWO), 0.6, ())
    assert limit.side == "none" and "the front broker used 60 %" in limit.detail
    assert "backend 2 (mqtt://b:2) used 40 %" in bottleneck_of((ONE, TWO), 0.1, ()).detail


def test_a_busy_process_is_the_limit() -> None:
    assert bottleneck_of((ONE, TWO), 0.97, ("RATE_MISSED",)).side == "front"
    busy = BackendFacts(2, "mqtt://b:2", 5, busy_share=0.99)
    limit = bottleneck_of((ONE, busy), 0.5, ("LOST", "BACKLOG_GROWS"))
    assert limit.side == "backend" and limit.detail.startswith("backend 2 (mqtt://b:2)")


def test_without_processes_it_is_told_by_where_messages_stayed() -> None:
    one = BackendFacts(1, "mqtt://a:1", 5, growth=10)
    two = BackendFacts(2, "mqtt://b:2", 5, growth=900)
    assert bottleneck_of((one, two), None, ("RATE_MISSED",)).side == "front"
    limit = bottleneck_of((one, two), None, ("BACKLOG_GROWS",))
    assert limit.side == "front or backend" and "backend 2" in limit.detail


def test_the_generator_comes_first() -> None:
    assert bottleneck_of((ONE,), 0.99, ("GENERATOR_SATURATED", "RATE_MISSED")).side == "generator"


def test_a_backend_that_went_away_is_the_limit() -> None:
    gone = BackendFacts(2, "mqtt://b:2", 5, disconnects=5)
    limit = bottleneck_of((ONE, gone), 0.99, ("DISCONNECTED", "LOST"))
    assert (
        limit.side == "backend" and "backend 2" in limit.detail and "backend 1" not in limit.detail
    )


def test_only_backends_that_count_are_told() -> None:
    assert by_backend((ONE, TWO), lambda b: b.disconnects) == ()
    gone = BackendFacts(2, "mqtt://b:2", 5, disconnects=3)
    assert by_backend((ONE, gone), lambda b: b.disconnects) == ("3 at backend 2 (mqtt://b:2)",)


@pytest.mark.parametrize(
    ("backend", "code"),
    [
        (BackendFacts(2, "mqtt://b:2", 5, disconnects=5), "DISCONNECTED"),
        (BackendFacts(2, "mqtt://b:2", 5, expected=50, received=20), "LOST"),
        (BackendFacts(2, "mqtt://b:2", 5, connect_failures=5), "CONNECT_FAILED"),
    ],
)
def test_verdict_names_the_backend(backend: BackendFacts, code: str) -> None:
    facts = facts_with(
        devices=20,
        connected=20 - backend.connect_failures,
        connect_failures=backend.connect_failures,
        disconnects=backend.disconnects,
        window_s=1.0,
        target_rate=100,
        publishers=10,
        sent=100,
        expected=100,
        received=100 - backend.expected + backend.received,
        backends=(ONE, backend),
    )
    (reason,) = judge(facts).reasons
    assert reason.code == code
    (named,) = reason.values["backends"]
    assert named.endswith(backend.name) and named in reason.detail


def test_what_a_consumer_held_must_come_again() -> None:
    facts = facts_with(
        qos=1,
        disconnects=1,
        reconnects=1,
        disconnects_planned=True,
        expected=100,
        received=100,
        held_when_cut=7,
        duplicated=7,
        excused=7,
        redelivered=7,
    )
    assert judge(facts).valid
    (reason,) = judge(changed(facts, redelivered=4)).reasons
    assert (reason.code, reason.values) == ("LOST", {"missing": 3, "held": 7})


def test_busy_shares_are_those_of_the_window() -> None:
    loads: list[tuple[int, tuple[int | None, ...]]] = [
        (at, (at // 2, None, 7)) for at in range(0, 1001, 100)
    ]
    assert busy_shares(loads, (200, 800)) == (0.5, None, 0.0)
    assert busy_shares(loads, (210, 290)) == ()
    assert busy_shares([], (0, 1000)) == ()
