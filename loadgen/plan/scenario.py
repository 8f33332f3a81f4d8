"""The fields of a scenario, with which a user describes a run, and checks of their combinations.

A field is declared once, as type, kind and default, with its help in scenario.toml. It is named as
its option with `-` written `_`; None means that it was not given. Times are in seconds, rates a
second, sizes in bytes.
"""

import inspect
import json
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from loadgen.errors import ScenarioError, in_python
from loadgen.mqtt.topics import topic_name_fault
from loadgen.plan.fields import (
    Choice,
    Collector,
    Count,
    FieldKind,
    Flag,
    ListenAddress,
    MetricsPages,
    Networks,
    Placement,
    Quantity,
    RateSteps,
    Seconds,
    Secret,
    Size,
    TextLine,
    Texts,
    Thresholds,
    did_you_mean,
    option_of,
    redact_url,
)
from loadgen.plan.groups import ROOT, Publishes, Reconnect, pattern_fault, sample_of
from loadgen.plan.removed import removal
from loadgen.plan.units import shown
from loadgen.sentences import PLAN_TEXT

BROKER_NAMES = ("auto", "mosquitto", "nats", "reflector")
PRIVATE_BROKERS = (("auto",), ("mosquitto",), ("nats",))
"""Brokers that loadgen starts with files of the run, so that they can be configured and killed."""
BROKER_SCHEMES = ("mqtt", "mqtts", "ws", "wss")
ENCRYPTED = ("mqtts:", "wss:")

DEVICES_LIMIT = 1_000_000_000
"""Five times the largest published test; stream numbers have 32 bits."""
RATE_LIMIT = 100_000_000  # six times the published egress of 15 M messages/s
DURATION_LIMIT_S = 7 * 86_400
HEADER_BYTES = 32
"""Size of the header in a payload, and the payload size of the published report."""
SHORT_BYTES, SHORT_LIMIT_S = 16, (1 << 36) // 1_000_000
"""Size of the header in a shorter payload, and the longest run for whose times it has room."""
SIZE_MAXIMUM_BYTES = 256_000_000
"""MQTT allows 268,435,455 bytes with topic and properties (2.1.4)."""
WHOLE_SIZE_MAXIMUM_BYTES = 256 * 1024
"""Largest size of messages that a worker must hold completely, to fill or to answer them."""
INSTANCES_LIMIT = 1_000
FILE_LIMIT_CHARACTERS = 1 << 20

# Shared fields for which a case may have another default ------------------------------------------

Duration = Annotated[float, Seconds(0.1, DURATION_LIMIT_S, per_run=True, load="amount")]
Warmup = Annotated[float, Seconds(0, 86_400, per_run=True)]
Drain = Annotated[float, Seconds(0, 86_400, per_run=True)]
MqttVersion = Annotated[Literal["3.1", "3.1.1", "5"], Choice()]
Qos = Annotated[int, Choice(choices=("0", "1", "2"), part="fleet")]
PAYLOAD_SIZE = Size(1, SIZE_MAXIMUM_BYTES, part="messages", load="amount")
PayloadSize = Annotated[tuple[int, int], PAYLOAD_SIZE]
WholePayloadSize = Annotated[
    tuple[int, int], replace(PAYLOAD_SIZE, maximum=WHOLE_SIZE_MAXIMUM_BYTES)
]

# Fields that several cases have -------------------------------------------------------------------

DeviceCount = Annotated[int, Count(1, DEVICES_LIMIT, everyday=20, short="-d", load="amount")]
_TOTAL_RATE = Quantity(0.001, RATE_LIMIT, everyday=50, short="-r", load="amount")
TotalRate = Annotated[float, _TOTAL_RATE]
RateByDevices = Annotated[float | None, _TOTAL_RATE]
MaxUnacknowledged = Annotated[int, Count(1, 65_535)]
Producers = Annotated[int, Count()]
AcknowledgeEvery = Annotated[int, Count(1, 65_535)]
SaveEach = Annotated[bool, Flag()]

_POWER = partial(TextLine, per_run=True, load="none")


