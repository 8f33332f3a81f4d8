"""From what a scenario says to a model: defaults as published, overrides where the rules allow.

Which parameters a topology may change: SPECjms2007 article, table 1. Horizontal and vertical leave
locations, rates, message sizes, shared connections and the frequency of integrity checks alone;
the parameters of jms2009-PS may be set in every topology, and the result then says so.
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from loadgen.errors import ScenarioError
from loadgen.specjms.messages import INTERACTIONS, MESSAGES, TYPES, Kind, number_of
from loadgen.specjms.model import (
    BASE_LIMIT,
    SUBSCRIPTION_TYPES,
    TARGETS,
    MessageOptions,
    Model,
    Selectors,
)
from loadgen.specjms.sizes import (
    CLASS_PERCENT,
    DEFAULT_QUANTITIES,
    QUANTITIES,
    Quantities,
    message_sizes,
)
from loadgen.specjms.topology import (
    VERTICAL_LOCATIONS,
    Locations,
    Topology,
    families_for,
    horizontal_locations,
    input_rates,
)
from loadgen.specjms.trailer import TRAILER_BYTES
from loadgen.workload.payload import HEADER_BYTES
from loadgen.workload.units import shown

HANDLERS_LIMIT: Final = 100
LOCATIONS_LIMIT: Final = 100_000
RATE_LEAST: Final = 1e-4
"""One in almost three hours; a period must stay countable in nanoseconds."""
RATE_LIMIT: Final = 1_000_000
SIZE_LIMIT_BYTES: Final = 256 * 1024
_LEAST_BYTES: Final = HEADER_BYTES + TRAILER_BYTES

Tables = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choices:
    """What a scenario may say of the workload; None or empty for what it leaves open.

    locations      freeform: {"SM": 20, "DC": 4, "SP": 8, "HQ": 1}
    interactions   {"1": {"rate": 5.0, "drivers": 2}, "2": 3.5, "3": false}; rates (a second, whole
                   system) in freeform only, where those not named are off
    messages       {"order": {...}, "all": {...}}: transacted, persistent, qos, durable, queue,
                   target, subscription, handlers; sizes (bytes of the three classes) in freeform
    quantities     freeform: x of the size formulas, three values each, and "percent", the share
                   of each class
    """

    topology: Topology = "horizontal"
    base: int = 10
    headquarters: int | None = None
    handlers: int = 2
    drivers: int = 1
    selectors: Selectors = "broker"
    mqtt: str = "5"
    families: int | None = None
    shared_connections: bool = False
    check_every: int = 1
    locations: Tables = field(default_factory=dict)
    interactions: Tables = field(default_factory=dict)
    messages: Tables = field(default_factory=dict)
    quantities: Tables = field(default_factory=dict)


def model_of(choices: Choices) -> Model:
    """The model that the choices make; raises ScenarioError, one line, for what cannot be."""
    _refuse_overrides(choices)
    if not 1 <= choices.base <= BASE_LIMIT:
        raise ScenarioError(f"base: {choices.base} is not allowed; allowed: 1 to {BASE_LIMIT:,}")
    places = _locations(choices)
    rates, drivers = _interactions(choices, places)
    if not any(rates):
        raise ScenarioError("interactions: all are off; allowed: at least one with a rate")
    quantities, percent = _quantities(choices)
    sizes = message_sizes(quantities)
    model = Model(
        topology=choices.topology,
        base=choices.base,
        locations=places,
        rates=rates,
        families=choices.families or families_for(places.suppliers),
        messages=tuple(_message(choices, number, sizes[number]) for number in range(len(MESSAGES))),
        drivers=drivers,
        selectors=choices.selectors,
        shared_connections=choices.shared_connections,
        check_every=choices.check_every,
        class_percent=percent,
    )
    _check_protocol(model, choices.mqtt)
    return model


def changed_options(model: Model) -> tuple[str, ...]:
    """What makes this another workload than SPECjms2007's, such as "order: queue"; empty if not."""
    usual = model_of(Choices(topology="horizontal", base=1))
    changed = []
    for number, message in enumerate(MESSAGES):
        for name in ("qos", "durable", "transacted", "queue", "target", "subscription"):
            own, published = (getattr(options.messages[number], name) for options in (model, usual))
            # Which messages share a topic says nothing of a queue.
            unused = name == "target" and model.messages[number].queue
            if own != published and not unused:
                changed.append(f"{message.name}: {name} {own}")
    if model.selectors == "client" and changed:
        changed.append("selectors: client")
    if model.topology == "freeform":
        changed.append("topology: freeform")
    return tuple(changed)


