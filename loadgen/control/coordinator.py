"""Runs one scenario: broker, plan, workers, phases, verdict, run directory.

`run` reads from top to bottom as a run goes. What cannot work is refused before anything is
written; from then on run.json says what is known, so that a killed run can still be read.
"""

import asyncio
import os
import secrets
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from loadgen.brokers.endpoints import Endpoint, parse_broker
from loadgen.brokers.watch import is_local
from loadgen.cases.registry import resolve
from loadgen.control.backends import loads_of
from loadgen.control.crashes import crash_brokers, cut_off
from loadgen.control.devices import write_devices
from loadgen.control.environment import environment, host_of, program
from loadgen.control.facts import facts_of, handshakes_of, rate_step_verdicts
from loadgen.control.interrupt import Interrupt, RunInterruptedError
from loadgen.control.monitor import Monitor, Record
from loadgen.control.network import difference, network_counters
from loadgen.control.phases import PhaseRunner
from loadgen.control.progress import Progress, Snapshot, reported, silent
from loadgen.control.redaction import printable, redact_command
from loadgen.control.run_state import RunState
from loadgen.control.rundir import (
    EventLog,
    IntervalWriter,
    claim,
    release,
    require_free,
    write_json,
)
from loadgen.control.seal import seal
from loadgen.control.tuning import demand_of
from loadgen.control.watched import watched_broker
from loadgen.control.window import window_rows
from loadgen.control.worker_pool import start_workers
from loadgen.engine.fleet import read_clients
from loadgen.errors import BrokerRefusedError, BrokerUnreachableError, ScenarioError
from loadgen.workload.case import Evidence
from loadgen.workload.groups import DeviceGroup, RunPlan, Target, Tls
from loadgen.workload.payload import HEADER_BYTES
from loadgen.workload.plan import describe, plan_run
from loadgen.workload.rate_step_verdict import RateStepVerdict, with_rate_steps
from loadgen.workload.scenario import SIZE_MAXIMUM_BYTES, MessagingScenario, Scenario
from loadgen.workload.template import read_template
from loadgen.workload.verdict import RunFacts, Verdict, judge
from loadgen.workload.workload import Bridge, Brokers, Workload

if TYPE_CHECKING:
    import ssl

    from loadgen.brokers.bridge import Route
    from loadgen.brokers.start import RunningBroker


NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class RunResult:
    """A run that was played. `measured` is whether its measurement window began; `facts` are what
    the verdict was made of, `steps` its rate steps."""

    directory: Path
    verdict: Verdict
    interrupted: bool
    measured: bool
    facts: RunFacts
    steps: tuple[RateStepVerdict, ...] = ()

    @property
    def exit_status(self) -> int:
        """Exit status of the contract."""
        if self.interrupted:
            return 130
        if not self.measured:
            return 3
        return 0 if self.verdict.valid else 1


async def run(
    scenario: Scenario,
    directory: Path,
    *,
    progress: Progress = silent,
    interrupt: Interrupt | None = None,
    command: Sequence[str] = (),
    faults: str = "none",
) -> RunResult:
    """Play the scenario and fill the run directory, which must not exist or be empty.

    `faults` is for a reflector that is started here. Raises LoadgenError where the run could not
    be played; then nothing is left in the directory. RunInterruptedError: `interrupt` came before
    the first connection.
    """
    interrupt = Interrupt() if interrupt is None else interrupt
    stepping = asyncio.Event()
    work = asyncio.ensure_future(
        _run(scenario, directory, progress, interrupt, stepping, command, faults)
    )
    asked = asyncio.ensure_future(interrupt.asked.wait())
    try:
        await asyncio.wait((work, asked), return_when=asyncio.FIRST_COMPLETED)
        if not stepping.is_set():
            # Nothing is under way that could end in order; afterwards the phases do that.
            work.cancel()
        await asyncio.wait((work,))
    finally:
        asked.cancel()
        work.cancel()
        await asyncio.gather(work, asked, return_exceptions=True)
    if work.cancelled():
        raise RunInterruptedError("interrupted before anything was measured")
    return work.result()


