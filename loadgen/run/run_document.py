"""run.json: the definition of a run before it begins, and then its observations."""

import re
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from loadgen import PROGRAM
from loadgen.brokers.process import UNKNOWN, ServedBroker
from loadgen.cases.case import Conclusion
from loadgen.judge.facts import RunFacts
from loadgen.judge.own_delay import HostDelay, own_part_us
from loadgen.judge.verdict import RateStepVerdict
from loadgen.plan.addressing import timed_between_hosts
from loadgen.plan.fit import describe
from loadgen.plan.plan import Plan
from loadgen.run.collect_facts import handshakes_of
from loadgen.run.environment import environment
from loadgen.run.host_watch import HostSample, between, difference
from loadgen.run.hosts.remote_host import Hosts
from loadgen.run.preflight import described_system
from loadgen.run.redaction import redact_command
from loadgen.run.run_state import Outcome, RunState, Window
from loadgen.run.rundir import write_json
from loadgen.run.tuning import demand_of
from loadgen.sentences import printable

_VERSIONED = re.compile(r"(\S.*?)(?: version)? v?(\d\S*)")
"""As brokers and people write a name with a version."""


@dataclass(frozen=True, slots=True)
class RunDocument:
    """The run.json of one run; `begun` is its part from before the run."""

    directory: Path
    begun: Mapping[str, Any]
    hosts: Hosts | None = None
    between_hosts: bool = False

    @property
    def run(self) -> str:
        return str(self.begun["id"])

    @property
    def anchor_ns(self) -> int:
        """When the run's seconds begin (CLOCK_MONOTONIC)."""
        return int(self.begun["clock"]["monotonic_ns"])

    def write_begun(self, *, connects: bool = True) -> None:
        """Write the state as the first device connects, if this run connects devices."""
        connecting = {"connect": [time.monotonic_ns(), None]} if connects else {}
        self._write({"windows": connecting, "interrupted": True})

    def discard(self) -> None:
        (self.directory / "run.json").unlink(missing_ok=True)

    def write_unfinished(self, state: RunState) -> None:
        """Write the state as the measurement begins, so that a killed run can be read."""
        self._write(self._seen(state, ()) | {"interrupted": True})

    def write(
        self,
        state: RunState,
        facts: RunFacts,
        conclusion: Conclusion,
        steps: Sequence[RateStepVerdict],
    ) -> None:
        """Write the whole of a run that has ended, and the files of its case."""
        seen = self._seen(state, facts.ending.workers_lost)
        own = facts.generator.own_delay
        seen["observed"]["own_delay"] = asdict(own) | {"p99_us": own_part_us(own, facts.bounds)}
        if self.hosts is not None:
            seen["hosts"] = self._of_hosts(self.hosts, state, own.hosts)
        if facts.slow is not None:
            seen["observed"]["slow"] = asdict(facts.slow)
        named = facts.messages.lost_named
        if named:
            more = (facts.messages.run.lost_acknowledged or 0) - sum(one.messages for one in named)
            lost = {"named": [asdict(one) for one in named], "more": max(more, 0)}
            seen["observed"]["lost"] = lost
        if state.recovery is not None:
            seen["observed"]["recovery"] = state.recovery.document(state.windows["measure"][0])
        if conclusion.observed is not None:
            seen["observed"][self.begun["case"]] = conclusion.observed
        if conclusion.audit is not None:
            seen["audit"] = conclusion.audit
        if steps:
            seen["steps"] = [_rate_step(step) for step in steps]
        seen["interrupted"] = state.ending == "interrupted"
        if state.messages:
            seen["ledger"] = {
                "window": facts.messages.window.document(),
                "run": facts.messages.run.document(),
                "refusals": dict(facts.messages.refusals),
                "proven": facts.messages.proven and not facts.messages.imbalances,
                "imbalances": list(facts.messages.imbalances),
            }
        seen["verdict"] = conclusion.verdict.document()
        seen["remarks"] = [asdict(remark) for remark in conclusion.verdict.remarks]
        for name, content in conclusion.files.items():
            write_json(self.directory / name, content)
        self._write(seen)

    def _write(self, seen: Mapping[str, Any]) -> None:
        hosts = (
            {} if self.hosts is None else {"hosts": [one.document() for one in self.hosts.agents]}
        )
        write_json(self.directory / "run.json", {**self.begun, **hosts, **seen})

    def _seen(self, state: RunState, lost: Sequence[int]) -> dict[str, Any]:
        tls, backlog, window = handshakes_of(state.finals), state.backlog, state.result_window
        observed: dict[str, Any] = {
            "owed_at_window_end": state.owed_at_window_end,
            "owed_at_end": state.owed_at_end,
            "high_water_mark": None,
            "subscription_high_water_mark": None,
            "backlog_samples": [],
            "busy_share_max": state.tally.busy_share_max(),
            "workers_lost": list(lost),
            "clock_bound_ns": state.clock_bound_ns,
            "timed_between_hosts": self.between_hosts,
        }
        if backlog is not None:
            observed["high_water_mark"] = backlog.high_water_mark
            observed["subscription_high_water_mark"] = backlog.subscription_high_water_mark
            observed["backlog_samples"] = backlog.samples()
        if len(state.hosts) <= 1:
            observed["host"] = _observed_host(state.hosts.get(0, ()), window)
        if tls is not None:
            observed["tls"] = tls
        network: Counter[str] = Counter()
        for samples in state.hosts.values():
            network.update(difference(samples[0].network, samples[-1].network))
        return {
            "windows": {name: list(window) for name, window in state.windows.items()},
            "network": dict(network),
            "observed": observed,
            **_outcome("connect", "connected", state.connected),
            **_outcome("subscribe", "subscribed", state.subscribed),
        }

    def _of_hosts(
        self, hosts: Hosts, state: RunState, delays: Sequence[HostDelay]
    ) -> list[dict[str, Any]]:
        """Return the record of each host, including its part of the load and its delay."""
        documents = [one.document() for one in hosts.agents]
        shares, busy = self.begun["plan"]["shares"], state.tally.busy_shares()
        for number, delay in zip(sorted(state.hosts), delays, strict=True):
            held = [share for share in shares if share["host"] == number]
            documents[number] |= {
                **{key: value for key, value in asdict(delay).items() if key != "name"},
                **state.tally.window_of_host[number],
                **_observed_host(state.hosts[number], state.result_window),
                "workers": len(held),
                "devices": sum(sum(share["devices"].values()) for share in held),
                "busy_share_max": max(busy.get(share["worker"], 0.0) for share in held),
            }
        return documents


