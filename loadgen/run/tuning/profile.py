"""Host profiles, and how a host compares with one, for itself or for a planned run.

A profile is data (`tuning/*.toml`); what a host has is a mapping of setting keys to text
(`tuning_host.py`). Everything here is a function of the two. Nothing is changed anywhere.
"""

import ipaddress
import math
import operator
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from loadgen.cases.registry import case_of
from loadgen.errors import UsageError
from loadgen.plan.fit import broker_descriptors, needs_of
from loadgen.plan.groups import sent_rate
from loadgen.plan.plan import Plan

Area = Literal["limit", "cgroup", "sysctl", "nic", "cpu", "service"]
Rule = Literal["least", "most", "is", "covers", "holds", "stopped"]
Touches = Literal["every", "remote", "shared", "latency", "messages", "connects"]
State = Literal["met", "short", "unknown"]
Effect = Literal["", "none", "costs"]

PAGE_BYTES: Final = 4096
MESSAGE_WIRE_BYTES: Final = 100
"""Around a payload on the wire: MQTT and topic some 20, TCP and IP 52, Ethernet 38 less batches."""
QUEUED_BYTES: Final = 2304
"""Bytes that the kernel counts for a small packet in a socket's queue."""
SOCKETS_A_BUCKET: Final = 8
HELPERS: Final = 20
"""Processes next to the workers: coordinator, forkserver, private brokers, the shell."""
MANY_CONNECTS: Final = 1_000
_PORT_RANGE: Final = "net.ipv4.ip_local_port_range"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a profile.

    `value` is the required value, read by `rule`: "least" and "most" compare numbers one by one
    ("-" is any, "max" without bound), "is" names the allowed ones with "|" between, "covers" is a
    range, "holds" a list of ports, "stopped" names of processes. `needs` is the field of `Demand`
    that the host's value must suffice for; `touches` the kind of runs that depend on it;
    `published` the value of the report ("" for none); `apply` the part of the script besides name
    and value. With `absent` "met" a host without such a setting lacks nothing.
    """

    area: Area
    name: str
    rule: Rule
    value: str
    reason: str
    cost: str
    source: str
    published: str = ""
    needs: str = ""
    touches: Touches = "every"
    absent: Literal["met", "unknown"] = "unknown"
    apply: str = ""

    @property
    def key(self) -> str:
        """Its name in what was read of a host."""
        return f"{self.area}:{self.name}"


@dataclass(frozen=True, slots=True)
class Note:
    """Advice that no program can check, or what is left out with the reason.

    `values` are the published values that are left out, by their names in the report.
    """

    name: str
    text: str
    published: str = ""
    source: str = ""
    values: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Profile:
    """One file of `tuning/`."""

    name: str
    title: str
    settings: tuple[Setting, ...]
    advice: tuple[Note, ...] = ()
    left_out: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a planned run on a host.

    `descriptors` is of the process with most, the busiest worker or a private broker,
    `broker_descriptors` of one broker process; `open_files`, `processes`, `connections`,
    `hash_entries`, `memory_bytes` and `tcp_pages` are sums, with the broker's half if it is on this
    host. `remote` is True if a broker is on another host, `shared` if one is on this.
    """

    descriptors: int
    broker_descriptors: int
    open_files: int
    ports: int
    processes: int
    connections: int
    hash_entries: int
    in_flight: int
    memory_bytes: int
    tcp_pages: int
    megabits_per_s: int
    messages_per_s: float
    remote: bool
    shared: bool
    latency: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """The state of the host in one setting.

    `actual` is None if nothing could be read. `effect` and `detail` are about the planned run:
    "costs" if the difference affects it; "" without a planned run.
    """

    setting: Setting
    state: State
    actual: str | None
    effect: Effect = ""
    detail: str = ""


_TOUCHES: Final[Mapping[str, tuple[Callable[[Demand], bool], str]]] = {
    "every": (lambda demand: True, ""),
    "remote": (lambda demand: demand.remote, "the broker is on this host"),
    "shared": (lambda demand: demand.shared, "the broker is on another host"),
    "latency": (lambda demand: demand.latency, "latency is not what is measured"),
    "messages": (lambda demand: demand.messages_per_s > 0, "no messages are sent"),
    "connects": (lambda demand: demand.connections >= MANY_CONNECTS, "it has few connects"),
}
"""Which runs feel a setting, and why another run does not."""


