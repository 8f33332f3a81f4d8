"""The TCP counters of the host that explain most slow connects.

They belong to the whole network namespace, so a run's share is the difference over the run.
"""

from collections.abc import Mapping
from pathlib import Path

_COUNTERS = {
    # Documentation/networking/snmp_counter.rst of the Linux kernel
    "listen_overflows": ("TcpExt", "ListenOverflows"),
    "listen_drops": ("TcpExt", "ListenDrops"),
    "syn_retransmits": ("TcpExt", "TCPSynRetrans"),
    "retransmitted_segments": ("Tcp", "RetransSegs"),
    "connects_failed": ("Tcp", "AttemptFails"),
    "resets_sent": ("Tcp", "OutRsts"),
    "receive_queue_pruned": ("TcpExt", "RcvPruned"),
    "memory_pressure": ("TcpExt", "TCPMemoryPressures"),
}


def parse_counters(text: str) -> dict[tuple[str, str], int]:
    """Parse a file in the format of /proc/net/snmp: a line of names, a line of values."""
    counters: dict[tuple[str, str], int] = {}
    lines = text.splitlines()
    for names, values in zip(lines[::2], lines[1::2], strict=False):
        table, _, columns = names.partition(":")
        counters.update(
            ((table, name), int(value))
            for name, value in zip(columns.split(), values.split()[1:], strict=False)
        )
    return counters


def network_counters(proc: Path = Path("/proc")) -> dict[str, int]:
    """Return the counters by our names, without those that this kernel lacks."""
    counters: dict[tuple[str, str], int] = {}
    for name in ("snmp", "netstat"):
        try:
            counters |= parse_counters((proc / "net" / name).read_text("ascii"))
        except (OSError, ValueError):
            continue
    return {name: counters[key] for name, key in _COUNTERS.items() if key in counters}


def difference(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, int]:
    return {name: after[name] - before[name] for name in before if name in after}
