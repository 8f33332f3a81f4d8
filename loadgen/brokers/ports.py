"""Addresses of this host, the processes that listen at them, and ports to listen at.

An outgoing connection can take a port of `net.ipv4.ip_local_port_range`, and a restarted broker
could not come back to it. Ports are therefore chosen outside.
"""

import asyncio
import errno
import ipaddress
import os
import random
import socket
from collections.abc import Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from loadgen.brokers.this_host import local_addresses, process_table
from loadgen.errors import HostLimitError
from loadgen.sentences import BROKER_TEXT

_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_RANGE: Final = range(32768, 61000)
_ATTEMPTS: Final = 200
_BACKLOG: Final = 4096
_FIRST_PORT: Final = 10_000
_PROGRAMS: Final = ("nats-server", "mosquitto", "flashmq", "nanomq", "rmqttd")
_LISTEN: Final = " 0A "  # the state in a line of /proc/net/tcp


def ephemeral_ports() -> range:
    """Return the ports that the kernel gives to outgoing connections."""
    try:
        first, last = _RANGE_FILE.read_text("utf-8").split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return _DEFAULT_RANGE


def listen(host: str, port: int = 0) -> socket.socket:
    """Return a non-blocking listening TCP socket; `port` 0 picks one outside `ephemeral_ports`.

    Raise HostLimitError if it cannot be bound.
    """
    problem: OSError | None = None
    candidates = [port]
    if not port:
        # Small numbers belong to well-known services that may be started later.
        ports, taken = range(_FIRST_PORT, 65536), ephemeral_ports()
        # A tuned host may leave nothing outside; then any port is better than none.
        outside = [one for one in ports if one not in taken] or list(ports)
        candidates = random.sample(outside, min(_ATTEMPTS, len(outside)))
    for candidate in candidates:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(_BACKLOG)  # the kernel cuts it at net.core.somaxconn
        except OSError as error:
            listener.close()
            problem = error
            if error.errno == errno.EADDRINUSE:
                continue
            break
        listener.setblocking(False)
        return listener
    reason = problem or "no port to try"
    place = f"{host}:{port}" if port else host
    raise HostLimitError(BROKER_TEXT.CANNOT_LISTEN(place=place, reason=reason))


async def open_socket(host: str, port: int) -> socket.socket:
    """Connect to the first address of the host that accepts; raise OSError."""
    loop = asyncio.get_running_loop()
    refused = OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    for family, kind, protocol, _, address in await loop.getaddrinfo(
        host, port, type=socket.SOCK_STREAM
    ):
        opened = socket.socket(family, kind, protocol)
        opened.setblocking(False)
        try:
            await loop.sock_connect(opened, address)
        except BaseException as error:
            opened.close()
            if not isinstance(error, OSError):
                raise
            refused = error
        else:
            opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return opened
    raise refused


def free_port(host: str) -> int:
    """Return a free port as `free_ports` does; raise HostLimitError."""
    return free_ports(host, 1)[0]


def free_ports(host: str, count: int) -> tuple[int, ...]:
    """Return different free ports on `host` outside `ephemeral_ports`; raise HostLimitError."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(listen(host)) for _ in range(count)]
        return tuple(listener.getsockname()[1] for listener in listeners)


def is_local(host: str) -> bool:
    try:
        addresses = {info[4][0] for info in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except OSError:
        return False
    local = set(local_addresses())
    return any(
        address in local or ipaddress.ip_address(address).is_loopback
        for address in (str(address).partition("%")[0] for address in addresses)
    )


def listening_pids(port: int) -> tuple[int, ...]:
    """Return the processes that listen on a TCP port, if this user may see them."""
    sockets: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(OSError), Path(table).open(encoding="ascii") as lines:
            for line in lines:
                if f":{port:04X} " in line and _LISTEN in line:
                    _, address, _, state, *_, inode = line.split()[:10]
                    if state == _LISTEN.strip() and address.endswith(f":{port:04X}"):
                        sockets.add(f"socket:[{inode}]")
    return tuple(sorted(pid for pid in process_table() if _has_open(pid, sockets)))


def program_at(host: str, port: int) -> str:
    """Return the name of the broker's program that listens here; "" for others, such as proxies."""
    table = process_table() if is_local(host) else {}
    commands = (table[pid].command() for pid in listening_pids(port) if pid in table)
    programs = (command.partition("\0")[0].rpartition("/")[2] for command in commands)
    return next((program for program in programs if program in _PROGRAMS), "")


def _has_open(pid: int, files: Collection[str]) -> bool:
    with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
        for descriptor in descriptors:
            with suppress(OSError):
                if os.readlink(descriptor.path) in files:  # noqa: PTH115  # of many, and quick
                    return True
    return False
