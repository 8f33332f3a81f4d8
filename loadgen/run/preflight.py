"""The checks before a run: each returns, or raises the one error with its remedy."""

import ipaddress
import json
import os
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.brokers.ask import together
from loadgen.brokers.endpoints import parse_broker
from loadgen.brokers.front import FORWARD_TIMEOUT_S, require_forwarding
from loadgen.brokers.process import UNKNOWN, ServedBroker
from loadgen.brokers.rehearsal import Wanted, folded, rehearse, version_of
from loadgen.brokers.watch import require_process
from loadgen.cases.registry import case_of, resolve, vary
from loadgen.errors import BrokerRefusedError, ScenarioError
from loadgen.kernels.payload import HEADER_BYTES, IN_FRONT
from loadgen.mqtt.codec import CLIENT_ID_CHARACTERS
from loadgen.mqtt.constants import MQTT_3_1, VERSION_NAMES
from loadgen.plan.addressing import client_id
from loadgen.plan.fields import Size
from loadgen.plan.fit import fit_plan, fitting_instances
from loadgen.plan.groups import Target, Tls
from loadgen.plan.payload_template import read_template
from loadgen.plan.plan import Plan
from loadgen.plan.rehearsal import acquainted
from loadgen.plan.scenario import WHOLE_SIZE_MAXIMUM_BYTES, Scenario, processors_of
from loadgen.plan.sut import FILE_LIMIT_CHARACTERS, read_description
from loadgen.run.environment import host_of, machine_identity
from loadgen.run.secrets import with_secrets
from loadgen.sentences import BROKER_TEXT, PLAN_TEXT, RUN_TEXT, printable
from loadgen.worker import tls
from loadgen.worker.logins import connect_of, listed_clients

_USE_MOSQUITTO = "install Mosquitto (apt install mosquitto)"
FILES_CHECKED = 10_000
"""Up to this number of devices, the files of each one are checked; this takes a moment."""


def check_scenario(scenario: Scenario) -> None:
    """Check what can be checked before anything starts; secrets must have been read."""
    check_host(with_secrets(resolve(completed(scenario))))


def check_host(plan: Plan) -> None:
    """Check what can be checked before any broker is known."""
    if plan.scenario.broker_pid is not None:
        require_process(plan.scenario.broker_pid)
    bridge = plan.brokers.bridge
    for entry in (*plan.brokers.names, *(bridge.urls if bridge else ())):
        parse_broker(entry)
    usable = sorted(os.sched_getaffinity(0))
    missing = set(processors_of(plan.scenario.affinity)).difference(usable)
    if missing:
        raise ScenarioError(RUN_TEXT.PROCESSOR(missing=min(missing), usable=tuple(usable[:30])))
    _require_certificates(plan)
    _require_clients(plan)
    _require_source_addresses(plan)
    described_system(plan)


def require_hosts(plan: Plan, machines: Sequence[str] | None) -> None:
    """Require as many hosts as the scenario has, all of which reach the broker.

    `machines` are their `machine_identity`, None for this host alone.
    """
    count = 1 if machines is None else len(machines)
    if plan.scenario.hosts != count:
        raise ScenarioError(RUN_TEXT.OTHER_HOSTS(wanted=plan.scenario.hosts, count=count))
    if machines and plan.brokers.private and set(machines) != {machine_identity()}:
        raise ScenarioError(RUN_TEXT.PRIVATE_BROKER())


async def check_broker(plan: Plan, broker: ServedBroker) -> ServedBroker:
    """Rehearse the plan with the broker; return it with its version and remarks.

    Raise BrokerRefusedError for a feature that it lacks; with `anyway`, add a remark instead.
    """
    # Of the brokers that are started here only NATS lacks features that a case may need. The
    # reflector keeps no sessions, which matters only if devices return; the ledger shows it then.
    if not broker.started_by_us or broker.name == "nats":

        async def version() -> str:
            if broker.started_by_us:
                return broker.version
            first = broker.endpoints[asking.roles[0].target]
            return await version_of(first, asking.connects[0], asking.tls_context)

        asking = wanted(plan, broker)
        rehearsed, stated = await together(rehearse(asking), version())
        if rehearsed.lacks and not plan.scenario.anyway:
            raise BrokerRefusedError(RUN_TEXT.LACKS(what=rehearsed.lacks[0]))
        remarks = folded((*rehearsed.lacks, *rehearsed.remarks))
        if stated == UNKNOWN and plan.scenario.broker_name is None:
            remarks.append(BROKER_TEXT.NAMELESS(where=broker.name))
        broker = replace(broker, version=stated, remarks=tuple(remarks))
    bridge = plan.brokers.bridge
    if bridge is not None:
        fronts = len(plan.brokers.names)
        for front in broker.endpoints[:fronts]:
            await require_forwarding(
                front,
                broker.endpoints[fronts:],
                bridge,
                version=plan.version,
                tls_context=tls_context(plan),
                timeout_s=min(FORWARD_TIMEOUT_S, plan.phases.timeout_s),
            )
    return broker