def published_row(*names: str, default: str = "") -> Choice:
    """Return the kind of a field that names the published row to compare with."""
    text = "Row of the published score card to show with the result."
    return Choice(text=f"{text} [default: {default or names[0]}]", choices=names)


class Scenario(BaseModel):
    """The fields that cases share; the class of a case names the parts of them that it uses.

    A field that a case does not use has its default, so that code for all cases can read it.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        hide_input_in_errors=True,
        # Help texts need the fields of all cases but no validators, which take long to build.
        defer_build=True,
    )

    def __repr_args__(self) -> Iterator[tuple[str, object]]:
        """Yield the fields that were set, so that a scenario is one line."""
        for name, kind in self.fields().items():
            if name in self.model_fields_set and not isinstance(kind, Secret):
                yield name, getattr(self, name)

    __str__ = BaseModel.__repr__

    parts: ClassVar[Collection[str]] = ("fleet", "schedule", "messages")
    """The parts of the shared fields, besides those of every run, that the case uses."""
    least_size: ClassVar[int] = SHORT_BYTES
    grows: ClassVar[str] = "devices"
    """The field that `search --for devices` increases."""
    search_p99_s: ClassVar[float | None] = 0.1
    """Highest p99 latency of a load that a search accepts, None for any: a later message has waited
    in a queue. It is higher for stored messages and connects, which take longer."""

    case: str
    broker: Annotated[tuple[str, ...], Texts("URL", load="none")] = ("auto",)
    user: Annotated[str | None, Secret()] = None
    password: Annotated[str | None, Secret()] = None
    duration: Duration = 10.0
    warmup: Warmup = 3.0
    drain: Drain = 10.0
    mqtt: MqttVersion = "3.1.1"
    latency_bound: Annotated[float | None, Seconds(1e-6, 3_600, per_run=True, load="none")] = None
    require: Annotated[tuple[str, ...], Thresholds("condition", per_run=True, load="none")] = ()
    in_flight: Annotated[int, Count(1, 100_000)] = 64
    connect_timeout: Annotated[float, Seconds(0.1, 3_600)] = 30.0
    keep_alive: Annotated[int, Seconds(0, 65_535, whole_seconds=True)] = 300
    affinity: Annotated[str | None, TextLine("list")] = None
    workers: Annotated[int | None, Count(1, 1_024)] = None
    source_address: Annotated[str | None, Networks("CIDR")] = None
    hosts: Annotated[int, Count(1, 1_000)] = 1
    place: Annotated[tuple[str, ...], Placement("GROUP=HOST,...")] = ()
    tls_ca: Annotated[str | None, TextLine("file")] = None
    tls_certificate: Annotated[str | None, TextLine("file")] = None
    tls_key: Annotated[str | None, TextLine("file")] = None
    tls_passphrase: Annotated[str | None, Secret()] = None
    tls_verify: Annotated[bool, Flag()] = True
    tls_version: Annotated[Literal["1.2", "1.3"] | None, Choice()] = None
    tls_resume: Annotated[bool, Flag()] = False
    tls_alpn: Annotated[str | None, TextLine("name")] = None
    tls_ciphers: Annotated[str | None, TextLine("list")] = None
    pdu: Annotated[tuple[str, ...], Texts("log", per_run=True, load="none")] = ()
    pdu_columns: Annotated[str | None, _POWER("key=value,...")] = None
    pdu_format: Annotated[str | None, _POWER("file")] = None
    pdu_offset: Annotated[str | None, _POWER("time")] = None
    pdu_timezone: Annotated[str | None, _POWER("zone")] = None
    power: Annotated[str | None, Choice(choices=("rapl",), per_run=True, load="none")] = None
    power_command: Annotated[str | None, _POWER("command")] = None
    metrics: Annotated[str | None, ListenAddress("host:port", per_run=True, load="none")] = None
    otlp: Annotated[str | None, Collector("url", per_run=True, load="none")] = None
    sut: Annotated[str | None, TextLine("file", per_run=True)] = None
    broker_pid: Annotated[int | None, Count(1, 2**31 - 1, per_run=True, load="none")] = None
    broker_metrics: Annotated[
        tuple[str, ...], MetricsPages("URL|command:COMMAND", per_run=True, load="none")
    ] = ()
    wait_quiet: Annotated[float | None, Seconds(1, 86_400, per_run=True, load="none")] = None
    broker_name: Annotated[str | None, TextLine(per_run=True, load="none")] = None
    broker_note: Annotated[str | None, TextLine(per_run=True, load="none")] = None
    anyway: Annotated[bool, Flag(per_run=True, load="none")] = False
    seed: Annotated[int, Count(0, 2**63 - 1, load="none")] = 1

    qos: Qos = 0
    reconnect: Annotated[float | None, Seconds(0.01, 3_600, part="fleet")] = None
    reconnect_max: Annotated[float, Seconds(0.01, 3_600, part="fleet")] = 30.0
    instances: Annotated[int, Count(1, INSTANCES_LIMIT, part="fleet")] = 1
    separate_brokers: Annotated[bool, Flag(part="fleet")] = False
    tls: Annotated[bool, Flag(part="fleet")] = False
    access_control: Annotated[bool, Flag(part="fleet")] = False
    client_id: Annotated[str | None, TextLine("pattern", part="fleet")] = None
    clients_file: Annotated[str | None, TextLine("file", part="fleet")] = None
    topic: Annotated[str | None, TextLine("pattern", part="fleet")] = None
    will: Annotated[str | None, TextLine("topic", part="fleet")] = None
    per_device: Annotated[bool, Flag(part="fleet")] = False

    abort_on_fail: Annotated[bool, Flag(part="schedule", per_run=True, load="none")] = False
    settle: Annotated[float, Seconds(0, 3_600, part="schedule", per_run=True)] = 0.3
    steps: Annotated[str | None, RateSteps("share,...", part="schedule", per_run=True)] = None
    arrivals: Annotated[
        Literal["constant", "uniform", "poisson"], Choice(part="schedule", per_run=True)
    ] = "constant"
    send_tick: Annotated[float | None, Seconds(0, 1, part="schedule", per_run=True)] = None
    connect_rate: Annotated[
        float | None, Quantity(0.001, RATE_LIMIT, part="schedule", load="amount")
    ] = None

    size: PayloadSize = (32, 32)
    churn: Annotated[float | None, Quantity(0.001, 1_000_000, part="messages", load="amount")] = (
        None
    )
    away: Annotated[float, Seconds(0.01, 3_600, part="messages")] = 1.0
    resubscribe: Annotated[
        float | None, Quantity(0.001, 1_000_000, part="messages", load="amount")
    ] = None
    payload: Annotated[str | None, TextLine("file", part="messages")] = None
    payload_template: Annotated[str | None, TextLine("file", part="messages")] = None

    header: Annotated[Literal["payload", "property", "none"], Choice(part="messages")] = "payload"

    max_unacknowledged: Annotated[int, Count(1, 65_535, part="window")] = 100
    closed: Annotated[bool, Flag(part="window", load="kind")] = False

    @classmethod
    def of_options(cls, values: Mapping[str, object]) -> Self:
        """Return the scenario with these fields; raise ScenarioError, in the words of options."""
        scenario = cls.__new__(cls)
        scenario._fill(values)
        return scenario

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return a field of the case's class, in code for scenarios of all cases."""

        def _fill(self, values: Mapping[str, object]) -> None: ...

    else:

        def __init__(self, **values: object) -> None:
            """Check the fields; raise ScenarioError, in the words of Python, for a wrong one."""
            with in_python():
                self._fill(values)

        def _fill(self, values: Mapping[str, object]) -> None:
            known = type(self).model_fields
            for name in values.keys() - known.keys():
                hint = did_you_mean(name, tuple(self.fields()))
                raise ScenarioError(PLAN_TEXT.UNKNOWN_KEY(key=shown(name), hint=hint))
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise ScenarioError(_one_line(error, self.fields())) from None

    @classmethod
    @cache
    def fields(cls) -> Mapping[str, FieldKind]:
        """Return the fields that the case uses, by name, those of its class first."""
        understood: dict[str, FieldKind] = {}
        for owner in cls.__mro__:
            for name in inspect.get_annotations(owner):
                info = cls.model_fields.get(name)
                for kind in info.metadata if info is not None else ():
                    assert info is not None
                    shared = owner is Scenario and isinstance(kind, FieldKind)
                    if not shared or kind.part in ("", *cls.parts):
                        understood.setdefault(name, kind.of_field(cls, name, info))
        return MappingProxyType(understood)

    def reconnecting(self, *, always: bool = False) -> Reconnect | None:
        """Return the delays after a lost connection; None if devices do not reconnect."""
        if self.reconnect is None and not always:
            return None
        delay_s = 0.1 if self.reconnect is None else self.reconnect
        return Reconnect(delay_s, max(delay_s, self.reconnect_max))

    def publishes(self, name: str, rate: float) -> Publishes:
        """Return the publications of each device of a group; `name` is `{group}` in the topics."""
        return Publishes(
            topic=self.topics_of(name),
            rate=0.0 if self.closed else rate,
            qos=self.qos,
            size_bytes=self.size,
            arrivals=self.arrivals,
            window=self.max_unacknowledged,
        )

    def topics_of(self, name: str) -> str:
        """Return the pattern of topics in which this name stands for `{group}`."""
        pattern = self.topic or f"{ROOT}/{{group}}/{{topic}}"
        return pattern.replace("{group}", name).replace("{device}", "{topic}")

    def plain(self) -> dict[str, object]:
        """Return the fields as plain JSON values, without passwords, for `build_scenario`."""
        values: dict[str, object] = {"case": self.case}
        for name in self.fields():
            value = getattr(self, name)
            values[name] = list(value) if isinstance(value, tuple) else value
        for name in ("broker", "backend"):
            if name in values:
                values[name] = [redact_url(entry) for entry in getattr(self, name)]
        return values

    def complaints(self) -> Iterator[str]:
        """Yield an error for each field that contradicts others."""
        for name in self.model_fields_set - self.fields().keys() - {"case"}:
            yield PLAN_TEXT.NOT_OF_CASE(option=option_of(name), case=self.case, owners=())
        yield from _broker_complaints(self.broker)
        yield from self._login_complaints()
        yield from self._tls_complaints()
        if self.place and self.hosts == 1:
            yield PLAN_TEXT.ONE_HOST()
        try:
            processors_of(self.affinity)
        except ValueError:
            yield PLAN_TEXT.AFFINITY(text=shown(self.affinity))
        yield from self._idle_complaints()
        if self.broker_pid is not None and self.broker_metrics:
            yield PLAN_TEXT.WATCHED_TWICE()
        settle = self.fields().get("settle")
        if settle is not None and self.drain < self.settle != settle.default:
            yield PLAN_TEXT.SETTLE_LONG(settle=self.settle, drain=self.drain)
        yield from self._fleet_complaints()
        for name, field in self.fields().items() if self.closed else ():
            paced = name in ("rate", "steps", "arrivals", "send_tick")
            if paced and getattr(self, name) != field.default:
                yield PLAN_TEXT.CLOSED_SCHEDULE(option=option_of(name))
        if self.payload is not None and self.payload_template is not None:
            yield PLAN_TEXT.TWO_PAYLOADS()
        yield from self._header_complaints()
        if self.resubscribe is not None and self.access_control:
            yield PLAN_TEXT.RESUBSCRIBE_RIGHTS()

    @property
    def outside_bytes(self) -> int:
        """Bytes of a header that is not in the payload."""
        return 0 if self.header == "payload" else HEADER_BYTES

    def setting(self, name: str) -> object:
        """Return the value of a field that decides if others have an effect."""
        return getattr(self, name, None)

    def is_on(self, option: str) -> bool:
        """Return True if an option is set; with values, as in "--qos 1 2", to one of these."""
        words = option.split()
        value = self.setting(words[0][2:].replace("-", "_"))
        return str(value) in words if words[1:] else value not in (None, ()) and value is not False

    def _idle_complaints(self) -> Iterator[str]:
        """Refuse fields that have no effect without others."""
        for name, field in self.fields().items():
            idle = field.needs and not any(map(self.is_on, field.needs))
            if idle and getattr(self, name) != field.default:
                yield PLAN_TEXT.NO_EFFECT(option=field.option, needed=" or ".join(field.needs))
        if self.separate_brokers and len(self.broker) == self.instances == 1:
            needed = "several brokers or --instances"
            yield PLAN_TEXT.NO_EFFECT(option="--separate-brokers", needed=needed)

    def _header_complaints(self) -> Iterator[str]:
        if self.header == "property" and self.mqtt != "5":
            yield PLAN_TEXT.HEADER_PROPERTY()
        if self.header == "payload":
            yield from self.size_complaints(self.size)
        elif self.size[1] > WHOLE_SIZE_MAXIMUM_BYTES:
            values = {"size": self.size[1], "header": self.header}
            yield PLAN_TEXT.SIZE_BESIDE_HEADER(**values, most=WHOLE_SIZE_MAXIMUM_BYTES)

    def size_complaints(self, size: tuple[int, int]) -> Iterator[str]:
        if size[0] < self.least_size:
            yield PLAN_TEXT.SIZE_OF_HEADER(size=size[0], least=self.least_size)
        if size[0] < HEADER_BYTES and self.warmup + self.duration > SHORT_LIMIT_S:
            yield PLAN_TEXT.SIZE_AND_TIME(size=size[0], hours=SHORT_LIMIT_S // 3600)

    def _login_complaints(self) -> Iterator[str]:
        for name in ("user", "password"):
            if getattr(self, name) is None:
                continue
            if not any("://" in entry for entry in self.broker):
                yield PLAN_TEXT.LOGIN_WITHOUT_URL(option=option_of(name))
            for url in (*self.broker, *getattr(self, "backend", ())):
                login, at, _ = url.partition("://")[2].rpartition("@")
                if at and (name == "user" or ":" in login):
                    yield PLAN_TEXT.LOGIN_IN_URL(option=option_of(name))

    def _tls_complaints(self) -> Iterator[str]:
        if self.tls_ciphers is not None and self.tls_version == "1.3":
            yield PLAN_TEXT.CIPHERS_OF_1_3()
        if self.tls_resume and "{device}" in (self.tls_certificate or ""):
            yield PLAN_TEXT.RESUMED_CERTIFICATES()

    def _fleet_complaints(self) -> Iterator[str]:
        if self.instances > 1 and any("://" in entry for entry in self.broker):
            yield PLAN_TEXT.INSTANCES_OF_URL()
        for name in ("tls", "access_control", "save_each"):
            if getattr(self, name, False) and self.broker not in PRIVATE_BROKERS:
                yield PLAN_TEXT.ONLY_PRIVATE(option=option_of(name))
        if self.client_id is not None and "{device}" not in self.client_id:
            yield PLAN_TEXT.ONE_CLIENT_ID(pattern=shown(self.client_id))
        text = (self.client_id or "").replace("{device}", "").replace("{group}", "")
        if unknown := re.search(r"\{[^{}]*\}?|\}", text):
            closed = unknown[0].startswith("{") and unknown[0].endswith("}")
            problem = "is not known" if closed else "lacks a brace"
            yield PLAN_TEXT.CLIENT_ID_BRACES(place=unknown[0][:40], fault=problem)
        if self.topic is not None:
            yield from topic_complaints("--topic", self.topic)
            numbered = "{device}" in self.topic or "{topic}" in self.topic
            if "messages" in self.parts and not numbered:
                yield PLAN_TEXT.ONE_TOPIC(pattern=shown(self.topic))
        yield from will_complaints(self.will)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for complaint in self.complaints():
            raise ValueError(complaint)
        return self


def _one_line(error: ValidationError, fields: Mapping[str, FieldKind]) -> str:
    """Return the first of pydantic's errors in one line."""
    first = error.errors(include_url=False, include_input=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    cause = first.get("ctx", {}).get("error")
    fault = cause.args[0] if cause is not None else first["msg"]
    if name not in fields:
        return str(fault) if not isinstance(fault, str) else fault
    return PLAN_TEXT.VALUE(option=option_of(name), fault=fault, allowed=fields[name].allowed)


# Checks that several cases share ------------------------------------------------------------------


def _broker_complaints(broker: tuple[str, ...]) -> Iterator[str]:
    if not broker:
        yield PLAN_TEXT.NO_BROKER()
    for entry in broker:
        if removed := removal(entry, "broker"):
            yield PLAN_TEXT.REMOVED_BROKER(entry=entry, removed=removed)
        elif entry not in BROKER_NAMES:
            yield from url_complaints("broker", entry)
        elif len(broker) > 1:
            yield PLAN_TEXT.JOINED_BROKERS(entry=shown(entry))


def url_complaints(name: str, entry: str) -> Iterator[str]:
    """Yield the error of a broker's URL in the field with this name, if there is one."""
    scheme, separator, rest = entry.partition("://")
    value = shown(redact_url(entry))
    if not separator:
        hint = did_you_mean(entry, BROKER_NAMES) if name == "broker" else ""
        if not hint and re.fullmatch(r"[A-Za-z0-9._\[\]:-]+", entry):
            hint = f"; did you mean 'mqtt://{entry[:60]}'?"
        what = "neither a name nor a URL" if name == "broker" else "not a URL"
        yield PLAN_TEXT.NOT_A_URL(option=option_of(name), url=value, fault=what, hint=hint)
    elif scheme not in BROKER_SCHEMES:
        yield PLAN_TEXT.URL_SCHEME(option=option_of(name), url=value, schemes=BROKER_SCHEMES)
    elif not rest.rpartition("@")[2].strip("/") or any(c.isspace() for c in rest):
        yield PLAN_TEXT.URL_HOST(option=option_of(name), url=value)


def topic_complaints(name: str, pattern: str) -> Iterator[str]:
    """Yield the error of a pattern of topics in the option with this name, if there is one."""
    fault = pattern_fault(pattern) or topic_name_fault(sample_of(pattern))
    if pattern.startswith("$") and not pattern.startswith(f"{ROOT}/"):
        fault = "begins with $, as topics of brokers do"
    if fault is not None:
        # The fault of a topic ends with the topic.
        fault = fault.partition(": ")[0]
        yield PLAN_TEXT.TOPIC(option=name, pattern=shown(pattern), fault=fault)


def will_complaints(topic: str | None) -> Iterator[str]:
    if topic is None:
        return
    places = re.findall(r"\{[A-Za-z_]+(?::[0-9]+)?\}", topic.replace("{device}", ""))
    if places:
        yield PLAN_TEXT.WILL_BRACES(place=places[0][:40])
    longest = topic.replace("{device}", str(DEVICES_LIMIT)).encode("utf-8", "replace")
    if "+" in topic or "#" in topic or "\0" in topic or len(longest) > 65_535:
        yield PLAN_TEXT.WILL_TOPIC(topic=shown(topic))


def processors_of(affinity: str | None) -> tuple[int, ...]:
    """Read the processor numbers of a list such as 0,2-5; raise ValueError for any other text."""
    numbers: list[int] = []
    for part in (affinity or "").split(",") if affinity else ():
        first, dash, last = part.partition("-")
        start, stop = int(first), int(last if dash else first)
        if not 0 <= start <= stop < 8_192:
            raise ValueError(part)
        numbers.extend(range(start, stop + 1))
    return tuple(numbers)


def read_toml(
    text: str, source: str = "the scenario file", most: int = FILE_LIMIT_CHARACTERS
) -> dict[str, object]:
    """Read keys and values of a file's text; raise ScenarioError if it is not TOML."""
    if len(text) > most:
        raise ScenarioError(PLAN_TEXT.FILE_LONG(source=source, most=most))
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        problem = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ScenarioError(PLAN_TEXT.NOT_TOML(source=source, reason=problem[:120])) from None


def toml_lines(values: Mapping[str, object]) -> str:
    """Return the lines of a TOML file with these values, None for those that are left out."""
    given = ((name, value) for name, value in values.items() if value is not None)
    return "".join(f"{name} = {_toml_value(value)}\n" for name, value in given)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{name} = {_toml_value(part)}" for name, part in value.items())
        return f"{{ {', '.join(pairs)} }}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    # JSON's strings, numbers and truth values are TOML's, but for one control character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
