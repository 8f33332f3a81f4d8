"""Every reason against a run, on both sides of its bound."""

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.judge import backlog
from loadgen.judge.backlog import BacklogSample, Standstill
from loadgen.judge.codes import CODES
from loadgen.judge.facts import LostRange, RunFacts, SlowFacts
from loadgen.judge.own_delay import LongestStall, OwnDelay
from loadgen.judge.verdict import Reason, Remark, judge
from tests.examples import examples
from tests.ledgers import changed, facts_with, with_fields
from tests.tables import rows_of, table

SOUND = facts_with(
    qos=0,
    devices=1001,
    connected=1001,
    window_s=10.0,
    target_rate=1000.0,
    publishers=1000,
    sent=10_000,
    expected=10_000,
    received=10_000,
    busy_share=0.3,
    own_delay=OwnDelay(read_p99_us=20.0, send_p99_us=50.0),
    backlog=tuple((second * 10**9, 0, 20 + second % 3) for second in range(11)),
    latency_p99_us=300.0,
)
BURST = facts_with(connects_only=True, devices=5000, connected=5000, connect_seconds=1.0)


def codes(facts: RunFacts) -> tuple[str, ...]:
    return judge(facts).codes


def reason(facts: RunFacts) -> Reason:
    """The only reason against a run."""
    (only,) = judge(facts).reasons
    assert only.detail.isprintable()
    return only


def remarks(facts: RunFacts) -> list[str]:
    return [remark.code for remark in judge(facts).remarks]


def remark_of(facts: RunFacts) -> Remark:
    """Return the only remark about a run."""
    (only,) = judge(facts).remarks
    return only


def test_a_sound_run_is_valid() -> None:
    assert judge(SOUND).valid and judge(BURST).valid
    assert judge(SOUND).reasons == ()


BASES = {"SOUND": SOUND, "BURST": BURST}
for _name, _change in table("judge")["verdict_bases"].items():
    BASES[_name] = changed(BASES[_change.pop("of")], **_change)
QOS1 = BASES["QOS1"]


@pytest.mark.parametrize(("facts", "change", "code", "values", "nothing"), rows_of("judge.reasons"))
def test_a_reason_and_its_values(
    facts: str, change: dict[str, Any], code: str, values: dict[str, Any], nothing: list[str] | None
) -> None:
    found = reason(changed(BASES[facts], **change))
    assert (found.code, {name: found.values[name] for name in values}) == (code, values)
    assert {found.values[name] for name in nothing or ()} <= {None}


S = 10**9
MOMENT = S // 100


def course(under_way: Callable[[float], float], seconds: float = 10) -> tuple[BacklogSample, ...]:
    """What a window has of a backlog: a sample a second, and each 10 ms at both ends."""
    end, edge = round(seconds * S), round(min(S / 2, seconds * S / 10))
    moments = {*range(0, edge, MOMENT), *range(0, end, S), *range(end - edge, end + 1, MOMENT)}
    return tuple((at, 0, round(under_way(at / S))) for at in sorted(moments))


def rising(growth: float, seconds: float = 10) -> tuple[BacklogSample, ...]:
    """Outstanding deliveries that grow by `growth` in all."""
    return course(lambda at: 500 + growth * at / seconds, seconds)