# Profiles -------------------------------------------------------------------------------------


def shipped(name: str) -> Path:
    """Return a directory that comes with the program: in the package, or next to the source."""
    package = Path(__file__).resolve().parents[2]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def profile_names() -> tuple[str, ...]:
    """Return the names of the profiles that come with the program."""
    return tuple(sorted(path.stem for path in shipped("tuning").glob("*.toml")))


def read_profile(name: str) -> Profile:
    """Return the profile with this name; raise UsageError for an unknown one."""
    names = profile_names()
    if name not in names:
        raise UsageError(f"profile {name[:60]!a} is not known; allowed: {', '.join(names)}")
    return parse_profile((shipped("tuning") / f"{name}.toml").read_text("utf-8"), name)


def parse_profile(text: str, origin: str) -> Profile:
    """Parse a profile from TOML; raise UsageError with the name of a wrong setting."""
    try:
        table = tomllib.loads(text)
        return Profile(
            name=str(table["name"]),
            title=str(table["title"]),
            settings=tuple(_setting(entry) for entry in table["setting"]),
            advice=tuple(Note(**entry) for entry in table.get("advice", ())),
            left_out=tuple(map(_left_out, table.get("left_out", ()))),
        )
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"profile {origin} cannot be used: {error}") from None


def _left_out(entry: Mapping[str, Any]) -> Note:
    values = {str(name): str(value) for name, value in entry["values"].items()}
    if not values or not entry["reason"].strip():
        raise ValueError("something is left out without values or without a reason")
    return Note(", ".join(values), entry["reason"], ", ".join(values.values()), values=values)


def _setting(entry: Mapping[str, Any]) -> Setting:
    name = str(entry.get("name", "?"))
    setting = Setting(**entry)
    for part, allowed in (("area", Area), ("rule", Rule), ("touches", Touches)):
        if getattr(setting, part) not in get_args(allowed):
            raise ValueError(f"{name}: {part} is not one of {', '.join(get_args(allowed))}")
    if setting.needs and setting.needs not in Demand.__dataclass_fields__:
        raise ValueError(f"{name}: {setting.needs!r} is not something that a run needs")
    for part in ("value", "reason", "cost", "source"):
        if not str(getattr(setting, part)).strip():
            raise ValueError(f"{name}: {part} is empty")
    return setting


# Values ---------------------------------------------------------------------------------------


def _number(word: str) -> float:
    return math.inf if word in ("max", "unlimited", "infinity") else float(word)


def _ports(text: str) -> set[int]:
    """Return the ports of a list such as 1883,8080-8084."""
    ports: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        ports.update(range(int(first), int(last or first) + 1))
    return ports


def _met(setting: Setting, actual: str, outgoing: range) -> bool:
    """Return True if a value meets the profile; raise ValueError if it cannot be read.

    `outgoing` are the ports that outgoing connections can take.
    """
    wanted = setting.value
    match setting.rule:
        case "is":
            return actual in wanted.split("|")
        case "stopped":
            return actual == ""
        case "holds":
            return _ports(wanted).intersection(outgoing) <= _ports(actual)
        case "covers":
            first, last = map(_number, wanted.split())
            has_first, has_last = map(_number, actual.split())
            return has_first <= first and has_last >= last
        case "least" | "most":
            better = operator.ge if setting.rule == "least" else operator.le
            pairs = zip(wanted.split(), actual.split(), strict=True)
            return all(better(_number(has), _number(want)) for want, has in pairs if want != "-")


def _capacity(setting: Setting, actual: str) -> float:
    """Return the number that a run's need is compared with."""
    words = actual.split()
    if setting.rule == "covers":
        return _number(words[1]) - _number(words[0]) + 1
    at = next(index for index, word in enumerate(setting.value.split()) if word != "-")
    return _number(words[at])


# Comparison -----------------------------------------------------------------------------------


