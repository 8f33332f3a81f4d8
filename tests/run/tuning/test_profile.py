import dataclasses
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import UsageError
from loadgen.plan.fit import Host, fit_plan
from loadgen.plan.groups import Target
from loadgen.run.tuning import profile as tuning

HOST = Host(cores=2, descriptors=20_000, memory_bytes=24 << 30, local_ports=28_232)
PORTS = "sysctl:net.ipv4.ip_local_port_range"


def setting(rule: str, value: str, **more: str) -> tuning.Setting:
    fields = {"area": "sysctl", "name": "a.b", "reason": "r", "cost": "it hurts", "source": "s"}
    return tuning.Setting(**(fields | {"rule": rule, "value": value} | more))  # type: ignore[arg-type]


def finding(
    one: tuning.Setting, found: str | None, demand: tuning.Demand | None = None, ports: str = ""
) -> tuning.Finding:
    observed = {PORTS: ports} if ports else {}
    if found is not None:
        observed[one.key] = found
    return tuning.compare(tuning.Profile("p", "t", (one,)), observed, demand)[0]


def demand(case: str = "fanin", host: str = "127.0.0.1", **fields: object) -> tuning.Demand:
    scenario = build_scenario(case, None, {"broker": f"mqtt://{host}"} | fields)
    return tuning.demand_of(fit_plan(resolve(scenario), HOST, (Target(host, 1883),), 1))


@pytest.mark.parametrize("name", tuning.profile_names())
def test_profiles_say_why_and_where_from_and_name_themselves(name: str) -> None:
    profile = tuning.read_profile(name)
    assert profile.name == name
    keys = [one.key for one in profile.settings]
    assert len(keys) == len(set(keys)) > 20
    assert {"limit", "sysctl", "nic", "cpu", "service"} <= {one.area for one in profile.settings}
    assert profile.left_out and profile.advice
    # A value that the profile itself wants must be one that it accepts.
    for one in profile.settings:
        if one.rule in ("least", "most", "covers", "holds", "is"):
            wanted = one.value.split("|")[0].replace("-", "0") if one.rule != "holds" else one.value
            assert finding(one, wanted).state == "met", one.name


APPENDICES = tomllib.loads(
    (Path(__file__).parents[3] / "tuning/published/appendices.toml").read_text("utf-8")
)
PROFILES = {"B": "load-host", "C": "broker-host"}
"""Whose machines an appendix is about."""


@pytest.mark.parametrize(
    ("table", "name", "value"),
    [(table, *pair) for table in APPENDICES["table"] for pair in table["values"].items()],
)
def test_every_published_value_is_set_or_left_out_with_a_reason(
    table: dict[str, Any], name: str, value: str
) -> None:
    profile = tuning.read_profile(PROFILES[table["appendix"]])
    key = f"{table['area']}:{table.get('key', {}).get(name, name)}"
    # A setting that stands for several names each.
    set_to = [one.published for one in profile.settings if one.key == key]
    explained = [note.values[name] for note in profile.left_out if name in note.values]
    assert len(set_to) + len(explained) == 1, "set or left out, not both and not neither"
    for said in set_to:
        assert said == value or (said.startswith(f"{value} (") and name in said)
    assert explained in ([], [value])


def test_what_is_left_out_is_published() -> None:
    """Of an appendix of the report, whichever; its other values have their appendix in the name."""
    published = {
        name: value for table in APPENDICES["table"] for name, value in table["values"].items()
    }
    for profile in map(tuning.read_profile, tuning.profile_names()):
        for note in profile.left_out:
            for name, value in note.values.items():
                assert "(Appendix " in name or published[name] == value


def test_the_published_tables_are_whole() -> None:
    sizes = [len(table["values"]) for table in APPENDICES["table"]]
    assert sizes == [22, 10, 7, 14, 7, 3, 11, 5] and "2013" in APPENDICES["source"]


def test_unknown_profile_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="broker-host, load-host"):
        tuning.read_profile("../etc/passwd")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('rule = "atleast"', "rule is not one of"),
        ('area = "kernel"', "area is not one of"),
        ('touches = "some"', "touches is not one of"),
        ('needs = "luck"', "not something that a run needs"),
        ('reason = " "', "reason is empty"),
        ('colour = "red"', "colour"),
        ("value = [", "Invalid|Unclosed|value"),
    ],
)
def test_profile_with_a_mistake_is_refused(change: str, said: str) -> None:
    lines = {
        key: f'{key} = "{value}"'
        for key, value in dataclasses.asdict(setting("least", "1")).items()
        if key not in ("published", "needs", "apply")
    }
    lines[change.split(" ")[0]] = change
    text = 'name = "x"\ntitle = "x"\n[[setting]]\n' + "\n".join(lines.values())
    with pytest.raises(UsageError, match=f"profile x cannot be used: .*({said})"):
        tuning.parse_profile(text, "x")


@pytest.mark.parametrize(
    ("rule", "wanted", "found", "state"),
    [
        ("least", "4096", "4096", "met"),
        ("least", "4096", "4095", "short"),
        ("least", "4096", "unlimited", "met"),
        ("least", "max", "1024", "short"),
        ("least", "- - 100", "1 1 100", "met"),
        ("least", "2 4 8", "2 3 9", "short"),
        ("least", "2 4 8", "2 4", "unknown"),
        ("least", "1", "nothing", "unknown"),
        ("most", "15", "15", "met"),
        ("most", "15", "60", "short"),
        ("is", "tsc|kvm-clock", "kvm-clock", "met"),
        ("is", "tsc|kvm-clock", "hpet", "short"),
        ("is", "performance", "performance powersave", "short"),
        ("covers", "5000 65001", "1024 65535", "met"),
        ("covers", "5000 65001", "32768 60999", "short"),
        ("holds", "8083,8883", "8080-8090,8883", "met"),
        ("holds", "8083,8883", "8083", "short"),
        ("holds", "8083,8883", "", "short"),
        ("stopped", "cron|crond", "", "met"),
        ("stopped", "cron|crond", "cron", "short"),
        ("least", "1", None, "unknown"),
    ],
)
def test_rules(rule: str, wanted: str, found: str | None, state: str) -> None:
    assert finding(setting(rule, wanted), found).state == state


def test_what_a_kernel_lacks_can_be_no_lack() -> None:
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


@pytest.mark.parametrize(
    ("touches", "felt_by"),
    [
        ("every", {"here", "away", "burst", "pair"}),
        ("remote", {"away"}),
        ("shared", {"here", "burst", "pair"}),
        ("messages", {"here", "away", "pair"}),
        ("connects", {"here", "away", "burst"}),
        ("latency", {"pair"}),
    ],
)
def test_runs_feel_what_touches_them(touches: str, felt_by: set[str]) -> None:
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
    assert felt == felt_by


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
    profile = tuning.Profile("p", "t", (ports, low, setting("is", "x", name="c")))
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
    files = next(one for one in tuning.read_profile("load-host").settings if one.name == "nofile")
    ours, another = (
        demand(devices=5_000, workers=9, broker="auto"),
        demand(devices=5_000, workers=9),
    )
    assert another.descriptors < 1_000 < ours.descriptors == ours.broker_descriptors == 5_051
    assert finding(files, "5050", ours).effect == "costs"
    assert finding(files, "5050", another).effect == "none"
    spread = demand(devices=5_000, broker="auto", instances=5)
    assert spread.broker_descriptors == 1_051