async def _run(
    scenario: Scenario,
    directory: Path,
    progress: Progress,
    interrupt: Interrupt,
    stepping: asyncio.Event,
    command: Sequence[str],
    faults: str,
) -> RunResult:
    workload = resolve(_with_payload_size(scenario))
    _require_available(workload)
    require_free(directory)
    progress(Snapshot("broker"))
    async with _broker(workload.brokers, faults) as broker:
        plan = await plan_for(workload, broker.endpoints)
        # Of those that are started here only amqtt lacks anything that a case may need.
        if not broker.started_by_us or broker.name == "amqtt":
            broker = replace(broker, version=await _asked(workload, plan, broker.endpoints))
        await _tried(workload, plan, broker.endpoints)
        claim(directory)
        events = EventLog(directory, broker.secrets)
        try:
            document = _document(workload, plan, broker, command)
            progress(Snapshot("workers"))
            if workload.report_every_s is not None:
                progress = reported(progress, events, workload.report_every_s)
            async with _watched(workload, plan, broker, directory, events):
                result = await _play(
                    workload,
                    plan,
                    directory,
                    document,
                    events,
                    progress,
                    interrupt,
                    stepping,
                    broker,
                )
        finally:
            events.close(time.monotonic_ns())
            release(directory)
    # Nothing of the results is written from here on.
    await asyncio.to_thread(seal, directory)
    return result


async def _play(
    workload: Workload,
    plan: RunPlan,
    directory: Path,
    document: dict[str, Any],
    events: EventLog,
    progress: Progress,
    interrupt: Interrupt,
    stepping: asyncio.Event,
    broker: "ServedBroker",
) -> RunResult:
    """Everything with workers; run.json is written when the window begins, and at the end."""
    manifest = directory / "run.json"
    run_id = document["id"]
    before = network_counters()

    crashes: list[asyncio.Task[None]] = []
    cut: dict[str, Any] = {}

    def measuring() -> None:
        middle_s = workload.phases.duration_s / 2
        if workload.crash == "broker":
            crash = crash_brokers(broker.brokers, middle_s, events)
            crashes.append(asyncio.create_task(crash))
        if workload.crash == "consumer":
            crash = cut_off(pool, plan, middle_s, events, cut)
            crashes.append(asyncio.create_task(crash))
        write_json(manifest, document | _observed(state, (), before) | {"interrupted": True})

    anchor_ns = document["clock"]["monotonic_ns"]
    record = Record(run_id, anchor_ns, events, IntervalWriter(directory, run_id))
    monitor = Monitor(plan, record, progress)
    state = monitor.state
    watched = broker.pids if workload.brokers.bridge is not None else ()
    async with (
        loads_of(watched) as loads,
        start_workers(len(plan.workers), monitor.on_frame, behaviour=plan.behaviour) as pool,
    ):
        stepping.set()
        try:
            await PhaseRunner(plan, workload.phases, pool, monitor, interrupt, measuring).play()
        finally:
            for crash in crashes:
                crash.cancel()
            await asyncio.gather(*crashes, return_exceptions=True)
        lost = tuple(loss.worker for loss in pool.losses)
        if plan.per_device:
            await asyncio.to_thread(write_devices, directory, plan, state.finals)
        facts = replace(
            facts_of(workload, plan, state, lost),
            held_when_cut=int(cut.get("held", 0)),
            repeated=state.tally.total("duplicated"),
        )
        evidence = Evidence(
            workload=workload,
            plan=plan,
            facts=facts,
            finals=state.finals,
            windows=state.windows,
            counts=state.groups,
            loads=loads,
            cut_off=cut,
            broker_is_local=lambda: any(is_local(target.host) for target in plan.targets),
            window_rows=lambda: window_rows(directory),
        )
        review = await asyncio.to_thread(workload.case.review, evidence)
        facts = review.facts
        steps = rate_step_verdicts(state, plan, facts)
        found = await asyncio.to_thread(review.conclude, with_rate_steps(judge(facts), steps))
        verdict = found.verdict
        final = document | _observed(state, lost, before)
        if found.audit is not None:
            final["audit"] = found.audit
        if found.observed is not None:
            final["observed"][workload.case.name] = found.observed
        for name, content in found.files.items():
            await asyncio.to_thread(write_json, directory / name, content)
        if steps:
            final["steps"] = [_step_document(step) for step in steps]
        final["interrupted"] = state.ending == "interrupted"
        final["verdict"] = {
            "valid": verdict.valid,
            "reasons": [asdict(reason) for reason in verdict.reasons],
        }
        write_json(manifest, final)
    measured = "measure" in state.windows if state.messages else state.connected is not None
    return RunResult(directory, verdict, final["interrupted"], measured, facts, steps)


