"""Processes, memory and addresses of this host, compared with those of psutil."""

import socket
import subprocess

import psutil

from loadgen.brokers.this_host import (
    available_memory_bytes,
    local_addresses,
    process_table,
    with_descendants,
)


def test_a_family_of_processes_and_its_end() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 600 & exec sleep 601"]) as process:
        while len(psutil.Process(process.pid).children()) < 1:
            pass
        shell, sleep = with_descendants([process.pid, 0])
        assert (shell.pid, sleep.parent) == (process.pid, process.pid)
        while "600" not in sleep.command():
            pass
        assert shell.resident_bytes() > 0 and not shell.has_ended()
        psutil.Process(sleep.pid).kill()
        process.kill()
        while not shell.has_ended():
            pass
        assert psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE
    assert process_table().get(process.pid) != shell and shell.has_ended()


def addresses() -> set[str]:
    families = (socket.AF_INET, socket.AF_INET6)
    links = [link for links in psutil.net_if_addrs().values() for link in links]
    return {link.address.partition("%")[0] for link in links if link.family in families}


def test_memory_and_addresses_of_this_host() -> None:
    available: int = psutil.virtual_memory().available
    assert available / 2 < available_memory_bytes() < available * 2
    # Others may take addresses away at this moment.
    before, ours = addresses(), set(local_addresses())
    assert "127.0.0.1" in ours and before & addresses() <= ours