def _refuse_overrides(choices: Choices) -> None:
    if choices.topology == "freeform":
        return
    usual = Choices()
    if choices.topology == "vertical" and choices.headquarters not in (None, 1):
        raise ScenarioError(
            "headquarters: fixed at 1 in the vertical topology; allowed: more with horizontal or "
            "freeform"
        )
    for name in ("locations", "quantities", "families", "shared_connections", "check_every"):
        if getattr(choices, name) != getattr(usual, name):
            raise ScenarioError(
                f"{name}: fixed in the {choices.topology} topology; allowed: with freeform"
            )
    for interaction, value in choices.interactions.items():
        if not isinstance(value, Mapping) or set(value) - {"drivers"}:
            raise ScenarioError(
                f"interactions: the rate of {shown(interaction)} is fixed in the "
                f"{choices.topology} topology; allowed: drivers, or a rate with freeform"
            )
    for name, value in choices.messages.items():
        if isinstance(value, Mapping) and "sizes" in value:
            raise ScenarioError(
                f"messages: sizes of {shown(name)} are fixed in the {choices.topology} topology; "
                "allowed: with freeform"
            )


# Locations and interactions ---------------------------------------------------------------------


def _refusal(where: str, value: object, allowed: str) -> ScenarioError:
    return ScenarioError(f"{where}: {shown(value)} is not allowed; allowed: {allowed}")


def _count(where: str, value: object, least: int, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise _refusal(where, value, f"a whole number from {least:,} to {most:,}")
    return value


def _locations(choices: Choices) -> Locations:
    headquarters = 1 if choices.headquarters is None else choices.headquarters
    _count("headquarters", headquarters, 1, 1000)
    if choices.topology == "horizontal":
        return horizontal_locations(choices.base, headquarters)
    if choices.topology == "vertical":
        vertical = VERTICAL_LOCATIONS
        return Locations(
            vertical.supermarkets, vertical.distribution_centers, vertical.suppliers, headquarters
        )
    usual = horizontal_locations(choices.base, headquarters)
    counts = {kind.name: usual.of(kind) for kind in Kind}
    for name, value in choices.locations.items():
        if name not in counts:
            raise ScenarioError(
                f"locations: {shown(name)} is not a location; allowed: {', '.join(counts)}"
            )
        counts[name] = _count(f"locations.{name}", value, 1, LOCATIONS_LIMIT)
    return Locations(*(counts[kind.name] for kind in Kind))


def _interactions(choices: Choices, places: Locations) -> tuple[tuple[float, ...], tuple[int, ...]]:
    """Rate and drivers of each interaction."""
    freeform = choices.topology == "freeform"
    if freeform and not choices.interactions:
        rates = list(input_rates("horizontal", choices.base, places))
    elif freeform:
        rates = [0.0] * len(INTERACTIONS)
    else:
        rates = list(input_rates(choices.topology, choices.base, places))
    drivers = [_count("drivers", choices.drivers, 1, HANDLERS_LIMIT)] * len(INTERACTIONS)
    for name, given in choices.interactions.items():
        if name not in map(str, INTERACTIONS):
            raise ScenarioError(f"interactions: {shown(name)} is none; allowed: 1 to 7")
        where, at = f"interactions.{name}", int(name) - 1
        value = given if isinstance(given, Mapping) else {"rate": given}
        unknown = sorted(set(value) - {"rate", "drivers"})
        if unknown:
            raise ScenarioError(f"{where}: {shown(unknown[0])} is unknown; allowed: rate, drivers")
        if "rate" in value:
            rates[at] = _rate(f"{where}.rate", value["rate"])
        if "drivers" in value:
            drivers[at] = _count(f"{where}.drivers", value["drivers"], 1, HANDLERS_LIMIT)
    return tuple(rates), tuple(drivers)


def _rate(where: str, value: object) -> float:
    if value is False or value == "off":
        return 0.0
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not (value == 0 or RATE_LEAST <= value <= RATE_LIMIT)
    ):
        raise _refusal(where, value, f"{RATE_LEAST:g} to {RATE_LIMIT:,} a second, or off")
    return float(value)