def run_document(
    plan: Plan,
    broker: ServedBroker,
    directory: Path,
    command: Sequence[str],
    hosts: Hosts | None = None,
) -> RunDocument:
    """Return the document of a run before it begins; its seconds are counted from now."""
    now = datetime.now(UTC)
    clock = {"monotonic_ns": time.monotonic_ns(), "wall_ns": time.time_ns()}
    case = plan.scenario.case
    begun: dict[str, Any] = {
        "schema": 1,
        "id": f"{now:%Y%m%dT%H%M%SZ}-{case}-{plan.run_tag:08x}",
        "case": case,
        "program": PROGRAM,
        "started": f"{now:%Y-%m-%dT%H:%M:%SZ}",
        "command": redact_command(command or sys.argv, broker.secrets),
        "scenario": plan.scenario.plain(),
        "plan": describe(plan),
        "seed": plan.scenario.seed,
        "environment": environment(demand_of(plan))
        if hosts is None
        else hosts.agents[0].joined.environment,
        "broker": {
            **_named(plan, broker),
            "urls": [endpoint.redacted for endpoint in broker.endpoints],
            "protocol": f"MQTT {plan.scenario.mqtt}",
            "started_by_us": broker.started_by_us,
        },
        "clock": clock,
    }
    if broker.brokers and (lines := broker.brokers[0].configuration):
        begun["broker"]["configuration"] = [*lines]
    if broker.brokers and not all(group.clean_start for group in plan.groups):
        begun["broker"] |= {"stored_first": False, "storage": broker.brokers[0].storage}
    if broker.users:
        begun["broker"]["access_control"] = {"users": broker.users}
    if sut := described_system(plan):
        begun["sut"] = sut
    return RunDocument(directory, begun, hosts, timed_between_hosts(plan))


def _named(plan: Plan, broker: ServedBroker) -> dict[str, str]:
    """Return name, version and note of the broker: as the user says, else as it says itself."""
    name, version = broker.name, printable(broker.version, 200)
    if version == UNKNOWN:
        version = ""
    said = plan.scenario.broker_name or ("" if broker.started_by_us else version)
    if found := _VERSIONED.fullmatch(said):
        name, version = found[1], found[2]
    elif plan.scenario.broker_name or not said[:1].isdigit():
        name, version = said or name, "" if said else version
    noted = {"note": plan.scenario.broker_note} if plan.scenario.broker_note else {}
    return {"name": printable(name, 200), "version": printable(version, 200), **noted}


def _outcome(name: str, done: str, outcome: Outcome | None) -> dict[str, Any]:
    if outcome is None:
        return {}
    kept, seconds = {"kept_from": outcome.kept_from}, {"seconds": outcome.seconds}
    counts = {done: outcome.done, "failures": dict(outcome.failures)}
    return {name: counts | (kept if outcome.kept_from else seconds)}


def _observed_host(samples: Sequence[HostSample], window: Window) -> dict[str, float | None]:
    return dict(zip(("steal_s", "throttled_s"), between(samples, [window]), strict=True))


def _rate_step(verdict: RateStepVerdict) -> dict[str, Any]:
    facts = verdict.facts
    return {
        "share": verdict.step.share,
        "rate": facts.schedule.target_rate,
        "seconds": facts.window_s,
        "sent": facts.begun,
        "expected": facts.messages.window.expected,
        "lost": facts.messages.window.lost,
        "owed": verdict.owed,
        "p99_us": facts.service.latency_p99_us,
        "busy_share": facts.generator.busy_share,
        "verdict": verdict.verdict.document(),
    }
