import resource
from pathlib import Path

import pytest

from loadgen.run.tuning.profile import Profile, Setting, read_profile
from loadgen.run.tuning.tuning_host import interface_of, observe


def profile(*settings: tuple[str, str, str]) -> Profile:
    return Profile(
        "p",
        "t",
        tuple(
            Setting(area, name, "least", value, "r", "c", "s")  # type: ignore[arg-type]
            for area, name, value in settings
        ),
    )


def lay(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_sysctl_is_read_as_words_and_an_absent_one_is_left_out(tmp_path: Path) -> None:
    lay(tmp_path, **{"proc/sys/net/ipv4/tcp_mem": "1\t2\t3\n"})
    asked = profile(("sysctl", "net.ipv4.tcp_mem", "1 1 1"), ("sysctl", "net.core.none", "1"))
    assert observe(asked, tmp_path) == {"sysctl:net.ipv4.tcp_mem": "1 2 3"}


@pytest.mark.parametrize(("count", "seen"), [("0", False), ("17", True)])
def test_connection_tracking_counts_only_where_it_tracks(
    tmp_path: Path, count: str, seen: bool
) -> None:
    where = "proc/sys/net/netfilter/nf_conntrack_"
    lay(tmp_path, **{where + "max": "262144\n", where + "count": count + "\n"})
    asked = profile(("sysctl", "net.netfilter.nf_conntrack_max", "1"))
    assert bool(observe(asked, tmp_path)) is seen


def test_limits_are_the_hard_ones() -> None:
    found = observe(profile(("limit", "nofile", "1")))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    wanted = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
    assert found == {"limit:nofile": wanted}


def test_control_group_has_the_tightest_limit_on_the_way_up(tmp_path: Path) -> None:
    top = "sys/fs/cgroup/"
    lay(
        tmp_path,
        **{
            "proc/self/cgroup": "0::/system.slice/a.service\n",
            top + "system.slice/a.service/pids.max": "max\n",
            top + "system.slice/pids.max": "800\n",
            top + "system.slice/a.service/memory.max": "max\n",
        },
    )
    found = observe(profile(("cgroup", "pids.max", "1"), ("cgroup", "memory.max", "1")), tmp_path)
    assert found == {"cgroup:pids.max": "800", "cgroup:memory.max": "max"}


def test_processor(tmp_path: Path) -> None:
    cpu = "sys/devices/system/cpu/"
    lay(
        tmp_path,
        **{
            cpu + "cpu0/cpufreq/scaling_governor": "performance\n",
            cpu + "cpu1/cpufreq/scaling_governor": "powersave\n",
            cpu + "cpu0/cpuidle/state0/latency": "0\n",
            cpu + "cpu0/cpuidle/state1/latency": "2\n",
            cpu + "cpu0/cpuidle/state2/latency": "150\n",
            cpu + "cpu0/cpuidle/state2/disable": "1\n",
            "sys/devices/system/clocksource/clocksource0/current_clocksource": "hpet\n",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
        },
    )
    names = ("governor", "idle-exit-us", "clocksource", "transparent-hugepage")
    found = observe(profile(*(("cpu", name, "1") for name in names)), tmp_path)
    assert found == {
        "cpu:governor": "performance powersave",
        "cpu:idle-exit-us": "2",
        "cpu:clocksource": "hpet",
        "cpu:transparent-hugepage": "madvise",
    }


def test_services_are_seen_by_their_processes(tmp_path: Path) -> None:
    lay(tmp_path, **{"proc/12/comm": "crond\n", "proc/13/comm": "bash\n"})
    asked = profile(("service", "cron", "cron|crond|atd"), ("service", "auditd", "auditd"))
    assert observe(asked, tmp_path) == {"service:cron": "crond", "service:auditd": ""}


def test_interface_is_the_one_with_the_default_route(tmp_path: Path) -> None:
    net = "sys/class/net/"
    lay(
        tmp_path,
        **{
            "proc/net/route": "Iface\tDestination\tGateway\n"
            "eth1\t000200C0\t00000000\neth7\t00000000\t010200C0\n",
            net + "eth7/mtu": "9000\n",
            net + "eth7/speed": "25000\n",
            net + "eth7/queues/rx-0/x": "",
            net + "eth7/queues/rx-1/x": "",
            net + "eth7/queues/tx-0/x": "",
        },
    )
    assert interface_of(tmp_path) == "eth7"
    asked = profile(*(("nic", name, "1") for name in ("mtu", "speed", "queues")))
    assert observe(asked, tmp_path) == {"nic:mtu": "9000", "nic:speed": "25000", "nic:queues": "2"}
    assert observe(asked, tmp_path, "eth8") == {}


def test_without_a_route_the_first_interface_that_is_up(tmp_path: Path) -> None:
    net = "sys/class/net/"
    lay(
        tmp_path,
        **{
            net + "lo/operstate": "up\n",
            net + "eth0/operstate": "down\n",
            net + "eth1/operstate": "up\n",
        },
    )
    assert interface_of(tmp_path) == "eth1"
    assert interface_of(tmp_path / "nowhere") is None


def test_this_host_can_be_read_and_hostile_text_is_escaped(tmp_path: Path) -> None:
    found = observe(read_profile("load-host"))
    assert "sysctl:net.ipv4.ip_local_port_range" in found
    lay(tmp_path, **{"proc/sys/a": "\x1b[31m" + "x" * 1000})
    (value,) = observe(profile(("sysctl", "a", "1")), tmp_path).values()
    assert value.startswith("\\x1b[31m") and len(value) < 300