def _step_document(found: RateStepVerdict) -> dict[str, Any]:
    """One rate step for run.json."""
    facts = found.facts
    return {
        "share": found.step.share,
        "rate": found.rate,
        "seconds": facts.window_s,
        "sent": facts.sent,
        "expected": facts.expected,
        "lost": facts.expected - facts.received,
        "owed": found.owed,
        "p99_us": facts.latency_p99_us,
        "busy_share": facts.busy_share,
        "verdict": {
            "valid": found.verdict.valid,
            "reasons": [asdict(reason) for reason in found.verdict.reasons],
        },
    }


_FILES_CHECKED = 10_000
"""Up to so many devices the files of all are looked for, which takes a moment."""


def _require_available(workload: Workload) -> None:
    """Refuse what is not a broker's URL, and what this version or this host cannot play."""
    for address in workload.brokers.addresses:
        parse_broker(address)
    if workload.hosts != 1:
        raise ScenarioError("hosts: this version runs on one host; leave it at 1")
    missing = set(workload.processors) - os.sched_getaffinity(0)
    if missing:
        usable = ",".join(map(str, sorted(os.sched_getaffinity(0))))
        raise ScenarioError(
            f"affinity: this process may not use processor {min(missing)}; allowed: {usable[:100]}"
        )
    _require_certificates(workload.tls, workload.groups)
    if workload.clients_file is not None:
        clients = read_clients(Path(workload.clients_file))
        wanted = workload.groups[0].count
        if workload.version == 4 and any(p and not u for _, u, p in clients[:wanted]):
            raise ScenarioError(
                f"clients_file: {workload.clients_file} has a password without a username, which "
                "MQTT 3.1.1 does not allow; use mqtt 5"
            )
        if len(clients) < wanted:
            raise ScenarioError(
                f"clients_file: {workload.clients_file} has {len(clients):,} rows and "
                f"{wanted:,} devices need one each"
            )
        _require_other_names(workload, [own for own, _, _ in clients[:wanted]])


def _require_other_names(workload: Workload, listed: Sequence[str]) -> None:
    """Refuse a file that names a device as the pattern names one of another group."""
    if workload.client_id is None:
        return
    names = set(listed)
    for number, group in enumerate(workload.groups[1:], 1):
        pattern = workload.client_id.replace("{group}", str(number))
        for device in range(group.count):
            if pattern.replace("{device}", str(device)) in names:
                raise ScenarioError(
                    f"clients_file: {workload.clients_file} has the client_id that the pattern "
                    f"client_id gives to device {device:,} of the {group.name}; allowed: another "
                    "for each device"
                )


