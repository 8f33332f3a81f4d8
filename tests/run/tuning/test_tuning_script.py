import os
import subprocess
from pathlib import Path

import pytest

from loadgen.run.tuning.profile import Profile, Setting, profile_names, read_profile
from loadgen.run.tuning.tuning_script import render_script

FAKE_SYSCTL = """#!/bin/sh
# One file a value, in the folder beside this program.
dir=$(dirname "$0")/values
case $1 in
-n) cat "$dir/$2" 2>/dev/null || exit 1 ;;
-q) name=${3%%=*}; [ -e "$dir/$name" ] || exit 1; printf '%s\\n' "${3#*=}" > "$dir/$name" ;;
esac
"""


@pytest.mark.parametrize("name", profile_names())
def test_script_of_a_profile_is_shell_and_names_every_setting(name: str) -> None:
    profile = read_profile(name)
    text = render_script(profile, "loadgen 0")
    done = subprocess.run(["sh", "-n"], input=text, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert [s.name for s in profile.settings if f"# {s.name}: " not in text] == []
    assert max(map(len, text.splitlines())) <= 130


def sysctl(rule: str, name: str, value: str) -> Setting:
    return Setting("sysctl", name, rule, value, "why", "cost", "source")  # type: ignore[arg-type]


def test_script_raises_what_is_low_and_leaves_what_is_better(tmp_path: Path) -> None:
    values = {
        "low": "10",
        "high": "900",
        "huge": "9223372036854775807",
        "three": "1\t500\t3",
        "slow": "60",
        "ports": "32768\t60999",
        "wide": "1024\t65535",
        "reserved": "",
        "listed": "22",
        "switch": "2",
        "same": "1",
        "other": "0",
    }
    wanted = {
        "low": sysctl("least", "low", "100"),
        "high": sysctl("least", "high", "100"),
        "huge": sysctl("least", "huge", "100"),
        "three": sysctl("least", "three", "- 100 100"),
        "slow": sysctl("most", "slow", "15"),
        "ports": sysctl("covers", "ports", "5000 65001"),
        "wide": sysctl("covers", "wide", "5000 65001"),
        "reserved": sysctl("holds", "reserved", "8883"),
        "listed": sysctl("holds", "listed", "8883"),
        "switch": sysctl("is", "switch", "1|0"),
        "same": sysctl("is", "same", "1"),
        "other": sysctl("is", "other", "1|0"),
        "absent": sysctl("least", "absent", "1"),
    }
    (tmp_path / "values").mkdir()
    for name, value in values.items():
        (tmp_path / "values" / name).write_text(value + "\n")
    (tmp_path / "sysctl").write_text(FAKE_SYSCTL)
    (tmp_path / "sysctl").chmod(0o755)
    text = render_script(Profile("p", "t", tuple(wanted.values())), "loadgen 0")
    done = subprocess.run(
        ["sh", "-s", "eth0"],
        input=text,
        text=True,
        capture_output=True,
        check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )
    after = {name: (tmp_path / "values" / name).read_text().split() for name in values}
    assert after == {
        "low": ["100"],
        "high": ["900"],
        "huge": ["9223372036854775807"],
        "three": ["1", "500", "100"],
        "slow": ["15"],
        "ports": ["5000", "65001"],
        "wide": ["1024", "65535"],
        "reserved": ["8883"],
        "listed": ["22,8883"],
        "switch": ["1"],
        "same": ["1"],
        "other": ["0"],
    }
    said = done.stdout.splitlines()
    assert "low: 10 -> 100" in said
    assert "ports: 32768 60999 -> 5000 65001" in said
    assert "skipped: absent is not known to this kernel" in said
    assert not [line for line in said if line.startswith(("high", "huge", "wide", "same"))]
    assert done.stderr == ""


FAKE_IP = """#!/bin/sh
case $1 in
-o) echo "2: eth0: <UP> mtu $MTU qdisc mq state UP mode DEFAULT group default qlen 1000" ;;
*) echo "ip $*" >> "$CALLS" ;;
esac
"""
FAKE_ETHTOOL = """#!/bin/sh
case $1 in
-g) printf 'Ring parameters for %s:\\nPre-set maximums:\\n' "$2"
    printf 'RX:\\t\\t%s\\nRX Mini:\\tn/a\\nTX:\\t\\t8192\\n' "$LARGEST"
    printf 'Current hardware settings:\\n'
    printf 'RX:\\t\\t%s\\nRX Mini:\\tn/a\\nTX:\\t\\t8192\\n' "$RING" ;;
-c) printf 'Coalesce parameters for %s:\\nAdaptive RX: %s  TX: n/a\\n' "$2" "$ADAPTIVE"
    printf 'rx-usecs:\\t%s\\nrx-usecs-irq:\\tn/a\\n' "$USECS" ;;
*) echo "ethtool $*" >> "$CALLS" ;;
esac
"""
FAKE_CAT = """#!/bin/sh
[ "$1" = /proc/self/limits ] || exec /bin/cat "$@"
echo 'Limit                     Soft Limit           Hard Limit           Units     '
echo "Max processes             10                   $NPROC                processes "
echo "Max open files            10                   $NOFILE                files     "
"""


def setting(area: str, name: str, rule: str, value: str, apply: str = "") -> Setting:
    return Setting(area, name, rule, value, "why", "cost", "source", apply=apply)  # type: ignore[arg-type]


CARD = (
    setting("nic", "rx-ring", "least", "4096", "rx"),
    setting("nic", "tx-ring", "least", "4096", "tx"),
    setting("nic", "rx-usecs", "most", "10"),
    setting("nic", "adaptive-rx", "is", "off"),
    setting("nic", "mtu", "least", "1500"),
)
LIMITS = (
    setting("limit", "nofile", "least", "1048576"),
    setting("limit", "nproc", "least", "4096"),
)


def run_with(
    tmp_path: Path, settings: tuple[Setting, ...], host: dict[str, str]
) -> tuple[list[str], list[str]]:
    """What the script says, and what it calls to change the card, on a host of these values."""
    tools = tmp_path / "bin"
    tools.mkdir(exist_ok=True)
    for name, text in (("ip", FAKE_IP), ("ethtool", FAKE_ETHTOOL), ("cat", FAKE_CAT)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    (tmp_path / "security/limits.d").mkdir(parents=True, exist_ok=True)
    calls = tmp_path / "calls"
    calls.write_text("")
    done = subprocess.run(
        ["sh", "-s", "eth0"],
        input=render_script(Profile("p", "t", settings), "loadgen 0"),
        text=True,
        capture_output=True,
        check=True,
        env={
            "PATH": f"{tools}:{os.environ['PATH']}",
            "SECURITY": str(tmp_path / "security"),
            "CALLS": str(calls),
            **host,
        },
    )
    assert done.stderr == ""
    return done.stdout.splitlines(), calls.read_text().splitlines()


def test_script_leaves_a_better_card(tmp_path: Path) -> None:
    better = {"MTU": "9000", "RING": "8192", "LARGEST": "8192", "USECS": "3", "ADAPTIVE": "off"}
    assert run_with(tmp_path, CARD, better) == ([], [])


def test_script_improves_a_worse_card_and_says_the_old_values(tmp_path: Path) -> None:
    worse = {"MTU": "1400", "RING": "256", "LARGEST": "2048", "USECS": "50", "ADAPTIVE": "on"}
    said, called = run_with(tmp_path, CARD, worse)
    assert said == [
        "eth0 rx-ring: 256 -> 2048",
        "eth0 rx-usecs: 50 -> 10",
        "eth0 adaptive-rx: on -> off (the profile asks for exactly this)",
        "eth0 mtu: 1400 -> 1500",
    ]
    assert called == [
        "ethtool -G eth0 rx 2048",
        "ethtool -C eth0 rx-usecs 10",
        "ethtool -C eth0 adaptive-rx off",
        "ip link set dev eth0 mtu 1500",
    ]


def test_script_skips_what_the_card_does_not_show(tmp_path: Path) -> None:
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