BASES["GROWS"] = changed(SOUND, backlog=rising(1_500))
BASES["UNTIMED"] = changed(SOUND, latency_p99_us=None)
OWED = {"backlog": tuple((at, outstanding, 0) for at, _, outstanding in rising(2000))}
STOOD = {"backlog": course(lambda at: at // 0.9, 2)}
SECONDS = [(second * S, 0, 20) for second in range(20)]
STEPS = [(second * S, 0, 200 * second) for second in range(20)]
COURSES: list[tuple[str, dict[str, Any], list[str]]] = [
    # At a high rate, a tenth of a second is noise.
    ("FAST", {"backlog": rising(10_000)}, []),
    ("FAST", {"backlog": rising(11_000)}, ["BACKLOG_GROWS"]),
    # In a short window, a share of it.
    ("SHORT", {"backlog": rising(3_100, 1)}, []),
    ("SHORT", {"backlog": rising(3_300, 1)}, ["BACKLOG_GROWS"]),
    ("SLOW", {"backlog": rising(24, 2)}, ["BACKLOG_GROWS"]),
    # Nothing received in the window is no chance.
    ("RARE", {**STOOD, "arrived": 1}, []),
    ("RARE", {**STOOD, "arrived": 0}, ["BACKLOG_GROWS"]),
    # A few messages that wait too long are more than noise, unless devices were away.
    ("RARE", {**STOOD, "arrived": 1, "waited_s": 0.51}, ["BACKLOG_GROWS"]),
    ("RARE", {**STOOD, "arrived": 1, "waited_s": 0.49}, []),
    ("RARE", {**STOOD, "arrived": 1, "waited_s": 9.0, "waiting_by_leave": 1.0}, []),
    # Unsent messages count, but for those of absent devices.
    ("SOUND", OWED, ["BACKLOG_GROWS"]),
    ("SOUND", {**OWED, "disconnects": 3}, ["DISCONNECTED"]),
    ("SOUND", {**OWED, "connected": 9}, ["CONNECT_FAILED"]),
    # Neither a swing, nor a hiccup at the very end, nor a single sample is a growth.
    ("SOUND", {"backlog": rising(-5000)}, []),
    ("SOUND", {"backlog": course(lambda at: 3000 * (int(at * 20) % 2))}, []),
    ("SOUND", {"backlog": course(lambda at: max(3.0, 1000 * (at - 9.8)))}, []),
    ("SOUND", {"backlog": (*SECONDS, (20 * S, 0, 10**6))}, []),
    ("SOUND", {"backlog": (*STEPS, (20 * S, 0, 0))}, ["BACKLOG_GROWS"]),
    # A pile of a generator without time is not the broker's.
    ("SOUND", {"backlog": rising(5000), "busy_share": 1.0}, ["GENERATOR_SATURATED"]),
]


@pytest.mark.parametrize(("facts", "change", "found"), [*rows_of("judge.judged"), *COURSES])
def test_the_codes_of_a_run(facts: str, change: dict[str, Any], found: list[str]) -> None:
    late = {"own_delay": OwnDelay(send_p99_us=change["late_us"])} if "late_us" in change else {}
    change = {name: value for name, value in change.items() if name != "late_us"}
    assert codes(changed(BASES[facts], **change, **late)) == tuple(found)


def test_sums_that_were_not_proven_are_a_remark() -> None:
    unproven = changed(SOUND, proven=False)
    assert judge(unproven).valid and remarks(unproven) == ["UNPROVEN"]


class TestRateMissed:
    @pytest.mark.parametrize(("facts", "in_time", "missed"), rows_of("judge.both_sides"))
    def test_on_both_sides(
        self, facts: str, in_time: dict[str, float], missed: dict[str, float]
    ) -> None:
        assert codes(changed(BASES[facts], **in_time)) == ()
        assert codes(changed(BASES[facts], **missed)) == ("RATE_MISSED",)

    def test_its_figures(self) -> None:
        late = reason(changed(SOUND, sent=9_899)).values
        assert (late["on_time"], late["target"]) == (9_899, 10_000)
        assert (late["rate"], late["unsent"]) == (1_000, 0)
        owed = changed(SOUND, sent=5_000, owed_at_window_end=5_000, owed=5_000)
        late = reason(changed(owed, expected=5000, received=5000)).values
        assert (late["on_time"], late["unsent"]) == (5_000, 5_000)
        # More than the window's own messages, with those of the warm-up.
        late = reason(changed(SOUND, sent=5_000, owed_at_window_end=5_001, owed=0)).values
        assert (late["on_time"], late["share"], late["unsent"]) == (0, 0, 5_001)
        never = reason(changed(SOUND, sent=9_999, owed_at_window_end=1, owed=1))
        assert (never.code, never.values) == ("RATE_MISSED", {"unsent": 1})
        assert reason(changed(BASES["PACED"], connect_seconds=2.13)).values["seconds"] == 2.13


class TestMessages:
    def test_what_a_lost_worker_did_not_see_is_not_lost(self) -> None:
        facts = changed(SOUND, workers_lost=(1,), received=9_000, confirmed=500)
        assert codes(facts) == ("WORKER_LOST",)
        assert (facts.messages.window.lost, facts.messages.window.unobserved) == (0, 1_000)
        unread = changed(SOUND, unread=2, received=9_000)
        assert (
            reason(unread).code == "GENERATOR_SATURATED"
            and unread.messages.window.unobserved == 1_000
        )
        gone = changed(SOUND, interrupted=True, abandoned=True, received=9)
        assert codes(gone) == ("INTERRUPTED",)

    def test_repeats_that_are_allowed_are_remarked(self) -> None:
        again = changed(SOUND, qos=1, duplicated=3, excused=3)
        assert judge(again).valid
        remark = remark_of(again)
        assert (remark.code, remark.values) == ("REPEATED", {"count": 3})

    def test_corrupt_is_not_also_lost(self) -> None:
        assert reason(changed(SOUND, corrupt=1, received=9_999)).code == "CORRUPT"
        both = changed(SOUND, corrupt=1, received=9_990)
        assert codes(both) == ("CORRUPT", "LOST")
        assert judge(both).reasons[1].values["lost"] == 9

    def test_what_came_before_the_window_is_a_remark(self) -> None:
        facts = changed(SOUND, foreign=3)
        early = with_fields(facts, window=SOUND.messages.window)
        assert judge(early).valid
        remark = remark_of(early)
        assert (remark.code, remark.values) == ("BEFORE_WINDOW", {"states": ("3 foreign",)})
        assert remarks(facts) == []


class TestHandshakes:
    def test_refused_is_not_lost(self) -> None:
        facts = changed(
            QOS1,
            acknowledged=9_988,
            refused=12,
            expected=9_988,
            received=9_988,
            refusals={"Not authorized (0x87)": 12},
            refusal="Not authorized (0x87): keep out",
        )
        found = reason(facts)
        assert found.code == "REFUSED"
        assert (found.values["refused"], found.values["sent"]) == (12, 10_000)
        assert found.values["codes"] == ("12 Not authorized (0x87)",)
        assert found.values["first"] == "Not authorized (0x87): keep out"
        assert found.values["delivered"] is None
        both = changed(facts, received=9_998)
        assert (reason(both).code, reason(both).values["delivered"]) == ("REFUSED", 10)

    def test_given_up_with_its_session_is_a_remark(self) -> None:
        facts = changed(QOS1, qos=2, acknowledged=9_997, given_up=3)
        assert judge(facts).valid
        assert remarks(facts) == ["GIVEN_UP"]
        assert codes(changed(facts, given_up=2)) == ("UNACKNOWLEDGED",)

    @pytest.mark.parametrize(
        ("disconnects", "violations"), [(None, None), (None, 3), (1, None), (1, 3)]
    )
    def test_unfinished_handshakes_are_explained(
        self, disconnects: int | None, violations: int | None
    ) -> None:
        facts = changed(
            QOS1,
            qos=2,
            acknowledged=9_997,
            given_up=3,
            disconnects=disconnects or 0,
            violations=violations or 0,
        )
        values = {"count": 3, "disconnects": disconnects, "violations": violations}
        assert remark_of(facts).values == values

    def test_the_specification_holds_in_every_phase(self) -> None:
        broken = changed(SOUND, violations=2, violation="PUBACK that nobody waits for")
        found = reason(with_fields(broken, window=SOUND.messages.window))
        first = "PUBACK that nobody waits for"
        assert (found.code, found.values) == ("PROTOCOL", {"count": 2, "first": first})


class TestConnections:
    def test_what_was_lost_by_absence_is_told_with_its_cause(self) -> None:
        lost = changed(SOUND, lost_to_absent=10, expected=SOUND.messages.window.expected + 10)
        assert codes(lost) == ("LOST",)
        for cause in ({"connected": SOUND.connects.devices - 1}, {"subscribe_failures": 1}):
            found = reason(changed(lost, **cause))
            assert found.code in ("CONNECT_FAILED", "SUBSCRIBE_FAILED")
            expected = lost.messages.window.expected
            assert (found.values["lost"], found.values["expected"]) == (10, expected)
            assert codes(changed(lost, **cause, lost_to_absent=9)) == (found.code, "LOST")
        both = judge(
            changed(lost, connected=SOUND.connects.devices - 1, subscribe_failures=1)
        ).reasons
        assert [reason.values["lost"] for reason in both] == [10, None]

    def test_a_connection_that_ended_with_its_subscribe_is_told_once(self) -> None:
        refused = changed(SOUND, subscribe_failures=2, closed_at_subscribe=2, disconnects=2)
        assert codes(refused) == ("SUBSCRIBE_FAILED",)
        found = judge(with_fields(refused, disconnects=3, disconnect="DISCONNECT")).reasons[1]
        assert found.code == "DISCONNECTED"
        assert (found.values["lost"], found.values["failure"]) == (1, "")


class TestBacklog:
    @pytest.mark.parametrize(
        ("sent", "copies", "noise"), [(10, 1, 3.8), (240, 1, 10.8), (100, 20, 100), (6250, 1, 62.5)]
    )
    def test_on_both_sides_of_chance(self, sent: int, copies: int, noise: float) -> None:
        """Chance of 0.1 s of the messages at both ends; in all, no more than the floor."""
        facts = changed(
            SOUND, target_rate=sent / 10, sent=sent, expected=sent * copies, received=sent * copies
        )
        for growth, found in ((noise * 0.95, ()), (noise * 1.15, ("BACKLOG_GROWS",))):
            tenths = tuple((time, 0, count / 10) for time, _, count in rising(10 * growth))
            assert codes(changed(facts, backlog=tenths)) == found

    def test_what_still_arrives_when_the_drain_ends_is_backlog(self) -> None:
        late = changed(SOUND, received=9_000, waiting=900, drain_s=5.0)
        ledger = late.messages.window
        assert (ledger.lost, ledger.unobserved) == (100, 900)
        (lost, grows) = judge(late).reasons
        assert (lost.code, lost.values["lost"]) == ("LOST", 100)
        assert (grows.code, grows.values) == ("BACKLOG_GROWS", {"waiting": 900, "drain_s": 5.0})

    @pytest.mark.parametrize("stall", [(1, 3), (4, 9), (6.5, 9.4)])
    def test_a_stall_that_recovered_inside_is_none(self, stall: tuple[float, float]) -> None:
        def under_way(at: float) -> float:
            return 1000 * (at - stall[0]) if stall[0] <= at < stall[1] else 3

        assert codes(changed(SOUND, backlog=course(under_way))) == ()

    @pytest.mark.parametrize("since_s", [5, 8.2, 9.3])
    def test_a_stall_that_stands_at_the_end_counts_however_late_it_began(
        self, since_s: float
    ) -> None:
        stands = course(lambda at: max(3.0, 1000 * (at - since_s)))
        still = (Standstill(1.0, 1.6, 600), Standstill(since_s, 9.98, 700))
        found = reason(changed(SOUND, backlog=stands, standstills=still))
        assert found.code == "BACKLOG_GROWS"
        assert found.values["standstill"].startswith(f"from {since_s:.1f} s to 10.0 s")
        remark = remark_of(changed(SOUND, backlog=stands, standstills=still))
        assert remark.values["times"].startswith("from 1.0 s to 1.6 s")

    def test_noise_does_not_hide_growth(self) -> None:
        draw = random.Random(5)
        noisy = course(lambda at: 5000 * at / 60 + draw.uniform(0, 2000), 60)
        assert backlog.backlog_growth(noisy) == pytest.approx(5000, rel=0.2)

    def test_a_short_stall_of_ours_does_not_hide_a_backlog_of_seconds(self) -> None:
        brief = OwnDelay(stalled_s=1.2, longest=LongestStall(0, 1.0, 1.2))
        each_s = SOUND.messages.window.expected / SOUND.window_s
        more, less = (changed(SOUND, own_delay=brief, backlog=rising(n * each_s)) for n in (3, 1))
        assert codes(more) == ("GENERATOR_SATURATED", "BACKLOG_GROWS")
        assert codes(less) == ("GENERATOR_SATURATED",)

    @pytest.mark.parametrize("count", range(2 * backlog.BACKLOG_EDGE_SAMPLES))
    def test_too_few_samples_say_nothing(self, count: int) -> None:
        samples = tuple((second * S, 0, 10**second) for second in range(count))
        assert backlog.backlog_levels(samples) is None and backlog.backlog_growth(samples) == 0

    def test_samples_of_one_moment_say_nothing(self) -> None:
        assert backlog.backlog_growth([(5, 0, count) for count in range(9)]) == 0

    @given(st.integers(-10_000, 10_000), st.integers(0, 10_000), st.integers(1, 100))
    @examples(50)
    def test_a_straight_line_is_found_exactly(self, slope: int, start: int, seconds: int) -> None:
        levels = backlog.backlog_levels(course(lambda at: start + slope * at, seconds))
        assert levels is not None
        (first_ns, before), (last_ns, after) = levels
        assert (after - before) * S == pytest.approx(slope * (last_ns - first_ns), abs=2 * S)


def test_when_nothing_came_back_is_remarked() -> None:
    stood = changed(SOUND, standstills=(Standstill(3.21, 5.29, 2080),))
    remark = remark_of(stood)
    assert remark.code == "STANDSTILL"
    assert remark.values["times"] == "from 3.2 s to 5.3 s (while 2,080 messages waited)"
    ours = changed(stood, own_delay=OwnDelay(stalled_s=1.6, longest=LongestStall(0, 3.2, 1.6)))
    assert (codes(ours), remarks(ours)) == (("GENERATOR_SATURATED",), [])
    brief = OwnDelay(stalled_s=0.9, longest=LongestStall(0, 3.2, 0.9))
    assert "STANDSTILL" in remarks(changed(stood, own_delay=brief))
    often = changed(SOUND, standstills=(Standstill(1, 2, 30),) * 9)
    assert remark_of(often).values["times"].endswith("waited) and 4 more times")


def test_a_latency_between_hosts_must_hold_its_bound_whatever_the_clocks_say() -> None:
    near = changed(SOUND, latency_p99_us=190.0, latency_bound_us=200.0, clock_bound_ns=20_000)
    assert codes(near) == ()
    found = reason(changed(near, timed_between_hosts=True))
    assert (found.code, found.values["skew_us"]) == ("LATENCY_BOUND", 20)


def test_the_difference_of_clocks_is_a_remark() -> None:
    def clock(**fields: object) -> list[dict[str, float | None]]:
        found = judge(changed(SOUND, **{"timed_between_hosts": True, **fields})).remarks
        return [dict(remark.values) for remark in found if remark.code == "CLOCK_ERROR"]

    assert clock(timed_between_hosts=False, clock_bound_ns=40_000) == []
    assert clock(clock_bound_ns=40_000, latency_p99_us=50.0) == [{"skew_us": 40, "p99_us": None}]
    assert clock(clock_bound_ns=40_000, latency_p99_us=30.0) == [{"skew_us": 40, "p99_us": 30}]


def test_lost_workers_of_other_hosts_are_told_of_with_their_hosts() -> None:
    found = reason(changed(SOUND, workers_lost=(1, 3), hosts_of_lost=("1 (b)",), loss="ended"))
    assert found.values == {"workers": "1, 3", "hosts": "1 (b)", "cause": "ended"}
    many = changed(SOUND, workers_lost=tuple(range(12)), hosts_of_lost=tuple("abcdefg"))
    assert reason(many).code == "WORKER_LOST"
    assert reason(many).values["workers"].endswith("8, 9 and 2 more")
    assert reason(many).values["hosts"] == "a, b, c, d, e and 2 more"


def test_reasons_come_in_one_order_and_all_are_told() -> None:
    bad = changed(
        SOUND,
        interrupted=True,
        connected=3,
        disconnects=4,
        subscribe_failures=2,
        sent=7,
        confirmed=7,
        refused=2,
        received=6,
        duplicated=5,
        out_of_order=4,
        corrupt=3,
        foreign=2,
        misrouted=1,
        below_qos=1,
        violations=1,
        imbalances=("1 in none",),
        backlog=rising(10**6),
        latency_bound_us=200.0,
        thresholds_missed=("lost==0: it was 1",),
        crash_failure="status 1",
        clock_bound_ns=10**9,
    )
    # With a worker lost nobody knows what was lost and what was not acknowledged.
    absent = {"WORKER_LOST", "GENERATOR_SATURATED"}
    not_judged = {"AUDIT", "CHANGED", "HOST_LIMIT", "RUNNING"}
    assert codes(bad) == tuple(code for code in CODES if code not in absent | not_judged)
    assert not judge(bad).valid


def test_thresholds_that_do_not_hold_are_reasons_each() -> None:
    facts = changed(SOUND, thresholds_missed=("lost==0: it was 1", "sent>=9: it was 8"))
    for ended in (False, True):
        found = judge(changed(facts, ended_by_threshold=ended)).reasons
        assert [one.code for one in found] == ["THRESHOLD"] * 2
        assert [one.values["missed"] for one in found] == ["lost==0: it was 1", "sent>=9: it was 8"]


def test_the_first_lost_messages_are_named() -> None:
    named = tuple(LostRange(3, *ends, "subscribers", 5) for ends in ((7, 7), (9, 1200)))
    facts = changed(SOUND, received=9_000)
    ledger = replace(facts.messages.window, lost_acknowledged=1_000)
    found = reason(with_fields(facts, lost_named=named, window=ledger))
    assert found.values["acknowledged"] == 1_000
    assert found.values["first"] == (
        "1 message of stream 3 from number 7 on, to device 5 of subscribers",
        "1,192 messages of stream 3 from number 9 on, to device 5 of subscribers",
    )


@pytest.mark.parametrize(
    ("qos", "received", "by_slow", "disconnects", "found"), rows_of("judge.slow_subscribers")
)
def test_what_a_broker_does_to_slow_subscribers_is_told_and_no_fault(
    qos: int, received: int, by_slow: int, disconnects: int, found: list[str]
) -> None:
    slow = SlowFacts(10, 1000.0, 1_000, by_slow, 300, disconnects)
    facts = with_fields(
        changed(SOUND, received=received), qos=qos, slow=slow, disconnects=3 if disconnects else 0
    )
    assert codes(facts) == tuple(found)
    (told,) = (one.values for one in judge(facts).remarks if one.code == "SLOW")
    assert (told["waited"], told["dropped"]) == (300, 1_000 - by_slow)
    assert told["other_lost"] == 9_000 + by_slow - received
