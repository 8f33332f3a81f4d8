import json
import subprocess
from collections.abc import Mapping

import pytest

from loadgen.cli.main import main
from loadgen.plan.fit import Host
from loadgen.run import broker_provider
from loadgen.run.tuning import Profile, read_profile
from tests.terminal import Captured


def host(monkeypatch: pytest.MonkeyPatch, **different: str) -> None:
    """A host that has just what the profile wants, but for these settings."""

    def observe(profile: Profile, **_: object) -> Mapping[str, str]:
        found = {}
        for one in profile.settings:
            wanted = one.value.split("|")[0].replace("-", "99999999")
            found[one.key] = "" if one.rule == "stopped" else wanted
        for one in profile.settings:
            if one.name.replace(".", "_").replace("-", "_") in different:
                found[one.key] = different[one.name.replace(".", "_").replace("-", "_")]
        return found

    monkeypatch.setattr("loadgen.run.tuning.observe", observe)


def test_host_that_is_as_wanted_passes(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    host(monkeypatch)
    count = len(read_profile("load-host").settings)
    assert main(["tune", "check"]) == 0
    assert capsys.readouterr().out == f"{count} of {count} settings of load-host are met\n"


def test_difference_is_told_with_its_cost(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    host(monkeypatch, net_ipv4_ip_local_port_range="32768 60999", auditd="auditd")
    assert main(["tune", "check", "--profile", "load-host"]) == 1
    said = capsys.readouterr().out
    assert "net.ipv4.ip_local_port_range: 32768 60999, wanted to cover 5000 65001" in said
    assert "more source addresses" in said
    assert "auditd: auditd is running" in said


@pytest.mark.parametrize("run", ["fanin --devices 1k", "bridge --backends 2"])
def test_planned_run_that_feels_nothing_passes(
    run: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    host(monkeypatch, net_ipv4_ip_local_port_range="32768 60999")
    assert main(["tune", "check", *run.split()]) == 0
    assert "these affect the planned run: none" in capsys.readouterr().out


def test_planned_run_that_needs_more_does_not(
    monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    host(monkeypatch, net_ipv4_ip_local_port_range="60000 60099")
    words = ["tune", "check", "--json", "fanin", "--devices", "1k"]
    assert main(words) == 1
    record = json.loads(capsys.readouterr().out)
    (difference,) = record["differences"]
    assert difference["effect"] == "costs"
    assert difference["detail"].startswith(f"the run needs {record['needs']['ports']:,}: ")


def test_this_host_and_both_profiles(capsys: Captured) -> None:
    for profile in ("load-host", "broker-host"):
        assert main(["tune", "check", "--profile", profile]) in (0, 1)
        assert f"settings of {profile} are met" in capsys.readouterr().out
        assert main(["tune", "show", "--profile", profile]) == 0
        assert "Appendix B" in capsys.readouterr().out
        assert main(["tune", "script", "--profile", profile]) == 0
        script = capsys.readouterr().out
        subprocess.run(["sh", "-n"], input=script, text=True, check=True)
        assert main(["tune", "show", "--json", "--profile", profile]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["name"] == profile
        assert {"name", "value", "reason", "source", "cost"} <= set(shown["settings"][0])


@pytest.mark.parametrize("count", ["1", "10"])
def test_a_broker_started_here_that_lacks_descriptors_is_found_and_not_refused(
    count: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    host(monkeypatch, nofile="2000")
    hosted = Host(cores=2, descriptors=2_000, memory_bytes=24 << 30, local_ports=28_000)
    monkeypatch.setattr(broker_provider, "host_of", lambda: hosted)
    words = ["tune", "check", "fanin", "--devices", "10k", "--instances", count]
    short = count == "1"
    assert main(words) == short
    assert ("the run needs 10,051" in capsys.readouterr().out) == short