def downgraded(plan: Plan, error: BrokerRefusedError) -> Plan | None:
    """Return the plan with MQTT 3.1.1 for a broker that answers MQTT 5 in its words, else None."""
    answer = error.values.get("answer")
    if getattr(answer, "code", "") != BROKER_TEXT.CONNACK_OF_3_1_1.code:
        return None
    try:
        return with_secrets(resolve(vary(plan.scenario, {"mqtt": "3.1.1"})))
    except ScenarioError:
        return None  # a case that needs MQTT 5


def tls_context(plan: Plan) -> ssl.SSLContext | None:
    """Return the TLS of the coordinator's own connections, with the first device's certificate."""
    return tls.tls_context(plan.tls) if plan.encrypted else None


def completed(scenario: Scenario) -> Scenario:
    """Return the scenario with the sizes of its payload files, and with enough reflectors.

    The reflector is not under test: without `instances`, as many are started as the connections
    need. Raise HostLimitError if these do not fit on this host.
    """
    scenario = _with_payload_size(scenario)
    if scenario.broker != ("reflector",) or "instances" in scenario.model_fields_set:
        return scenario
    plan, host = resolve(scenario), replace(host_of(), name="", addresses=())
    enough = fitting_instances(plan.brokers, host, plan.groups)
    if enough is None or enough == scenario.instances:
        return scenario
    scenario = vary(scenario, {"instances": enough})
    # Starting many takes minutes, so a plan that does not fit is refused first.
    targets = tuple(Target("127.0.0.1", port) for port in range(1, enough + 1))
    fit_plan(resolve(scenario), host, targets, 0)
    return scenario


def _with_payload_size(scenario: Scenario) -> Scenario:
    changes: dict[str, object] = {}
    kind = scenario.fields().get("size")
    if isinstance(kind, Size):
        stated = {"size": scenario.size} if "size" in scenario.model_fields_set else {}
        names = {"payload": scenario.payload, "payload_template": scenario.payload_template}
        if size := _size_of_payload(names | stated, int(kind.maximum), scenario.header):
            changes["size"] = size
        if "group" in scenario.fields():
            tables = json.loads(scenario.group)
            for table in tables:
                if size := _size_of_payload(table, int(kind.maximum), scenario.header):
                    table["size"] = size
            changes["group"] = json.dumps(tables)
    return scenario.model_copy(update=changes)


def _size_of_payload(
    keys: Mapping[str, Any], limit_bytes: int, header: str
) -> tuple[int, int] | None:
    """Return the size of messages with the payload file or template of these keys."""
    name = "payload" if keys.get("payload_template") is None else "payload_template"
    file_name = keys.get(name)
    if file_name is None:
        return None
    path = Path(file_name)
    if name == "payload_template":
        limit_bytes = WHOLE_SIZE_MAXIMUM_BYTES
    if path.exists() and not path.is_file():
        raise ScenarioError(RUN_TEXT.NOT_A_FILE(field=name, path=file_name))
    try:
        header_bytes = HEADER_BYTES if header == "payload" else 0
        size_bytes = header_bytes + path.stat().st_size
        with path.open("rb") as file:
            if name == "payload_template":
                text = file.read(limit_bytes + 1)
                body, _, place = read_template(text)
                if place != IN_FRONT and header != "payload":
                    raise ScenarioError(PLAN_TEXT.TWO_HEADERS())
                size_bytes = header_bytes + len(body)
    except OSError as error:
        raise ScenarioError(RUN_TEXT.UNREADABLE(field=name, path=file_name, reason=error)) from None
    if size_bytes > limit_bytes:
        raise ScenarioError(RUN_TEXT.LARGE(field=name, size=size_bytes, most=limit_bytes))
    size = (size_bytes, size_bytes)
    if tuple(keys.get("size", size)) != size:
        raise ScenarioError(RUN_TEXT.SIZE_OF_PAYLOAD(size=size_bytes))
    return size


def _require_certificates(plan: Plan) -> None:
    """Require the TLS files of all devices, or of the first and last of each large group."""
    counts = [group.count for group in plan.groups if group.count]
    devices: Sequence[int] = range(max(counts, default=0))
    if len(devices) > FILES_CHECKED:
        devices = sorted({0} | {count - 1 for count in counts})
    files = plan.tls
    patterns = (files.ca_file, files.certificate_file, files.key_file)
    for field, pattern in zip(("tls_ca", "tls_certificate", "tls_key"), patterns, strict=True):
        each = field != "tls_ca" and "{device}" in (pattern or "")
        for number in devices if each else (0,):
            path = (pattern or "").replace("{device}", str(number)) if each else pattern
            if path and not os.access(path, os.R_OK):
                owner = f"device {number:,}" if each else "every device"
                shown = printable(path, 200)
                raise ScenarioError(RUN_TEXT.TLS_FILE(field=field, path=shown, devices=owner))
    # An agent gets the passphrase of the key with its plan.
    if files != Tls() and (files.passphrase or plan.scenario.tls_passphrase is None):
        tls.tls_context(files)


