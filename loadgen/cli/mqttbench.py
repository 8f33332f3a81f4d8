"""Client lists of mqttbench (Eclipse Amlen) as scenarios.

A list is a JSON array with one object a client; its fields are those that mqttbench's own parser
knows (perftools/mqttbench, client list version 2):

    version           TCP3 TCP4 TCP5, over WebSocket WS3 WS4 WS5; the number is that of MQTT
    dst, dstPort      the broker; useTLS
    _id, username     password in base64
    publishTopics, subscriptions
                      objects with topicStr, qos, retain; ${COUNT:x-y} in a topic stands for many
    cleanSession      before MQTT 5; in MQTT 5 cleanStart and sessionExpiryIntervalSecs

Rates are not in the list: mqttbench takes them from its command line. A list that fits
no case is refused with the first thing that cannot be expressed. `notes` say what is left out
without changing what is measured.
"""

import base64
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from loadgen.cases.registry import CASES, build_scenario
from loadgen.errors import ScenarioError
from loadgen.mqtt.topics import filter_matches, is_wild, split_shared
from loadgen.plan.scenario import Scenario, to_toml
from loadgen.plan.units import shown
from loadgen.sentences import CLI_TEXT, read_table

CLIENTS_LIMIT: Final = 10_000_000
TOPIC_LIMIT: Final = 65_535

_VERSIONS: Final = {f"{way}{number}" for way in ("TCP", "WS") for number in (3, 4, 5)}
_MQTT: Final = {"3": "3.1", "4": "3.1.1", "5": "5"}
_UNSAID: Final[Mapping[str, object]] = {"qos": 0, "mqtt": "3.1.1", "durable": False}
"""Defaults of a client's fields; other values are written down."""
_COUNT: Final = re.compile(r"\$\{COUNT:(\d{1,9})-(\d{1,9})\}", re.IGNORECASE)
_KINDS: Final = {
    str: "text of at most {most:,} characters",
    bool: "true or false",
    int: "a whole number from 0 to {most:,}",
}

