from dataclasses import replace

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from loadgen.judge.ledger import Ledger
from loadgen.metrics.reducer import LatencySummary
from loadgen.plan.thresholds import Measured, hopeless, missed, parse_threshold

SUMMARY = LatencySummary(100, 500.0, 1.0, p50=400.0, p99=4_900.0, p99_9=5_100.0, max=5_200.0)
LEDGER = Ledger(sent=1000, expected=1000, intact=999, lost=1)
MEASURED = Measured({"end_to_end": SUMMARY}, LEDGER, begun=800, window_s=2)


def unmet(*texts: str, measured: Measured = MEASURED) -> tuple[str, ...]:
    return missed(map(parse_threshold, texts), measured)


@pytest.mark.parametrize(
    "text",
    [
        *("end_to_end.p99<5ms", "end_to_end.p99<=4900us", "end_to_end.p99 == 4.9ms"),
        *("end_to_end.p99.9>5ms", "end_to_end.avg>=500us", "end_to_end.max<1s"),
        *("lost<=1", "lost==1", "lost<=0.1%", "refused==0", "sent>=1k"),
        *("sent_rate==400", "received_rate>=499.5"),
    ],
)
def test_what_holds_is_not_told(text: str) -> None:
    assert unmet(text) == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("end_to_end.p99<4900us", "it was 4,900 µs"),
        ("end_to_end.p99.9<5ms", "it was 5,100 µs"),
        ("lost==0", "it was 1"),
        ("lost<0.1%", "it was 0.1%"),
        ("received_rate>=500", "it was 499.5"),
        ("end_to_end.p90<5ms", "its 100 values are too few for p90; .max is 5,200 µs"),
        ("acknowledge.p50<5ms", "nothing was measured of it"),  # none at QoS 0
        ("lost_acknowledged==0", "nothing was measured of it"),  # not known
    ],
)
def test_what_does_not_hold_says_what_was_measured(text: str, found: str) -> None:
    assert unmet(text) == (f"{text}: {found}",)


def test_share_of_nothing_expected_was_not_measured() -> None:
    nothing = replace(MEASURED, ledger=Ledger())
    assert unmet("lost<1%", measured=nothing) == ("lost<1%: nothing was measured of it",)
    assert unmet("lost==0", measured=nothing) == ()


def test_a_share_is_one_of_the_messages_or_of_their_deliveries() -> None:
    """A tenth of the messages refused, and each of the others delivered to a hundred."""
    fanned = Ledger(sent=100, refused=10, acknowledged=90, expected=9000, intact=9000)
    measured = replace(MEASURED, ledger=fanned)
    assert unmet("refused<1%", measured=measured) == ("refused<1%: it was 10%",)
    assert unmet("acknowledged>=90%", "lost==0%", "intact==100%", measured=measured) == ()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fast", "no threshold"),
        ("end_to_end.p99", "no threshold"),
        ("end_to_end.p99=5ms", "no threshold"),
        ("end_to_end.p99<5", "no unit; write 5ms"),
        ("end_to_end.p98<5ms", "no latency"),
        ("endtoend.p99<5ms", "no latency"),
        ("gone==0", "unknown"),
        ("lost<much", "not a number"),
        ("sent_rate<5%", "not a number"),
        ("end_to_end.p99<5parsec", "unknown unit"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, complaint: str) -> None:
    with pytest.raises(ScenarioError, match=complaint) as refused:
        build_scenario("fanin", None, {"require": [text]})
    assert str(refused.value).startswith("require: ")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "given_up"),
    [
        ("end_to_end.p99<1ms", True),
        ("end_to_end.p99<1s", False),
        ("end_to_end.p99>1s", False),  # may still become slower
        ("acknowledge.p99<1ms", False),  # nothing measured yet
        ("misrouted==0", True),
        ("misrouted<=3", True),
        ("misrouted==5", False),  # may still come
        ("misrouted>9", False),
        ("lost==0", False),  # nothing is lost before the drain ends
        ("lost<0.01%", False),
        ("sent_rate>=1M", False),
        ("sent<=999", True),
    ],
)
def test_a_run_is_given_up_when_what_it_has_cannot_become_right(text: str, given_up: bool) -> None:
    ledger = replace(LEDGER, misrouted=4)
    assert bool(hopeless([parse_threshold(text)], replace(MEASURED, ledger=ledger))) is given_up


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("end_to_end.p99<5ms", False),  # 4.9 ms, and 0.2 ms more at most
        ("end_to_end.p99<5.2ms", True),
        ("end_to_end.p99>4.8ms", False),
        ("end_to_end.p99==4.9ms", False),
        ("lost==1", True),
    ],
)
def test_a_latency_between_hosts_holds_when_it_does_at_both_ends_of_its_bound(
    text: str, holds: bool
) -> None:
    assert (unmet(text, measured=replace(MEASURED, apart_us=200.0)) == ()) is holds