def _require_clients(plan: Plan) -> None:
    """Require identifiers that MQTT allows, and files of clients that suit their groups."""
    all_listed = listed_clients(plan)
    pattern = plan.scenario.client_id
    names: dict[str, str] = {}
    files = [group.clients_file for group in plan.groups if group.clients_file is not None]
    for group in plan.groups:
        clients, path = all_listed.get(group.name, ()), group.clients_file
        listed, version = clients[: group.count], plan.version_of(group)
        if version == MQTT_3_1 and group.count:
            last = client_id(plan, group, group.count - 1)
            longest = max(*(name for name, _, _ in clients), last, "", key=len)
            if len(longest) > CLIENT_ID_CHARACTERS:
                values = {"length": len(longest), "most": CLIENT_ID_CHARACTERS}
                shown = printable(longest, 60)
                raise ScenarioError(RUN_TEXT.LONG_CLIENT_ID(client_id=shown, **values))
        if version != 5 and any(secret and not user for _, user, secret in listed):
            raise ScenarioError(RUN_TEXT.PASSWORD_ALONE(path=path, mqtt=VERSION_NAMES[version]))
        if path is not None and len(clients) < group.count:
            counts = {"rows": len(clients), "devices": group.count}
            raise ScenarioError(RUN_TEXT.FEW_CLIENTS(path=path, **counts))
        if path is None and pattern is None:
            continue
        for device in range(group.count if all_listed else 0):
            name = listed[device][0] if path is not None else client_id(plan, group, device)
            if names.setdefault(name, group.name) != group.name:
                where = {"path": files[0], "device": device, "group": group.name}
                raise ScenarioError(RUN_TEXT.SAME_CLIENT_ID(**where))


def _require_source_addresses(plan: Plan) -> None:
    """Require source addresses of this host; other hosts have their own."""
    stated = {plan.scenario.source_address, *(group.source for group in plan.groups)} - {None}
    if plan.scenario.hosts > 1:
        return
    for networks in sorted(filter(None, stated)):
        network = ipaddress.ip_network(networks.partition(",")[0])
        address = str(next(iter(network.hosts()), network[0]))
        family = socket.AF_INET6 if network.version == 6 else socket.AF_INET
        try:
            with socket.socket(family, socket.SOCK_STREAM) as sock:
                sock.bind((address, 0))
        except OSError:
            text = BROKER_TEXT.SOURCE_ADDRESS(networks=networks, address=address)
            raise ScenarioError(text) from None


def described_system(plan: Plan) -> dict[str, dict[str, Any]]:
    """Return the description of the system under test; empty without one."""
    if plan.scenario.sut is None:
        return {}
    shown = printable(plan.scenario.sut, 200)
    try:
        with Path(plan.scenario.sut).open("rb") as file:
            text = file.read(4 * FILE_LIMIT_CHARACTERS + 1).decode("utf-8")
    except OSError as error:
        raise ScenarioError(RUN_TEXT.UNREADABLE(field="sut", path=shown, reason=error)) from None
    except UnicodeDecodeError:
        raise ScenarioError(RUN_TEXT.NOT_UTF_8(field="sut", path=shown)) from None
    return read_description(text)


def wanted(plan: Plan, broker: ServedBroker) -> Wanted:
    """Return the questions to the broker: the plan's devices in small, with their own logins."""
    listed = listed_clients(plan)
    roles = case_of(plan.scenario.case).roles(plan)
    needs, brokers = plan.needs, plan.brokers
    if broker.name == "nats":
        needs = replace(needs, older=f"{needs.older}, or {_USE_MOSQUITTO}")
    # Between the brokers of a bridge messages are renamed; `check_broker` tries that.
    separate = brokers.separate_count > 1 or brokers.bridge is not None
    if not separate and len(plan.targets) > 1 and any(role.publications for role in roles):
        roles = acquainted(roles, f"{plan.root}/asked")
    connects = []
    for role in roles:
        connect = connect_of(plan, role.group, role.device, True, listed)
        if plan.scenario.client_id is None and role.group.name not in listed:
            # A broker that ends this session late must not end that of the run's device.
            connect = replace(connect, client_id=f"{connect.client_id}a")
        connects.append(connect)
    return Wanted(
        roles=roles,
        connects=connects,
        endpoints=broker.endpoints,
        separate=separate,
        needs=needs,
        sessions="use --no-durable"
        if getattr(plan.scenario, "durable", False)
        else "take another broker",
        may_separate=brokers.may_be_several,
        tls_context=tls_context(plan),
    )