Values = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    """The result of an import: `toml` is its file, `clients` are identifier, user name and
    password of the first group's devices (for `clients_file`), `notes` one line each."""

    scenario: Scenario
    toml: str
    clients: tuple[tuple[str, str | None, str | None], ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Client:
    number: int
    name: str
    mqtt: str
    url: str
    publishes: str
    subscribes: str
    qos: int
    durable: bool
    login: tuple[str | None, str | None]
    values: Values


@dataclass(frozen=True, slots=True)
class _Choice:
    """The case that the topics make, its fields, and its two groups of clients."""

    case: str
    fields: dict[str, object]
    first: Sequence[_Client]
    second: Sequence[_Client] = ()


def without_comments(text: str) -> str:
    """Remove comments as in C, which mqttbench allows in its JSON."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/',
        lambda found: found[0] if found[0].startswith('"') else " ",
        text,
        flags=re.DOTALL,
    )


def import_clients(document: object, clients_file: str | None = None) -> ImportedScenario:
    """Return the scenario of a client list, parsed from JSON.

    With `clients_file`, a path, the scenario names it for the identifiers and credentials of its
    first group. Raises ScenarioError, one line that names what cannot be expressed.
    """
    if not isinstance(document, list) or not document:
        raise ScenarioError(CLI_TEXT.LIST_NOT_A_LIST())
    if len(document) > CLIENTS_LIMIT:
        raise ScenarioError(CLI_TEXT.LIST_LONG(clients=len(document), most=CLIENTS_LIMIT))
    treated = read_table("loadgen.cli", "mqttbench.toml")
    clients = [_client(number, values, treated) for number, values in enumerate(document)]
    choice = _case(clients)
    fields = choice.fields | _common(clients, choice.case)
    fields["broker"] = _brokers(clients, choice, clients_file)
    if clients_file is not None:
        fields["clients_file"] = clients_file
    declared = CASES[choice.case].scenario.fields()
    written = {
        name: value
        for name, value in fields.items()
        if value != declared[name].default or value != _UNSAID.get(name, value)
    }
    scenario = build_scenario(choice.case, None, written)
    return ImportedScenario(
        scenario=scenario,
        toml=to_toml(scenario, {"case", *written}),
        clients=tuple((c.name or f"device-{c.number}", *c.login) for c in choice.first),
        notes=tuple(_notes(clients, choice, clients_file, treated["left_out"])),
    )


# One client -------------------------------------------------------------------------------------


def _value(
    number: int, values: Values, field: str, kind: Any, most: int = TOPIC_LIMIT, at: str = ""
) -> Any:
    """Return a field of client `number`, or the empty value of its kind; errors name `at`."""
    value = values.get(field, kind())
    is_fine = type(value) is kind
    if is_fine and kind is not bool:
        is_fine = 0 <= (len(value) if kind is str else value) <= most
    if not is_fine:
        place = {"client": number, "field": at or field}
        allowed = _KINDS[kind].format(most=most)
        raise ScenarioError(CLI_TEXT.LIST_VALUE(value=shown(value), allowed=allowed, **place))
    return value


def _client(number: int, values: object, treated: Mapping[str, Any]) -> _Client:
    if not isinstance(values, Mapping):
        raise ScenarioError(CLI_TEXT.LIST_CLIENT(client=number))
    for field, value in values.items():
        if value and (reason := treated["refused"].get(field)):
            raise ScenarioError(CLI_TEXT.LIST_REFUSED(client=number, field=field, reason=reason))
        if not any(field in names for names in treated.values()):
            raise ScenarioError(CLI_TEXT.LIST_FIELD(client=number, field=shown(field, 40)))
    version = values.get("version")
    if not isinstance(version, str) or version not in _VERSIONS:
        named = {"version": shown(version), "known": tuple(sorted(_VERSIONS))}
        raise ScenarioError(CLI_TEXT.LIST_VERSION(client=number, **named))
    published, subscribed = (_topic(number, values, f) for f in ("publishTopics", "subscriptions"))
    if published and subscribed:
        raise ScenarioError(CLI_TEXT.LIST_BOTH_WAYS(client=number))
    if published and is_wild(published[0]):
        raise ScenarioError(CLI_TEXT.LIST_WILD(client=number, topic=shown(published[0])))
    host = _value(number, values, "dst", str)
    if not re.fullmatch(r"[A-Za-z0-9._:-]{1,255}", host):
        raise ScenarioError(CLI_TEXT.LIST_HOST(client=number, host=shown(host)))
    if (port := _value(number, values, "dstPort", int, 65_535)) == 0:
        raise ScenarioError(CLI_TEXT.LIST_NO_PORT(client=number))
    scheme = "ws" if version.startswith("WS") else "mqtt"
    encrypted = "s" if _value(number, values, "useTLS", bool) else ""
    # Left out, cleanSession is false to mqttbench.
    clean = _value(number, values, "cleanSession", bool)
    _value(number, values, "cleanStart", bool)
    if version.endswith("5"):
        clean = not _value(number, values, "sessionExpiryIntervalSecs", int, 0xFFFFFFFF)
    try:
        coded = _value(number, values, "password", str)
        password = base64.b64decode(coded, validate=True).decode()
    except ValueError:
        raise ScenarioError(CLI_TEXT.LIST_PASSWORD(client=number)) from None
    return _Client(
        number=number,
        name=_value(number, values, "_id", str),
        mqtt=_MQTT[version[-1]],
        url=f"{scheme}{encrypted}://{f'[{host}]' if ':' in host else host}:{port}",
        publishes=published[0] if published else "",
        subscribes=subscribed[0] if subscribed else "",
        qos=(published or subscribed or ("", 0))[1],
        durable=not clean,
        login=(_value(number, values, "username", str) or None, password or None),
        values=values,
    )


def _topic(number: int, values: Values, field: str) -> tuple[str, int] | None:
    """Return the only topic of a client with ${COUNT} filled in, and its QoS; None for none."""
    place = {"client": number, "field": field}
    listed = values.get(field) or []
    if not isinstance(listed, list) or not all(isinstance(item, Mapping) for item in listed):
        raise ScenarioError(CLI_TEXT.LIST_NO_TOPICS(**place))
    if len(listed) > 1:
        raise ScenarioError(CLI_TEXT.LIST_TOPICS(topics=len(listed), **place))
    if not listed:
        return None
    (item,) = listed
    for name, value in item.items():
        retained = name == "retain" and field == "publishTopics"
        if value and (retained or name not in ("topicStr", "qos", "retain")):
            raise ScenarioError(CLI_TEXT.LIST_TOPIC_FIELD(name=shown(name, 40), **place))
    qos = _value(number, item, "qos", int, 2, at=field)
    topic = _value(number, item, "topicStr", str, at=field)
    if not topic:
        raise ScenarioError(CLI_TEXT.LIST_NO_TOPIC(**place))
    counted = _COUNT.search(topic)
    if counted is not None and (more := int(counted[2]) - int(counted[1])) > 0:
        raise ScenarioError(CLI_TEXT.LIST_TOPICS(topics=more + 1, **place))
    return _COUNT.sub(lambda count: str(int(count[1])), topic, count=1), qos


# All clients ------------------------------------------------------------------------------------


def _same(clients: Sequence[_Client], field: str, value: Callable[[_Client], Any]) -> Any:
    """Return the value that all clients share; ScenarioError names two that differ."""
    for client in clients:
        if value(client) != value(clients[0]):
            numbers = {"first": clients[0].number, "second": client.number}
            raise ScenarioError(CLI_TEXT.LIST_UNLIKE(field=field, **numbers))
    return value(clients[0]) if clients else None


def _qos(clients: Sequence[_Client]) -> int:
    return int(_same(clients, "qos", lambda client: client.qos))


def _durable(clients: Sequence[_Client]) -> bool:
    return bool(_same(clients, "cleanSession", lambda client: client.durable))


def _even(counts: Mapping[str, int], what: str) -> int:
    least, most = min(counts.values()), max(counts.values())
    if least != most:
        raise ScenarioError(CLI_TEXT.LIST_UNEVEN(least=least, most=most, whom=what))
    return most


def _require_topic_each(sent: Mapping[str, int]) -> None:
    common = next((topic for topic, count in sent.items() if count > 1), None)
    if common is not None:
        raise ScenarioError(CLI_TEXT.LIST_PUBLISHERS(count=sent[common], topic=shown(common)))


def _case(clients: Sequence[_Client]) -> _Choice:
    senders = [client for client in clients if client.publishes]
    readers = [client for client in clients if client.subscribes]
    idle = next((c for c in clients if not c.publishes and not c.subscribes), None)
    if idle is not None and (senders or readers):
        raise ScenarioError(CLI_TEXT.LIST_IDLE(client=idle.number))
    if not senders:
        fields: dict[str, object] = {"devices": len(clients)}
        topic = _same(readers, "topicStr of subscriptions", lambda client: client.subscribes)
        if topic and (is_wild(topic) or topic.startswith("$")):
            raise ScenarioError(CLI_TEXT.LIST_FILTER_ALONE(filter=shown(topic)))
        if readers:
            fields |= {"subscribe": True, "qos": _qos(readers)}
        return _Choice("connburst", fields, clients)
    if not readers:
        raise ScenarioError(CLI_TEXT.LIST_NO_SUBSCRIBER())
    qos = _qos(clients)
    sent = Counter(client.publishes for client in senders)
    read = Counter(client.subscribes for client in readers)
    if any(map(is_wild, read)):
        _require_cover(senders, readers)
        _require_topic_each(sent)
        fields = {"devices": len(senders)}
        if qos:
            fields["durable"] = _durable(clients)
        return _Choice("fanin", fields, senders, readers)
    shared = any(topic.startswith("$share/") for topic in read)
    topics: dict[str, int] = {}
    for name, count in read.items():
        share, topic = split_shared(name) if shared else ("", name)
        if share is None or topic in topics:
            raise ScenarioError(CLI_TEXT.LIST_FILTER_MIXED(filter=shown(name)))
        topics[topic] = count
    for topic in sent.keys() ^ topics.keys():
        missing = "subscriber" if topic in sent else "publisher"
        raise ScenarioError(CLI_TEXT.LIST_ONE_SIDED(topic=shown(topic), missing=missing))
    consumers, producers = _even(topics, "subscribers"), _even(sent, "publishers")
    if shared:
        fields = {"queues": len(topics), "producers": producers, "consumers": consumers}
        return _Choice("queue", fields | {"durable": _durable(readers)}, senders, readers)
    if consumers == 1 and _durable(readers) and qos > 0:
        fields = {"pairs": len(topics), "producers": producers}
        return _Choice("persistent", fields, senders, readers)
    _require_topic_each(sent)
    fields = {"topics": len(topics), "ratio": consumers}
    if qos:
        fields["durable"] = _durable(clients)
    return _Choice("fanout", fields, senders, readers)


def _require_cover(senders: Sequence[_Client], readers: Sequence[_Client]) -> None:
    """Refuse subscribers that are not one client with a wildcard for all publishers."""
    if len(readers) > 1:
        raise ScenarioError(CLI_TEXT.LIST_WILD_SUBSCRIBERS(count=len(readers)))
    pattern = readers[0].subscribes
    if pattern.startswith("$"):
        raise ScenarioError(CLI_TEXT.LIST_FILTER(filter=shown(pattern)))
    missed = next((c for c in senders if not filter_matches(pattern, c.publishes)), None)
    if missed is not None:
        values = {"filter": shown(pattern), "client": missed.number}
        raise ScenarioError(CLI_TEXT.LIST_UNCOVERED(**values))


def _common(clients: Sequence[_Client], case: str) -> dict[str, object]:
    """Return fields that every case has, alike in all clients."""
    willing = next((client for client in clients if client.values.get("lastWillMsg")), None)
    if willing is not None:
        raise ScenarioError(CLI_TEXT.LIST_WILL(client=willing.number))
    fields: dict[str, object] = {"mqtt": _same(clients, "version", lambda client: client.mqtt)}
    _same(clients, "useTLS or WebSocket", lambda client: client.url.partition(":")[0])
    if case != "connburst":
        fields["qos"] = _qos(clients)
    for name, field, least in (
        ("clientCertPath", "tls_certificate", None),
        ("clientKeyPath", "tls_key", None),
        ("reconnectDelayUSecs", "reconnect", 0.01),
        ("connectionTimeoutSecs", "connect_timeout", 0.0),
    ):
        value = _same(clients, name, lambda client, name=name: client.values.get(name))  # type: ignore[misc]
        if value and least is not None:
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise ScenarioError(CLI_TEXT.LIST_NUMBER(field=name, value=shown(value)))
            value = max(value / 1e6 if name.endswith("USecs") else float(value), least)
        if value:
            fields[field] = value
    return fields


def _brokers(
    clients: Sequence[_Client], choice: _Choice, clients_file: str | None
) -> tuple[str, ...]:
    """Return the URLs, with the user of all devices that are not in the file of clients."""
    others = [*(choice.first if clients_file is None else ()), *choice.second]
    if clients_file is None and len({client.login for client in others}) > 1:
        raise ScenarioError(CLI_TEXT.LIST_LOGINS())
    user, _ = _same(others, "username of subscribers", lambda client: client.login) or ("", "")
    login = f"://{quote(user, safe='')}@" if user else "://"
    return tuple(url.replace("://", login) for url in dict.fromkeys(c.url for c in clients))


def _notes(
    clients: Sequence[_Client],
    choice: _Choice,
    clients_file: str | None,
    left_out: Mapping[str, str],
) -> Iterable[str]:
    named = {name for client in clients for name in client.values}
    if choice.case != "connburst":
        yield "rate: mqttbench takes it from its command line; here it is the case's default"
        yield "publishTopics: topics are loadgen's own, as many and as far apart"
    for name in sorted(named & left_out.keys()):
        yield f"{name}: left out, {left_out[name]}"
    if clients_file is None and "_id" in named:
        yield "_id: left out; keep them with --clients FILE"
    elif any(client.name for client in choice.second):
        yield "_id: kept for publishers, subscribers have loadgen's own"
    others = choice.first if clients_file is None else choice.second
    if others and others[0].login[1] is not None:
        yield "password: left out; give it with --password prompt, env:NAME or file:PATH"
