import dataclasses
import os
import re
import resource
import shutil
import subprocess
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.run import tuning
from loadgen.run.tuning import (
    Profile,
    Setting,
    interface_of,
    observe,
    profile_names,
    read_profile,
    render_script,
)
from tests.tables import DATA, rows_of, table

HOST = Host(cores=2, descriptors=20_000, memory_bytes=24 << 30, local_ports=28_232)
CASES, TOOLS = table("tuning"), DATA / "tools"
"""Programs that say and do what a test wants in place of those of the system."""
PORTS = "sysctl:net.ipv4.ip_local_port_range"


def setting(rule: str, value: str, name: str = "a.b", **more: str) -> Setting:
    fields = {"area": "sysctl", "name": name, "reason": "r", "cost": "it hurts", "source": "s"}
    return Setting(**(fields | {"rule": rule, "value": value} | more))  # type: ignore[arg-type]


def finding(
    one: Setting, found: str | None, demand: tuning.Demand | None = None, ports: str = ""
) -> tuning.Finding:
    observed = {PORTS: ports} if ports else {}
    if found is not None:
        observed[one.key] = found
    return tuning.compare(Profile("p", "t", (one,)), observed, demand)[0]


def demand(case: str = "fanin", host: str = "127.0.0.1", **fields: object) -> tuning.Demand:
    scenario = build_scenario(case, None, {"broker": f"mqtt://{host}"} | fields)
    return tuning.demand_of(fit_plan(resolve(scenario), HOST, (Target(host, 1883),), 1))


@pytest.mark.parametrize("name", profile_names())
def test_profiles_say_why_and_where_from_and_name_themselves(name: str) -> None:
    profile = read_profile(name)
    assert profile.name == name
    keys = [one.key for one in profile.settings]
    assert len(keys) == len(set(keys)) > 20
    areas = {one.area for one in profile.settings}
    assert {"limit", "sysctl", "nic", "cpu", "service"} <= areas <= set(get_args(tuning.Area))
    assert profile.left_out and profile.advice
    for note in profile.left_out:
        assert note.values and note.text.strip()
    for one in profile.settings:
        for part, allowed in (("rule", tuning.Rule), ("touches", tuning.Touches)):
            assert getattr(one, part) in get_args(allowed)
        assert one.needs in ("", *tuning.Demand.__dataclass_fields__)
        assert all(part.strip() for part in (one.value, one.reason, one.cost, one.source))
    # A value that the profile itself wants must be one that it accepts.
    for one in profile.settings:
        if one.rule in ("least", "most", "covers", "holds", "is"):
            wanted = one.value.split("|")[0].replace("-", "0") if one.rule != "holds" else one.value
            assert finding(one, wanted).state == "met", one.name


APPENDICES = tomllib.loads(
    (Path(__file__).parents[2] / "tuning/published/appendices.toml").read_text("utf-8")
)
PROFILES = {"B": "load-host", "C": "broker-host"}
"""The profile for the machines of an appendix."""


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [(table, *pair) for table in APPENDICES["table"] for pair in table["values"].items()],
)
def test_every_published_value_is_set_or_left_out_with_a_reason(
    table: dict[str, Any], name: str, value: str
) -> None:
    profile = read_profile(PROFILES[table["appendix"]])
    key = f"{table['area']}:{table.get('key', {}).get(name, name)}"
    # A setting that stands for several names each.
    set_to = [one.published for one in profile.settings if one.key == key]
    explained = [note.values[name] for note in profile.left_out if name in note.values]
    assert len(set_to) + len(explained) == 1, "set or left out, not both and not neither"
    for said in set_to:
        assert said == value or (said.startswith(f"{value} (") and name in said)
    assert explained in ([], [value])


def test_what_is_left_out_is_published() -> None:
    """Other values than those of the report have their appendix in the name."""
    published = {
        name: value for table in APPENDICES["table"] for name, value in table["values"].items()
    }
    for profile in map(read_profile, profile_names()):
        for note in profile.left_out:
            for name, value in note.values.items():
                assert "(Appendix " in name or published[name] == value


@pytest.mark.parametrize(("rule", "wanted", "found", "state"), CASES["rules"])
def test_rules(rule: str, wanted: str, found: str, state: str) -> None:
    assert finding(setting(rule, wanted), found).state == state
    assert finding(setting("least", "1"), None).state == "unknown"
    assert finding(setting("least", "1", absent="met"), None).state == "met"


