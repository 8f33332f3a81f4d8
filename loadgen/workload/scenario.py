"""The scenario: one model behind command line, TOML files, `--set` and the documentation.

A field is declared once, as type, default and `FieldSpec`. The spec reads a value however it was
given (text from a command line, a number from TOML), bounds it, and says in one line what is
allowed; the same spec gives a command line its options and help (`fields_of`).

    defaults of the model < defaults of the case < scenario file < command line

Field names are the options' names with `-` written `_`. None means that the field was not given;
`FieldSpec.absent` says what happens then.
"""

import difflib
import ipaddress
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, core_schema

from loadgen.errors import ScenarioError
from loadgen.workload.units import parse_count, parse_number, parse_seconds, parse_size, shown

__all__ = [
    "BROKER_NAMES",
    "BROKER_SCHEMES",
    "CASES",
    "CASE_DEFAULTS",
    "DEVICES_LIMIT",
    "FIELDS",
    "SIZE_MAXIMUM_BYTES",
    "SIZE_MINIMUM_BYTES",
    "Case",
    "FieldSpec",
    "Scenario",
    "build_scenario",
    "connect_rate_of",
    "fields_of",
    "read_toml",
    "redact_url",
    "scenario_fields",
    "to_toml",
]

Case = Literal["fanin", "fanout", "persistent", "latency", "connburst"]
CASES: tuple[Case, ...] = ("fanin", "fanout", "persistent", "latency", "connburst")
_MESSAGING: tuple[Case, ...] = ("fanin", "fanout", "persistent", "latency")

BROKER_NAMES = ("auto", "mosquitto", "amqtt", "reflector")
BROKER_SCHEMES = ("mqtt", "mqtts", "ws", "wss")
_ENCRYPTED = ("mqtts", "wss")

DEVICES_LIMIT = 10_000_000
"""Ten times the published CONNBURST; more needs a plan over several runs."""
RATE_LIMIT = 100_000_000
"""Six times the published egress of 15 M messages/s."""
DURATION_LIMIT_S = 7 * 86_400
SIZE_MINIMUM_BYTES = 32
"""The header that every payload carries, and the size that the report measured."""
SIZE_MAXIMUM_BYTES = 256 * 1024
"""MQTT allows 256 MiB; a worker sizes its buffers for the largest message of the run."""
TEXT_LIMIT = 4096
LIST_LIMIT = 1024
FILE_LIMIT_CHARACTERS = 1 << 20

Kind = Literal[
    "choice", "count", "rate", "ratio", "seconds", "size", "flag", "text", "texts", "network"
]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """What one scenario field means and what it may hold.

    `minimum` and `maximum` are in `unit`; `cases` are those that understand the field; `absent`
    says what None means and is empty where None is not allowed. `name` and `default` are filled
    from the model (`FIELDS`) or the case (`fields_of`).
    """

    kind: Kind
    description: str
    unit: str = ""
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    cases: tuple[Case, ...] = CASES
    absent: str = ""
    whole: bool = False
    name: str = ""
    default: object = None

    @property
    def option(self) -> str:
        """The command-line option of this field."""
        return "--" + self.name.replace("_", "-")

    @property
    def repeatable(self) -> bool:
        """Whether the option may be given several times."""
        return self.kind == "texts"

    @property
    def allowed(self) -> str:
        """What the field may hold, as the end of a sentence."""
        match self.kind:
            case "choice":
                return " or ".join(self.choices)
            case "count":
                text = f"a whole number from {self.minimum:,.0f} to {self.maximum:,.0f}"
            case "rate" | "ratio":
                text = f"a number from {self.minimum:,g} to {self.maximum:,.0f}"
            case "seconds":
                whole = "whole seconds" if self.whole else "a time"
                text = f"{whole} from {self.minimum:g} to {self.maximum:,.0f} s (10, 500ms, 5m)"
            case "size":
                text = f"{self.minimum:,.0f} to {self.maximum:,.0f} bytes, or MIN-MAX as 32-256"
            case "flag":
                return "true or false"
            case "network":
                return "local addresses as 127.0.0.0/16 or 192.0.2.7"
            case "text" | "texts":
                return "text of one line"
        return f"{text}, or auto" if self.absent else text

    def read(self, value: object) -> object:
        """The value as the model holds it; ValueError says in one line what is wrong with it."""
        if value is None or (value == "auto" and self.kind in _BOUNDED and self.absent):
            if not self.absent:
                raise ValueError("nothing is given")
            return None
        return _READERS[self.kind](self, value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self.read, handler(source))


