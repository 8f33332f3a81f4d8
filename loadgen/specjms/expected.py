"""Expected rates of a correct run by message type, group and location, from the model."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from loadgen.specjms import messages
from loadgen.specjms.chain_model import Model, answers_to_calls, mean_received_by


@dataclass(frozen=True, slots=True)
class MessageRate:
    sent: float = 0.0
    received: float = 0.0

    def __add__(self, other: "MessageRate") -> "MessageRate":
        return MessageRate(self.sent + other.sent, self.received + other.received)


def type_rates(model: Model) -> tuple[MessageRate, ...]:
    rates: list[MessageRate] = []
    for number, message in enumerate(messages.MESSAGES):
        # An interaction has one message per step, except for the offers to a call.
        each = answers_to_calls(model)[0] if message.name == "offer" else 1.0
        sent = model.rates[message.interaction - 1] * each
        rates.append(MessageRate(sent, sent * mean_received_by(model, number)))
    return tuple(rates)


def group_played(model: Model, number: int) -> messages.MixGroup:
    """Return the group of a type in the message mix as the model sends it, not as published."""
    options = model.messages[number]
    return messages.group_of(pubsub=not options.queue, persistent=options.qos > 0)


def group_rates(model: Model) -> dict[messages.MixGroup, MessageRate]:
    """Return the rates of the whole system by part of the message mix, as the model sends it."""
    totals = {group: MessageRate() for group in messages.GROUPS}
    for number, rate in enumerate(type_rates(model)):
        totals[group_played(model, number)] += rate
    return totals


def mix(rates: Mapping[messages.MixGroup, MessageRate]) -> dict[messages.MixGroup, float]:
    """Return the share of each group in the messages received, in per cent; zeros if none was."""
    total = sum(rate.received for rate in rates.values())
    return {group: 100.0 * rate.received / total if total else 0.0 for group, rate in rates.items()}


_MIX_POINTS: Final = 0.5


def mix_note(model: Model) -> str:
    """Return a note if BASE does not give the message mix of the topology, else ""."""
    published = messages.SPECIFICATION["mix"].get(model.topology)
    if published is None:
        return ""
    played = {group: MessageRate() for group in messages.GROUPS}
    for message, rate in zip(messages.MESSAGES, type_rates(model), strict=True):
        played[message.group] += rate
    shares = mix(played)
    worst = max(messages.GROUPS, key=lambda group: abs(shares[group] - published[group]))
    if abs(shares[worst] - published[worst]) <= _MIX_POINTS:
        return ""
    return (
        f"BASE {model.base} does not give the message mix of the {model.topology} topology: group "
        f"{worst} has {shares[worst]:.1f} % of the received messages; with multiples of 5 it has "
        f"{published[worst]} %."
    )


def interaction_messages(model: Model) -> tuple[MessageRate, ...]:
    """Return messages sent and received by all parties in one interaction, by interaction."""
    totals = [MessageRate() for _ in messages.INTERACTIONS]
    for message, rate in zip(messages.MESSAGES, type_rates(model), strict=True):
        totals[message.interaction - 1] += rate
    return tuple(
        MessageRate(total.sent / begun, total.received / begun) if begun else MessageRate()
        for total, begun in zip(totals, model.rates, strict=True)
    )
