"""The five audit tests, each passing and failing at its bound."""

from dataclasses import replace
from typing import Any

import pytest

from loadgen.specjms.audit import (
    RECOVERY_TESTS,
    TESTS,
    DestinationCount,
    HandlerCount,
    Observed,
    Recovery,
    audit,
)
from loadgen.specjms.chain_model import destinations_of, enabled_types
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES, number_of
from tests.specjms.models import model_with, observed
from tests.specjms.test_messages import ARTICLE

MODEL = model_with(base=15)
WINDOW_S = 100.0
OFFER = number_of("offer")


def sound(**changed: Any) -> Observed:
    """Return the observations of a correct run of the model."""
    destinations = [
        DestinationCount(number, destination, 50, 100, 100, 0, 60, 120, 120)
        for number in enabled_types(MODEL)
        for destination in range(destinations_of(MODEL, number))
    ]
    heard = [
        HandlerCount(number, place, 2, 0, 50, 0, 2_000_000)
        for number in enabled_types(MODEL)
        for place in range(MODEL.count_of(MESSAGES[number].consumer))
    ]
    known = {"clock_ms": 100.0, "destinations": destinations, "heard": heard, **changed}
    return observed(MODEL, WINDOW_S, **known)


def failed(observed: Observed) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for finding in audit(MODEL, observed).failed:
        found.setdefault(finding.test, []).append(finding.subject)
    return found


def with_destination(**changed: Any) -> Observed:
    counts = [
        replace(count, **changed) if (count.number, count.destination) == (OFFER, 2) else count
        for count in sound().destinations
    ]
    return sound(destinations=counts)


def test_a_correct_run_passes_every_test_of_every_subject() -> None:
    found = audit(MODEL, sound())
    assert found.passed
    destinations = sum(destinations_of(MODEL, number) for number in range(len(MESSAGES)))
    assert [len(found.of(test)) for test in TESTS] == [
        *(7, 7, 7),
        len(sound().heard),
        destinations + 1,
    ]


@pytest.mark.parametrize(("share", "passes"), [(0.951, True), (0.949, False), (1.06, False)])
def test_input_rate_may_be_off_by_5_percent(share: float, passes: bool) -> None:
    inside = list(sound().inside)
    inside[4] = round(inside[4] * share)
    assert failed(sound(inside=inside)) == ({} if passes else {"input_rate": ["interaction 5"]})


def few(seconds: float, interaction: int, begun: int, late: int = 0) -> dict[str, str]:
    """Return the failed tests of an interaction of a small run, with the observed values."""
    model = model_with(topology="vertical", base=1)
    seen = observed(model, seconds)
    first = FIRST_OF_INTERACTION[interaction - 1]
    types, inside, lates = list(seen.types), list(seen.inside), [0] * 7
    types[first] = replace(types[first], sent=begun, received=10 * begun)
    inside[interaction - 1], lates[interaction - 1] = begun, late
    seen = replace(seen, types=types, inside=inside, late=lates)
    subject = f"interaction {interaction}"
    return {f.test: f.observed for f in audit(model, seen).failed if f.subject == subject}


def test_one_interaction_more_or_less_fails_no_rate() -> None:
    for begun in (0, 1, 2):
        assert "input_rate" not in few(20.0, 3, begun)


def test_an_interaction_that_was_not_due_fails_nothing() -> None:
    # One of them each 20 s.
    assert few(10.0, 3, begun=0) == {}
    assert few(10.0, 3, begun=1) == {}
    # One late interaction is tolerated, two of two are not.
    assert few(10.0, 3, begun=1, late=1) == {}
    assert few(20.0, 3, begun=2, late=2) == {"pacing": "100 % (2 of 2)"}


def test_an_interaction_that_was_due_and_never_began_fails() -> None:
    assert few(100.0, 3, begun=0) == {
        "input_rate": "0/s",
        "message_count": "0 sent and 0 received",
        "pacing": "none begun",
    }
    assert set(few(20.0, 3, begun=3)) == {"input_rate", "message_count"}


def test_few_calls_may_draw_families_of_few_suppliers() -> None:
    model = model_with(topology="vertical", base=1)
    calls = 14
    for suppliers, passes in ((2, True), (1, False)):
        seen = observed(model, calls / model.rates[1])
        types = [replace(one, sent=calls, received=calls) for one in seen.types]
        many = calls * suppliers
        types[OFFER] = replace(types[OFFER], sent=many, received=many)
        call = number_of("callForOffers")
        types[call] = replace(types[call], received=many)
        seen = replace(seen, types=types, inside=[0, calls, 0, 0, 0, 0, 0])
        tests = {f.test for f in audit(model, seen).failed if f.subject == "interaction 2"}
        assert tests == (set() if passes else {"message_count"})