def _require_certificates(tls: Tls, groups: Sequence[DeviceGroup]) -> None:
    """Refuse TLS files that are not there: every device's, or of many each group's ends."""
    devices = range(max(group.count for group in groups))
    some = {0} | {group.count - 1 for group in groups if group.count}
    files = {"ca": tls.ca_file, "certificate": tls.certificate_file, "key": tls.key_file}
    for name, given in files.items():
        if not given:
            continue
        field = f"tls_{name}"
        numbers: Sequence[int] = (0,)
        if field != "tls_ca" and "{device}" in given:
            numbers = devices if len(devices) <= _FILES_CHECKED else sorted(some)
        for number in numbers:
            path = given if field == "tls_ca" else given.replace("{device}", str(number))
            if not os.access(path, os.R_OK):
                whose = f"device {number:,}" if "{device}" in given else "every device"
                raise ScenarioError(
                    f"{field}: {printable(path, 200)} cannot be read and {whose} needs it; "
                    "allowed: files that exist, with {device} from 0 on"
                )


def _with_payload_size(scenario: Scenario) -> Scenario:
    """The scenario with the size that its payload file or template gives a message."""
    if not isinstance(scenario, MessagingScenario):
        return scenario
    name = "payload" if scenario.payload_template is None else "payload_template"
    given = scenario.payload or scenario.payload_template
    if given is None:
        return scenario
    path = Path(given)
    if path.exists() and not path.is_file():
        raise ScenarioError(f"{name}: {given} is no file")
    try:
        size_bytes = HEADER_BYTES + path.stat().st_size
        with path.open("rb") as file:
            if scenario.payload_template is not None:
                text = file.read(SIZE_MAXIMUM_BYTES + 1)
                size_bytes = HEADER_BYTES + len(read_template(text)[0])
    except OSError as error:
        raise ScenarioError(f"{name}: {given} cannot be read: {error.strerror}") from None
    if size_bytes > SIZE_MAXIMUM_BYTES:
        raise ScenarioError(
            f"{name}: with its header a message has {size_bytes:,} bytes; allowed: "
            f"{SIZE_MAXIMUM_BYTES:,} at most"
        )
    return scenario.model_copy(update={"size": (size_bytes, size_bytes)})


# The broker -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ServedBroker:
    """The broker of a run: where it is and what is known of it."""

    name: str
    version: str
    endpoints: tuple[Endpoint, ...]
    started_by_us: bool
    pids: tuple[int, ...] = ()
    secrets: tuple[str, ...] = ()
    brokers: tuple["RunningBroker", ...] = ()


@asynccontextmanager
async def _broker(wanted: Brokers, faults: str) -> AsyncIterator[ServedBroker]:
    """The brokers that are asked for, started here where they are private."""
    if wanted.bridge is not None:
        async with _bridge(wanted, wanted.bridge) as served_bridge:
            yield served_bridge
        return
    # Starting brokers needs the MQTT stack; a module that only reads run directories does not.
    from loadgen.brokers.start import serve

    able = wanted.private and wanted.names[0] not in ("reflector", "sink")
    async with serve(
        wanted.names,
        instances=wanted.instances,
        persistence=wanted.stores and able,
        faults=faults,
    ) as served:
        yield ServedBroker(
            name=served.name,
            version=served.version,
            endpoints=served.endpoints,
            started_by_us=bool(served.brokers),
            pids=served.pids,
            brokers=tuple(served.brokers),
            secrets=tuple(e.password for e in served.endpoints if e.password),
        )


@asynccontextmanager
async def _bridge(wanted: Brokers, bridge: Bridge) -> AsyncIterator[ServedBroker]:
    """Front and backends, in this order; started here unless URLs name them."""
    if bridge.urls:
        parsed = [parse_broker(url) for url in wanted.addresses]
        endpoints = tuple(endpoint for endpoint in parsed if isinstance(endpoint, Endpoint))
        if len({endpoint.scheme for endpoint in endpoints}) > 1:
            raise ScenarioError("backend: another scheme than broker; allowed: the same in all")
        logins = tuple(endpoint.password for endpoint in endpoints if endpoint.password)
        yield ServedBroker("external", "unknown", endpoints, False, secrets=logins)
        return
    from loadgen.brokers.bridge import serve_bridge

    async with serve_bridge(
        _routes(bridge), bridge.backends, bridge.qos, persistence=bridge.durable
    ) as served:
        yield ServedBroker(
            name=served.front.name,
            version=served.front.version,
            endpoints=tuple(one.endpoints[0] for one in served.brokers),
            started_by_us=True,
            pids=tuple(one.pid for one in served.brokers),
            brokers=served.brokers,
        )


