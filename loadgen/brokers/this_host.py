"""Processes, memory and addresses of this host, read from /proc."""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv6Address
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")
_STATE, _PARENT, _START, _TIMES = 0, 1, 19, slice(11, 15)
"""Columns of /proc/PID/stat after the name."""
_LOCAL_ADDRESS: Final = re.compile(r"\|-- ([\d.]+)\n\s+/32 host LOCAL")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class HostProcess:
    """A process, identified by its number and start, because numbers are used again."""

    pid: int
    start: int
    parent: int = field(compare=False)
    is_zombie: bool = field(compare=False)
    ticks: int = field(compare=False)  # of processor time, with its ended children

    def resident_bytes(self) -> int:
        """Return the memory in use; raise OSError if the process has ended."""
        return int((PROC / str(self.pid) / "statm").read_bytes().split()[1]) * _PAGE_BYTES

    def disk_bytes(self) -> tuple[int, int]:
        """Return the bytes read from and written to disks; raise OSError if another user's."""
        lines = (PROC / str(self.pid) / "io").read_text().splitlines()
        values = {name: int(value) for name, _, value in (line.partition(": ") for line in lines)}
        return values["read_bytes"], values["write_bytes"]

    def network_bytes(self) -> tuple[int, int]:
        """Return the bytes received and sent on all interfaces of the process's namespace."""
        lines = (PROC / str(self.pid) / "net" / "dev").read_text().splitlines()[2:]
        values = [line.partition(":")[2].split() for line in lines]
        return sum(int(each[0]) for each in values), sum(int(each[8]) for each in values)

    def command(self) -> str:
        """Return the words of the command line; "" if the process has ended."""
        try:
            return (PROC / str(self.pid) / "cmdline").read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    def has_ended(self) -> bool:
        now = _read(self.pid)
        return now != self or now.is_zombie


def _read(pid: int) -> HostProcess | None:
    try:
        # The name in front may hold anything, as blanks and parentheses.
        words = (PROC / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    parent, ticks = int(words[_PARENT]), sum(map(int, words[_TIMES]))
    return HostProcess(pid, int(words[_START]), parent, words[_STATE] == b"Z", ticks)


def process_table() -> dict[int, HostProcess]:
    numbers = [int(entry.name) for entry in os.scandir(PROC) if entry.name.isdecimal()]
    return {pid: process for pid in numbers if (process := _read(pid)) is not None}


def with_descendants(pids: Iterable[int]) -> list[HostProcess]:
    """Return the processes with all their descendants, in one look at the process table."""
    table = process_table()
    children: dict[int, list[HostProcess]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    family = [table[pid] for pid in pids if pid in table]
    for process in family:  # grows on the way
        family += children.get(process.pid, ())
    return family


def available_memory_bytes() -> int:
    """Return the memory that new programs can use without swapping."""
    (kilobytes,) = re.findall(
        r"^MemAvailable: +(\d+) kB", (PROC / "meminfo").read_text("utf-8"), re.M
    )
    return int(kilobytes) * 1024


def local_addresses() -> list[str]:
    addresses: list[str] = []
    with suppress(OSError):
        addresses += _LOCAL_ADDRESS.findall((PROC / "net" / "fib_trie").read_text("utf-8"))
    with suppress(OSError):
        for line in (PROC / "net" / "if_inet6").read_text("utf-8").splitlines():
            addresses.append(str(IPv6Address(int(line.split()[0], 16))))
    return list(dict.fromkeys(addresses))
