"""`loadgen import mqttbench`: client lists (Eclipse Amlen, version 2) as groups of `loadgen run`.

A list is a JSON array with one object for each client. Clients whose topics differ only by a number
form a group; a list without publishers is a burst of connects. A list is refused with the first
field that cannot be expressed.
"""

import base64
import csv
import io
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote

import orjson
from pydantic import AfterValidator, BaseModel, Field, ValidationError

from loadgen.cases.registry import CASES, build_scenario
from loadgen.cli.options import Flags, write_new
from loadgen.errors import ScenarioError, UsageError
from loadgen.mqtt.topics import is_wild
from loadgen.plan.groups import pattern_fault
from loadgen.plan.scenario import Scenario, toml_lines
from loadgen.plan.units import shown
from loadgen.sentences import CLI_TEXT, read_table

_LIMIT_BYTES: Final = 1 << 30
CLIENTS_LIMIT: Final = 10_000_000
TOPIC_LIMIT: Final = 65_535

_MQTT: Final = {"3": "3.1", "4": "3.1.1", "5": "5"}
_COUNT: Final = re.compile(r"\$\{COUNT:(\d{1,9})-(\d{1,9})\}", re.IGNORECASE)
_LAST_NUMBER: Final = re.compile(r"(?<![0-9])(?:0|[1-9][0-9]{0,8})(?=[^0-9]*$)")


@dataclass(frozen=True, slots=True)
class ImportedScenario:
    scenario: Scenario
    toml: str
    clients: tuple[tuple[str, str | None, str | None], ...]  # name, user and password, first group
    notes: tuple[str, ...]


def import_mqttbench(flags: Flags) -> int:
    out, clients = flags["out"], flags["clients"]
    for path in (out, clients):
        if path is not None and path.exists():
            raise UsageError(CLI_TEXT.EXISTS(path=path))
    imported = import_clients(_parsed(flags["file"]), None if clients is None else str(clients))
    if clients is not None:
        lines = io.StringIO()
        writer = csv.writer(lines, lineterminator="\n")
        writer.writerow(("client_id", "username", "password"))
        writer.writerows((name, user or "", word or "") for name, user, word in imported.clients)
        write_new(clients, lines.getvalue(), 0o600)
    if out is None:
        sys.stdout.write(imported.toml)
    else:
        write_new(out, imported.toml, 0o644)
    case = imported.scenario.case
    notes = [f"run it with: loadgen {case} --scenario {out or 'FILE'}", *imported.notes]
    print("\n".join(notes), file=sys.stderr)
    return 0


def _parsed(path: Path) -> object:
    shown = ascii(str(path)[:200])
    try:
        if path.stat().st_size > _LIMIT_BYTES:
            raise ScenarioError(
                CLI_TEXT.LARGE_CLIENT_LIST(shown=shown, mebibytes=_LIMIT_BYTES >> 20)
            )
        data = path.read_bytes()
    except OSError as error:
        raise ScenarioError(CLI_TEXT.UNREADABLE_CLIENT_LIST(shown=shown, reason=error)) from None
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(data)
    try:
        return orjson.loads(without_comments(data.decode("utf-8-sig")))
    except (orjson.JSONDecodeError, UnicodeDecodeError) as error:
        where = f", line {error.lineno}" if isinstance(error, orjson.JSONDecodeError) else ""
        raise ScenarioError(CLI_TEXT.CLIENT_LIST_NOT_JSON(shown=shown, where=where)) from None


def _one_topic(topic: str) -> str:
    count = _COUNT.search(topic)
    if count is not None and int(count[2]) > int(count[1]):
        raise ValueError("stands for several topics; use one")
    return _COUNT.sub(lambda count: str(int(count[1])), topic, count=1)


def _decoded(password: str) -> str:
    return base64.b64decode(password, validate=True).decode()


def _plain(topic: str) -> str:
    if is_wild(topic):
        raise ValueError("has a wildcard; use a topic without + and #")
    return topic