def compare(
    profile: Profile, actual: Mapping[str, str], demand: Demand | None = None
) -> tuple[Finding, ...]:
    """Compare the host with each setting of the profile, for a run if there is a demand.

    `actual` has the settings' keys that could be read.
    """
    words = actual.get(f"sysctl:{_PORT_RANGE}", "").split()
    two = len(words) == 2 and all(map(str.isdigit, words))
    outgoing = range(int(words[0]), int(words[1]) + 1) if two else range(1, 1 << 16)
    findings = []
    for setting in profile.settings:
        value = actual.get(setting.key)
        state = _state(setting, value, outgoing)
        meaning = () if demand is None else _effect(setting, state, value, demand)
        findings.append(Finding(setting, state, value, *meaning))
    return tuple(findings)


def _effect(
    setting: Setting, state: State, actual: str | None, demand: Demand
) -> tuple[Effect, str]:
    """Return the effect of the host's value on a run, and the reason."""
    touched, why_not = _TOUCHES[setting.touches]
    if actual is None or state == "unknown":
        return "none", ""
    if not touched(demand):
        return "none", f"not felt: {why_not}"
    if setting.needs:
        need = getattr(demand, setting.needs)
        if need <= _capacity(setting, actual):
            return "none", f"enough: the run needs {need:,}"
        return "costs", f"the run needs {need:,}: {setting.cost}"
    return ("none", "") if state == "met" else ("costs", setting.cost)


def _state(setting: Setting, actual: str | None, outgoing: range) -> State:
    if actual is None:
        return setting.absent
    try:
        return "met" if _met(setting, actual, outgoing) else "short"
    except ValueError:
        return "unknown"


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def demand_of(plan: Plan) -> Demand:
    """Return the demand of this plan on a load host and on the broker, if it is on that host."""
    needs = needs_of(plan)
    devices = sum(group.count for group in plan.groups)
    local = [_is_local(target.host) for target in plan.targets]
    here = round(devices * sum(local) / len(local))
    messages = wire_bytes = 0.0
    for group in plan.groups:
        sent = sent_rate(group, plan.groups)
        publishes = group.publishes
        if group.responds is not None and group.subscribes is not None:
            # A response is the request's payload, for the one device that asked.
            publishes = plan.group(group.subscribes.publishers).publishes
        if publishes is None:
            continue
        size = sum(publishes.size_bytes) / 2 + MESSAGE_WIRE_BYTES
        messages += sent * (1 + publishes.deliveries)
        # A wire carries both directions at once; the fuller one counts.
        wire_bytes += size * sent * max(1, publishes.deliveries)
    sockets = devices + here
    # One message under way for each device, at most what a tenth of a second brings.
    queued = min(devices, messages / 10) * QUEUED_BYTES
    broker = broker_descriptors(plan.brokers, plan.groups, len(plan.targets))
    return Demand(
        descriptors=max(needs.descriptors_per_worker, broker if plan.brokers.private else 0),
        broker_descriptors=broker,
        open_files=len(plan.workers) * 200 + sockets,
        ports=needs.ports_per_source_address,
        processes=len(plan.workers) + HELPERS,
        connections=devices,
        hash_entries=-(-sockets // SOCKETS_A_BUCKET),
        in_flight=min(plan.phases.in_flight, devices),
        memory_bytes=needs.memory_bytes,
        tcp_pages=math.ceil(queued / PAGE_BYTES),
        megabits_per_s=math.ceil(wire_bytes * 8 / 1e6),
        messages_per_s=messages,
        remote=not all(local),
        shared=any(local),
        latency=case_of(plan.scenario.case).timed_pair or plan.scenario.latency_bound is not None,
    )


def tuning_record(profile: Profile, findings: Sequence[Finding]) -> dict[str, Any]:
    """Return the result of a check for run.json: met, different and unknown settings."""
    return {
        "profile": profile.name,
        "met": sum(finding.state == "met" for finding in findings),
        "unknown": [finding.setting.name for finding in findings if finding.state == "unknown"],
        "differences": [
            {
                "name": finding.setting.name,
                "area": finding.setting.area,
                "wanted": finding.setting.value,
                "found": finding.actual,
                "effect": finding.effect,
                "detail": finding.detail,
            }
            for finding in findings
            if finding.state == "short" or finding.effect == "costs"
        ],
    }
