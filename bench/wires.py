"""Network paths between namespaces and this one, with a delay, a loss, a rate and cuts.

They are pairs of TUN devices, between which a process carries packets: no kernel module is needed.
`python -m bench.wires` carries for `wires`, which sends it a line for each change.
"""

import fcntl
import heapq
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.cluster.networks import Network, sh

_TUNSETIFF, _TUN_WITHOUT_HEADER = 0x400454CA, 0x1001
_MTU = 1500
_STDIN = 0
_QUEUE_S = 0.5
"""Longest wait of a packet for a path with a rate; one that would wait longer is dropped."""


@dataclass
class Wires:
    """Paths of hosts to `address`, which is of this namespace and reached by them alone."""

    address: str
    process: "subprocess.Popen[str]"
    broker: "subprocess.Popen[bytes]" = field(init=False)

    def set(
        self, number: int, *, delay_s: float = 0.0, loss: float = 0.0, rate: float = 0.0
    ) -> None:
        """Change the path of a host in both directions; a loss of 1 is a cut.

        `rate` is in bits a second; 0 stands for no limit.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{number} {delay_s} {loss} {rate}\n")
        self.process.stdin.flush()


@contextmanager
def wires(net: Network, names: Sequence[str]) -> Iterator[Wires]:
    address = f"{net.subnet}.2"
    sh("ip", "address", "add", f"{address}/32", "dev", f"{net.prefix}b")
    devices = [f"{net.prefix}{end}{at}" for at in range(len(names)) for end in "np"]
    carrier = subprocess.Popen(
        [sys.executable, "-m", "bench.wires", *devices],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert carrier.stdout is not None and carrier.stdout.readline() == "ready\n"
        for at, name in enumerate(names):
            near, far, own = devices[2 * at], devices[2 * at + 1], f"{net.subnet}.{100 + at}"
            sh("ip", "link", "set", far, "netns", f"{net.prefix}{name}")
            sh("ip", "link", "set", near, "up")
            sh("ip", "route", "add", f"{own}/32", "dev", near)
            sh(*net.inside(name), "ip", "address", "add", f"{own}/32", "dev", far)
            sh(*net.inside(name), "ip", "link", "set", far, "up")
            sh(*net.inside(name), "ip", "route", "add", f"{address}/32", "dev", far, "src", own)
        yield Wires(address, carrier)
    finally:
        carrier.kill()
        carrier.communicate()


def _tun(name: str) -> int:
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, _TUNSETIFF, struct.pack("16sH", name.encode(), _TUN_WITHOUT_HEADER))
    return descriptor


def _carry(devices: Sequence[int]) -> None:
    other = {one: devices[at ^ 1] for at, one in enumerate(devices)}
    delay_s, loss, rate, free_s = (dict.fromkeys(devices, 0.0) for _ in range(4))
    waiting: list[tuple[float, int, int, bytes]] = []
    count = 0
    while True:
        until_s = max(waiting[0][0] - time.monotonic(), 0.0) if waiting else None
        for ready in select.select([_STDIN, *devices], [], [], until_s)[0]:
            if ready == _STDIN:
                number, *values = map(float, sys.stdin.readline().split())
                for one in devices[2 * int(number) : 2 * int(number) + 2]:
                    delay_s[one], loss[one], rate[one] = values
                continue
            packet = os.read(ready, _MTU)
            begin_s = max(time.monotonic(), free_s[ready])
            if random.random() < loss[ready] or begin_s > time.monotonic() + _QUEUE_S:
                continue
            free_s[ready] = begin_s + (8 * len(packet) / rate[ready] if rate[ready] else 0.0)
            count += 1
            due_s = free_s[ready] + delay_s[ready]
            heapq.heappush(waiting, (due_s, count, other[ready], packet))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(waiting)
            with suppress(OSError):  # a device that is not up yet
                os.write(device, packet)


if __name__ == "__main__":
    opened = [_tun(name) for name in sys.argv[1:]]
    print("ready", flush=True)
    _carry(opened)
