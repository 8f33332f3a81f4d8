"""What is expected follows the truth: whatever is altered in it shows."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.faults.expected import Span, differences, expected
from tests.faults.schedules import Action, Schedule
from tests.faults.truth import Answers, Delivery, Header, Publish, Truth
from tests.tables import table

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


def changed(fields: Mapping[str, Any]) -> Delivery:
    """Delivery 100 with other fields; its header may have others itself, or be none."""
    header = fields.get("header", {})
    head = None if header is False else replace(DELIVERIES[100].header, **header)  # type: ignore[type-var]
    return replace(DELIVERIES[100], **{**fields, "header": head})


def altered(
    *,
    alter: Mapping[str, Any] | None = None,
    again: Sequence[Mapping[str, Any]] = (),
    drop: Sequence[int] = (),
    turned: int = 0,
    none_came: bool = False,
    late_from_ms: int = 1 << 30,
    last_ms: int = 0,
) -> tuple[Delivery, ...]:
    """The deliveries with one changed, come again, dropped, in another order, or late."""
    found = [one for number, one in enumerate(DELIVERIES) if number not in drop]
    if alter is not None:
        found[100] = changed(alter)
    found[101:101] = map(changed, again)
    found[100 : 100 + turned] = found[100 : 100 + turned][::-1]
    if last_ms:
        found[-1] = replace(found[-1], at_ns=last_ms * MS)
    late_ns = late_from_ms * MS
    found = [replace(d, at_ns=max(d.at_ns, END + 1)) if d.at_ns > late_ns else d for d in found]
    return () if none_came else tuple(found)


def answers(answer: str | None = None, nobodys: int = 0) -> Answers:
    """The answers to all messages, but to message 100 another one, or none."""
    if answer is None:
        return replace(CLEAN.answers, nobodys=nobodys)
    others = CLEAN.answers.acknowledged - {MESSAGE}
    only: Any = {answer: frozenset({MESSAGE})} if answer else {}
    return Answers(others, **only)


def published(sent: int = 1, sent_late_from_ms: int = 1 << 30) -> tuple[Publish, ...]:
    """The messages of publishers, of which message 100 was sent so often, and some were late."""
    found = (*PUBLISHES[:100], *PUBLISHES[100:101] * sent, *PUBLISHES[101:])
    return tuple(
        replace(one, header=replace(one.header, sent_ns=END + MS))
        if one.at_ns > sent_late_from_ms * MS
        else one
        for one in found
    )


def truth_of(how: Mapping[str, Any]) -> Truth:
    """What is altered, see tests/data/truths.toml."""

    def of(make: Callable[..., Any]) -> Any:
        names = inspect.signature(make).parameters
        return make(**{name: value for name, value in how.items() if name in names})

    found = replace(CLEAN, deliveries=of(altered), answers=of(answers), publishes=of(published))
    actions = how.get("actions_ms", {}).items()
    found = replace(found, actions=tuple((name, at_ms * MS) for name, at_ms in actions))
    if "connect" in how:
        found = replace(found, connects=((0, "dev-0-0", *how["connect"]),))
    if "fault" in how:
        found = replace(found, faults={how["fault"]: (None,)})
    if "granted" in how:
        found = replace(found, asked={"dev-1-0": {"f/+": (1, how["granted"])}})
    if "closed_ms" in how:
        found = replace(found, closes=((how["closed_ms"] * MS, "dev-1-0"),))
    return found


MESSAGE = PUBLISHES[100].message
# Of the truth, what it makes of codes, and of figures of the window.
ALTERED: dict[str, tuple[Truth, set[str], dict[str, int]]] = {
    one["name"]: (truth_of(one), {*one["codes"]}, one["figures"])
    for one in table("truths")["altered"]
}


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


@pytest.mark.parametrize("name", ALTERED)
def test_what_is_altered_shows(name: str) -> None:
    truth, codes, figures = ALTERED[name]
    found = expected(SCHEDULE, truth)
    assert found.required == codes
    for figure, value in figures.items():
        assert value in found.window[figure], figure
    before = expected(SCHEDULE, CLEAN)
    assert (found.required, found.window, found.run) != (before.required, before.window, before.run)


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
    found = expected(SCHEDULE, truth_of({"alter": {"sure": False}}))
    assert found.window["intact"] == Span(199, 200)
    assert found.window["lost"] == Span(0, 1)
    assert "LOST" in found.allowed
    assert found.required == set()