def test_ports_outside_the_range_of_outgoing_connections_need_no_reservation() -> None:
    reserved = setting("holds", "8883,40000")
    assert finding(reserved, "40000", ports="32768 60999").state == "met"
    assert finding(reserved, "", ports="32768 60999").state == "short"
    assert finding(reserved, "40000", ports="5000 65001").state == "short"


def test_need_decides_whether_a_run_feels_a_difference() -> None:
    ports = setting("covers", "5000 65001", needs="ports")
    small, large = demand(devices=10_000), demand(devices=28_000)
    assert finding(ports, "32768 60999", small).effect == "none"
    assert finding(ports, "50000 60999", large).effect == "costs"
    assert finding(ports, "50000 60999", large).detail == "the run needs 14,001: it hurts"
    # What the profile is content with may still be too little for this run.
    files = setting("least", "100", needs="open_files")
    assert (finding(files, "200", small).state, finding(files, "200", small).effect) == (
        "met",
        "costs",
    )


@pytest.mark.parametrize(("touches", "felt_by"), rows_of("run.felt"))
def test_runs_feel_what_touches_them(touches: str, felt_by: list[str]) -> None:
    runs = {
        "here": demand(devices=2_000),
        "away": demand(devices=2_000, host="10.0.0.7"),
        "burst": demand("connburst", devices=2_000),
        "pair": demand("latency", devices=10),
    }
    felt = {
        name
        for name, run in runs.items()
        if finding(setting("is", "1", touches=touches), "0", run).effect == "costs"
    }
    assert felt == set(felt_by)


def test_demand_counts_both_ends_where_the_broker_is_here() -> None:
    here, away = demand(devices=5_000), demand(devices=5_000, host="192.0.2.1")
    assert here.open_files - away.open_files == 5_001
    assert away.remote and not away.shared
    assert here.shared and not here.remote
    assert away.broker_descriptors == 5_051
    assert away.ports == 5_001
    assert away.messages_per_s == 10_000
    # 5,000 messages a second of 32 bytes and what is around them.
    assert away.megabits_per_s == 6


def test_record_keeps_what_differs_and_what_it_means() -> None:
    ports = setting("covers", "5000 65001", needs="ports")
    low = setting("least", "10")
    ports = dataclasses.replace(ports, name="ports")
    profile = Profile("p", "t", (ports, low, setting("is", "x", name="c")))
    found = {ports.key: "32768 60999", low.key: "9"}
    record = tuning.tuning_record(profile, tuning.compare(profile, found, demand(devices=100)))
    assert record["profile"] == "p"
    assert record["met"] == 0
    (difference, second) = record["differences"]
    assert difference["found"] == "32768 60999"
    assert difference["effect"] == "none"
    assert re.fullmatch("enough: the run needs 1[0-9][0-9]", difference["detail"])
    assert second["name"] == "a.b"
    assert record["unknown"] == ["c"]


def test_a_broker_that_is_started_here_has_the_limit_of_this_host() -> None:
    files = next(one for one in read_profile("load-host").settings if one.name == "nofile")
    ours, another = (
        demand(devices=5_000, workers=9, broker="auto"),
        demand(devices=5_000, workers=9),
    )
    assert another.descriptors < 1_000 < ours.descriptors == ours.broker_descriptors == 5_051
    assert finding(files, "5050", ours).effect == "costs"
    assert finding(files, "5050", another).effect == "none"
    spread = demand(devices=5_000, broker="auto", instances=5)
    assert spread.broker_descriptors == 1_051


def profile_of(area: str, *names: str, value: str = "1") -> Profile:
    return Profile("p", "t", tuple(setting("least", value, name, area=area) for name in names))