def _within(spec: FieldSpec, value: object, number: float) -> None:
    if number < spec.minimum:
        raise ValueError(f"{shown(value)} is too small")
    if number > spec.maximum:
        raise ValueError(f"{shown(value)} is too large")


def _read_count(spec: FieldSpec, value: object) -> int:
    # Not through Decimal limits: a seed may use all 63 bits of a TOML integer.
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        number = value
    elif isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        number = int(value)
    else:
        number = parse_count(value)
    _within(spec, value, number)
    return number


def _read_number(spec: FieldSpec, value: object) -> float:
    number = parse_number(value)
    _within(spec, value, number)
    return number


def _read_seconds(spec: FieldSpec, value: object) -> float:
    seconds = parse_seconds(value)
    _within(spec, value, seconds)
    if spec.whole and seconds != int(seconds):
        raise ValueError(f"{shown(value)} is not in whole seconds")
    return seconds


def _read_size(spec: FieldSpec, value: object) -> tuple[int, int]:
    smallest, largest = parse_size(value)
    _within(spec, value, smallest)
    _within(spec, value, largest)
    return smallest, largest


def _read_choice(spec: FieldSpec, value: object) -> str:
    text = str(value) if isinstance(value, (int, float)) and value is not True else value
    if isinstance(text, str) and text in spec.choices:
        return text
    raise ValueError(f"{shown(value)} is not one of them{_did_you_mean(value, spec.choices)}")


_FLAGS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}


