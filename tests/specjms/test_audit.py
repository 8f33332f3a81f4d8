"""The five audit tests, each shown to pass and to fail at its bound."""

from dataclasses import replace
from typing import Any

import pytest

from loadgen.specjms.audit import TESTS, DestinationCount, Observed, audit, run_rules
from loadgen.specjms.expected import type_rates
from loadgen.specjms.messages import FIRST_OF_INTERACTION, MESSAGES, number_of
from loadgen.specjms.model import destinations_of, enabled_types
from loadgen.specjms.options import Choices, model_of

MODEL = model_of(Choices(base=15))
WINDOW_S = 100.0
OFFER = number_of("offer")


def sound(**changed: Any) -> Observed:
    """What a correct run of the model shows."""
    rates = type_rates(MODEL)
    counts = [
        DestinationCount(number, destination, sent=50, expected=100, received=100)
        for number in enabled_types(MODEL)
        for destination in range(destinations_of(MODEL, number))
    ]
    seen = Observed(
        window_s=WINDOW_S,
        sent=[round(rate.sent * WINDOW_S) for rate in rates],
        received=[round(rate.received * WINDOW_S) for rate in rates],
        inside=[round(rate * WINDOW_S) for rate in MODEL.rates],
        late=[0] * 7,
        p90_ms=[1.0] * len(MESSAGES),
        destinations=counts,
    )
    return replace(seen, **changed)


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
    assert [len(found.of(test)) for test in TESTS] == [7, 7, 7, destinations, destinations]


@pytest.mark.parametrize(("share", "passes"), [(0.951, True), (0.949, False), (1.06, False)])
def test_input_rate_may_be_off_by_5_percent(share: float, passes: bool) -> None:
    inside = list(sound().inside)
    inside[4] = round(inside[4] * share)
    assert failed(sound(inside=inside)) == ({} if passes else {"input_rate": ["interaction 5"]})


def test_one_interaction_more_or_less_is_no_rate() -> None:
    model = model_of(Choices(topology="vertical", base=1))
    rates = [round(rate * 20) for rate in model.rates]
    assert rates[2] == 1
    counts = [round(rate.sent * 20) for rate in type_rates(model)]
    received = [round(rate.received * 20) for rate in type_rates(model)]
    seen = replace(
        sound(destinations=()), window_s=20.0, sent=counts, received=received, inside=rates
    )
    for inside in (0, 1, 2):
        rates[2] = inside
        tests = {f.test for f in audit(model, seen).failed if f.subject == "interaction 3"}
        assert "input_rate" not in tests


@pytest.mark.parametrize("field", ["sent", "received"])
def test_messages_of_an_interaction_may_be_off_by_5_percent(field: str) -> None:
    for share, passes in ((0.97, True), (0.92, False)):
        counts = list(getattr(sound(), field))
        for number, message in enumerate(MESSAGES):
            if message.interaction == 2 and number not in FIRST_OF_INTERACTION:
                counts[number] = round(counts[number] * share)
        expected = {} if passes else {"message_count": ["interaction 2"]}
        assert failed(sound(**{field: counts})) == expected


def test_at_most_a_fifth_may_begin_late() -> None:
    sent = list(sound().sent)
    sent[FIRST_OF_INTERACTION[0]] = 2300
    late = [460, 0, 0, 0, 0, 0, 0]
    assert failed(sound(sent=sent, late=late)) == {}
    late[0] += 1
    assert failed(sound(sent=sent, late=late)) == {"pacing": ["interaction 1"]}


def test_ninety_percent_must_be_within_five_seconds() -> None:
    assert failed(with_destination(slow=10)) == {}
    subject = "offer at DC2_IncomingOffersQ"
    assert failed(with_destination(slow=11)) == {"delivery_time": [subject]}
    assert failed(with_destination(received=0)) == {
        "delivery_time": [subject],
        "delivered": [subject],
    }
    assert failed(with_destination(sent=0, expected=0, received=0)) == {}


def test_one_lost_message_is_named() -> None:
    observed = with_destination(received=99, missing=("message 8 from SP4",))
    assert failed(observed) == {"delivered": ["offer at DC2_IncomingOffersQ"]}
    (finding,) = audit(MODEL, observed).failed
    assert finding.expected == "100 deliveries of 50 messages sent"
    assert finding.observed == "99, 1 missing: message 8 from SP4"


def test_interactions_that_are_off_are_not_tested() -> None:
    model = model_of(Choices(topology="freeform", base=5, interactions={"4": 10}))
    zeros = [0] * len(MESSAGES)
    sent = list(zeros)
    sent[number_of("inventoryInfo")] = 1000
    inside = [0, 0, 0, 1000, 0, 0, 0]
    seen = sound(sent=sent, received=sent, inside=inside, destinations=())
    found = audit(model, seen)
    assert found.passed
    assert {finding.subject for finding in found.findings} == {"interaction 4"}


@pytest.mark.parametrize(
    ("values", "kept"),
    [
        ((600.0, 1800.0, 100.0, True), [True, True, True, True]),
        ((599.0, 1799.0, 101.0, False), [False, False, False, False]),
    ],
)
def test_run_rules_have_bounds(values: tuple[float, float, float, bool], kept: list[bool]) -> None:
    warmup_s, measure_s, clock_ms, usual = values
    rules = run_rules(warmup_s, measure_s, clock_ms, default_options=usual)
    assert [rule[1] for rule in rules] == kept
