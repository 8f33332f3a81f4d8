"""Host profiles: reads this host, compares it with one, and writes a script that changes it.

A profile is data (`tuning/*.toml`). Nothing is changed here: the script is for an administrator to
read and run. It prints each change with the old value, and skips what the host lacks.
"""

import array
import fcntl
import math
import operator
import re
import resource
import shlex
import socket
import struct
import textwrap
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from loadgen.cases.registry import case_of
from loadgen.errors import UsageError
from loadgen.plan.deliveries import direct_senders, mean_deliveries, sent_rate
from loadgen.plan.fit import broker_descriptors, needs_of
from loadgen.plan.plan import Plan
from loadgen.run.control_groups import control_groups, words_of
from loadgen.sentences import RUN_TEXT, printable

Area = Literal["limit", "cgroup", "sysctl", "nic", "cpu", "service"]
Rule = Literal["least", "most", "is", "covers", "holds", "stopped"]
Touches = Literal["every", "remote", "shared", "latency", "messages", "connects"]
State = Literal["met", "short", "unknown"]
Effect = Literal["", "none", "costs"]
PAGE_BYTES: Final = 4096
MESSAGE_WIRE_BYTES: Final = 100
"""Around a payload on the wire: MQTT and topic some 20, TCP and IP 52, Ethernet 38."""
QUEUED_BYTES: Final = 2304  # that the kernel counts for a small packet in a socket's queue
SOCKETS_A_BUCKET: Final = 8
HELPERS: Final = 20
"""Processes next to the workers: coordinator, forkserver, private brokers, the shell."""
MANY_CONNECTS: Final = 1_000
_PORT_RANGE: Final = "net.ipv4.ip_local_port_range"
_VALUE_CHARACTERS: Final = 200
_LIMITS: Final = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
_LIMIT_TITLES: Final = {"nofile": "open files", "nproc": "processes"}
"""As /proc/self/limits names them: shells differ in how they are asked for processes."""
_TRACKING: Final = "net.netfilter.nf_conntrack_max"
# <linux/sockios.h> and <linux/ethtool.h>
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL: Final[Mapping[str, tuple[int, int, int]]] = {
    "rx-usecs": (0x0E, 23, 1),
    "rx-frames": (0x0E, 23, 2),
    "adaptive-rx": (0x0E, 23, 10),
    "rx-ring": (0x10, 9, 5),
    "tx-ring": (0x10, 9, 8),
}
"""Command (ETHTOOL_GCOALESCE, ETHTOOL_GRINGPARAM), words of its answer, and which word it is."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of a profile.

    `value` is the required value, read by `rule`: "least" and "most" compare numbers one by one
    ("-" is any, "max" without bound), "is" names the allowed ones with "|" between, "covers" is a
    range, "holds" a list of ports, "stopped" names of processes. `needs` is the field of `Demand`
    that the host's value must suffice for; `touches` the kind of runs that depend on it;
    `published` the value of the report; `apply` the part of the script besides name and value.
    A host without a setting that may be `absent` lacks nothing.
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
    name: str
    title: str
    settings: tuple[Setting, ...]
    advice: tuple[Note, ...] = ()
    left_out: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of a planned run on a host.

    `descriptors` are those of the process with most, `broker_descriptors` those of one broker
    process. The others are sums, with the broker's part if it is on this host. `remote` is True if
    a broker is on another host, `shared` if one is on this.
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
    """The state of the host in one setting; `effect` is that of the difference on a planned run."""

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


def shipped(name: str) -> Path:
    """Return a directory that comes with the program: in the package, or next to the source."""
    package = Path(__file__).resolve().parents[1]
    installed = package / name
    return installed if installed.is_dir() else package.parent / name


def profile_names() -> tuple[str, ...]:
    return tuple(sorted(path.stem for path in shipped("tuning").glob("*.toml")))


def read_profile(name: str) -> Profile:
    """Return the profile with this name; raise UsageError for an unknown one."""
    names = profile_names()
    if name not in names:
        raise UsageError(RUN_TEXT.UNKNOWN_PROFILE(name=printable(name, 60), names=names))
    table = tomllib.loads((shipped("tuning") / f"{name}.toml").read_text("utf-8"))
    left_out = []
    for entry in table["left_out"]:
        values = entry["values"]
        joined, published = ", ".join(values), ", ".join(values.values())
        left_out.append(Note(joined, entry["reason"], published, values=values))
    return Profile(
        name=table["name"],
        title=table["title"],
        settings=tuple(Setting(**entry) for entry in table["setting"]),
        advice=tuple(Note(**entry) for entry in table["advice"]),
        left_out=tuple(left_out),
    )


def _number(word: str) -> float:
    return math.inf if word in ("max", "unlimited", "infinity") else float(word)


def _ports(text: str) -> set[int]:
    ports: set[int] = set()
    for part in filter(None, text.replace(" ", "").split(",")):
        first, _, last = part.partition("-")
        ports.update(range(int(first), int(last or first) + 1))
    return ports


def _is_met(setting: Setting, actual: str, outgoing: range) -> bool:
    """Return True if a value meets the profile; raise ValueError if it cannot be read."""
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


def compare(
    profile: Profile, actual: Mapping[str, str], demand: Demand | None = None
) -> tuple[Finding, ...]:
    """Compare the host with each setting of the profile, for a run if there is a demand."""
    words = actual.get(f"sysctl:{_PORT_RANGE}", "").split()
    two = len(words) == 2 and all(map(str.isdigit, words))
    outgoing = range(int(words[0]), int(words[1]) + 1) if two else range(1, 1 << 16)
    findings = []
    for setting in profile.settings:
        value = actual.get(setting.key)
        state: State = setting.absent
        if value is not None:
            try:
                state = "met" if _is_met(setting, value, outgoing) else "short"
            except ValueError:
                state = "unknown"
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
        return "none", f"no effect: {why_not}"
    if setting.needs:
        need = getattr(demand, setting.needs)
        numbers = [_number(word) for word in actual.split()]
        place = next(index for index, word in enumerate(setting.value.split()) if word != "-")
        capacity = numbers[1] - numbers[0] + 1 if setting.rule == "covers" else numbers[place]
        if need <= capacity:
            return "none", f"enough: the run needs {need:,}"
        return "costs", f"the run needs {need:,}: {setting.cost}"
    return ("none", "") if state == "met" else ("costs", setting.cost)


def demand_of(plan: Plan) -> Demand:
    """Return the demand of this plan on a load host and on the broker, if it is on that host."""
    needs = needs_of(plan)
    devices = sum(group.count for group in plan.groups)
    loopback = re.compile(r"localhost|127\..*|::1")
    local = [loopback.fullmatch(target.host) is not None for target in plan.targets]
    here = round(devices * sum(local) / len(local))
    messages = wire_bytes = 0.0
    for group in plan.groups:
        sent = sent_rate(group, plan.groups)
        publishes = group.publishes
        deliveries = mean_deliveries(group, plan.groups, plan.separate_count)
        if group.responds is not None and group.subscribes is not None:
            # A response is the request's payload, for the one device that asked.
            publishes, deliveries = direct_senders(plan.groups, group.name)[0].publishes, 1.0
        if publishes is None:
            continue
        size = sum(publishes.size_bytes) / 2 + MESSAGE_WIRE_BYTES
        messages += sent * (1 + deliveries)
        # A wire carries both directions at once; the fuller one counts.
        wire_bytes += size * sent * max(1.0, deliveries)
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


def observe(
    profile: Profile, root: Path = Path("/"), interface: str | None = None
) -> dict[str, str]:
    """Read the profile's settings on this host, by key; those that cannot be read are missing.

    `root` is where proc and sys are mounted; `interface` the network interface, by default the one
    with the default route.
    """
    interface = interface or interface_of(root)
    running = {words_of(path) or "" for path in (root / "proc").glob("[0-9]*/comm")}
    values = {}
    for setting in profile.settings:
        value: str | None = None
        match setting.area:
            case "sysctl":
                value = words_of(root / "proc/sys" / setting.name.replace(".", "/"))
                # The module may be loaded without a rule that asks for tracking.
                tracked = root / "proc/sys/net/netfilter/nf_conntrack_count"
                if setting.name == _TRACKING and words_of(tracked) == "0":
                    value = None
            case "limit":
                hard = resource.getrlimit(_LIMITS[setting.name])[1]
                value = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
            case "cgroup":
                groups = control_groups(setting.name.partition(".")[0], "self", root / "proc")
                found = filter(None, (words_of(group / setting.name) for group in groups))
                value = min(found, key=_number, default=None)
            case "nic" if interface:
                value = _nic(root, interface, setting.name)
            case "cpu":
                value = _cpu(root, setting.name)
            case "service":
                value = " ".join(sorted(running.intersection(setting.value.split("|"))))
        if value is not None:
            values[setting.key] = printable(value, _VALUE_CHARACTERS)
    return values


def _cpu(root: Path, name: str) -> str | None:
    system = root / "sys/devices/system"
    match name:
        case "governor":
            paths = (system / "cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
            return " ".join(sorted({text for path in paths if (text := words_of(path))})) or None
        case "idle-exit-us":
            # To wake from the slowest sleep state that is enabled.
            states = (system / "cpu/cpu0/cpuidle").glob("state[0-9]*")
            enabled = [state for state in states if words_of(state / "disable") != "1"]
            latencies = [words_of(state / "latency") or "" for state in enabled]
            return max((text for text in latencies if text.isdigit()), key=int, default=None)
        case "clocksource":
            return words_of(system / "clocksource/clocksource0/current_clocksource")
        case "transparent-hugepage":
            text = words_of(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
            chosen = re.search(r"\[(\w+)\]", text)
            return chosen.group(1) if chosen else None
    return None


def interface_of(root: Path = Path("/")) -> str | None:
    """Return the interface with the default route, else the first that is up, but the loopback."""
    with suppress(OSError):
        routes = (root / "proc/net/route").read_text("ascii", "replace")
        if default := re.search(r"^(\S+)\s+0{8}\s", routes, re.MULTILINE):
            return default.group(1)
    for directory in sorted((root / "sys/class/net").glob("*")):
        if directory.name != "lo" and words_of(directory / "operstate") == "up":
            return directory.name
    return None


def _nic(root: Path, interface: str, name: str) -> str | None:
    directory = root / "sys/class/net" / interface
    match name:
        case "mtu":
            return words_of(directory / "mtu")
        case "speed":
            speed = words_of(directory / "speed") or ""
            return speed if speed.isdigit() else None
        case "queues":
            return str(len([*(directory / "queues").glob("rx-*")]) or "") or None
    command, words, word = _ETHTOOL[name]
    answer = array.array("I", [command] + [0] * (words - 1))
    request = struct.pack("16sP", interface.encode()[:15], answer.buffer_info()[0])
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            # With room for the whole struct ifreq.
            fcntl.ioctl(probe, _SIOCETHTOOL, request.ljust(40, b"\0"))
    except OSError:
        return None
    return ("on" if answer[word] else "off") if name == "adaptive-rx" else str(answer[word])


def render_script(profile: Profile, program: str) -> str:
    """Return the script's text; `program` is the name and version that made it."""
    from jinja2 import Environment, StrictUndefined

    wrapper = textwrap.TextWrapper(93, break_long_words=False, break_on_hyphens=False)

    def comment(text: str) -> str:
        return "\n".join(f"# {line}" for line in wrapper.wrap(text))

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters |= {"quote": shlex.quote, "comment": comment}
    text = Path(__file__).with_name("tuning_script.sh.j2").read_text("utf-8")
    template = environment.from_string(text)
    return template.render(program=program, profile=profile, limit_titles=_LIMIT_TITLES)