Text = Annotated[str, Field(max_length=TOPIC_LIMIT)]
_Name = Annotated[str, Field(min_length=1, max_length=TOPIC_LIMIT), AfterValidator(_one_topic)]


class _Filter(BaseModel, strict=True, extra="forbid"):
    name: Annotated[_Name, Field(alias="topicStr")]
    qos: Literal[0, 1, 2] = 0
    retain: Literal[False] = False


class _Topic(_Filter):
    name: Annotated[_Name, AfterValidator(_plain), Field(alias="topicStr")]
    retain: bool = False  # type: ignore[assignment]


class _Client(BaseModel, strict=True):
    """A client of a list; `number` is its place."""

    number: int
    version: Annotated[str, Field(pattern="^(TCP|WS)[345]$")]
    host: Annotated[str, Field(alias="dst", pattern="^[A-Za-z0-9._:-]{1,255}$")]
    port: Annotated[int, Field(alias="dstPort", ge=1, le=65_535)]
    name: Annotated[Text, Field(alias="_id")] = ""
    tls: Annotated[bool, Field(alias="useTLS")] = False
    username: Text = ""
    password: Annotated[Text, AfterValidator(_decoded)] = ""
    topics: Annotated[list[_Topic], Field(alias="publishTopics", max_length=1)] = []
    filters: Annotated[list[_Filter], Field(alias="subscriptions", max_length=1)] = []
    # Left out, cleanSession is false to mqttbench.
    clean_session: Annotated[bool, Field(alias="cleanSession")] = False
    clean_start: Annotated[bool, Field(alias="cleanStart")] = False
    expiry_s: Annotated[int, Field(alias="sessionExpiryIntervalSecs", ge=0, lt=1 << 32)] = 0
    certificate: Annotated[str | None, Field(alias="clientCertPath")] = None
    key: Annotated[str | None, Field(alias="clientKeyPath")] = None
    reconnect_us: Annotated[float, Field(alias="reconnectDelayUSecs", ge=0)] = 0
    timeout_s: Annotated[float, Field(alias="connectionTimeoutSecs", ge=0)] = 0
    named: frozenset[str]

    @property
    def topic(self) -> str:
        return self.topics[0].name if self.topics else ""

    @property
    def filter(self) -> str:
        return self.filters[0].name if self.filters else ""

    @property
    def url(self) -> str:
        scheme = ("ws" if self.version.startswith("WS") else "mqtt") + "s" * self.tls
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}"

    @property
    def login(self) -> tuple[str | None, str | None]:
        return self.username or None, self.password or None

    @property
    def options(self) -> tuple[tuple[str, object], ...]:
        clean = not self.expiry_s if self.version.endswith("5") else self.clean_session
        return (
            *(("qos", topic.qos) for topic in self.topics),
            *(("retain", True) for topic in self.topics if topic.retain),
            *(("subscribe_qos", filter_.qos) for filter_ in self.filters),
            ("clean", clean),
        )


_FIELDS: Final = {field.alias or name for name, field in _Client.model_fields.items()} - {
    *("number", "named")
}


def without_comments(text: str) -> str:
    """Remove comments as in C, which mqttbench allows in its JSON."""
    return re.sub(
        r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/',
        lambda found: found[0] if found[0].startswith('"') else " ",
        text,
        flags=re.DOTALL,
    )


