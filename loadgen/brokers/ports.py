"""Listening ports that no outgoing connection can take.

A listener inside `net.ipv4.ip_local_port_range` may find its port used as the local port of some
connection, and a restarted broker then cannot come back to it. So ports are chosen outside.
"""

import errno
import random
import socket
from pathlib import Path
from typing import Final

from loadgen.errors import HostLimitError

_RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
_DEFAULT_RANGE: Final = range(32768, 61000)
_ATTEMPTS: Final = 200
_FIRST_PREFERRED_PORT: Final = 10_000


def ephemeral_ports() -> range:
    """The ports that the kernel gives to outgoing connections."""
    try:
        first, last = _RANGE_FILE.read_text().split()
        return range(int(first), int(last) + 1)
    except (OSError, ValueError):
        return _DEFAULT_RANGE


def _candidates() -> list[int]:
    taken = ephemeral_ports()
    outside = [port for port in range(1024, 65536) if port not in taken]
    # Small numbers belong to well-known services that may be started later.
    preferred = [port for port in outside if port >= _FIRST_PREFERRED_PORT]
    # A tuned host may leave nothing outside; then any port is better than none.
    pool = preferred or outside or list(range(_FIRST_PREFERRED_PORT, 65536))
    return random.sample(pool, min(_ATTEMPTS, len(pool)))


def listen(host: str, port: int = 0, backlog: int = 4096) -> socket.socket:
    """A non-blocking listening TCP socket on `host`.

    `port` 0 picks one outside `ephemeral_ports`. The kernel cuts `backlog` at
    `net.core.somaxconn`. Raises HostLimitError when it cannot be bound.
    """
    problem: OSError | None = None
    for candidate in [port] if port else _candidates():
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, candidate))
            listener.listen(backlog)
        except OSError as error:
            listener.close()
            problem = error
            if error.errno == errno.EADDRINUSE:
                continue
            break
        listener.setblocking(False)
        return listener
    reason = problem.strerror if problem is not None else "no port to try"
    place = f"{host}:{port}" if port else host
    raise HostLimitError(f"cannot listen on {place}: {reason}; choose another port or address")


def free_port(host: str) -> int:
    """A port on `host` that could be listened on a moment ago; outside `ephemeral_ports`.

    Raises HostLimitError.
    """
    with listen(host) as listener:
        port: int = listener.getsockname()[1]
    return port
