"""The scenario: one model behind command line, TOML files, `--set` and the documentation.

A field is declared once, as type, default and `FieldSpec`, which reads its values and gives a
command line its options and help (`fields_of`).

    defaults of the model < defaults of the case < scenario file < command line

Field names are the options' names with `-` written `_`. None means that the field was not given;
`FieldSpec.absent` says what happens then.
"""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from loadgen.errors import ScenarioError
from loadgen.workload.fields import CASES, Case, FieldSpec, did_you_mean, redact_url
from loadgen.workload.units import shown

__all__ = [
    "BROKER_NAMES",
    "BROKER_SCHEMES",
    "CASES",
    "CASE_DEFAULTS",
    "COUNTERPARTS",
    "DEVICES_LIMIT",
    "FIELDS",
    "SIZE_MAXIMUM_BYTES",
    "SIZE_MINIMUM_BYTES",
    "Case",
    "Scenario",
    "build_scenario",
    "connect_rate_of",
    "fields_of",
    "processors_of",
    "read_toml",
    "scenario_fields",
    "to_toml",
]

_MESSAGING: tuple[Case, ...] = (
    "fanin",
    "fanout",
    "persistent",
    "latency",
    "queue",
    "bridge",
    "request",
)
_OF_ONE_KIND: tuple[Case, ...] = (*_MESSAGING, "connburst")
"""Cases whose devices are alike; those of a supply chain have each a part of their own."""

COUNTERPARTS: Mapping[Case, tuple[str, ...]] = MappingProxyType(
    {
        "fanout": ("FANOUT", "JMSPUBSUB", "JMSFANOUT"),
        "persistent": ("PERSISTENT", "JMSPERSISTENT"),
        "queue": ("JMSQUEUE",),
        "bridge": ("WMQPUBSUB", "WMQDURABLE"),
    }
)
"""Rows of the published score card that a case can be held against, where there is a choice or the
name is another."""

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
FILE_LIMIT_CHARACTERS = 1 << 20

