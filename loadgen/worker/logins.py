"""The CONNECT of each device, and the file of client identifiers and logins."""

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path

from loadgen.errors import ScenarioError
from loadgen.mqtt import packets
from loadgen.mqtt.constants import MQTT_5
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.plan.accounts import login_of
from loadgen.plan.addressing import client_id
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.plan import Plan
from loadgen.sentences import WORKER_TEXT

Clients = list[tuple[str, str | None, str | None]]
Listed = Mapping[str, Clients]
"""Identifiers and logins of the devices of groups, by the name of the group."""

_CLIENT_COLUMNS = frozenset(("client_id", "username", "password"))
_STRING_BYTES = 65_535  # of a string in MQTT (MQTT 5, 1.5.4)


def read_clients(path: Path) -> Clients:
    """Read client identifier, user name and password of each device, from a CSV file with a header.

    Raise ScenarioError for an unreadable file or an invalid row, without values of the file.
    """
    shown = ascii(str(path)[:200])[1:-1]
    try:
        # utf-8-sig: a spreadsheet's byte order mark is not part of the first column's name.
        with path.open(newline="", encoding="utf-8-sig") as lines:
            rows = csv.reader(lines)
            names = next(rows, [])
            if "client_id" not in names or not _CLIENT_COLUMNS.issuperset(names):
                raise ScenarioError(WORKER_TEXT.NO_HEADER(path=shown))
            return _clients(((rows.line_num, row) for row in rows), names, shown)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = error if isinstance(error, OSError) else "it is not CSV text"
        raise ScenarioError(WORKER_TEXT.UNREADABLE(path=shown, reason=reason)) from None


def listed_clients(plan: Plan) -> Listed:
    files = ((group.name, group.clients_file) for group in plan.groups)
    return {name: read_clients(Path(file)) for name, file in files if file is not None}


def _clients(rows: Iterable[tuple[int, list[str]]], names: list[str], shown: str) -> Clients:
    clients: Clients = []
    lines: dict[str, int] = {}
    for line, row in rows:
        if not row:
            continue
        if len(row) != len(names):
            counts = {"values": len(row), "columns": len(names)}
            raise ScenarioError(WORKER_TEXT.COLUMNS(path=shown, line=line, **counts))
        fields = dict(zip(names, row, strict=True))
        client_id = fields["client_id"]
        if not client_id or len(client_id.encode()) > _STRING_BYTES or "\0" in client_id:
            raise ScenarioError(WORKER_TEXT.CLIENT_ID(path=shown, line=line))
        if client_id in lines:
            values = {"line": line, "other": lines[client_id]}
            raise ScenarioError(WORKER_TEXT.SAME_CLIENT_ID(path=shown, **values))
        lines[client_id] = line
        clients.append((client_id, fields.get("username") or None, fields.get("password") or None))
    return clients


def connect_of(
    plan: Plan,
    group: DeviceGroup,
    device: int,
    clean_start: bool,
    listed: Listed,
) -> packets.Connect:
    client, version = client_id(plan, group, device), plan.version_of(group)
    user_name, password = group.login or (plan.username, plan.password)
    if plan.scenario.access_control:
        user_name, password = login_of(plan.password or "", group, device)
    if group.name in listed:
        client, user_name, password = listed[group.name][device]
    properties, will = NO_PROPERTIES, None
    if group.will is not None:
        will = packets.Will(group.will.replace("{device}", str(device)), b"")
    if version == MQTT_5 and not clean_start:
        properties = Properties(session_expiry_interval=group.session_expiry_s)
    return packets.Connect(
        client_id=client,
        protocol_version=version,
        clean_start=clean_start,
        keep_alive=group.keep_alive_s,
        user_name=user_name,
        password=None if password is None else password.encode(),
        will=will,
        properties=properties,
    )
