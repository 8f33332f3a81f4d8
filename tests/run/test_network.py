from pathlib import Path

from loadgen.run.network import difference, network_counters

SNMP = """Ip: Forwarding DefaultTTL
Ip: 1 64
Tcp: RtoAlgorithm AttemptFails RetransSegs OutRsts
Tcp: 1 3 17 4
"""
NETSTAT = """TcpExt: SyncookiesSent ListenOverflows ListenDrops TCPSynRetrans
TcpExt: 0 5 6 7
"""


def test_counters_come_by_our_names(tmp_path: Path) -> None:
    assert network_counters().keys() >= {"listen_overflows", "listen_drops", "syn_retransmits"}
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "snmp").write_text(SNMP)
    (tmp_path / "net" / "netstat").write_text(NETSTAT)
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
