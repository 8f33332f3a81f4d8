"""The model of a scenario: published defaults, with overrides that the rules allow.

The SPECjms2007 article, table 1, lists the parameters that a topology may change. Horizontal and
vertical topologies fix locations, rates, message sizes, shared connections and the frequency of
integrity checks. The parameters of jms2009-PS may be set in every topology; the result lists them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from loadgen.errors import ScenarioError
from loadgen.kernels.payload import HEADER_BYTES
from loadgen.plan.fields import Choice, Count, FieldKind, Flag, Quantity, read_table, read_value
from loadgen.plan.units import shown
from loadgen.sentences import counted
from loadgen.specjms.chain_model import (
    ACKNOWLEDGED_AT_ONCE,
    BASE_LIMIT,
    SUBSCRIPTION_TYPES,
    TARGETS,
    CaseStudy,
    MessageOptions,
    Model,
    Selectors,
    enabled_types,
    handlers_of,
)
from loadgen.specjms.kernels.trailer import TRAILER_BYTES
from loadgen.specjms.messages import (
    CLASS_PERCENT,
    DEFAULT_QUANTITIES,
    INTERACTIONS,
    MESSAGES,
    TYPES,
    LocationKind,
    MessageType,
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

HANDLERS_LIMIT: Final = 100
ENDPOINTS_LIMIT: Final = 1_000
LOCATIONS_LIMIT: Final = 100_000
RATE_LEAST: Final = 1e-4
"""One in almost three hours, so that periods can be counted in nanoseconds."""
RATE_LIMIT: Final = 1_000_000
SIZE_LIMIT_BYTES: Final = 256 * 1024
_LEAST_BYTES: Final = HEADER_BYTES + TRAILER_BYTES

Tables = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Choices:
    """Fields of a scenario that shape the workload; None or empty if the scenario omits them.

    locations      freeform: {"SM": 20, "DC": 4, "SP": 8, "HQ": 1}
    agents         {"DC": 2}: agents of each location of a kind
    connections    {"SM": 1}: connections that the event handlers of an agent share
    interactions   {"1": {"rate": 5.0, "drivers": 2}, "2": 3.5, "3": false}; rates (a second, whole
                   system) in freeform only, with all others off; endpoint
    messages       {"order": {...}, "all": {...}}: transacted, persistent, qos, durable, queue,
                   target, subscription, handlers, endpoint; in freeform sizes (bytes of the three
                   classes), percent (their shares) and acknowledgement
    quantities     freeform: x of the size formulas, three values each, and "percent", the share
                   of each class
    """

    topology: Topology = "horizontal"
    base: int = 10
    headquarters: int = 1
    handlers: int = 2
    drivers: int = 1
    selectors: Selectors = "broker"
    mqtt: str = "5"
    families: int | None = None
    shared_connections: bool = False
    check_every: int = 1
    case_study: CaseStudy | None = None
    locations: Tables = field(default_factory=dict)
    agents: Tables = field(default_factory=dict)
    connections: Tables = field(default_factory=dict)
    interactions: Tables = field(default_factory=dict)
    messages: Tables = field(default_factory=dict)
    quantities: Tables = field(default_factory=dict)


def model_of(choices: Choices) -> Model:
    """Return the model of the choices; raises ScenarioError with one line if they are invalid."""
    _refuse_overrides(choices)
    choices = _of_the_case_study(choices)
    if not 1 <= choices.base <= BASE_LIMIT:
        raise ScenarioError(f"base: {choices.base} is not allowed; allowed: 1 to {BASE_LIMIT:,}")
    places = _locations(choices)
    rates, drivers, endpoints = _interactions(choices, places)
    if not any(rates):
        raise ScenarioError("interactions: all are off; allowed: at least one with a rate")
    sizes, percent = _sizes(choices)
    model = Model(
        topology=choices.topology,
        base=choices.base,
        locations=places,
        rates=rates,
        families=choices.families or families_for(places.suppliers),
        messages=_messages(choices, sizes),
        drivers=drivers,
        selectors=choices.selectors,
        agents=_of_kinds("agents", choices.agents, _AGENTS, 1),
        connections=_of_kinds(
            "connections", choices.connections, _CONNECTIONS, int(choices.shared_connections)
        ),
        endpoints=endpoints,
        check_every=choices.check_every,
        class_percent=percent,
    )
    _check_protocol(model, choices.mqtt)
    return model


def changed_options(model: Model) -> tuple[str, ...]:
    """Return the differences from SPECjms2007's workload, such as "order: queue"."""
    usual = model_of(Choices(topology="horizontal", base=1))
    changed = []
    for number, message in enumerate(MESSAGES):
        for name in ("qos", "durable", "transacted", "queue", "target", "subscription"):
            option, published = (
                getattr(options.messages[number], name) for options in (model, usual)
            )
            # Only topics have a target.
            unused = name == "target" and model.messages[number].queue
            if option != published and not unused:
                changed.append(f"{message.name}: {name} {option}")
    if model.selectors == "client" and changed:
        changed.append("selectors: client")
    if model.topology == "freeform":
        changed.append("topology: freeform")
    return tuple(changed)