def import_clients(document: object, clients_file: str | None = None) -> ImportedScenario:
    """Return the scenario of a client list, parsed from JSON; raises ScenarioError.

    The identifiers and credentials of its first group are for the path `clients_file`.
    """
    if not isinstance(document, list) or not document:
        raise ScenarioError(CLI_TEXT.LIST_NOT_A_LIST())
    if len(document) > CLIENTS_LIMIT:
        raise ScenarioError(CLI_TEXT.LIST_LONG(clients=len(document), most=CLIENTS_LIMIT))
    treated = read_table("loadgen.cli", "mqttbench.toml")
    clients = [_client(number, values, treated) for number, values in enumerate(document)]
    tables: list[dict[str, object]] = []
    listed: Sequence[_Client] = clients
    fields = _common(clients)
    if any(client.topic for client in clients):
        case, groups = "run", _groups(clients)
        listed = groups[0][1]
        tables = [table for table, _ in groups]
        fields |= {"group": tables}
    else:
        case = "connburst"
        fields |= {"devices": len(clients), "subscribe": any(client.filter for client in clients)}
    named = () if clients_file is None else {client.number for client in listed}
    unlisted = [client for client in clients if client.number not in named]
    fields["broker"] = _brokers(clients, unlisted, clients_file)
    if clients_file is not None:
        fields["clients_file"] = clients_file
    declared = CASES[case].scenario.fields()
    written = {name: value for name, value in fields.items() if value != declared[name].default}
    scenario = build_scenario(case, None, written)
    keys = {"case", *written} - {"group"}
    plain = {name: value for name, value in scenario.plain().items() if name in keys}
    return ImportedScenario(
        scenario=scenario,
        toml=toml_lines(plain) + "".join(f"\n[[group]]\n{toml_lines(table)}" for table in tables),
        clients=tuple((c.name or f"device-{c.number}", *c.login) for c in listed),
        notes=tuple(_notes(clients, unlisted, clients_file, treated["left_out"])),
    )


def _client(number: int, values: object, treated: Mapping[str, Any]) -> _Client:
    if not isinstance(values, Mapping):
        raise ScenarioError(CLI_TEXT.LIST_CLIENT(client=number))
    for field, value in values.items():
        if value and (reason := treated["refused"].get(field)):
            raise ScenarioError(CLI_TEXT.LIST_REFUSED(client=number, field=field, reason=reason))
        if not any(field in names for names in (*treated.values(), _FIELDS)):
            raise ScenarioError(CLI_TEXT.LIST_FIELD(client=number, field=shown(field, 40)))
    try:
        return _Client.model_validate({**values, "number": number, "named": frozenset(values)})
    except ValidationError as error:
        first = error.errors()[0]
        values = {"field": first["loc"][0], "value": shown(first["input"]), "fault": first["msg"]}
        raise ScenarioError(CLI_TEXT.LIST_VALUE(client=number, **values)) from None


def _groups(clients: Sequence[_Client]) -> list[tuple[dict[str, object], Sequence[_Client]]]:
    """Return the groups as tables of a scenario, each with its clients.

    The clients of a group differ by a number in their topics, which becomes the number of the
    topic. If a number is missing, or has fewer clients than another, each topic makes a separate
    group.
    """
    kinds: dict[tuple[str, str, object], dict[int, list[_Client]]] = {}
    for client in clients:
        topic, pattern, number = _numbered(client)
        kinds.setdefault((topic, pattern, client.options), {}).setdefault(number, []).append(client)
    spans = {frozenset(kinds[kind]) for kind in kinds if "{topic}" in kind[0] + kind[1]}
    is_literal = any(re.search("[0-9]", topic + pattern) for topic, pattern, _ in kinds)
    # Numbers from 1 become numbers from 0 in all topics, or in none.
    all_even = len(spans) == 1 and all(map(_is_even, kinds.values())) and not is_literal
    first = min(min(spans)) if all_even else 0
    groups: list[tuple[dict[str, object], Sequence[_Client]]] = []
    for (topic, pattern, _), by_number in kinds.items():
        numbers = [*range(first, first + len(by_number))]
        if len(numbers) > 1 and _is_even(by_number) and sorted(by_number) == numbers:
            members = [client for number in numbers for client in by_number[number]]
            groups.append((_table(topic, pattern, len(numbers), members), members))
        else:
            groups += (
                (_table(same[0].topic, same[0].filter, 0, same), same)
                for same in by_number.values()
            )
    return [
        ({"name": f"{_role(table)}{place}"} | table, members)
        for place, (table, members) in enumerate(groups, 1)
    ]


