"""What a correct run must show: rates by message type, group and location, from the model alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    GROUPS,
    INTERACTIONS,
    MESSAGES,
    Group,
    Kind,
    group_of,
    number_of,
)
from loadgen.specjms.model import Model, answers_to_calls, families_at, mean_received_by
from loadgen.specjms.topology import suppliers_of


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages per second."""

    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: "Rate") -> "Rate":
        return Rate(self.sent + other.sent, self.received + other.received)


def type_rates(model: Model) -> tuple[Rate, ...]:
    """Rates of the whole system, one entry a message type."""
    rates: list[Rate] = []
    for number, message in enumerate(MESSAGES):
        # A chain has one message a step and interaction, except for the offers to a call.
        each = answers_to_calls(model)[0] if message.name == "offer" else 1.0
        sent = model.rates[message.interaction - 1] * each
        rates.append(Rate(sent, sent * mean_received_by(model, number)))
    return tuple(rates)


def group_played(model: Model, number: int) -> Group:
    """A type's part of the message mix, by how the model sends it and not as published."""
    options = model.messages[number]
    return group_of(pubsub=not options.queue, persistent=options.qos > 0)


def group_rates(model: Model) -> dict[Group, Rate]:
    """Rates of the whole system by part of the message mix, as the model plays it."""
    totals = {group: Rate() for group in GROUPS}
    for number, rate in enumerate(type_rates(model)):
        totals[group_played(model, number)] += rate
    return totals


def mix(rates: Mapping[Group, Rate]) -> dict[Group, float]:
    """Share of each group in the messages received, in per cent; zeros where none were."""
    total = sum(rate.received for rate in rates.values())
    return {group: 100.0 * rate.received / total if total else 0.0 for group, rate in rates.items()}


PUBLISHED_MIX: Final[Mapping[str, Mapping[Group, float]]] = {
    "horizontal": {"a": 37.2, "b": 12.7, "c": 24.4, "d": 25.7},
    "vertical": {"a": 14.2, "b": 6.0, "c": 39.1, "d": 40.7},
}
"""Shares of what is received, in per cent, by which each topology has its published mix: half of it
pub/sub, or four fifths point to point (SPECjms2007 article, figures 5 and 6)."""
_MIX_POINTS: Final = 0.5


def mix_note(model: Model) -> str:
    """What to say of a BASE with which the mix is not that of the topology; "" where it is."""
    published = PUBLISHED_MIX.get(model.topology)
    if published is None:
        return ""
    played = {group: Rate() for group in GROUPS}
    for message, rate in zip(MESSAGES, type_rates(model), strict=True):
        played[message.group] += rate
    shares = mix(played)
    worst = max(GROUPS, key=lambda group: abs(shares[group] - published[group]))
    if abs(shares[worst] - published[worst]) <= _MIX_POINTS:
        return ""
    return (
        f"BASE {model.base} does not give the message mix of the {model.topology} topology: group "
        f"{worst} has {shares[worst]:.1f} % of what is received; with multiples of 5 it has "
        f"{published[worst]} %."
    )


def interaction_messages(model: Model) -> tuple[Rate, ...]:
    """Messages sent and received by all parties in one interaction, one entry an interaction."""
    totals = [Rate() for _ in INTERACTIONS]
    for message, rate in zip(MESSAGES, type_rates(model), strict=True):
        totals[message.interaction - 1] += rate
    return tuple(
        Rate(total.sent / begun, total.received / begun) if begun else Rate()
        for total, begun in zip(totals, model.rates, strict=True)
    )


def location_rates(model: Model, kind: Kind, place: int) -> tuple[Rate, ...]:
    """Rates of one location, one entry a message type."""
    return tuple(
        Rate(_sent_at(model, number, kind, place), _received_at(model, number, kind, place))
        for number in range(len(MESSAGES))
    )


def _sent_at(model: Model, number: int, kind: Kind, place: int) -> float:
    message = MESSAGES[number]
    if message.sender != kind:
        return 0.0
    if message.cause is None or message.cause == "offer":  # one pOrder answers all offers of a call
        return model.rates[message.interaction - 1] / model.count_of(kind)
    return _received_at(model, number_of(message.cause), kind, place)


def _received_at(model: Model, number: int, kind: Kind, place: int) -> float:
    message, places = MESSAGES[number], model.locations
    if message.consumer != kind:
        return 0.0
    begun = model.rates[message.interaction - 1]
    if message.spread == "all":
        return begun
    if message.spread == "family":
        return begun * len(families_at(model, place)) / model.families
    if kind == Kind.SP:
        families = families_at(model, place)
        chosen = sum(1 / len(suppliers_of(family, places.suppliers)) for family in families)
        return begun * chosen / model.families
    begins_at = MESSAGES[FIRST_OF_INTERACTION[message.interaction - 1]].sender
    beginning = model.count_of(begins_at)
    # How many of the locations that begin the interaction have their messages come to this one.
    if kind == Kind.HQ and message.sender == Kind.DC and begins_at == Kind.SM:
        centers = range(place, places.distribution_centers, places.headquarters)
        leading_here = sum(places.served_by(center) for center in centers)
    elif kind == Kind.HQ:
        leading_here = len(range(place, beginning, places.headquarters))
    elif kind == Kind.DC and begins_at == Kind.SM:
        leading_here = places.served_by(place)
    else:
        leading_here = 1
    share = begun * leading_here / beginning
    return share * answers_to_calls(model)[0] if message.name == "offer" else share
