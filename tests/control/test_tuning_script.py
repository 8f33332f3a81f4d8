import os
import subprocess
from pathlib import Path

import pytest

from loadgen.control.tuning import Profile, Setting, profile_names, read_profile
from loadgen.control.tuning_script import render_script

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
    }
    said = done.stdout.splitlines()
    assert "low: 10 -> 100" in said
    assert "ports: 32768 60999 -> 5000 65001" in said
    assert "skipped: absent is not known to this kernel" in said
    assert not [line for line in said if line.startswith(("high", "huge", "wide", "same"))]
    assert done.stderr == ""
