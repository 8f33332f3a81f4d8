"""The kernel's counters, read from fabricated trees of /proc and /sys."""

import time
from pathlib import Path

import pytest

from loadgen.run.control_groups import control_groups, memory_left, processor_quota
from loadgen.run.host_watch import (
    SAMPLES_LIMIT,
    HostAttendance,
    HostSample,
    between,
    difference,
    network_counters,
    network_within,
    take_sample,
    thinned,
    throttled_ns,
)
from tests.tables import table

HOST = table("host")
S = 10**9


def test_throttled_time_of_both_versions_of_control_groups() -> None:
    assert throttled_ns("nr_periods 4\nnr_throttled 2\nthrottled_time 1200000000\n") == 12 * 10**8
    assert throttled_ns("usage_usec 5\nthrottled_usec 1200000\n") == 12 * 10**8
    assert throttled_ns("usage_usec 5\n") is None


def proc_with(tmp_path: Path, cgroup: str, mountinfo: str) -> Path:
    own = tmp_path / "proc" / "self"
    own.mkdir(parents=True)
    (own / "cgroup").write_text(cgroup)
    (own / "mountinfo").write_text(mountinfo)
    return tmp_path / "proc"


@pytest.mark.parametrize(("cgroup", "mountinfo", "groups"), HOST["groups"])
def test_the_control_groups_of_this_process(
    tmp_path: Path, cgroup: str, mountinfo: str, groups: list[str]
) -> None:
    found = control_groups("cpu", "self", proc_with(tmp_path, cgroup, mountinfo))
    assert [str(path) for path in found] == groups


@pytest.mark.parametrize(("files", "left"), HOST["limits"])
def test_the_limits_of_the_tightest_group(
    tmp_path: Path, files: dict[str, str], left: list[float]
) -> None:
    groups = tmp_path / "groups"
    (groups / "pod" / "own").mkdir(parents=True)
    for name, text in files.items():
        (groups / "pod" / name).write_text(text + "\n")
    wide = {"memory.max": "9000", "memory.current": "0", "cpu.max": "800000 100000"}
    for name, text in wide.items() if left else ():
        (groups / "pod" / "own" / name).write_text(text)
    mount = f"31 23 0:28 / {groups} rw - cgroup2 cgroup2 rw\n"
    proc = proc_with(tmp_path, "0::/pod/own\n", mount)
    assert (memory_left(proc), processor_quota(proc)) == tuple(left or (None, None))


def test_a_sample_has_what_there_is(tmp_path: Path) -> None:
    groups = tmp_path / "groups"
    proc = proc_with(tmp_path, "", f"31 23 0:28 / {groups} rw - cgroup2 cgroup2 rw\n")
    for pid, group in ((7, "a/b"), (9, "c")):
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "cgroup").write_text(f"0::/{group}\n")
        (groups / group).mkdir(parents=True)
    (proc / "stat").write_text(HOST["stat"])
    for name, text in (("a/b", "throttled_usec 5\n"), ("a", "throttled_usec 7\n"), ("c", "x\n")):
        (groups / name / "cpu.stat").write_text(text)
    sample = take_sample((7, 8, 9), proc)
    assert sample.steal_ns == (200_000_000, 100_000_000)
    held = {groups / "a" / "b" / "cpu.stat": 5_000, groups / "a" / "cpu.stat": 7_000}
    assert sample.throttled_ns == held
    (proc / "stat").write_text("cpu  1 2 3 4\ncpu0 1 2 3 4\n")  # before Linux 2.6.11
    assert take_sample((), proc).steal_ns == ()
    empty = take_sample((), tmp_path / "absent")
    assert (empty.steal_ns, empty.throttled_ns) == ((), {})


def test_a_worker_that_is_put_into_a_group_is_followed() -> None:
    old, new = Path("old"), Path("new")
    samples = [
        HostSample(0, throttled_ns={old: 5 * S}),
        HostSample(S, throttled_ns={old: 5 * S, new: 7 * S}),
        HostSample(2 * S, throttled_ns={new: 8 * S}),
    ]
    assert between(samples, [(0, 2 * S)]) == (None, 1.0)


GROUP = Path("cpu.stat")


def course() -> list[HostSample]:
    """Return a sample a second; in the third the second processor is taken, in the fourth a
    quota."""
    steal = [(0, 0), (0, 0), (S // 10, S // 10), (S // 10, S // 2), (S // 10, S // 2), (S, S // 2)]
    held = [0, 0, 0, 0, S // 4, S // 4]
    return [HostSample(second * S, steal[second], {GROUP: held[second]}) for second in range(6)]


def test_what_was_taken_in_the_seconds_of_a_stall() -> None:
    assert between(course(), [(2 * S + 5, 2 * S + 10)]) == (0.4, 0.0)
    assert between(course(), [(2 * S + 5, 3 * S + 10)]) == (0.4, 0.25)
    assert between(course(), [(5, 10), (3 * S + 1, 3 * S + 2)]) == (0.0, 0.25)
    assert between(course(), [(S + 1, 4 * S - 1)]) == (0.5, 0.25)
    assert between(course(), [(9 * S, 10 * S)]) == (None, None)
    assert between([], [(0, S)]) == (None, None)
    unknown = [HostSample(0), HostSample(S)]
    assert between(unknown, [(0, S)]) == (None, None)


def test_a_long_run_keeps_fewer_samples_and_the_last() -> None:
    samples = [HostSample(number) for number in range(SAMPLES_LIMIT + 1)]
    assert thinned(samples[:-1]) == samples[:-1]
    fewer = thinned(samples)
    assert len(fewer) == SAMPLES_LIMIT // 2 + 1
    assert fewer[-1] == samples[-1]
    assert fewer[0] == samples[0]


def test_the_network_of_a_window_is_that_of_its_seconds() -> None:
    samples = [HostSample(at * S, network={"sent_segments": at * 10}) for at in range(9)]
    assert network_within(samples, (2 * S + 1, 4 * S)) == {"sent_segments": 20}


def test_a_process_that_did_not_run_witnesses_its_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = iter((5_000_000, 104_000_000, 204_000_005, 204_000_006))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(turns))
    attendance = HostAttendance()
    for _ in range(4):
        attendance.turn()
    assert [*attendance.gaps] == [(104_000_000, 204_000_005)]


def test_counters_come_by_our_names(tmp_path: Path) -> None:
    assert network_counters().keys() >= {"listen_overflows", "listen_drops", "syn_retransmits"}
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "snmp").write_text(HOST["snmp"])
    (tmp_path / "net" / "netstat").write_text(HOST["netstat"])
    assert network_counters(tmp_path) == {
        "listen_overflows": 5,
        "listen_drops": 6,
        "syn_retransmits": 7,
        "retransmitted_segments": 17,
        "connects_failed": 3,
        "resets_sent": 4,
    }
    for name in ("snmp", "netstat"):
        (tmp_path / "net" / name).write_text("Tcp: RetransSegs\nTcp: many\n")
    assert network_counters(tmp_path) == {}


def test_difference_is_of_what_both_have() -> None:
    assert difference({"a": 1, "b": 2}, {"a": 5, "c": 1}) == {"a": 4}
