"""What is expected follows the truth: whatever is altered in it shows."""

from dataclasses import replace
from typing import Any

import pytest

from tests.faults.expected import Span, differences, expected
from tests.faults.schedules import Action, Schedule
from tests.faults.truth import Answers, Delivery, Header, Publish, Truth

MS = 1_000_000
TAG = 7
BEGIN, START, END, LAST = 1_000 * MS, 1_200 * MS, 2_200 * MS, 3_000 * MS
COUNT = 120


def header(stream: int, sequence: int) -> Header:
    due_ns = BEGIN + sequence * 10 * MS
    return Header(TAG, stream, sequence, due_ns, due_ns, False)


def publish(stream: int, sequence: int) -> Publish:
    head = header(stream, sequence)
    return Publish(head.intended_ns, f"dev-0-{stream}", sequence + 1, 1, f"f/{stream}", head)


def delivery(stream: int, sequence: int) -> Delivery:
    head = header(stream, sequence)
    at_ns = head.intended_ns + MS
    return Delivery(at_ns, "dev-1-0", sequence + 1, 1, False, f"f/{stream}", head, True)


SCHEDULE = Schedule(
    1,
    "stall",
    "fanin",
    {"rate": 200.0, "duration": 1.0, "drain": 0.8},
    qos=1,
    actions=(Action(0.5, "stall", 0.1),),
)
PUBLISHES = tuple(publish(stream, number) for number in range(COUNT) for stream in (0, 1))
DELIVERIES = tuple(delivery(stream, number) for number in range(COUNT) for stream in (0, 1))
CLEAN = Truth(
    tag=TAG,
    window=(START, END),
    begin_ns=BEGIN,
    end_ns=LAST,
    publishes=PUBLISHES,
    deliveries=DELIVERIES,
    answers=Answers(acknowledged=frozenset(one.message for one in PUBLISHES)),
    asked={"dev-1-0": {"f/+": (1, 1)}},
    connects=tuple((0, name, True, False, 0) for name in ("dev-0-0", "dev-0-1", "dev-1-0")),
)
SOUND = {"GENERATOR_SATURATED"}


def without(truth: Truth, *places: int) -> Truth:
    kept = (one for number, one in enumerate(truth.deliveries) if number not in places)
    return replace(truth, deliveries=tuple(kept))


def altered(place: int, **fields: Any) -> Truth:
    changed = list(DELIVERIES)
    changed[place] = replace(changed[place], **fields)
    return replace(CLEAN, deliveries=tuple(changed))


def repeated(**fields: Any) -> Truth:
    again = replace(DELIVERIES[100], **fields)
    return replace(CLEAN, deliveries=(*DELIVERIES[:101], again, *DELIVERIES[101:]))


def stopped(name: str, from_ms: int, until_ms: int) -> tuple[tuple[str, int], ...]:
    return (name, from_ms * MS), (f"after {name}", until_ms * MS)


def answered(**fields: Any) -> Truth:
    return replace(CLEAN, answers=replace(CLEAN.answers, **fields))


def test_a_clean_run_is_valid_and_its_ledger_closes() -> None:
    found = expected(SCHEDULE, CLEAN)
    assert found.required == set()
    assert found.allowed == SOUND
    exact = {name: span.low for name, span in found.window.items() if span.low == span.high}
    assert exact == dict.fromkeys(found.window, 0) | {
        "sent": 200,
        "acknowledged": 200,
        "expected": 200,
        "intact": 200,
    }
    assert {found.run[name] for name in ("sent", "expected", "intact")} == {Span(240, 240)}


