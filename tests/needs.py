"""What some tests need and not every host has."""

import socket

import pytest

from loadgen.brokers.mosquitto import find_mosquitto

needs_mosquitto = pytest.mark.skipif(
    find_mosquitto() is None, reason="the program mosquitto is not installed"
)


def _has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="the host has no IPv6")