@pytest.mark.parametrize("field", ["sent", "received"])
def test_messages_of_an_interaction_may_be_off_by_5_percent(field: str) -> None:
    for share, passes in ((0.97, True), (0.92, False)):
        types = list(sound().types)
        for number, message in enumerate(MESSAGES):
            if message.interaction == 2 and number not in FIRST_OF_INTERACTION:
                count = round(getattr(types[number], field) * share)
                types[number] = replace(types[number], **{field: count})
        expected = {} if passes else {"message_count": ["interaction 2"]}
        assert failed(sound(types=types)) == expected


def test_at_most_a_fifth_may_begin_late() -> None:
    types = list(sound().types)
    types[FIRST_OF_INTERACTION[0]] = replace(types[FIRST_OF_INTERACTION[0]], sent=2300)
    late = [460, 0, 0, 0, 0, 0, 0]
    assert failed(sound(types=types, late=late)) == {}
    late[0] += 1
    assert failed(sound(types=types, late=late)) == {"pacing": ["interaction 1"]}


def test_each_event_handler_must_keep_the_percentile() -> None:
    """Fail a location with one slow handler of two, however fast the other is."""
    subject = "offer at DC2_IncomingOffersQ"
    heard = [
        replace(one, over=1, slow=9) if (one.number, one.place) == (OFFER, 2) else one
        for one in sound().heard
    ]
    assert failed(sound(heard=heard)) == {"delivery_time": [subject]}
    (finding,) = audit(MODEL, sound(heard=heard)).failed
    assert finding.observed == (
        "1 of 2 event handlers slower; 9 of 50 deliveries; 90P of the slowest: 2.000 ms"
    )


def test_where_nothing_was_received_nothing_was_in_time() -> None:
    subject = "offer at DC2_IncomingOffersQ"
    assert failed(with_destination(received=0, received_in_all=20)) == {
        "delivery_time": [subject],
        "delivered": [subject],
    }
    assert failed(with_destination(sent=0, expected=0, received=0)) == {}


def test_one_lost_message_is_named() -> None:
    observed = with_destination(received=99, received_in_all=119, missing=("message 8 from SP4",))
    assert failed(observed) == {"delivered": ["offer at DC2_IncomingOffersQ"]}
    (finding,) = audit(MODEL, observed).failed
    assert finding.expected == "120 deliveries of 60 messages sent in the whole run"
    assert finding.observed == "119, 1 missing: message 8 from SP4"


def test_what_was_lost_outside_the_window_is_lost() -> None:
    # A chain that broke in the warm-up changes no count of the window.
    lost = with_destination(received_in_all=117, missing=("message 0 from SP4",), missing_unnamed=2)
    (finding,) = audit(MODEL, lost).failed
    assert finding.test == "delivered"
    assert finding.observed == "117, 3 missing: message 0 from SP4, and 2 more"
    (finding,) = audit(MODEL, with_destination(received_in_all=121)).failed
    assert finding.observed == "121, 1 more than sent"


@pytest.mark.parametrize(("changed", "subject", "observation"), ARTICLE["unfinished"])
def test_what_never_came_to_its_end_is_not_delivered(
    changed: dict[str, int], subject: str, observation: str
) -> None:
    observed = sound(**changed)
    assert failed(observed) == {"delivered": [subject]}
    assert [finding.observed for finding in audit(MODEL, observed).failed] == [observation]


def test_interactions_that_are_off_are_not_tested() -> None:
    model = model_with(topology="freeform", base=5, interactions={"4": 10})
    seen = observed(model, WINDOW_S)
    found = audit(model, seen)
    assert found.passed
    assert {finding.subject for finding in found.findings} == {"interaction 4"}


STATISTICS = number_of("statInfoSM")


def with_lost(number: int, **changed: Any) -> Observed:
    """Return a recovery in which a message of a type was lost."""
    counts = [
        replace(one, received_in_all=119) if (one.number, one.destination) == (number, 0) else one
        for one in sound().destinations
    ]
    recovery = Recovery(60.0, 1, 2_000_000_001, 3_000_000_001, 0, 4, 3_500_000_001)
    return sound(destinations=counts, recovery=replace(recovery, **changed))


def test_after_a_failure_only_what_is_persistent_must_have_come() -> None:
    found = audit(MODEL, with_lost(STATISTICS))
    assert found.passed
    assert found.tests == RECOVERY_TESTS
    assert {one.test for one in found.findings} == set(RECOVERY_TESTS)
    (finding,) = found.of("recovery")
    assert finding.observed == "3.500 s; 4 messages had waited at the broker"
    assert failed(with_lost(OFFER)) == {"delivered": ["offer at DC0_IncomingOffersQ"]}


@pytest.mark.parametrize(("changed", "observed"), ARTICLE["recoveries"])
def test_a_recovery_must_be_whole_and_in_time(changed: dict[str, Any], observed: str) -> None:
    (finding,) = audit(MODEL, with_lost(STATISTICS, **changed)).failed
    assert (finding.test, finding.observed) == ("recovery", observed)