# Sizes ------------------------------------------------------------------------------------------


def _three(where: str, value: object, least: float, most: float) -> tuple[float, float, float]:
    if (
        isinstance(value, Sequence)
        and not isinstance(value, str)
        and len(value) == 3
        and all(isinstance(x, int | float) and not isinstance(x, bool) for x in value)
        and all(least <= x <= most for x in value)
    ):
        return (value[0], value[1], value[2])
    numbers = "three numbers, small, medium and large"
    raise _refusal(where, value, f"{numbers}, from {least:,g} to {most:,g}")


def _quantities(choices: Choices) -> tuple[Quantities, tuple[int, int, int]]:
    quantities = dict(DEFAULT_QUANTITIES)
    percent = CLASS_PERCENT
    for name, value in choices.quantities.items():
        if name == "percent":
            small, medium, large = _three("quantities.percent", value, 0, 100)
            if small + medium + large != 100 or any(x != int(x) for x in value):
                raise ScenarioError("quantities.percent: allowed: three whole numbers, 100 in all")
            percent = (int(small), int(medium), int(large))
        elif name in QUANTITIES:
            quantities[name] = _three(f"quantities.{name}", value, 0, 100_000)
        else:
            raise ScenarioError(
                f"quantities: {shown(name)} is unknown; allowed: {', '.join(QUANTITIES)}, percent"
            )
    for name, sizes in zip(TYPES, message_sizes(quantities), strict=True):
        if max(sizes) > SIZE_LIMIT_BYTES:
            raise ScenarioError(
                f"quantities: {name} would have {max(sizes):,} bytes; allowed: "
                f"{SIZE_LIMIT_BYTES:,} at most"
            )
    return quantities, percent


# Message types ----------------------------------------------------------------------------------

_KEYS: Final = (
    *("transacted", "persistent", "qos", "durable", "queue", "target", "subscription"),
    *("handlers", "sizes"),
)