CASE_DEFAULTS: Mapping[Case, Mapping[str, object]] = MappingProxyType(
    {
        "fanin": {"devices": 1_000},
        "fanout": {"topics": 10, "ratio": 100, "rate": 200.0},
        "persistent": {"pairs": 10, "rate": 1_000.0, "qos": 1},
        "latency": {"devices": 1_000, "topics": 10, "rate": 10_000.0, "duration": 20.0},
        "connburst": {"devices": 5_000, "warmup": 0.0, "duration": 5.0, "drain": 0.0},
        "queue": {"rate": 5_000.0, "qos": 1, "mqtt": "5", "durable": True},
        "bridge": {"devices": 1_000, "topics": 5},
        "request": {"devices": 1_000},
        "specjms": {"mqtt": "5", "duration": 60.0, "warmup": 10.0, "drain": 30.0},
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
            "Simulated devices: the publishers (fanin, bridge), those that ask (request), the "
            "background publishers (latency), all (connburst).",
            unit="devices",
            minimum=0,
            maximum=DEVICES_LIMIT,
            cases=("fanin", "latency", "connburst", "bridge", "request"),
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
            absent="fanin, bridge: one message a second for each device; connburst: as fast as "
            "the broker takes them",
            cases=_OF_ONE_KIND,
        ),
    ] = None
    topics: Annotated[
        int,
        FieldSpec(
            "count",
            "Topics (fanout: with one publisher each; latency: of the background; bridge: of each "
            "backend).",
            unit="topics",
            minimum=1,
            maximum=1_000_000,
            cases=("fanout", "latency", "bridge"),
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
    producers: Annotated[
        int,
        FieldSpec(
            "count",
            "Publishers of each topic or queue.",
            unit="publishers",
            minimum=1,
            maximum=1_000_000,
            cases=("persistent", "queue"),
        ),
    ] = 1
    acknowledge_every: Annotated[
        int,
        FieldSpec(
            "count",
            "Acknowledgements that a subscriber withholds and sends together (QoS 1).",
            unit="messages",
            minimum=1,
            maximum=65_535,
            cases=("persistent", "bridge"),
        ),
    ] = 1
    queues: Annotated[
        int,
        FieldSpec(
            "count",
            "Queues: shared subscriptions, each to a topic of its own.",
            unit="queues",
            minimum=1,
            maximum=1_000_000,
            cases=("queue",),
        ),
    ] = 10
    consumers: Annotated[
        int,
        FieldSpec(
            "count",
            "Consumers of each queue; a message goes to one of them.",
            unit="consumers",
            minimum=1,
            maximum=1_000_000,
            cases=("queue",),
        ),
    ] = 10
    responders: Annotated[
        int,
        FieldSpec(
            "count",
            "Devices that answer; each has a topic on which its part of the devices asks.",
            unit="devices",
            minimum=1,
            maximum=1_000_000,
            cases=("request",),
        ),
    ] = 10
    batch: Annotated[
        int,
        FieldSpec(
            "count",
            "Messages of a unit: a producer has so many in flight and sends the next when all are "
            "acknowledged; a consumer sends its acknowledgements so many at a time. The Receive "
            "Maximum that the broker names bounds both.",
            unit="messages",
            minimum=1,
            maximum=65_535,
            cases=("queue",),
        ),
    ] = 100
    durable: Annotated[
        bool,
        FieldSpec(
            "flag",
            "The broker keeps the sessions: of all devices (fanin, fanout), or of the consumers "
            "(queue: what one of them held when it was cut off waits for it; bridge: durable "
            "subscriptions on the backends).",
            cases=("fanin", "fanout", "queue", "bridge"),
        ),
    ] = False
    crash_consumer: Annotated[
        bool,
        FieldSpec(
            "flag",
            "Cut one consumer off in the middle of the window and let it return; nothing may be "
            "lost.",
            cases=("queue",),
        ),
    ] = False
    backend: Annotated[
        tuple[str, ...],
        FieldSpec(
            "texts",
            "Broker behind the bridge, as URL, once for each backend; the front brokers are given "
            "by broker.",
            unit="URL",
            cases=("bridge",),
        ),
    ] = ()
    backends: Annotated[
        int | None,
        FieldSpec(
            "count",
            "Private backends to start.",
            unit="brokers",
            minimum=1,
            maximum=100,
            cases=("bridge",),
            absent="1, or as many as backend has",
        ),
    ] = None
    front_root: Annotated[
        str,
        FieldSpec(
            "text",
            "Topics of the producers: FRONT_ROOT/B/T, B the backend from 1 on, T from 0 on.",
            unit="topic",
            cases=("bridge",),
        ),
    ] = "loadgen/front"
    backend_root: Annotated[
        str,
        FieldSpec(
            "text",
            "The same topics as a backend names them.",
            unit="topic",
            cases=("bridge",),
        ),
    ] = "loadgen/back"
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
    steps: Annotated[
        str | None,
        FieldSpec(
            "steps",
            "Steps of the rate, as 50%,75%,100%: each lasts the duration, or its own time as "
            "75%:20s, and is judged on its own.",
            unit="share,...",
            cases=(*_MESSAGING, "specjms"),
            absent="one rate",
        ),
    ] = None
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
            cases=_OF_ONE_KIND,
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
            cases=(*_MESSAGING, "specjms"),
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
            cases=("fanin", "fanout", "persistent", "latency", "bridge", "request", "specjms"),
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
            cases=(*_MESSAGING, "specjms"),
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
            cases=(*_MESSAGING, "specjms"),
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
    reconnect: Annotated[
        float | None,
        FieldSpec(
            "seconds",
            "Devices that lose their connection come back: the first wait, doubled after each "
            "attempt that fails and varied by half.",
            unit="s",
            minimum=0.01,
            maximum=3_600,
            cases=_OF_ONE_KIND,
            absent="they stay away; 0.1 s with crash_broker",
        ),
    ] = None
    reconnect_max: Annotated[
        float,
        FieldSpec(
            "seconds",
            "Longest wait before a device tries to come back.",
            unit="s",
            minimum=0.01,
            maximum=3_600,
            cases=_OF_ONE_KIND,
        ),
    ] = 30.0
    churn: Annotated[
        float | None,
        FieldSpec(
            "rate",
            "Devices a second that leave in good order and return: publishers, and subscribers "
            "whose session the broker keeps.",
            unit="N",
            minimum=0.001,
            maximum=1_000_000,
            cases=_MESSAGING,
            absent="nobody leaves",
        ),
    ] = None
    away: Annotated[
        float,
        FieldSpec(
            "seconds",
            "How long a device that left stays away, varied by half (with churn).",
            unit="s",
            minimum=0.01,
            maximum=3_600,
            cases=_MESSAGING,
        ),
    ] = 1.0
    instances: Annotated[
        int,
        FieldSpec(
            "count",
            "Private brokers to start, each a broker of its own (see separate_brokers).",
            unit="brokers",
            minimum=1,
            maximum=1_000,
            cases=_OF_ONE_KIND,
        ),
    ] = 1
    separate_brokers: Annotated[
        bool,
        FieldSpec(
            "flag",
            "Several brokers do not know each other: topics are spread over them, and each has a "
            "wildcard subscriber of its own; off, all URLs lead to one system.",
            cases=_OF_ONE_KIND,
        ),
    ] = False
    client_id: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Client identifier with {device} for the device's number and {group} for its group's.",
            unit="pattern",
            cases=_OF_ONE_KIND,
            absent="one that is unique to the run",
        ),
    ] = None
    clients_file: Annotated[
        str | None,
        FieldSpec(
            "text",
            "CSV file with a header and the columns client_id, username, password, one row a "
            "device of the case's first group.",
            unit="file",
            absent="identifiers from client_id, the broker URL's user",
            cases=_OF_ONE_KIND,
        ),
    ] = None
    payload: Annotated[
        str | None,
        FieldSpec(
            "text",
            "File that follows the 32-byte header in every message; size is 32 and its length.",
            unit="file",
            cases=_MESSAGING,
            absent="printable filler",
        ),
    ] = None
    payload_template: Annotated[
        str | None,
        FieldSpec(
            "text",
            "File that follows the header, in which each message fills {device}, {sequence}, "
            "{time_ms} and {random} with its own digits, as {sequence:9} or {device:07}.",
            unit="file",
            cases=_MESSAGING,
            absent="the same in every message",
        ),
    ] = None
    will: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Topic of a Will Message of every device of the case's first group; {device} is its "
            "number.",
            unit="topic",
            absent="no will",
            cases=_OF_ONE_KIND,
        ),
    ] = None
    affinity: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Processors to pin workers to, one each in turn, as 0,2-5.",
            unit="list",
            absent="the scheduler places them",
        ),
    ] = None
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
        FieldSpec(
            "text",
            "Client certificate file; {device} in the name is the device's number.",
            unit="file",
            absent="none is presented",
        ),
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
    tls_resume: Annotated[
        bool,
        FieldSpec("flag", "Devices resume a TLS session of an earlier connection."),
    ] = False
    tls_ciphers: Annotated[
        str | None,
        FieldSpec(
            "text",
            "Ciphers to offer, in OpenSSL's notation; then TLS 1.2 alone is offered.",
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
    published: Annotated[
        str | None,
        FieldSpec(
            "choice",
            "Row of the published score card to show beside the result.",
            choices=tuple(name for names in COUNTERPARTS.values() for name in names),
            cases=tuple(COUNTERPARTS),
            absent="the first that the case has (bridge: by QoS)",
        ),
    ] = None
    topology: Annotated[
        Literal["horizontal", "vertical", "freeform"],
        FieldSpec(
            "choice",
            "How the supply chain grows with base: by locations, by traffic of each, or as the "
            "scenario says.",
            choices=("horizontal", "vertical", "freeform"),
            cases=("specjms",),
        ),
    ] = "horizontal"
    base: Annotated[
        int,
        FieldSpec(
            "count",
            "BASE, by which the workload is scaled.",
            minimum=1,
            maximum=20_000,
            cases=("specjms",),
        ),
    ] = 10
    handlers: Annotated[
        int,
        FieldSpec(
            "count",
            "Event handlers of each queue at each location; several share a subscription.",
            unit="handlers",
            minimum=1,
            maximum=100,
            cases=("specjms",),
        ),
    ] = 2
    drivers: Annotated[
        int,
        FieldSpec(
            "count",
            "Drivers of each interaction at each location that begins it.",
            unit="drivers",
            minimum=1,
            maximum=100,
            cases=("specjms",),
        ),
    ] = 1
    headquarters: Annotated[
        int,
        FieldSpec(
            "count",
            "Instances of the headquarters, each with queues of its own.",
            unit="locations",
            minimum=1,
            maximum=1_000,
            cases=("specjms",),
        ),
    ] = 1
    selectors: Annotated[
        Literal["broker", "client"],
        FieldSpec(
            "choice",
            "Where messages that share a topic are selected: by topic levels and filters, or by "
            "user properties at the receiver, which discards the rest.",
            choices=("broker", "client"),
            cases=("specjms",),
        ),
    ] = "broker"
    messages: Annotated[
        str | None,
        FieldSpec(
            "table",
            "Options of message types, as order = {queue = false, target = 'Central'}: "
            "transacted, persistent, qos, durable, queue, target, subscription, handlers; sizes "
            "(freeform).",
            unit="table",
            cases=("specjms",),
            absent="as SPECjms2007 has them",
        ),
    ] = None
    interactions: Annotated[
        str | None,
        FieldSpec(
            "table",
            "Interactions by number: drivers, and in freeform the rate, 0 for off.",
            unit="table",
            cases=("specjms",),
            absent="all, at the rates of the topology",
        ),
    ] = None
    locations: Annotated[
        str | None,
        FieldSpec(
            "table",
            "Numbers of locations SM, DC, SP and HQ (freeform).",
            unit="table",
            cases=("specjms",),
            absent="those of the horizontal topology",
        ),
    ] = None
    quantities: Annotated[
        str | None,
        FieldSpec(
            "table",
            "Quantities x of the message sizes, three values each, and percent, the share of each "
            "class (freeform).",
            unit="table",
            cases=("specjms",),
            absent="documented defaults of about 2 KB a message",
        ),
    ] = None
    families: Annotated[
        int | None,
        FieldSpec(
            "count",
            "Product families, of which each is offered by two or three suppliers (freeform).",
            unit="families",
            minimum=1,
            maximum=100_000,
            cases=("specjms",),
            absent="twice as many as suppliers",
        ),
    ] = None
    shared_connections: Annotated[
        bool,
        FieldSpec(
            "flag",
            "All event handlers of a location use one connection (freeform).",
            cases=("specjms",),
        ),
    ] = False
    check_every: Annotated[
        int,
        FieldSpec(
            "count",
            "Messages of which one is checked against its CRC-32 (freeform).",
            unit="messages",
            minimum=1,
            maximum=1_000_000,
            cases=("specjms",),
        ),
    ] = 1
    report_every: Annotated[
        float,
        FieldSpec(
            "seconds",
            "How often the run's progress is reported as a line and an event.",
            unit="s",
            minimum=1,
            maximum=86_400,
            cases=("specjms",),
        ),
    ] = 300.0
    per_device: Annotated[
        bool,
        FieldSpec(
            "flag",
            "Write devices/*.parquet at the end: a row a device, with what it sent, received and "
            "lost.",
            cases=_OF_ONE_KIND,
        ),
    ] = False
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
    if scenario.rate is None and scenario.case in ("fanout", "persistent", "latency", "queue"):
        return f"rate: nothing is given and {scenario.case} needs it; allowed: {_allowed('rate')}"
    return ""


def _allowed(name: str) -> str:
    return FIELDS[name].allowed


def _devices_fit(scenario: Scenario) -> str:
    if scenario.devices == 0 and scenario.case != "latency":
        return f"devices: 0 is too small for {scenario.case}; allowed: from 1 to {DEVICES_LIMIT:,}"
    if scenario.case == "request" and scenario.responders > scenario.devices:
        return (
            f"responders: {scenario.responders:,} are more than the {scenario.devices:,} devices "
            "that ask; allowed: at most so many"
        )
    if scenario.devices == 0 and scenario.background_rate is not None:
        return "background_rate: there are no background devices; allowed: with devices above 0"
    if scenario.case == "fanout" and scenario.topics * (scenario.ratio + 1) > DEVICES_LIMIT:
        return (
            f"ratio: {scenario.topics:,} topics of {scenario.ratio:,} subscribers are too many; "
            f"allowed: {DEVICES_LIMIT:,} devices in all"
        )
    return ""


def _payload_is_one(scenario: Scenario) -> str:
    if scenario.payload is not None and scenario.payload_template is not None:
        return "payload_template: there is a payload, too; allowed: one of them"
    return ""


def _queue_is_one(scenario: Scenario) -> str:
    if scenario.case != "queue":
        return ""
    if scenario.qos != 1:
        return f"qos: {scenario.qos} has no acknowledgement to withhold; allowed: 1 for queue"
    if scenario.mqtt != "5":
        return f"mqtt: {scenario.mqtt} has no shared subscriptions; allowed: 5 for queue"
    if scenario.queues * (scenario.consumers + scenario.producers) > DEVICES_LIMIT:
        return f"consumers: there are too many; allowed: {DEVICES_LIMIT:,} devices in all"
    return ""


def _bridge_is_one(scenario: Scenario) -> str:
    if scenario.case != "bridge":
        return ""
    urls = [entry for entry in scenario.broker if "://" in entry]
    if not scenario.backend and (urls or scenario.broker[0] not in ("auto", "mosquitto")):
        return (
            f"broker: {shown(redact_url(scenario.broker[0]))} is no bridge that is started here; "
            "allowed: auto, mosquitto, or URLs with backend"
        )
    if scenario.backend and not urls:
        return "backend: the front broker is missing; allowed: with broker as URL"
    if scenario.backends not in (None, len(scenario.backend)) and scenario.backend:
        return f"backends: {scenario.backends} are not those of backend; leave it out"
    if scenario.instances > 1 or scenario.separate_brokers:
        return "instances: a bridge has one front; leave it and separate_brokers out"
    topics = scenario.topics * (scenario.backends or len(scenario.backend) or 1)
    if scenario.devices < topics:
        return f"devices: fewer than the {topics:,} topics; allowed: one producer a topic or more"
    for name in ("front_root", "backend_root"):
        root = getattr(scenario, name)
        if not re.fullmatch(r"[^#+$/][^#+]{0,199}(?<!/)", root):
            return f"{name}: {shown(root)} is no beginning of a topic; allowed: as loadgen/front"
    return ""


def _durable_has_qos(scenario: Scenario) -> str:
    if scenario.durable and scenario.qos == 0:
        return "durable: QoS 0 is not stored by a broker; allowed: with qos 1 or 2"
    return ""


def _withheld_has_qos(scenario: Scenario) -> str:
    if scenario.acknowledge_every > 1 and scenario.qos != 1:
        return f"acknowledge_every: QoS {scenario.qos} allows none; allowed: with qos 1"
    return ""


def _counterpart_is_of_the_case(scenario: Scenario) -> str:
    names = COUNTERPARTS.get(scenario.case, ())
    if scenario.published is not None and scenario.published not in names:
        return f"published: {scenario.published} is another case; allowed: {' or '.join(names)}"
    return ""


def _persistence_has_qos(scenario: Scenario) -> str:
    if scenario.case == "persistent" and scenario.qos == 0:
        return "qos: 0 is not stored by a broker; allowed: 1 or 2 for persistent"
    return ""


def _brokers_are_known(scenario: Scenario) -> str:
    if not scenario.broker:
        return "broker: nothing is given; allowed: auto, mosquitto, amqtt, reflector or a URL"
    for entry in scenario.broker:
        if entry not in BROKER_NAMES:
            complaint = _url_complaint("broker", entry)
            if complaint:
                return complaint
        elif len(scenario.broker) > 1:
            return f"broker: {shown(entry)} cannot be joined with others; allowed: several URLs"
    return next(filter(None, (_url_complaint("backend", url) for url in scenario.backend)), "")


def _url_complaint(name: str, entry: str) -> str:
    scheme, separator, rest = entry.partition("://")
    value = shown(redact_url(entry))
    if not separator:
        hint = did_you_mean(entry, BROKER_NAMES) if name == "broker" else ""
        if not hint and re.fullmatch(r"[A-Za-z0-9._\[\]:-]+", entry):
            hint = f"; did you mean 'mqtt://{entry[:60]}'?"
        what = "neither a name nor a URL" if name == "broker" else "no URL"
        return f"{name}: {value} is {what}{hint}"
    if scheme not in BROKER_SCHEMES:
        return f"{name}: {value} has an unknown scheme; allowed: {', '.join(BROKER_SCHEMES)}"
    if not rest.rpartition("@")[2].strip("/") or any(c.isspace() for c in rest):
        return f"{name}: {value} names no host; allowed: as mqtt://host:1883"
    return ""


def _tls_is_whole(scenario: Scenario) -> str:
    if scenario.tls_key is not None and scenario.tls_certificate is None:
        return "tls_key: a key without a certificate; allowed: with tls_certificate"
    if scenario.tls_ciphers is not None and scenario.tls_version == "1.3":
        return "tls_ciphers: TLS 1.3 has its own ciphers; allowed: with tls_version 1.2"
    if scenario.tls_resume and "{device}" in (scenario.tls_certificate or ""):
        return (
            "tls_resume: a session belongs to one certificate and each device has its own; "
            "allowed: with one tls_certificate for all"
        )
    plain = all(url.partition("://")[0] in ("mqtt", "ws") for url in scenario.broker)
    for name in FIELDS:
        if name.startswith("tls_") and plain and getattr(scenario, name) != FIELDS[name].default:
            return f"{name}: the connection is not encrypted; allowed: with mqtts:// or wss://"
    return ""


def _crash_is_ours(scenario: Scenario) -> str:
    if scenario.crash_broker and scenario.broker not in (("auto",), ("mosquitto",)):
        return "crash_broker: only a private broker may be killed; allowed: with broker mosquitto"
    return ""


def _instances_are_ours(scenario: Scenario) -> str:
    if scenario.instances > 1 and any("://" in entry for entry in scenario.broker):
        return "instances: brokers given by URL are not started here; allowed: with a broker's name"
    return ""


def _patterns_tell_devices_apart(scenario: Scenario) -> str:
    if scenario.client_id is not None and "{device}" not in scenario.client_id:
        return (
            f"client_id: {shown(scenario.client_id)} is the same for all devices; allowed: text "
            "with {device}, and with {group} where a case has several groups"
        )
    return ""


def _patterns_tell_groups_apart(scenario: Scenario) -> str:
    pattern = scenario.client_id
    # The first group's devices are named by the file of clients, if there is one.
    named = _groups(scenario) - (scenario.clients_file is not None)
    if pattern is None or "{group}" in pattern or named < 2:
        return ""
    return (
        f"client_id: {shown(pattern)} is the same for devices of several groups, which throw each "
        f"other out; allowed: with {{group}} for {scenario.case}"
    )


def _groups(scenario: Scenario) -> int:
    """How many groups of devices the case has."""
    match scenario.case:
        case "connburst":
            return 1
        case "latency":
            return 4 if scenario.devices else 2
        case "bridge":
            return 2 * (scenario.backends or len(scenario.backend) or 1)
        case _:
            return 2


def _somebody_may_leave(scenario: Scenario) -> str:
    # Who asks also waits for an answer, and only QoS 2 gives it a session that is kept.
    if scenario.churn is not None and scenario.case == "request" and scenario.qos < 2:
        return (
            f"churn: at QoS {scenario.qos} a device of request that leaves loses its responses, so "
            "nobody may; allowed: with qos 2"
        )
    return ""


def _will_is_a_topic(scenario: Scenario) -> str:
    topic = scenario.will
    if topic is None:
        return ""
    allowed = "allowed: a topic without + and #, with {device} for the device's number"
    places = re.findall(r"\{[A-Za-z_]+(?::[0-9]+)?\}", topic.replace("{device}", ""))
    if places:
        return f"will: {places[0][:40]} is not known; {allowed}"
    longest = topic.replace("{device}", str(DEVICES_LIMIT)).encode("utf-8", "replace")
    if not topic or "+" in topic or "#" in topic or "\0" in topic or len(longest) > 65_535:
        return f"will: {shown(topic)} is no topic to publish to; {allowed}"
    return ""


def _affinity_is_a_list(scenario: Scenario) -> str:
    try:
        processors_of(scenario.affinity)
    except ValueError:
        return f"affinity: {shown(scenario.affinity)} is no list; allowed: numbers as 0,2-5"
    return ""


def processors_of(affinity: str | None) -> tuple[int, ...]:
    """Processor numbers of a list such as 0,2-5; raises ValueError where it is none."""
    found: list[int] = []
    for part in (affinity or "").split(",") if affinity else ():
        first, _, last = part.partition("-")
        start, stop = int(first), int(last or first)
        if not 0 <= start <= stop < 8_192:
            raise ValueError(part)
        found.extend(range(start, stop + 1))
    return tuple(found)


_RULES: tuple[Callable[[Scenario], str], ...] = (
    _only_understood,
    _rate_is_known,
    _devices_fit,
    _persistence_has_qos,
    _brokers_are_known,
    _payload_is_one,
    _queue_is_one,
    _bridge_is_one,
    _durable_has_qos,
    _withheld_has_qos,
    _counterpart_is_of_the_case,
    _tls_is_whole,
    _crash_is_ours,
    _instances_are_ours,
    _patterns_tell_devices_apart,
    _patterns_tell_groups_apart,
    _somebody_may_leave,
    _will_is_a_topic,
    _affinity_is_a_list,
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
            f"{did_you_mean(case, CASES)}"
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
    hint = did_you_mean(name, known) or f"; {case} understands {', '.join(known)}"
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
    for name in ("broker", "backend"):
        if name in fields:
            fields[name] = [redact_url(entry) for entry in getattr(scenario, name)]
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