def _routes(bridge: Bridge) -> "tuple[Route, ...]":
    from loadgen.brokers.bridge import routes_of

    return routes_of(bridge.backends, bridge.topics, bridge.front_root, bridge.backend_root)


async def _tried(workload: Workload, plan: RunPlan, endpoints: Sequence[Endpoint]) -> None:
    """Refuse a broker without shared subscriptions, and a bridge that does not forward."""
    needs, bridge = workload.needs, workload.brokers.bridge
    if needs.shared:
        from loadgen.brokers.shared import require_shared

        for endpoint in endpoints:
            await require_shared(endpoint, tls_context=_tls_context(plan), lacks=needs.shared)
    if bridge is not None:
        from loadgen.brokers.bridge import FORWARD_TIMEOUT_S, require_forwarding

        fronts = len(workload.brokers.names)
        await require_forwarding(
            endpoints[:fronts],
            endpoints[fronts:],
            _routes(bridge),
            version=plan.version,
            tls_context=_tls_context(plan),
            timeout_s=min(FORWARD_TIMEOUT_S, workload.phases.timeout_s),
        )


def _watched(
    workload: Workload, plan: RunPlan, broker: ServedBroker, directory: Path, events: EventLog
) -> AbstractAsyncContextManager[None]:
    """Watches the broker of this run for the length of the block."""
    own = broker.brokers
    return watched_broker(
        directory,
        events,
        name=broker.name,
        endpoints=[one.endpoints[0] for one in own] or broker.endpoints,
        # Asked for each time: a broker that crashes on request comes back as another process.
        own_pids=(lambda: [one.pid for one in own]) if own else None,
        broker_pid=workload.broker_pid,
        # A message that is forwarded is counted by two brokers.
        counts=workload.brokers.bridge is None,
        tls_context=_tls_context(plan),
    )


def _tls_context(plan: RunPlan) -> "ssl.SSLContext | None":
    """How the coordinator itself connects: with the first device's certificate, if each has one."""
    if plan.tls is None:
        return None
    from loadgen.engine.tls import tls_context, tls_of_device

    return tls_context(tls_of_device(plan.tls, 0))


async def _asked(workload: Workload, plan: RunPlan, endpoints: Sequence[Endpoint]) -> str:
    """Version of the broker at these endpoints, each of which must be able to play the case."""
    from loadgen.brokers.probe import probe

    context = _tls_context(plan)
    if workload.clients_file is not None and endpoints[0].username is None:
        _, username, password = read_clients(Path(workload.clients_file))[0]
        endpoints = [replace(one, username=username, password=password) for one in endpoints]
    found = await asyncio.gather(*(probe(e, tls_context=context) for e in endpoints))
    needs = workload.needs
    for facts in found:
        where = facts.endpoint.redacted
        if needs.version not in facts.versions:
            raise BrokerRefusedError(
                f"{where} does not speak MQTT {workload.protocol}; {needs.older}"
            )
        highest = facts.maximum_qos
        if highest is not None and needs.qos > highest:
            raise BrokerRefusedError(
                f"{where} allows QoS {highest} at most and the scenario asks for {needs.qos}; "
                f"use {needs.qos_option.format(highest=highest)}"
            )
        limit_bytes = facts.maximum_packet_size_bytes
        if limit_bytes is not None and needs.payload_bytes >= limit_bytes:
            raise BrokerRefusedError(
                f"{where} takes packets of {limit_bytes:,} bytes at most and payloads have up to "
                f"{needs.payload_bytes:,}; raise the broker's limit, or make them smaller"
            )
        if facts.wildcard_subscription_available is False and needs.wildcards:
            raise BrokerRefusedError(f"{where} allows no wildcard subscription, {needs.wildcards}")
    return found[0].version


