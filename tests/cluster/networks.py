"""Hosts on one machine: network namespaces with an address each, a Spark cluster across them.

A bridge stands for the switch between them; this namespace has an address on it, too, as the host
of the coordinator. Everything is gone at the end.
"""

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import loadgen
from loadgen.spark.session import find_java_home

READY_S = 120.0


def sh(*words: str) -> None:
    """Run a command that must not fail."""
    subprocess.run(words, check=True, capture_output=True, timeout=60)


def namespaces_allowed() -> bool:
    """Whether this user may make network namespaces here, and Linux can."""
    if os.geteuid() != 0:
        return False
    name = f"lgtry{os.getpid()}"
    try:
        sh("ip", "netns", "add", name)
        sh("ip", "netns", "delete", name)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


@dataclass
class Network:
    """Namespaces by name; `inside(name)` are the words before a command that runs in one."""

    prefix: str
    subnet: str
    names: list[str] = field(default_factory=list)

    @property
    def here(self) -> str:
        """The address of this namespace."""
        return f"{self.subnet}.1"

    def address(self, name: str) -> str:
        return f"{self.subnet}.{10 + self.names.index(name)}"

    def inside(self, name: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", f"{self.prefix}{name}")

    def add(self, name: str) -> None:
        """A namespace of this name on the bridge."""
        self.names.append(name)
        number = self.names.index(name)
        space, near, far = (
            f"{self.prefix}{name}",
            f"{self.prefix}v{number}",
            f"{self.prefix}w{number}",
        )
        sh("ip", "netns", "add", space)
        sh("ip", "link", "add", near, "type", "veth", "peer", "name", far, "netns", space)
        sh("ip", "link", "set", near, "master", f"{self.prefix}b", "up")
        sh(*self.inside(name), "ip", "address", "add", f"{self.address(name)}/24", "dev", far)
        for device in (far, "lo"):
            sh(*self.inside(name), "ip", "link", "set", device, "up")

    def link(self, name: str, state: str) -> None:
        """Cut a namespace's cable, "down", or mend it, "up"."""
        sh("ip", "link", "set", f"{self.prefix}v{self.names.index(name)}", state)


@contextmanager
def network(*names: str) -> Iterator[Network]:
    """Namespaces of these names, joined by a bridge."""
    pid = os.getpid()
    made = Network(f"lg{pid % 10_000}", f"10.{100 + pid % 97}.{pid % 251}")
    bridge = f"{made.prefix}b"
    sh("ip", "link", "add", bridge, "type", "bridge")
    try:
        sh("ip", "address", "add", f"{made.here}/24", "dev", bridge)
        sh("ip", "link", "set", bridge, "up")
        for name in names:
            made.add(name)
        yield made
    finally:
        for number, name in enumerate(made.names):
            # By itself: what is in a namespace goes some time after it was deleted.
            subprocess.run(("ip", "link", "delete", f"{made.prefix}v{number}"), check=False)
            subprocess.run(("ip", "netns", "delete", f"{made.prefix}{name}"), check=False)
        subprocess.run(("ip", "link", "delete", bridge), check=False)


@contextmanager
def program(
    words: Sequence[str], *, environment: dict[str, str] | None = None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A program in a session of its own, killed with all that it started in it."""
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=os.environ | (environment or {}),
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, 15)
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, 9)
                    process.wait()


def until(condition: Callable[[], bool], what: str, seconds: float = READY_S) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"{what}: not within {seconds:g} s"
        time.sleep(0.1)


def answers(address: str, port: int) -> bool:
    """Return True if a connection to this address is accepted."""
    try:
        socket.create_connection((address, port), 1).close()
    except OSError:
        return False
    return True


@dataclass
class Cluster:
    """A standalone master in this namespace, and a worker in each of the others."""

    master: str
    workers: dict[str, "subprocess.Popen[bytes]"]


@contextmanager
def spark_cluster(
    net: Network, hosts: Sequence[str], *, memory: str = "1200m"
) -> Iterator[Cluster]:
    """Spark's own programs, started by `spark-class`, one worker with one core in each host."""
    import pyspark

    home = Path(pyspark.__file__).parent
    port = 7077
    url = f"spark://{net.here}:{port}"
    environment = {
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(Path(loadgen.__file__).parents[1]),
    }
    spark_class = str(home / "bin" / "spark-class")
    with ExitStack() as stack:
        scratch = stack.enter_context(tempfile.TemporaryDirectory(prefix="lgspark"))
        environment["JAVA_HOME"] = str(find_java_home(Path(scratch)))
        stack.enter_context(
            program(
                [
                    *(spark_class, "org.apache.spark.deploy.master.Master"),
                    *("--host", net.here, "--port", str(port), "--webui-port", "0"),
                ],
                environment=environment | {"SPARK_LOCAL_IP": net.here},
            )
        )
        until(lambda: answers(net.here, port), "the master listens")
        workers = {}
        for host in hosts:
            own = net.address(host)
            workers[host] = stack.enter_context(
                program(
                    [
                        *net.inside(host),
                        *(spark_class, "org.apache.spark.deploy.worker.Worker"),
                        *("--host", own, "--webui-port", "0", "--cores", "1"),
                        *("--memory", memory, "--work-dir", f"{scratch}/{host}", url),
                    ],
                    environment=environment | {"SPARK_LOCAL_IP": own},
                )
            )
        yield Cluster(url, workers)
