"""The model of a scenario: published defaults, with overrides that the rules allow.

The SPECjms2007 article, table 1, lists the parameters that only the freeform topology may change.
The parameters of jms2009-PS may be set in every topology; the result lists them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from loadgen.errors import ScenarioError
from loadgen.kernels.payload import HEADER_BYTES
from loadgen.plan.fields import Choice, Count, FieldKind, Flag, Quantity, read_table
from loadgen.plan.units import shown
from loadgen.sentences import counted
from loadgen.specjms import chain_model, topology
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
from loadgen.specjms.scenario import SPECJMS_TEXT, SupplyChain

RATE_LEAST: Final = 1e-4  # one in almost three hours, so that periods can be counted in nanoseconds
RATE_LIMIT: Final = 1_000_000
SIZE_LIMIT_BYTES: Final = 256 * 1024

Table = Mapping[str, Any]


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


_HANDLERS: Final = Count(1, 100)
_ENDPOINT: Final = Count(1, 1_000)
_PERCENT: Final = Percent(0, 100)
_INTERACTION: Final = {
    "rate": RateOrOff(RATE_LEAST, RATE_LIMIT),
    "drivers": _HANDLERS,
    "endpoint": _ENDPOINT,
}
_MESSAGE: Final[Table] = {
    "transacted": Flag(),
    "persistent": Flag(),
    "qos": Count(0, 2),
    "durable": Flag(),
    "queue": Flag(),
    "target": Choice(choices=chain_model.TARGETS),
    "subscription": Choice(choices=chain_model.SUBSCRIPTION_TYPES),
    "handlers": _HANDLERS,
    "endpoint": _ENDPOINT,
    "acknowledgement": Choice(choices=tuple(chain_model.ACKNOWLEDGED_AT_ONCE)),
    "sizes": Three(HEADER_BYTES + TRAILER_BYTES, SIZE_LIMIT_BYTES),
    "percent": _PERCENT,
}

_CASE_STUDY: Final[Mapping[chain_model.CaseStudy | None, Table]] = {
    None: {},
    "I": {},
    "II": {"queue": False, "target": "MessageType"},
    "III": {"queue": False, "target": "Central"},
}
"""The scenarios of the case study, as options of all message types (jms2009-PS paper, 4.2)."""


def model_of(chain: SupplyChain) -> chain_model.Model:
    """Return the model of a scenario; raises ScenarioError with one line if it is invalid."""
    freeform = chain.topology == "freeform"
    if not freeform:
        _refuse_overrides(chain)
    places = replace(topology.VERTICAL_LOCATIONS, headquarters=chain.headquarters)
    if chain.topology != "vertical":
        usual = topology.horizontal_locations(chain.base, chain.headquarters)
        places = topology.Locations(*_of_kinds(chain, "locations", Count(1, 100_000), usual.of))
    tables = {
        name: value if isinstance(value, Mapping) else {"rate": value}
        for name, value in chain.table("interactions").items()
    }
    given = read_table("interactions", tables, {str(n): _INTERACTION for n in INTERACTIONS})
    rates = topology.input_rates("horizontal" if freeform else chain.topology, chain.base, places)
    if freeform and given:
        rates = (0.0,) * len(rates)
    overrides = [given.get(str(number), {}) for number in INTERACTIONS]
    rates = tuple(
        override.get("rate", usual) for override, usual in zip(overrides, rates, strict=True)
    )
    if not any(rates):
        raise ScenarioError(SPECJMS_TEXT.ALL_OFF())
    kinds = {**dict.fromkeys(DEFAULT_QUANTITIES, Three(0, 100_000)), "percent": _PERCENT}
    quantities = read_table("quantities", chain.table("quantities"), kinds)
    percent = quantities.pop("percent", CLASS_PERCENT)
    shared = int(chain.shared_connections)
    model = chain_model.Model(
        topology=chain.topology,
        base=chain.base,
        locations=places,
        rates=rates,
        # Not published: twice as many families as suppliers.
        families=chain.families or 2 * places.suppliers,
        messages=_options(chain, message_sizes({**DEFAULT_QUANTITIES, **quantities})),
        drivers=tuple(each.get("drivers", chain.drivers) for each in overrides),
        selectors=chain.selectors or ("client" if chain.case_study in ("II", "III") else "broker"),
        agents=_of_kinds(chain, "agents", _HANDLERS, lambda kind: 1),
        connections=_of_kinds(chain, "connections", Count(1, len(MESSAGES)), lambda kind: shared),
        endpoints=tuple(each.get("endpoint", 0) for each in overrides),
        check_every=chain.check_every,
        class_percent=percent,
    )
    _check_protocol(model, chain.mqtt)
    return model


def changed_options(model: chain_model.Model) -> tuple[str, ...]:
    """Return the differences from SPECjms2007's workload, such as "order: queue"."""
    usual = model_of(SupplyChain(base=1))
    changed = []
    for message, options, published in zip(MESSAGES, model.messages, usual.messages, strict=True):
        for name in ("qos", "durable", "transacted", "queue", "target", "subscription"):
            option = getattr(options, name)
            # Only topics have a target.
            unused = name == "target" and options.queue
            if option != getattr(published, name) and not unused:
                changed.append(f"{message.name}: {name} {option}")
    if model.selectors == "client" and changed:
        changed.append("selectors: client")
    if model.topology == "freeform":
        changed.append("topology: freeform")
    return tuple(changed)