def _refuse_overrides(choices: Choices) -> None:
    if choices.topology == "freeform":
        return
    usual = Choices()
    fixed = "headquarters", "locations", "quantities", "families", "shared_connections"
    for name in (*fixed, "check_every"):
        if getattr(choices, name) != getattr(usual, name):
            raise ScenarioError(
                f"{name}: fixed in the {choices.topology} topology; allowed: with freeform"
            )
    for interaction, value in choices.interactions.items():
        if not isinstance(value, Mapping) or "rate" in value:
            raise ScenarioError(
                f"interactions: the rate of {shown(interaction)} is fixed in the "
                f"{choices.topology} topology; allowed: drivers, or a rate with freeform"
            )
    for name, value in choices.messages.items():
        for own in ("sizes", "percent", "acknowledgement"):
            if isinstance(value, Mapping) and own in value:
                raise ScenarioError(
                    f"messages: {own} of {shown(name)}: fixed in the {choices.topology} topology; "
                    "allowed: with freeform"
                )


_CASE_STUDY: Final[Mapping[CaseStudy, Tables]] = {
    "I": {},
    "II": {"queue": False, "target": "MessageType"},
    "III": {"queue": False, "target": "Central"},
}
"""The scenarios of the case study, as options of all message types (jms2009-PS paper, 4.2)."""


def _of_the_case_study(choices: Choices) -> Choices:
    """Return the choices on top of those of a scenario of the case study.

    Each type has one handler, so that all scenarios have the same number of subscriptions. The
    paper does not specify how a supplier selects its families.
    """
    if choices.case_study is None:
        return choices
    messages = dict(choices.messages)
    messages["all"] = {**_CASE_STUDY[choices.case_study], **_mapping(messages.get("all"))}
    if choices.case_study != "I":
        messages["callForOffers"] = {
            "subscription": "OR",
            **_mapping(messages.get("callForOffers")),
        }
    return replace(choices, messages=messages, handlers=1)


def _mapping(value: object) -> Tables:
    return value if isinstance(value, Mapping) else {}


# Values of tables -------------------------------------------------------------------------------


class Three(Quantity):
    """A number for each class: small, medium and large."""

    @property
    def range(self) -> str:
        return f"three numbers, small, medium and large, {super().range.removeprefix('a number ')}"

    def parse(self, value: object) -> tuple[float, float, float]:  # type: ignore[override]
        if not isinstance(value, Sequence) or len(value) != 3:
            raise ValueError(f"{shown(value)} are not three")
        small, medium, large = map(super().parse, value)
        return small, medium, large


class Percent(Three):
    """The share of each class in per cent."""

    range = "three whole numbers, 100 in all"

    def parse(self, value: object) -> tuple[int, int, int]:  # type: ignore[override]
        small, medium, large = super().parse(value)
        if small + medium + large != 100 or any(x % 1 for x in (small, medium, large)):
            raise ValueError(f"{shown(value)} are not 100 in all")
        return int(small), int(medium), int(large)