def _message(choices: Choices, number: int, sizes: tuple[int, int, int]) -> MessageOptions:
    """Options of one message type: as published, then those of all, then its own."""
    message = MESSAGES[number]
    given: dict[str, Any] = {}
    for name, values in choices.messages.items():
        if name != "all" and name not in TYPES:
            close = difflib.get_close_matches(str(name), TYPES, n=1)
            hint = (
                f"; did you mean {close[0]!r}?" if close else f"; allowed: all, {', '.join(TYPES)}"
            )
            raise ScenarioError(f"messages: {shown(name)} is not a message type{hint}")
        if not isinstance(values, Mapping):
            raise ScenarioError(f"messages.{name}: {shown(values)} is not a table of options")
        unknown = sorted(set(values) - set(_KEYS))
        if unknown:
            raise ScenarioError(
                f"messages.{name}: {shown(unknown[0])} is unknown; allowed: {', '.join(_KEYS)}"
            )
    own = choices.messages.get(message.name, {})
    for values in (choices.messages.get("all", {}), own):
        # A later choice of one of the two says what the other would have said.
        if "qos" in values or "persistent" in values:
            given.pop("qos", None)
            given.pop("persistent", None)
        given |= values
    where = f"messages.{message.name}"
    persistent = _flag(where, "persistent", given, message.persistent)
    qos = _count(f"{where}.qos", given.get("qos", int(persistent)), 0, 2)
    if persistent != (qos > 0) and "persistent" in given:
        raise ScenarioError(
            f"{where}: persistent {str(persistent).lower()} and qos {qos} contradict each other; "
            "allowed: one of the two"
        )
    if message.pubsub and own.get("queue"):
        raise ScenarioError(f"{where}.queue: it has several consumers; allowed: false")
    if message.spread != "family" and "subscription" in own:
        raise ScenarioError(f"{where}.subscription: allowed: with callForOffers only")
    if message.pubsub and own.get("handlers", 1) != 1:
        raise ScenarioError(
            f"{where}.handlers: {shown(own['handlers'])} would each get every message; allowed: 1"
        )
    queue = not message.pubsub and _flag(where, "queue", given, True)
    target = _one_of(where, "target", given, TARGETS)
    if queue and own.get("target", TARGETS[0]) != TARGETS[0]:
        raise ScenarioError(
            f"{where}.target: {shown(target)} is for topics, and it is a queue; allowed: with "
            "queue = false"
        )
    if message.spread == "family" and target != TARGETS[0]:
        # A topic that all share has no part for each family.
        given.setdefault("subscription", "OR")
    if "sizes" in given:
        three = _three(f"{where}.sizes", given["sizes"], _LEAST_BYTES, SIZE_LIMIT_BYTES)
        sizes = (int(three[0]), int(three[1]), int(three[2]))
    return MessageOptions(
        qos=qos,
        durable=_flag(where, "durable", given, message.durable),
        transacted=_flag(where, "transacted", given, message.transacted),
        queue=queue,
        target=target,
        subscription=_one_of(where, "subscription", given, SUBSCRIPTION_TYPES),
        handlers=1
        if message.pubsub
        else _count(
            f"{where}.handlers", given.get("handlers", choices.handlers), 1, HANDLERS_LIMIT
        ),
        sizes_bytes=sizes,
    )


def _flag(where: str, name: str, given: Mapping[str, Any], usual: bool) -> bool:
    value = given.get(name, usual)
    if not isinstance(value, bool):
        raise _refusal(f"{where}.{name}", value, "true, false")
    return value


def _one_of(where: str, name: str, given: Mapping[str, Any], known: Sequence[Any]) -> Any:
    value = given.get(name, known[0])
    if value not in known:
        raise _refusal(f"{where}.{name}", value, ", ".join(known))
    return value


# What the protocol must offer ---------------------------------------------------------------------


def _check_protocol(model: Model, mqtt: str) -> None:
    number_of_offer = number_of("callForOffers")
    for number, message in enumerate(MESSAGES):
        options = model.messages[number]
        if model.rates[message.interaction - 1] == 0:
            continue
        several = options.handlers > 1 and not model.shared_connections
        if several and mqtt != "5":
            raise ScenarioError(
                f"mqtt: {mqtt} has no shared subscriptions and {message.name} has "
                f"{options.handlers} handlers at each location; use mqtt = 5 or handlers = 1"
            )
        selected = not options.queue and options.target != "LocationID-MessageType"
        if number == number_of_offer and options.subscription != "family":
            selected = True
        if model.selectors == "client" and selected:
            if mqtt != "5":
                raise ScenarioError(
                    f"mqtt: {mqtt} has no user properties for selectors at the client; use "
                    "mqtt = 5 or selectors = broker"
                )
            if several:
                raise ScenarioError(
                    f"handlers: {message.name} is selected by its receivers, which cannot share a "
                    "subscription; use handlers = 1 or selectors = broker"
                )
            if model.shared_connections:
                raise ScenarioError(
                    "shared_connections: a connection of several receivers has no selector of one; "
                    "use selectors = broker"
                )