def _refuse_overrides(chain: SupplyChain) -> None:
    """Refuse what only the freeform topology may change."""
    fixed = f"fixed in the {chain.topology} topology; use"
    names = "headquarters", "locations", "quantities", "families", "shared_connections"
    for name in (*names, "check_every"):
        if getattr(chain, name) != SupplyChain.model_fields[name].default:
            raise ScenarioError(SPECJMS_TEXT.ONLY_FREEFORM(name=name, fixed=fixed))
    for interaction, value in chain.table("interactions").items():
        if not isinstance(value, Mapping) or "rate" in value:
            raise ScenarioError(
                SPECJMS_TEXT.RATE_ONLY_FREEFORM(interaction=shown(interaction), fixed=fixed)
            )
    for name, value in chain.table("messages").items():
        for option in ("sizes", "percent", "acknowledgement"):
            if isinstance(value, Mapping) and option in value:
                raise ScenarioError(
                    SPECJMS_TEXT.OPTION_ONLY_FREEFORM(option=option, name=shown(name), fixed=fixed)
                )


def _of_kinds(
    chain: SupplyChain, name: str, field: FieldKind, usual: Callable[[LocationKind], int]
) -> tuple[int, ...]:
    """Return the numbers of a table by kind of location, completed with the usual ones."""
    values = read_table(name, chain.table(name), {kind.name: field for kind in LocationKind})
    return tuple(values.get(kind.name, usual(kind)) for kind in LocationKind)


def _options(
    chain: SupplyChain, sizes: Sequence[tuple[int, int, int]]
) -> tuple[chain_model.MessageOptions, ...]:
    """Return the options of each message type: published, overridden by `all`, then by its own."""
    tables = chain.table("messages")
    chosen = read_table("messages", tables, dict.fromkeys(("all", *TYPES), _MESSAGE))
    every = {**_CASE_STUDY[chain.case_study], **chosen.get("all", {})}
    # A scenario of the case study has one handler for each type, so that all scenarios have the
    # same number of subscriptions.
    handlers = 1 if chain.case_study else chain.handlers
    options = []
    for message, of_classes in zip(MESSAGES, sizes, strict=True):
        if max(of_classes) > SIZE_LIMIT_BYTES:
            raise ScenarioError(
                SPECJMS_TEXT.LARGE_MESSAGE(
                    message=message.name,
                    size=counted(max(of_classes), "byte"),
                    size_limit_bytes=SIZE_LIMIT_BYTES,
                )
            )
        usual, overrides = {"handlers": handlers, "sizes": of_classes}, chosen.get(message.name, {})
        if message.spread == "family" and chain.case_study in ("II", "III"):
            # The paper does not specify how a supplier selects its families.
            overrides = {"subscription": "OR", **overrides}
        options.append(_message(message, usual, every, overrides))
    return tuple(options)


def _message(
    message: MessageType, usual: Table, every: Table, overrides: Table
) -> chain_model.MessageOptions:
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
            SPECJMS_TEXT.PERSISTENT_AND_QOS(
                where=where, persistent=str(persistent).lower(), qos=qos
            )
        )
    if message.pubsub and overrides.get("queue"):
        raise ScenarioError(SPECJMS_TEXT.QUEUE_OF_SEVERAL(where=where))
    if message.spread != "family" and "subscription" in overrides:
        raise ScenarioError(SPECJMS_TEXT.SUBSCRIPTION_OF_OTHER(where=where))
    queue = not message.pubsub and chosen.get("queue", True)
    target = chosen.get("target", chain_model.TARGETS[0])
    if queue and overrides.get("target", chain_model.TARGETS[0]) != chain_model.TARGETS[0]:
        raise ScenarioError(SPECJMS_TEXT.TARGET_OF_QUEUE(where=where, target=shown(target)))
    # A topic that several types share is not divided by family.
    shared = message.spread == "family" and target != chain_model.TARGETS[0]
    small, medium, large = map(int, chosen["sizes"])
    transacted = chosen.get("transacted", message.transacted)
    acknowledgement = chosen.get("acknowledgement", "AUTO")
    if "acknowledgement" in overrides and (transacted or qos != 1):
        raise ScenarioError(
            SPECJMS_TEXT.ACKNOWLEDGEMENT(where=where, acknowledgement=acknowledgement)
        )
    return chain_model.MessageOptions(
        qos=qos,
        durable=chosen.get("durable", message.durable or qos > 0),
        transacted=transacted,
        queue=queue,
        target=target,
        subscription=chosen.get(
            "subscription", "OR" if shared else chain_model.SUBSCRIPTION_TYPES[0]
        ),
        handlers=overrides.get("handlers", 1) if message.pubsub else chosen["handlers"],
        sizes_bytes=(small, medium, large),
        class_percent=chosen.get("percent"),
        acknowledgement="AUTO" if transacted or qos != 1 else acknowledgement,
        endpoint=chosen.get("endpoint", 0),
    )


def _check_protocol(model: chain_model.Model, mqtt: str) -> None:
    """Refuse what the version of MQTT, or a selector at the receivers, cannot do."""
    for number in chain_model.enabled_types(model):
        message, options = MESSAGES[number], model.messages[number]
        handlers = chain_model.handlers_of(model, number)
        if handlers > 1 and mqtt != "5":
            raise ScenarioError(
                SPECJMS_TEXT.SHARED_HANDLERS(mqtt=mqtt, message=message.name, handlers=handlers)
            )
        selected = not options.queue and options.target != chain_model.TARGETS[0]
        selected |= message.spread == "family" and options.subscription != "family"
        if model.selectors == "broker" or not selected:
            continue
        if mqtt != "5":
            raise ScenarioError(SPECJMS_TEXT.CLIENT_SELECTORS(mqtt=mqtt))
        if handlers > 1:
            raise ScenarioError(SPECJMS_TEXT.HANDLERS_OF_SELECTED(message=message.name))
        if model.connections[message.consumer]:
            raise ScenarioError(SPECJMS_TEXT.NO_SELECTOR())