class RateOrOff(Quantity):
    """Interactions a second; 0, false or "off" for none."""

    range = f"{RATE_LEAST:g} to {RATE_LIMIT:,} a second, or off"

    def parse(self, value: object) -> float:
        return 0.0 if value in (0, False, "off") else super().parse(value)


_HANDLERS: Final = Count(1, HANDLERS_LIMIT)
_LOCATIONS: Final = {kind.name: Count(1, LOCATIONS_LIMIT) for kind in LocationKind}
_AGENTS: Final = {kind.name: _HANDLERS for kind in LocationKind}
_CONNECTIONS: Final = {kind.name: Count(1, len(MESSAGES)) for kind in LocationKind}
_ENDPOINT: Final = Count(1, ENDPOINTS_LIMIT)
_INTERACTION: Final = {
    "rate": RateOrOff(RATE_LEAST, RATE_LIMIT),
    "drivers": _HANDLERS,
    "endpoint": _ENDPOINT,
}
_PERCENT: Final = Percent(0, 100)
_QUANTITIES: Final = {**dict.fromkeys(DEFAULT_QUANTITIES, Three(0, 100_000)), "percent": _PERCENT}
_MESSAGE: Final[Tables] = {
    "transacted": Flag(),
    "persistent": Flag(),
    "qos": Count(0, 2),
    "durable": Flag(),
    "queue": Flag(),
    "target": Choice(choices=TARGETS),
    "subscription": Choice(choices=SUBSCRIPTION_TYPES),
    "handlers": _HANDLERS,
    "endpoint": _ENDPOINT,
    "acknowledgement": Choice(choices=tuple(ACKNOWLEDGED_AT_ONCE)),
    "sizes": Three(_LEAST_BYTES, SIZE_LIMIT_BYTES),
    "percent": _PERCENT,
}


# From the tables to the model -------------------------------------------------------------------


def _locations(choices: Choices) -> Locations:
    headquarters = read_value("headquarters", Count(1, 1000), choices.headquarters)
    if choices.topology == "vertical":
        return replace(VERTICAL_LOCATIONS, headquarters=headquarters)
    usual = horizontal_locations(choices.base, headquarters)
    given = read_table("locations", choices.locations, _LOCATIONS)
    return Locations(*(given.get(kind.name, usual.of(kind)) for kind in LocationKind))


def _of_kinds(
    name: str, given: object, kinds: Mapping[str, FieldKind], usual: int
) -> tuple[int, ...]:
    values = read_table(name, given, kinds)
    return tuple(values.get(kind.name, usual) for kind in LocationKind)


def _interactions(
    choices: Choices, places: Locations
) -> tuple[tuple[float, ...], tuple[int, ...], tuple[int, ...]]:
    """Return the rates, numbers of drivers and endpoints, with one entry per interaction."""
    freeform = choices.topology == "freeform"
    rates = input_rates("horizontal" if freeform else choices.topology, choices.base, places)
    if freeform and choices.interactions:
        rates = (0.0,) * len(rates)
    drivers = read_value("drivers", _HANDLERS, choices.drivers)
    tables = {
        name: value if isinstance(value, Mapping) else {"rate": value}
        for name, value in choices.interactions.items()
    }
    given = read_table("interactions", tables, {str(n): _INTERACTION for n in INTERACTIONS})
    overrides = [given.get(str(number), {}) for number in INTERACTIONS]
    return (
        tuple(
            override.get("rate", usual) for override, usual in zip(overrides, rates, strict=True)
        ),
        tuple(override.get("drivers", drivers) for override in overrides),
        tuple(override.get("endpoint", 0) for override in overrides),
    )


def _sizes(choices: Choices) -> tuple[tuple[tuple[int, int, int], ...], tuple[int, int, int]]:
    """Return payload bytes by message type and class, and the share of each class in percent."""
    given = read_table("quantities", choices.quantities, _QUANTITIES)
    percent = given.pop("percent", CLASS_PERCENT)
    sizes = message_sizes({**DEFAULT_QUANTITIES, **given})
    for name, bytes_of in zip(TYPES, sizes, strict=True):
        if max(bytes_of) > SIZE_LIMIT_BYTES:
            raise ScenarioError(
                f"quantities: {name} would have {counted(max(bytes_of), 'byte')}; allowed: "
                f"{SIZE_LIMIT_BYTES:,} at most"
            )
    return sizes, percent