def _read_flag(_spec: FieldSpec, value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _FLAGS:
        return _FLAGS[value.lower()]
    raise ValueError(f"{shown(value)} is neither true nor false")


def _read_text(_spec: FieldSpec, value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{shown(value)} is not text")
    if not value.strip():
        raise ValueError("nothing is given")
    if len(value) > TEXT_LIMIT:
        raise ValueError(f"the text is longer than {TEXT_LIMIT} characters")
    # A surrogate is an undecodable byte of the command line; neither fits into a TOML string.
    if any(ord(character) < 32 or 0x7F <= ord(character) < 0xA0 for character in value) or any(
        0xD800 <= ord(character) < 0xE000 for character in value
    ):
        raise ValueError(f"{shown(redact_url(value))} holds control or undecodable characters")
    return value


def _read_texts(spec: FieldSpec, value: object) -> tuple[str, ...]:
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, (list, tuple)):
        raise ValueError(f"{shown(value)} is neither text nor a list of texts")
    if len(items) > LIST_LIMIT:
        raise ValueError(f"{len(items)} entries are more than {LIST_LIMIT}")
    return tuple(_read_text(spec, item) for item in items)


def _read_network(spec: FieldSpec, value: object) -> str:
    text = _read_text(spec, value)
    try:
        return str(ipaddress.ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"{shown(value)} is not an address or network") from None


_BOUNDED = ("count", "rate", "ratio", "seconds")
_READERS: Mapping[Kind, Callable[[FieldSpec, object], object]] = {
    "choice": _read_choice,
    "count": _read_count,
    "rate": _read_number,
    "ratio": _read_number,
    "seconds": _read_seconds,
    "size": _read_size,
    "flag": _read_flag,
    "text": _read_text,
    "texts": _read_texts,
    "network": _read_network,
}


def _did_you_mean(value: object, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(str(value)[:TEXT_LIMIT], known, n=1) if value else []
    return f"; did you mean {close[0]!r}?" if close else ""


def redact_url(url: str) -> str:
    """The URL without its password (`user:secret@` becomes `user@`); other text stays.

    Greedy on purpose: a password that should have been percent-encoded must not show either.
    """
    return re.sub(r"^((?:[^:/]*://)?+[^:@]*):.*@", r"\1@", url, flags=re.DOTALL)


CASE_DEFAULTS: Mapping[Case, Mapping[str, object]] = MappingProxyType(
    {
        "fanin": {"devices": 1_000},
        "fanout": {"topics": 10, "ratio": 100, "rate": 200.0},
        "persistent": {"pairs": 10, "rate": 1_000.0, "qos": 1},
        "latency": {"devices": 1_000, "topics": 10, "rate": 10_000.0, "duration": 20.0},
        "connburst": {"devices": 5_000, "warmup": 0.0, "duration": 5.0, "drain": 0.0},
    }
)
"""What a case changes of the model's defaults: sizes that Mosquitto holds on two shared cores."""


class Scenario(BaseModel):
    """What a run does. Times are in seconds, rates a second, sizes in bytes."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )

    case: Annotated[Case, FieldSpec("choice", "Which case is played.", choices=CASES)]
    broker: Annotated[
        tuple[str, ...],
        FieldSpec(
            "texts",
            "Broker as mqtt://, mqtts://, ws:// or wss:// URL, or auto, mosquitto, amqtt, "
            "reflector; several URLs are used round robin.",
            unit="URL",
        ),
    ] = ("auto",)
    devices: Annotated[
        int,
        FieldSpec(
            "count",
            "Simulated devices: the publishers (fanin), the background publishers (latency), "
            "all (connburst).",
            unit="devices",
            minimum=0,
            maximum=DEVICES_LIMIT,
            cases=("fanin", "latency", "connburst"),
        ),
    ] = 1_000
    rate: Annotated[
        float | None,
        FieldSpec(
            "rate",
            "Messages a second in total over all publishers (latency: of the timed pair; "
            "connburst: connects a second).",
            unit="1/s",
            minimum=0.001,
            maximum=RATE_LIMIT,
            absent="fanin: one message a second for each device; connburst: as fast as the "
            "broker takes them",
        ),
    ] = None
    topics: Annotated[
        int,
        FieldSpec(
            "count",
            "Topics (fanout: with one publisher each; latency: of the background).",
            unit="topics",
            minimum=1,
            maximum=1_000_000,
            cases=("fanout", "latency"),
        ),
    ] = 10
    ratio: Annotated[
        int,
        FieldSpec(
            "count",
            "Subscribers of each topic.",
            unit="subscribers",
            minimum=1,
            maximum=1_000_000,
            cases=("fanout",),
        ),
    ] = 100
    pairs: Annotated[
        int,
        FieldSpec(
            "count",
            "Pairs of one publisher and one durable subscriber, each with its own topic.",
            unit="pairs",
            minimum=1,
            maximum=1_000_000,
            cases=("persistent",),
        ),
    ] = 10
    background_rate: Annotated[
        float | None,
        FieldSpec(
            "rate",
            "Messages a second in total over all background publishers.",
            unit="1/s",
            minimum=0.001,
            maximum=RATE_LIMIT,
            cases=("latency",),
            absent="one message a second for each background device",
        ),
    ] = None
    duration: Annotated[
        float,
        FieldSpec(
            "seconds",
            "Length of the measurement window (connburst: how long all stay connected).",
            unit="s",
            minimum=0.1,
            maximum=DURATION_LIMIT_S,
        ),
    ] = 10.0
    warmup: Annotated[
        float,
        FieldSpec(
            "seconds",
            "Time at full rate before the measurement window (connburst: pause after connects).",
            unit="s",
            minimum=0,
            maximum=86_400,
        ),
    ] = 3.0
    drain: Annotated[
        float,
        FieldSpec(
            "seconds",
            "Longest wait after the window for messages under way; ends when all have arrived.",
            unit="s",
            minimum=0,
            maximum=86_400,
        ),
    ] = 10.0
    size: Annotated[
        tuple[int, int],
        FieldSpec(
            "size",
            "Payload size, its 32-byte header included; MIN-MAX draws each message's size evenly.",
            unit="bytes",
            minimum=SIZE_MINIMUM_BYTES,
            maximum=SIZE_MAXIMUM_BYTES,
            cases=_MESSAGING,
        ),
    ] = (32, 32)
    qos: Annotated[
        int,
        FieldSpec(
            "choice",
            "Quality of service of publications and subscriptions.",
            choices=("0", "1", "2"),
        ),
    ] = 0
    mqtt: Annotated[
        Literal["3.1.1", "5"],
        FieldSpec("choice", "Protocol version of every device.", choices=("3.1.1", "5")),
    ] = "3.1.1"
    arrivals: Annotated[
        Literal["constant", "uniform", "poisson"],
        FieldSpec(
            "choice",
            "How a publisher's messages are spaced: evenly, by a uniform draw, or as a Poisson "
            "process.",
            choices=("constant", "uniform", "poisson"),
            cases=_MESSAGING,
        ),
    ] = "constant"
    inflight_window: Annotated[
        int,
        FieldSpec(
            "count",
            "Messages a publisher may have unacknowledged (QoS 1 and 2).",
            unit="messages",
            minimum=1,
            maximum=65_535,
            cases=_MESSAGING,
        ),
    ] = 100
    send_tick: Annotated[
        float | None,
        FieldSpec(
            "seconds",
            "Longest time a due message may wait to be sent together with others; 0 sends each "
            "at its own moment.",
            unit="s",
            minimum=0,
            maximum=1,
            cases=_MESSAGING,
            absent="0 where the rate allows it, else up to 1 ms",
        ),
    ] = None
    latency_bound: Annotated[
        float | None,
        FieldSpec(
            "seconds",
            "The run is INVALID when the p99 latency is above this (connburst: of the connects).",
            unit="s",
            minimum=1e-6,
            maximum=3_600,
            absent="latency is reported and not judged",
        ),
    ] = None
    subscribe: Annotated[
        bool,
        FieldSpec(
            "flag", "Each device also subscribes, to one common topic.", cases=("connburst",)
        ),
    ] = False
    in_flight: Annotated[
        int,
        FieldSpec(
            "count",
            "Connects under way at one moment, over all workers; above the broker's listen "
            "backlog SYNs are lost.",
            unit="connects",
            minimum=1,
            maximum=100_000,
        ),
    ] = 64
    connect_rate: Annotated[
        float | None,
        FieldSpec(
            "rate",
            "Connects a second while the devices of a messaging case connect.",
            unit="1/s",
            minimum=0.001,
            maximum=RATE_LIMIT,
            cases=_MESSAGING,
            absent="as fast as the broker takes them",
        ),
    ] = None
    connect_timeout: Annotated[
        float,
        FieldSpec(
            "seconds",
            "Longest wait for a device's CONNACK or SUBACK.",
            unit="s",
            minimum=0.1,
            maximum=3_600,
        ),
    ] = 30.0
    keep_alive: Annotated[
        int,
        FieldSpec(
            "seconds",
            "Keep Alive of CONNECT; 0 turns it off.",
            unit="s",
            minimum=0,
            maximum=65_535,
            whole=True,
        ),
    ] = 300
    crash_broker: Annotated[
        bool,
        FieldSpec(
            "flag",
            "Kill and restart the private broker within the window; nothing may be lost.",
            cases=("persistent",),
        ),
    ] = False
    workers: Annotated[
        int | None,
        FieldSpec(
            "count",
            "Load generating processes.",
            unit="processes",
            minimum=1,
            maximum=1_024,
            absent="from devices, rates, descriptors and cores",
        ),
    ] = None
    source_address: Annotated[
        str | None,
        FieldSpec(
            "network",
            "Local addresses to connect from, one for each worker.",
            unit="CIDR",
            absent="the system's choice; 127.1.0.0/16 where a broker on loopback runs out of ports",
        ),
    ] = None
    hosts: Annotated[
        int,
        FieldSpec("count", "Hosts to run on.", unit="hosts", minimum=1, maximum=1_000),
    ] = 1
    tls_ca: Annotated[
        str | None,
        FieldSpec(
            "text",
            "File of certificate authorities that the broker's certificate must come from.",
            unit="file",
            absent="the system's authorities",
        ),
    ] = None
    tls_certificate: Annotated[
        str | None,
        FieldSpec("text", "Client certificate file.", unit="file", absent="none is presented"),
    ] = None
    tls_key: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Private key file of the client certificate.",
            unit="file",
            absent="in the certificate's file",
        ),
    ] = None
    tls_verify: Annotated[
        bool,
        FieldSpec("flag", "Verify the broker's certificate; off is told in the score card."),
    ] = True
    tls_version: Annotated[
        Literal["1.2", "1.3"] | None,
        FieldSpec(
            "choice",
            "The only TLS version to offer.",
            choices=("1.2", "1.3"),
            absent="1.2 or 1.3, as the broker prefers",
        ),
    ] = None
    tls_ciphers: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Ciphers to offer for TLS 1.2, in OpenSSL's notation.",
            unit="list",
            absent="OpenSSL's default",
        ),
    ] = None
    pdu: Annotated[
        tuple[str, ...],
        FieldSpec(
            "texts",
            "Power log of an outlet; NODE=FILE names the machine it feeds, FILE#OUTLET,... the "
            "outlets to take of a log of several.",
            unit="log",
        ),
    ] = ()
    pdu_columns: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Names of the columns of a power log, as time=NAME,watts=NAME; also date, kwh, "
            "outlet, and format for how times are written.",
            unit="names",
            absent="the log's header tells",
        ),
    ] = None
    pdu_offset: Annotated[
        str | None,
        FieldSpec(
            "text",
            "How far the clock of the power logs is ahead of this host's, such as 1.5s or -2s.",
            unit="time",
            absent="0",
        ),
    ] = None
    pdu_timezone: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Time zone of the power logs, such as Europe/Berlin.",
            unit="zone",
            absent="this host's time zone",
        ),
    ] = None
    rack_units: Annotated[
        float | None,
        FieldSpec(
            "ratio",
            "Height of the broker's machine, for messages a second and rack unit.",
            unit="U",
            minimum=0.1,
            maximum=10_000,
            cases=("persistent",),
            absent="no PERSISTENT.MPU row",
        ),
    ] = None
    broker_pid: Annotated[
        int | None,
        FieldSpec(
            "count",
            "Process of the broker on this host, whose processor time and memory are watched.",
            unit="pid",
            minimum=1,
            maximum=2**31 - 1,
            absent="that of a broker started here or listening on this host",
        ),
    ] = None
    seed: Annotated[
        int,
        FieldSpec(
            "count",
            "Same seed, same phases, sizes and arrivals.",
            minimum=0,
            maximum=2**63 - 1,
        ),
    ] = 1

    @model_validator(mode="before")
    @classmethod
    def _start_from_the_case(cls, given: Any) -> Any:
        """Put the defaults of the case below what was given."""
        if not isinstance(given, Mapping):
            return given
        case = given.get("case")
        defaults = CASE_DEFAULTS.get(case, {}) if isinstance(case, str) else {}  # type: ignore[call-overload]
        return {**defaults, **given}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for rule in _RULES:
            complaint = rule(self)
            if complaint:
                raise ValueError(complaint)
        return self


def _specs() -> dict[str, FieldSpec]:
    found: dict[str, FieldSpec] = {}
    for name, info in Scenario.model_fields.items():
        spec = next(item for item in info.metadata if isinstance(item, FieldSpec))
        default = None if info.is_required() else info.default
        found[name] = replace(spec, name=name, default=default)
    return found


FIELDS: Mapping[str, FieldSpec] = MappingProxyType(_specs())
"""Every field by name, in the order of documentation, with the model's default."""


def fields_of(case: Case) -> tuple[FieldSpec, ...]:
    """The fields that a case understands, but for `case`, with the defaults of that case."""
    defaults = CASE_DEFAULTS[case]
    return tuple(
        replace(
            spec,
            default=defaults.get(name, spec.default),
            minimum=1 if name == "devices" and case != "latency" else spec.minimum,
        )
        for name, spec in FIELDS.items()
        if case in spec.cases and name != "case"
    )


def _only_understood(scenario: Scenario) -> str:
    for name in FIELDS:
        if name in scenario.model_fields_set and scenario.case not in FIELDS[name].cases:
            return _not_understood(scenario.case, name)
    return ""


def _not_understood(case: Case, name: str) -> str:
    whose = ", ".join(FIELDS[name].cases)
    return f"{name}: {case} does not understand it; allowed: with {whose}"


def _rate_is_known(scenario: Scenario) -> str:
    if scenario.rate is None and scenario.case in ("fanout", "persistent", "latency"):
        return f"rate: nothing is given and {scenario.case} needs it; allowed: {_allowed('rate')}"
    return ""


def _allowed(name: str) -> str:
    return FIELDS[name].allowed


def _devices_fit(scenario: Scenario) -> str:
    if scenario.devices == 0 and scenario.case != "latency":
        return f"devices: 0 is too small for {scenario.case}; allowed: from 1 to {DEVICES_LIMIT:,}"
    if scenario.devices == 0 and scenario.background_rate is not None:
        return "background_rate: there are no background devices; allowed: with devices above 0"
    if scenario.case == "fanout" and scenario.topics * (scenario.ratio + 1) > DEVICES_LIMIT:
        return (
            f"ratio: {scenario.topics:,} topics of {scenario.ratio:,} subscribers are too many; "
            f"allowed: {DEVICES_LIMIT:,} devices in all"
        )
    return ""


def _persistence_has_qos(scenario: Scenario) -> str:
    if scenario.case == "persistent" and scenario.qos == 0:
        return "qos: 0 is not stored by a broker; allowed: 1 or 2 for persistent"
    return ""


def _brokers_are_known(scenario: Scenario) -> str:
    if not scenario.broker:
        return "broker: nothing is given; allowed: auto, mosquitto, amqtt, reflector or a URL"
    for entry in scenario.broker:
        scheme, separator, rest = entry.partition("://")
        value = shown(redact_url(entry))
        if not separator:
            if entry not in BROKER_NAMES:
                hint = _did_you_mean(entry, BROKER_NAMES)
                if not hint and re.fullmatch(r"[A-Za-z0-9._\[\]:-]+", entry):
                    hint = f"; did you mean 'mqtt://{entry[:60]}'?"
                return f"broker: {value} is neither a name nor a URL{hint}"
            if len(scenario.broker) > 1:
                return f"broker: {value} cannot be joined with others; allowed: several URLs"
        elif scheme not in BROKER_SCHEMES:
            return f"broker: {value} has an unknown scheme; allowed: {', '.join(BROKER_SCHEMES)}"
        elif not rest.rpartition("@")[2].strip("/") or any(c.isspace() for c in rest):
            return f"broker: {value} names no host; allowed: as mqtt://host:1883"
    return ""


def _tls_is_whole(scenario: Scenario) -> str:
    if scenario.tls_key is not None and scenario.tls_certificate is None:
        return "tls_key: a key without a certificate; allowed: with tls_certificate"
    if scenario.tls_ciphers is not None and scenario.tls_version == "1.3":
        return "tls_ciphers: TLS 1.3 has its own ciphers; allowed: with tls_version 1.2"
    plain = all(url.partition("://")[0] in ("mqtt", "ws") for url in scenario.broker)
    for name in FIELDS:
        if name.startswith("tls_") and plain and getattr(scenario, name) != FIELDS[name].default:
            return f"{name}: the connection is not encrypted; allowed: with mqtts:// or wss://"
    return ""


def _crash_is_ours(scenario: Scenario) -> str:
    if scenario.crash_broker and scenario.broker not in (("auto",), ("mosquitto",)):
        return "crash_broker: only a private broker may be killed; allowed: with broker mosquitto"
    return ""


_RULES: tuple[Callable[[Scenario], str], ...] = (
    _only_understood,
    _rate_is_known,
    _devices_fit,
    _persistence_has_qos,
    _brokers_are_known,
    _tls_is_whole,
    _crash_is_ours,
)


def build_scenario(
    case: str, file: Mapping[str, object] | None, flags: Mapping[str, object]
) -> Scenario:
    """The scenario of a case from its defaults, then a file's keys, then flags.

    Keys may be written with `-` or `_`. A flag of None was not given. Raises ScenarioError, one
    line that names the key, its value and what is allowed.
    """
    if case not in CASES:
        raise ScenarioError(
            f"case: {shown(case)} is unknown; allowed: {', '.join(CASES)}"
            f"{_did_you_mean(case, CASES)}"
        )
    named = _underscored(file or {})
    file_case = named.pop("case", case)
    if file_case != case:
        raise ScenarioError(f"case: the file is for {shown(file_case)}; allowed: {case} here")
    given = _underscored({key: value for key, value in flags.items() if value is not None})
    given.pop("case", None)
    values = {**named, **given}
    for name in values:
        _check_key(case, name)
    try:
        return Scenario.model_validate({**values, "case": case})
    except ValidationError as error:
        raise ScenarioError(_one_line(error)) from None


def _underscored(keys: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in keys.items():
        name = key.replace("-", "_")
        if name in values:
            raise ScenarioError(f"{shown(name)}: given twice, once with - and once with _")
        values[name] = value
    return values


def _check_key(case: Case, name: str) -> None:
    if name in FIELDS:
        if case not in FIELDS[name].cases:
            raise ScenarioError(_not_understood(case, name))
        return
    known = tuple(spec.name for spec in fields_of(case))
    hint = _did_you_mean(name, known) or f"; {case} understands {', '.join(known)}"
    raise ScenarioError(f"{shown(name)}: unknown key{hint}")


def _one_line(error: ValidationError) -> str:
    """First complaint of pydantic as `name: what is wrong; allowed: ...`."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    cause = first.get("ctx", {}).get("error")
    complaint = str(cause) if cause is not None else str(first["msg"])
    return f"{name}: {complaint}; allowed: {_allowed(name)}" if name in FIELDS else complaint


def read_toml(text: str) -> dict[str, object]:
    """Keys and values of a scenario file's text; raises ScenarioError when it is not TOML."""
    if len(text) > FILE_LIMIT_CHARACTERS:
        raise ScenarioError(f"the scenario file has more than {FILE_LIMIT_CHARACTERS:,} characters")
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ScenarioError(f"the scenario file is not TOML: {shown(problem, 120)}") from None


def scenario_fields(scenario: Scenario) -> dict[str, object]:
    """The fields that the case understands as plain JSON values, without any password.

    `Scenario.model_validate` reads them back.
    """
    fields: dict[str, object] = {}
    for name, spec in FIELDS.items():
        if scenario.case in spec.cases:
            value = getattr(scenario, name)
            fields[name] = list(value) if isinstance(value, tuple) else value
    fields["broker"] = [redact_url(entry) for entry in scenario.broker]
    return fields


def to_toml(scenario: Scenario) -> str:
    """The scenario as a TOML file that reads back equal, but for passwords, which are left out."""
    lines = [
        f"{name} = {_toml_value(value)}"
        for name, value in scenario_fields(scenario).items()
        if value is not None
    ]
    return "\n".join(lines) + "\n"


def _toml_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(_toml_value(item) for item in value)}]"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() else repr(value)
    if isinstance(value, int):
        return str(value)
    # JSON and TOML escape the same way once control characters are excluded, as they are.
    return json.dumps(value, ensure_ascii=False)


def connect_rate_of(scenario: Scenario) -> float | None:
    """Connects a second that were asked for; None is as fast as the broker takes them."""
    return scenario.rate if scenario.case == "connburst" else scenario.connect_rate
