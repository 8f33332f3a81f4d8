"""The message table against the published one, causes, and sizes from the published formulas."""

import tomllib
from pathlib import Path

import pytest

from loadgen.specjms import messages
from loadgen.specjms.expected import type_rates
from tests.specjms.models import model_with

ARTICLE = tomllib.loads((Path(__file__).parent / "article.toml").read_text())


def test_every_type_is_as_published() -> None:
    lines = []
    for message in messages.MESSAGES:
        kind = "Topic" if message.pubsub else "Queue"
        words = [str(message.interaction), message.name, kind, message.owner.name]
        columns = zip("PTD", (message.persistent, message.transacted, message.durable), strict=True)
        words += [letter for letter, on in columns if on]
        lines.append(" ".join(words))
    assert lines == ARTICLE["messages"].strip().splitlines()


@pytest.mark.parametrize(("cause", "effects"), ARTICLE["causes"])
def test_a_message_causes_those_of_the_step_list(cause: str, effects: list[str]) -> None:
    assert [messages.TYPES[n] for n in messages.outputs_of(messages.number_of(cause))] == effects


def test_a_message_is_sent_where_its_cause_arrives() -> None:
    for number, message in enumerate(messages.MESSAGES):
        for output in messages.outputs_of(number):
            assert messages.MESSAGES[output].sender == message.consumer
            assert messages.MESSAGES[output].interaction == message.interaction


def test_each_interaction_begins_with_one_type() -> None:
    assert [messages.TYPES[n] for n in messages.FIRST_OF_INTERACTION] == ARTICLE["first"]
    caused = {n for number in range(len(messages.MESSAGES)) for n in messages.outputs_of(number)}
    assert caused | set(messages.FIRST_OF_INTERACTION) == set(range(len(messages.MESSAGES)))
    assert not caused & set(messages.FIRST_OF_INTERACTION)


def test_sizes_follow_the_formulas() -> None:
    quantities = dict(messages.DEFAULT_QUANTITIES)
    quantities["order_lines"] = (1, 2, 3)
    sizes = messages.message_sizes(quantities)
    assert sizes[messages.number_of("order")] == tuple(
        round(1024 * (0.0565 * x + 1.4534)) for x in (1, 2, 3)
    )
    quantities["cash_desks"] = (4, 4, 4)
    quantities["sales_lines"] = (7, 7, 7)
    one = round(1024 * (0.0139 * 4 + 0.3650 * 7 + 0.9813))
    assert messages.message_sizes(quantities)[messages.number_of("statInfoSM")] == (one, one, one)


def test_a_price_update_has_one_size() -> None:
    assert messages.message_sizes()[messages.number_of("priceUpdate")] == (237, 237, 237)


def test_classes_are_in_order_and_hold_header_and_trailer() -> None:
    for name, (small, medium, large) in zip(messages.TYPES, messages.message_sizes(), strict=True):
        assert 72 < small <= medium <= large, name


@pytest.mark.parametrize(("topology", "base"), [("horizontal", 100), ("vertical", 300)])
def test_the_mean_message_sent_has_about_two_kilobytes(topology: str, base: int) -> None:
    model = model_with(topology=topology, base=base)
    sent = bytes_sent = 0.0
    for rate, options in zip(type_rates(model), model.messages, strict=True):
        mean = sum(p * s for p, s in zip(model.class_percent, options.sizes_bytes, strict=True))
        sent += rate.sent
        bytes_sent += rate.sent * mean / 100
    assert bytes_sent / sent == pytest.approx(2048, rel=0.1)