def _messages(
    choices: Choices, sizes: Sequence[tuple[int, int, int]]
) -> tuple[MessageOptions, ...]:
    """Return the options of each message type: published, overridden by `all`, then by its own."""
    given = read_table("messages", choices.messages, dict.fromkeys(("all", *TYPES), _MESSAGE))
    usual = {"handlers": read_value("handlers", _HANDLERS, choices.handlers)}
    every = given.get("all", {})
    return tuple(
        _message(message, {**usual, "sizes": size}, every, given.get(message.name, {}))
        for message, size in zip(MESSAGES, sizes, strict=True)
    )


def _message(
    message: MessageType, usual: Tables, every: Tables, overrides: Tables
) -> MessageOptions:
    chosen = dict(usual)
    for values in (every, overrides):
        # qos and persistent imply each other, so the later of them replaces both.
        if "qos" in values or "persistent" in values:
            chosen.pop("qos", None)
            chosen.pop("persistent", None)
        chosen |= values
    where = f"messages.{message.name}"
    persistent = chosen.get("persistent", message.persistent)
    qos = chosen.get("qos", int(persistent))
    if persistent != (qos > 0) and "persistent" in chosen:
        raise ScenarioError(
            f"{where}: persistent {str(persistent).lower()} and qos {qos} contradict each other; "
            "allowed: one of the two"
        )
    if message.pubsub and overrides.get("queue"):
        raise ScenarioError(f"{where}.queue: it has several consumers; allowed: false")
    if message.spread != "family" and "subscription" in overrides:
        raise ScenarioError(f"{where}.subscription: allowed: with callForOffers only")
    queue = not message.pubsub and chosen.get("queue", True)
    target = chosen.get("target", TARGETS[0])
    if queue and overrides.get("target", TARGETS[0]) != TARGETS[0]:
        raise ScenarioError(
            f"{where}.target: {shown(target)} is for topics, and it is a queue; allowed: with "
            "queue = false"
        )
    # A topic that several types share is not divided by family.
    shared = message.spread == "family" and target != TARGETS[0]
    small, medium, large = map(int, chosen["sizes"])
    transacted = chosen.get("transacted", message.transacted)
    acknowledgement = chosen.get("acknowledgement", "AUTO")
    if "acknowledgement" in overrides and (transacted or qos != 1):
        raise ScenarioError(
            f"{where}.acknowledgement: {acknowledgement} is for QoS 1 outside of transactions; "
            "allowed: with transacted = false and qos = 1"
        )
    return MessageOptions(
        qos=qos,
        durable=chosen.get("durable", message.durable or qos > 0),
        transacted=transacted,
        queue=queue,
        target=target,
        subscription=chosen.get("subscription", "OR" if shared else SUBSCRIPTION_TYPES[0]),
        handlers=overrides.get("handlers", 1) if message.pubsub else chosen["handlers"],
        sizes_bytes=(small, medium, large),
        class_percent=chosen.get("percent"),
        acknowledgement="AUTO" if transacted or qos != 1 else acknowledgement,
        endpoint=chosen.get("endpoint", 0),
    )


# Needs of the protocol ---------------------------------------------------------------------


def _check_protocol(model: Model, mqtt: str) -> None:
    for number in enabled_types(model):
        message, options = MESSAGES[number], model.messages[number]
        handlers = handlers_of(model, number)
        several = handlers > 1
        if several and mqtt != "5":
            raise ScenarioError(
                f"mqtt: {mqtt} has no shared subscriptions and {message.name} has "
                f"{handlers} handlers at each location; use mqtt = 5 or handlers = 1"
            )
        selected = not options.queue and options.target != TARGETS[0]
        selected |= message.spread == "family" and options.subscription != "family"
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
            if model.connections[message.consumer]:
                raise ScenarioError(
                    "connections: one of several receivers has no selector of one; use selectors = "
                    "broker"
                )