def lay(root: Path, files: dict[str, str], below: str = "") -> None:
    for name, text in files.items():
        path = root / below / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_sysctl_is_read_as_words_and_an_absent_one_is_left_out(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/sys/net/ipv4/tcp_mem": "1\t2\t3\n"})
    asked = profile_of("sysctl", "net.ipv4.tcp_mem", "net.core.none")
    assert observe(asked, tmp_path) == {"sysctl:net.ipv4.tcp_mem": "1 2 3"}


@pytest.mark.parametrize(("count", "seen"), [("0", False), ("17", True)])
def test_connection_tracking_counts_only_where_it_tracks(
    tmp_path: Path, count: str, seen: bool
) -> None:
    values = {"nf_conntrack_max": "262144\n", "nf_conntrack_count": f"{count}\n"}
    lay(tmp_path, values, "proc/sys/net/netfilter")
    asked = profile_of("sysctl", "net.netfilter.nf_conntrack_max")
    assert bool(observe(asked, tmp_path)) is seen


def test_limits_are_the_hard_ones() -> None:
    found = observe(profile_of("limit", "nofile"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    assert found == {"limit:nofile": wanted}


def test_control_group_has_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    mount = f"31 23 0:28 / {tmp_path}/sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    lay(tmp_path, {"cgroup": "0::/system.slice/a.service\n", "mountinfo": mount}, "proc/self")
    limits = {"a.service/pids.max": "max\n", "pids.max": "800\n", "a.service/memory.max": "max\n"}
    lay(tmp_path, limits, "sys/fs/cgroup/system.slice")
    found = observe(profile_of("cgroup", "pids.max", "memory.max"), tmp_path)
    assert found == {"cgroup:pids.max": "800", "cgroup:memory.max": "max"}


def test_processor(tmp_path: Path) -> None:
    files = {
        "cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        "cpu/cpu1/cpufreq/scaling_governor": "powersave\n",
        "cpu/cpu0/cpuidle/state0/latency": "0\n",
        "cpu/cpu0/cpuidle/state1/latency": "2\n",
        "cpu/cpu0/cpuidle/state2/latency": "150\n",
        "cpu/cpu0/cpuidle/state2/disable": "1\n",
        "clocksource/clocksource0/current_clocksource": "hpet\n",
    }
    lay(tmp_path, files, "sys/devices/system")
    lay(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n"})
    names = ("governor", "idle-exit-us", "clocksource", "transparent-hugepage")
    assert observe(profile_of("cpu", *names), tmp_path) == {
        "cpu:governor": "performance powersave",
        "cpu:idle-exit-us": "2",
        "cpu:clocksource": "hpet",
        "cpu:transparent-hugepage": "madvise",
    }


def test_services_are_seen_by_their_processes(tmp_path: Path) -> None:
    lay(tmp_path, {"proc/12/comm": "crond\n", "proc/13/comm": "bash\n"})
    asked = profile_of("service", "cron", "updates", value="cron|crond|atd")
    assert observe(asked, tmp_path) == {"service:cron": "crond", "service:updates": "crond"}
    assert observe(profile_of("service", "a", value="auditd"), tmp_path) == {"service:a": ""}


def test_interface_is_the_one_with_the_default_route(tmp_path: Path) -> None:
    routes = "eth1\t000200C0\t00000000\neth7\t00000000\t010200C0\n"
    lay(tmp_path, {"proc/net/route": f"Iface\tDestination\tGateway\n{routes}"})
    queues = {f"queues/{name}/x": "" for name in ("rx-0", "rx-1", "tx-0")}
    lay(tmp_path, {"mtu": "9000\n", "speed": "25000\n", **queues}, "sys/class/net/eth7")
    assert interface_of(tmp_path) == "eth7"
    asked = profile_of("nic", "mtu", "speed", "queues")
    assert observe(asked, tmp_path) == {"nic:mtu": "9000", "nic:speed": "25000", "nic:queues": "2"}
    assert observe(asked, tmp_path, "eth8") == {}


def test_without_a_route_the_first_interface_that_is_up(tmp_path: Path) -> None:
    states = {"lo/operstate": "up\n", "eth0/operstate": "down\n", "eth1/operstate": "up\n"}
    lay(tmp_path, states, "sys/class/net")
    assert interface_of(tmp_path) == "eth1"
    assert interface_of(tmp_path / "nowhere") is None


def test_this_host_can_be_read_and_hostile_text_is_escaped(tmp_path: Path) -> None:
    found = observe(read_profile("load-host"))
    assert "sysctl:net.ipv4.ip_local_port_range" in found
    lay(tmp_path, {"proc/sys/a": "\x1b[31m" + "x" * 1000})
    (value,) = observe(profile_of("sysctl", "a"), tmp_path).values()
    assert value.startswith("\\x1b[31m") and len(value) < 300


@pytest.mark.parametrize("name", profile_names())
def test_script_of_a_profile_is_shell_and_names_every_setting(name: str) -> None:
    profile = read_profile(name)
    text = render_script(profile, "loadgen 0")
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [s.name for s in profile.settings if f"# {s.name}: " not in text] == []
    assert max(map(len, text.splitlines())) <= 130


def run_script(settings: Iterable[Setting], tools: Path, **environment: str) -> list[str]:
    done = subprocess.run(
        ["sh", "-s", "eth0"],
        input=render_script(Profile("p", "t", tuple(settings)), "loadgen 0"),
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": f"{tools}:{os.environ['PATH']}", **environment},
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_script_raises_what_is_low_and_leaves_what_is_better(tmp_path: Path) -> None:
    values = {name: f"{before}\n" for name, (_, _, before, _) in CASES["sysctls"].items()}
    shutil.copytree(TOOLS, tmp_path, dirs_exist_ok=True)
    lay(tmp_path, values, "values")
    wanted = [setting(rule, value, name) for name, (rule, value, _, _) in CASES["sysctls"].items()]
    said = run_script([*wanted, setting("least", "1", "absent")], tmp_path)
    for name, (*_, after) in CASES["sysctls"].items():
        assert (tmp_path / "values" / name).read_text() == f"{after}\n", name
    assert "low: 10 -> 100" in said
    assert "ports: 32768 60999 -> 5000 65001" in said
    assert "skipped: absent does not exist in this kernel" in said
    assert not [line for line in said if line.startswith(("high", "huge", "wide", "same"))]


CARD = (
    setting("least", "4096", "rx-ring", area="nic", apply="rx"),
    setting("least", "4096", "tx-ring", area="nic", apply="tx"),
    setting("most", "10", "rx-usecs", area="nic"),
    setting("is", "off", "adaptive-rx", area="nic"),
    setting("least", "1500", "mtu", area="nic"),
)
LIMITS = (
    setting("least", "1048576", "nofile", area="limit"),
    setting("least", "4096", "nproc", area="limit"),
)


def run_with(
    tmp_path: Path, settings: tuple[Setting, ...], host: dict[str, str]
) -> tuple[list[str], list[str]]:
    """Return what the script prints, and its calls to change the card, on a host of these
    values."""
    shutil.copytree(TOOLS, tmp_path / "bin", dirs_exist_ok=True)
    (tmp_path / "security/limits.d").mkdir(parents=True, exist_ok=True)
    calls = tmp_path / "calls"
    calls.write_text("")
    host |= {"SECURITY": str(tmp_path / "security"), "CALLS": str(calls)}
    said = run_script(settings, tmp_path / "bin", **host)
    return said, calls.read_text().splitlines()


def test_script_improves_a_worse_card_and_says_the_old_values(tmp_path: Path) -> None:
    worse = {"MTU": "1400", "RING": "256", "LARGEST": "2048", "USECS": "50", "ADAPTIVE": "on"}
    said, called = run_with(tmp_path, CARD, worse)
    assert said == [
        "eth0 rx-ring: 256 -> 2048",
        "eth0 rx-usecs: 50 -> 10",
        "eth0 adaptive-rx: on -> off (the profile requires exactly this)",
        "eth0 mtu: 1400 -> 1500",
    ]
    assert called == [
        "ethtool -G eth0 rx 2048",
        "ethtool -C eth0 rx-usecs 10",
        "ethtool -C eth0 adaptive-rx off",
        "ip link set dev eth0 mtu 1500",
    ]
    better = {"MTU": "9000", "RING": "8192", "LARGEST": "8192", "USECS": "3", "ADAPTIVE": "off"}
    assert run_with(tmp_path, CARD, better) == ([], [])
    silent = {"MTU": "1500", "RING": "n/a", "LARGEST": "n/a", "USECS": "n/a", "ADAPTIVE": "n/a"}
    said, called = run_with(tmp_path, CARD, silent)
    assert called == []
    assert [line.split(":")[1].strip() for line in said] == ["rx-ring", "rx-usecs", "adaptive-rx"]


@pytest.mark.parametrize("nofile", ["1048576", "2000000", "unlimited"])
def test_script_leaves_higher_limits(tmp_path: Path, nofile: str) -> None:
    assert run_with(tmp_path, LIMITS, {"NOFILE": nofile, "NPROC": "96365"}) == ([], [])
    assert list((tmp_path / "security/limits.d").iterdir()) == []


def test_script_raises_only_the_lower_limit_and_once(tmp_path: Path) -> None:
    (tmp_path / "security").mkdir()
    (tmp_path / "security/limits.conf").write_text("root - nofile 3000000\n* soft nofile 9999999\n")
    said, _ = run_with(tmp_path, LIMITS, {"NOFILE": "4096", "NPROC": "96365"})
    path = tmp_path / "security/limits.d/90-loadgen.conf"
    assert path.read_text() == "* hard nofile 1048576\n"
    assert said[0].startswith("hard nofile of *: 4096 -> 1048576 ")
    assert said[1].startswith("hard nofile of root: 3000000 is in ")
    said, _ = run_with(tmp_path, LIMITS, {"NOFILE": "4096", "NPROC": "96365"})
    assert path.read_text() == "* hard nofile 1048576\n"
    assert said[0].startswith("hard nofile of *: 1048576 is in ")