async def plan_for(workload: Workload, endpoints: Sequence[Endpoint]) -> RunPlan:
    """The plan for this host against these endpoints, with a new run tag."""
    logins = {(endpoint.username, endpoint.password) for endpoint in endpoints}
    if len(logins) > 1:
        raise ScenarioError("broker: the URLs have different users; allowed: the same in all")
    ((username, password),) = logins
    return plan_run(
        workload,
        host_of(),
        tuple([await _target(endpoint) for endpoint in endpoints]),
        secrets.randbits(32),
        username=username,
        password=password,
    )


_TRANSPORTS: Mapping[str, Literal["tcp", "tls", "ws", "wss"]] = {
    "mqtt": "tcp",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
}


async def _target(endpoint: Endpoint) -> Target:
    """The endpoint with its address looked up once, not by every device.

    A name that a certificate or an HTTP header must match stays a name.
    """
    host = endpoint.host
    if endpoint.scheme == "mqtt":
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, endpoint.port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise BrokerUnreachableError(
                f"no broker at {endpoint.redacted}: {error.strerror or error}; is the name right?"
            ) from None
        host = str(found[0][4][0])
    return Target(host, endpoint.port, _TRANSPORTS[endpoint.scheme], endpoint.path or "/mqtt")


# run.json -------------------------------------------------------------------------------------


def _document(
    workload: Workload, plan: RunPlan, broker: ServedBroker, command: Sequence[str]
) -> dict[str, Any]:
    """What is known of a run before it begins; the keys that `_observed` adds are still missing."""
    now = datetime.now(UTC)
    clock = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    return {
        "schema": 1,
        "id": f"{now:%Y%m%dT%H%M%SZ}-{workload.case.name}-{plan.run_tag:08x}",
        "case": workload.case.name,
        "program": program(),
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": redact_command(command or sys.argv, broker.secrets),
        "scenario": workload.given,
        "plan": {"hosts": 1, **describe(plan)},
        "seed": workload.seed,
        "environment": environment(demand_of(workload, plan)),
        "broker": {
            "name": broker.name,
            "version": printable(broker.version, 200),
            "urls": [endpoint.redacted for endpoint in broker.endpoints],
            "protocol": f"MQTT {workload.protocol}",
            "started_by_us": broker.started_by_us,
        },
        "clock": clock,
    }


def _observed(state: RunState, lost: tuple[int, ...], before: Mapping[str, int]) -> dict[str, Any]:
    """What was seen by now."""
    connected, subscribed = state.connected, state.subscribed
    document: dict[str, Any] = {
        "windows": {name: list(window) for name, window in state.windows.items()},
        "network": difference(before, network_counters()),
        "observed": {
            "owed_at_window_end": state.owed_at_window_end,
            "owed_at_end": state.owed_at_end,
            "high_water_mark": state.high_water_mark if state.messages else None,
            "backlog_samples": state.backlog_samples,
            "busy_share_max": state.tally.busy_share_max(),
            "workers_lost": list(lost),
            "clock_bound_ns": 0,
        },
    }
    tls = handshakes_of(state.finals)
    if tls is not None:
        document["observed"]["tls"] = tls
    if connected is not None:
        document["connect"] = {
            "connected": connected.done,
            "failures": dict(connected.failures),
            "seconds": connected.seconds,
        }
    if subscribed is not None:
        document["subscribe"] = {
            "subscribed": subscribed.done,
            "failures": dict(subscribed.failures),
            "seconds": subscribed.seconds,
        }
    return document