MESSAGE = PUBLISHES[100].message
EVERY_MESSAGE = CLEAN.answers.acknowledged
# Of the truth, what it makes of codes, and of figures of the window.
ALTERED: dict[str, tuple[Truth, set[str], dict[str, int]]] = {
    "lost": (without(CLEAN, 100, 101), {"LOST"}, {"lost": 2, "intact": 198}),
    "lost in the warm-up": (without(CLEAN, 3), set(), {"lost": 0}),
    "repeated": (repeated(), {"DUPLICATED"}, {"repeated": 1, "intact": 200}),
    "repeated with DUP on a session that was not resumed": (
        repeated(dup=True), {"DUPLICATED"}, {"repeated": 1}
    ),
    "repeated on a resumed session": (
        repeated(dup=True, resumed=True), set(), {"repeated": 0, "repeated_allowed": 1}
    ),
    "repeated as our publisher did": (
        replace(repeated(), publishes=(*PUBLISHES, PUBLISHES[100])), set(), {"repeated_allowed": 1}
    ),
    "repeated twice, and sent again once": (
        replace(
            CLEAN,
            publishes=(*PUBLISHES, PUBLISHES[100]),
            deliveries=(*DELIVERIES[:101], *DELIVERIES[100:101] * 2, *DELIVERIES[101:]),
        ),
        {"DUPLICATED"},
        {"repeated": 1, "repeated_allowed": 1},
    ),
    "an identifier in use without DUP": (
        repeated(qos=2, in_use=True), {"DUPLICATED", "PROTOCOL"}, {"repeated": 1}
    ),
    "damaged": (altered(100, intact=False), {"CORRUPT"}, {"damaged": 1, "lost": 0}),
    "its tag damaged": (
        altered(100, intact=False, header=replace(header(0, 50), tag=9)),
        {"CORRUPT"},
        {"damaged": 1, "foreign": 0},
    ),
    "foreign": (
        repeated(header=Header(9, 0, 5, 77, 77, False), intact=False), {"FOREIGN"}, {"foreign": 1}
    ),
    "of another run": (
        repeated(header=replace(header(0, 50), tag=9)), {"FOREIGN"}, {"foreign": 1}
    ),
    "too short": (repeated(header=None, intact=False), {"FOREIGN"}, {"foreign": 1}),
    "another topic": (
        altered(100, topic="f/1"), {"MISROUTED", "LOST"}, {"misrouted": 1, "lost": 1}
    ),
    "another device": (
        altered(100, client="dev-0-1"), {"MISROUTED", "LOST"}, {"misrouted": 1, "lost": 1}
    ),
    "another QoS": (altered(100, qos=0), {"QOS"}, {"below_qos": 1, "intact": 200}),
    "out of order": (
        replace(
            CLEAN,
            deliveries=(
                *DELIVERIES[:100], DELIVERIES[102], DELIVERIES[101], DELIVERIES[100],
                *DELIVERIES[103:],
            ),
        ),
        {"OUT_OF_ORDER"},
        {"out_of_order": 1},
    ),
    "refused": (
        replace(
            without(CLEAN, 100),
            answers=Answers(EVERY_MESSAGE - {MESSAGE}, frozenset({MESSAGE})),
        ),
        {"REFUSED"},
        {"refused": 1, "expected": 199, "lost": 0},
    ),
    "unacknowledged": (
        answered(acknowledged=EVERY_MESSAGE - {MESSAGE}), {"UNACKNOWLEDGED"}, {"unacknowledged": 1}
    ),
    "given up": (
        answered(acknowledged=EVERY_MESSAGE - {MESSAGE}, given_up=frozenset({MESSAGE})),
        set(),
        {"unacknowledged": 1, "given_up": 1},
    ),
    "acknowledged though nobody waits": (answered(nobodys=1), {"PROTOCOL"}, {}),
    "a session claimed": (
        replace(CLEAN, connects=((0, "dev-0-0", True, True, 0),)), {"PROTOCOL"}, {}
    ),
    "a topic alias": (replace(CLEAN, faults={"alias": (None,)}), {"PROTOCOL"}, {}),
    "a connect refused": (
        replace(CLEAN, connects=((0, "dev-0-0", True, False, 0x89),)), {"CONNECT_FAILED"}, {}
    ),
    "a subscription lowered": (
        replace(CLEAN, asked={"dev-1-0": {"f/+": (1, 0)}}), {"SUBSCRIBE_FAILED"}, {}
    ),
    "a subscription refused, and what was lost by it": (
        replace(CLEAN, asked={"dev-1-0": {"f/+": (1, 0x87)}}, deliveries=()),
        {"SUBSCRIBE_FAILED"},
        {"lost": 200, "expected": 200},
    ),
    "a connection lost": (
        replace(CLEAN, closes=((2_900 * MS, "dev-1-0"),)), {"DISCONNECTED"}, {}
    ),
    "a message that never arrived": (
        replace(
            without(CLEAN, 100),
            publishes=(*PUBLISHES[:100], *PUBLISHES[101:]),
            answers=Answers(EVERY_MESSAGE - {MESSAGE}),
        ),
        {"LOST", "UNACKNOWLEDGED"},
        {"sent": 200, "lost": 1, "unacknowledged": 1},
    ),
    "a backlog at the end": (
        replace(
            CLEAN,
            deliveries=tuple(
                replace(one, at_ns=max(one.at_ns, END + (one.at_ns > 1_300 * MS)))
                if one.at_ns > 1_300 * MS
                else one
                for one in DELIVERIES
            ),
        ),
        {"BACKLOG_GROWS"},
        {"lost": 0},
    ),
    "sent late": (
        replace(
            CLEAN,
            publishes=tuple(
                replace(one, header=replace(one.header, sent_ns=END + MS))
                if one.at_ns > 2_000 * MS
                else one
                for one in PUBLISHES
            ),
        ),
        {"RATE_MISSED"},
        {"sent": 200},
    ),
    "a worker killed": (
        replace(without(CLEAN, 238, 239), actions=(("kill worker", 2_000 * MS),)),
        {"WORKER_LOST"},
        {"lost": 0},
    ),
    "interrupted": (
        replace(CLEAN, actions=(("interrupt", 2_000 * MS),)), {"INTERRUPTED"}, {}
    ),
    "a worker stopped": (
        replace(CLEAN, actions=stopped("freeze worker", 1_500, 2_100)), {"GENERATOR_SATURATED"}, {}
    ),
    "an agent stopped for long": (
        replace(CLEAN, actions=stopped("freeze agent", 1_100, 2_100)), {"GENERATOR_SATURATED"}, {}
    ),
    "an agent killed": (
        replace(without(CLEAN, 238, 239), actions=(("kill agent", 2_000 * MS),)),
        {"WORKER_LOST"},
        {"lost": 0, "unobserved": 2},
    ),
    "still arriving when the drain ended": (
        replace(CLEAN, deliveries=(
            *without(CLEAN, 100, 238, 239).deliveries,
            replace(DELIVERIES[238], at_ns=LAST - 90 * MS),
        )),
        {"LOST"},
        {"lost": 1, "unobserved": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ALTERED)
def test_what_is_altered_shows(name: str) -> None:
    truth, codes, figures = ALTERED[name]
    found = expected(SCHEDULE, truth)
    assert found.required == codes
    for figure, value in figures.items():
        assert value in found.window[figure], figure
    before = expected(SCHEDULE, CLEAN)
    assert (found.required, found.window, found.run) != (
        before.required,
        before.window,
        before.run,
    )


@pytest.mark.parametrize("name", ALTERED)
def test_a_run_that_did_not_notice_is_told(name: str) -> None:
    """What a clean run would have said differs from what the altered truth wants."""
    if name == "lost in the warm-up":
        return
    clean = expected(SCHEDULE, CLEAN)
    said = {
        scope: {figure: span.low for figure, span in getattr(clean, scope).items()}
        for scope in ("window", "run")
    }
    assert differences(clean, (), said) == []
    assert differences(expected(SCHEDULE, ALTERED[name][0]), (), said) != []


def test_devices_that_come_back_are_not_missed() -> None:
    returning = replace(SCHEDULE, fields={**SCHEDULE.fields, "reconnect": 0.1})
    closed = replace(CLEAN, closes=((1_400 * MS, "dev-1-0"),))
    assert expected(returning, closed).required == {"DISCONNECTED"}
    back = replace(closed, connects=(*CLEAN.connects, (1_600 * MS, "dev-1-0", True, False, 0)))
    assert expected(returning, back).required == set()
    assert expected(SCHEDULE, back).required == {"DISCONNECTED"}


def test_latency_is_held_against_its_bound() -> None:
    bounded = replace(SCHEDULE, fields={**SCHEDULE.fields, "latency_bound": 0.1})
    assert expected(bounded, CLEAN).required == set()

    def late(count: int) -> Truth:
        changed = [
            replace(one, at_ns=one.at_ns + (200 * MS if number % 100 < count else 0))
            for number, one in enumerate(DELIVERIES)
        ]
        return replace(CLEAN, deliveries=tuple(changed))

    assert expected(bounded, late(3)).required == {"LATENCY_BOUND"}
    assert expected(bounded, late(0)).required == set()
    assert expected(SCHEDULE, late(3)).required == set()


@pytest.mark.parametrize("name", ["a backlog at the end", "sent late"])
def test_where_nothing_hinders_the_generator_itself_may_have_been_late(name: str) -> None:
    truth, codes, _ = ALTERED[name]
    found = expected(replace(SCHEDULE, actions=()), truth)
    assert found.required == set()
    assert codes <= found.allowed


def test_what_a_worker_without_time_did_not_read_is_not_lost() -> None:
    starved = replace(SCHEDULE, actions=(Action(0.1, "quota", (2, 60)),))
    truth = replace(CLEAN, actions=(("quota", 1_300 * MS),))
    found = expected(starved, truth)
    assert found.required == {"GENERATOR_SATURATED"}
    assert found.window["unobserved"] == Span(0, 200)
    assert found.window["lost"] == found.run["lost"] == Span(0, 0)
    # Only as long as the window: then it reads everything in the drain.
    short = replace(starved, actions=(Action(0.1, "quota", (2, 0.9)),))
    assert expected(short, truth).window["unobserved"] == Span(0, 0)


def test_what_is_sent_while_the_run_is_ended_may_be_uncounted() -> None:
    last = replace(PUBLISHES[-1], header=replace(PUBLISHES[-1].header, sent_ns=LAST))
    found = expected(SCHEDULE, replace(CLEAN, publishes=(*PUBLISHES[:-1], last)))
    assert found.window["sent"] == Span(199, 200)


def test_what_is_not_sure_is_allowed_and_not_required() -> None:
    found = expected(SCHEDULE, altered(100, sure=False))
    assert found.window["intact"] == Span(199, 200)
    assert found.window["lost"] == Span(0, 1)
    assert "LOST" in found.allowed
    assert found.required == set()
