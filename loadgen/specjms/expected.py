"""What a correct run must show: rates by message type, group and location, from the model alone."""

from collections.abc import Mapping
from dataclasses import dataclass

from loadgen.specjms.messages import (
    FIRST_OF_INTERACTION,
    GROUPS,
    INTERACTIONS,
    MESSAGES,
    Group,
    Kind,
    number_of,
)
from loadgen.specjms.model import Model, cause_of, families_at, mean_suppliers
from loadgen.specjms.topology import suppliers_of

__all__ = [
    "Rate",
    "group_played",
    "group_rates",
    "interaction_messages",
    "location_rates",
    "mix",
    "type_rates",
]

_OFFER, _P_ORDER = number_of("offer"), number_of("pOrder")


@dataclass(frozen=True, slots=True)
class Rate:
    """Messages a second."""

    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: "Rate") -> "Rate":
        return Rate(self.sent + other.sent, self.received + other.received)


def type_rates(model: Model) -> tuple[Rate, ...]:
    """Rates of the whole system, one entry a message type."""
    rates: list[Rate] = []
    suppliers = mean_suppliers(model.locations.suppliers, model.families)
    for number, message in enumerate(MESSAGES):
        begun = model.rates[message.interaction - 1]
        # A chain has one message a step and interaction, but for the offers to one call.
        sent = begun * suppliers if number == _OFFER else begun
        copies = {"one": 1.0, "family": suppliers, "all": float(model.locations.supermarkets)}
        rates.append(Rate(sent, sent * copies[message.spread]))
    return tuple(rates)


def group_played(model: Model, number: int) -> Group:
    """A type's part of the message mix, by how the model sends it and not as published."""
    options = model.messages[number]
    if options.queue:
        return "d" if options.qos > 0 else "c"
    return "b" if options.qos > 0 else "a"


def group_rates(model: Model) -> dict[Group, Rate]:
    """Rates of the whole system by part of the message mix, as the model plays it."""
    totals = {group: Rate() for group in GROUPS}
    for number, rate in enumerate(type_rates(model)):
        totals[group_played(model, number)] += rate
    return totals


def mix(rates: Mapping[Group, Rate]) -> dict[Group, float]:
    """Share of each group in the messages received, in per cent; zeros where nothing is."""
    total = sum(rate.received for rate in rates.values())
    return {group: 100.0 * rate.received / total if total else 0.0 for group, rate in rates.items()}


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
    if number in FIRST_OF_INTERACTION:
        return model.rates[message.interaction - 1] / model.count_of(kind)
    if number == _P_ORDER:
        return model.rates[1] / model.locations.distribution_centers
    return _received_at(model, cause_of(number), kind, place)


def _received_at(model: Model, number: int, kind: Kind, place: int) -> float:
    message = MESSAGES[number]
    if message.consumer != kind:
        return 0.0
    places = model.locations
    begun = model.rates[message.interaction - 1]
    if message.spread == "family":
        return begun * len(families_at(model, place)) / model.families
    if message.spread == "all":
        return begun
    if message.interaction == 1:
        served = {
            Kind.SM: 1,
            Kind.DC: places.served_by(place) if kind == Kind.DC else 0,
            Kind.HQ: sum(
                places.served_by(dc)
                for dc in range(place, places.distribution_centers, places.headquarters)
            ),
            Kind.SP: 0,
        }[kind]
        return begun * served / places.supermarkets
    if message.interaction == 2:
        if kind == Kind.SP:
            chosen = sum(
                1 / len(suppliers_of(family, places.suppliers))
                for family in families_at(model, place)
            )
            return begun * chosen / model.families
        centers = 1
        if kind == Kind.HQ:
            centers = len(range(place, places.distribution_centers, places.headquarters))
        share = begun * centers / places.distribution_centers
        return (
            share * mean_suppliers(places.suppliers, model.families) if number == _OFFER else share
        )
    if kind == Kind.HQ:
        reporting = len(range(place, places.supermarkets, places.headquarters))
        return begun * reporting / places.supermarkets
    return begun / model.count_of(kind)
