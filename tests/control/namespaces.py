"""Network namespaces of this machine as hosts: each with a link and an address of its own."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

_NETWORK = "10.77.{net}.{host}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def allowed() -> bool:
    """Whether this user may make them."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        return False
    name = f"lg{os.getpid()}-try"
    try:
        _ip("netns", "add", name)
        _ip("netns", "delete", name)
    except subprocess.CalledProcessError:
        return False
    return True


@dataclass(frozen=True)
class Namespace:
    """A host: begin a command with `within` to run it there."""

    name: str
    address: str
    link: str

    @property
    def within(self) -> list[str]:
        return ["ip", "netns", "exec", self.name]

    def cut(self) -> None:
        """Take its link down."""
        _ip("link", "set", self.link, "down")


@contextmanager
def namespaces(count: int) -> Iterator[tuple[str, list[Namespace]]]:
    """The address of this machine on a bridge, and `count` hosts on the same."""
    own = os.getpid() % 10_000
    net = own % 250
    bridge = f"lgb{own}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "delete", bridge)
        ours = _NETWORK.format(net=net, host=1)
        _ip("address", "add", f"{ours}/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        hosts = []
        for number in range(count):
            name, link = f"lg{own}-{number}", f"lgv{own}-{number}"
            address = _NETWORK.format(net=net, host=number + 2)
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            # By itself: a namespace goes some time after it was deleted.
            stack.callback(_ip, "link", "delete", link)
            _ip("link", "set", link, "master", bridge, "up")
            inside = ("-n", name)
            _ip(*inside, "address", "add", f"{address}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            _ip(*inside, "link", "set", "lo", "up")
            hosts.append(Namespace(name, address, link))
        yield ours, hosts