def _role(table: Mapping[str, object]) -> str:
    if "topic" in table:
        return "publishers"
    return "subscribers" if "subscribe" in table else "idle"


def _is_even(by_number: Mapping[int, Sequence[_Client]]) -> bool:
    return len({len(members) for members in by_number.values()}) == 1


def _numbered(client: _Client) -> tuple[str, str, int]:
    """Return topic and filter with `{topic}` for the last number that both have, and the number."""
    texts = [text for text in (client.topic, client.filter) if text]
    numbers = {found[0] for text in texts if (found := _LAST_NUMBER.search(text))}
    topic, pattern = (_LAST_NUMBER.sub("{topic}", text) for text in (client.topic, client.filter))
    if len(numbers) != 1 or pattern_fault(topic) or pattern_fault(pattern):
        return client.topic, client.filter, 0
    return topic, pattern, int(numbers.pop())


def _table(topic: str, pattern: str, topics: int, members: Sequence[_Client]) -> dict[str, object]:
    table: dict[str, object] = {"count": len(members)}
    if topic:
        table["topic"] = topic
    if pattern:
        table["subscribe"] = [pattern]
    if "{topic}" in topic + pattern:
        table["topics"] = topics
    return table | dict(members[0].options)


def _same(clients: Sequence[_Client], field: str, value: Callable[[_Client], Any]) -> Any:
    """Return the value that all clients share; ScenarioError names two that differ."""
    for client in clients:
        if value(client) != value(clients[0]):
            numbers = {"first": clients[0].number, "second": client.number}
            raise ScenarioError(CLI_TEXT.LIST_UNLIKE(field=field, **numbers))
    return value(clients[0]) if clients else None


def _common(clients: Sequence[_Client]) -> dict[str, object]:
    _same(clients, "useTLS or WebSocket", lambda client: client.url.partition(":")[0])
    fields = {
        "mqtt": _same(clients, "version", lambda client: _MQTT[client.version[-1]]),
        "tls_certificate": _same(clients, "clientCertPath", lambda client: client.certificate),
        "tls_key": _same(clients, "clientKeyPath", lambda client: client.key),
        "connect_timeout": _same(
            clients, "connectionTimeoutSecs", lambda client: client.timeout_s or None
        ),
    }
    reconnect_us = _same(clients, "reconnectDelayUSecs", lambda client: client.reconnect_us)
    if reconnect_us:
        fields["reconnect"] = max(reconnect_us / 1e6, 0.01)
    return {name: value for name, value in fields.items() if value is not None}


def _brokers(
    clients: Sequence[_Client], unlisted: Sequence[_Client], clients_file: str | None
) -> tuple[str, ...]:
    """Return the URLs, with the user of all devices that are not in the file of clients."""
    if clients_file is None and len({client.login for client in unlisted}) > 1:
        raise ScenarioError(CLI_TEXT.LIST_LOGINS())
    user, _ = _same(unlisted, "username of other groups", lambda client: client.login) or ("", "")
    login = f"://{quote(user, safe='')}@" if user else "://"
    return tuple(url.replace("://", login) for url in dict.fromkeys(c.url for c in clients))


def _notes(
    clients: Sequence[_Client],
    unlisted: Sequence[_Client],
    clients_file: str | None,
    left_out: Mapping[str, str],
) -> Iterable[str]:
    named = {name for client in clients for name in client.named}
    if any(client.topic for client in clients):
        yield "rate: mqttbench takes it from its command line; here it is one a second for each"
    elif "subscriptions" in named:
        yield "subscriptions: each client subscribes to one topic of loadgen"
    for name in sorted(named & left_out.keys()):
        yield f"{name}: left out, {left_out[name]}"
    if clients_file is None and "_id" in named:
        yield "_id: left out; keep them with --clients FILE"
    elif any(client.name for client in unlisted):
        yield "_id: kept for the first group, others have loadgen's own"
    if unlisted and unlisted[0].login[1] is not None:
        yield "password: left out; give it with --password prompt, env:NAME or file:PATH"
