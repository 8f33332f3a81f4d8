"""What TLS and WebSocket connections cost the workers: processor time of a connect, idle memory.

    python bench/tls.py                            TLS 1.3 and 1.2, beside `openssl s_time -new`
    python bench/tls.py --devices 15k --transports tcp,ws,tls
    python bench/tls.py --ciphers ECDHE-RSA-AES128-GCM-SHA256 --versions 1.2

A private Mosquitto is the server of both; both check its certificate.
`openssl s_time` connects, shakes hands and closes, again and again; loadgen also makes the MQTT
session and keeps it. Memory is what a worker with all devices has more resident than one with
100 of them, by device: what an interpreter takes is in neither.
"""

import argparse
import asyncio
import re
import resource
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from loadgen.brokers.certificates import make_certificates
from loadgen.brokers.mosquitto import run_mosquitto
from loadgen.brokers.process import ProgramSettings
from loadgen.errors import LoadgenError
from loadgen.plan.groups import DeviceGroup, Publishes, Share, Target, Tls, WorkerPlan
from loadgen.plan.plan import PhasePlan, Plan
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_count
from loadgen.run.calibrate import play

FEW = 100
IN_FLIGHT = 64
SPARE = 400
"""Descriptors of a worker or a broker that are not devices."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to connect; `version` and `ciphers` are of TLS."""

    transport: str
    version: str = ""
    ciphers: str | None = None

    def tls(self, authority: Path) -> Tls:
        return Tls(str(authority), version=self.version, ciphers=self.ciphers)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one connection."""

    cpu_us: float
    bytes_each: float
    agreed: str


async def _connected(kind: Kind, devices: int, port: int, authority: Path) -> tuple[int, int, str]:
    """Processor time (ns) of connecting devices, resident bytes of the worker, and the cipher."""
    plan = Plan(
        run_tag=secrets.randbits(32),
        scenario=Scenario(case="bench"),
        # One message a second of all: without any there is no window to look at memory in.
        groups=(DeviceGroup("devices", devices, Publishes("bench/{topic}", 1.0)),),
        targets=(Target("127.0.0.1", port, kind.transport, "/mqtt"),),  # type: ignore[arg-type]
        workers=(WorkerPlan(0, (Share(0, 0, devices, 1),)),),
        tls=kind.tls(authority) if kind.version else Tls(),
    )
    played = await play(replace(plan, phases=PhasePlan(0, 2, 1, None, IN_FLIGHT, timeout_s=60)))
    connected = played.state.connected
    if connected is None or connected.failures:
        raise LoadgenError(f"not all of {devices} devices connected: {connected}")
    found = (played.state.finals[0].get("tls") or {}).get("connections") or [{}]
    agreed = f"{found[0].get('version', '')} {found[0].get('cipher', '')}".strip()
    resident = int(played.row(0, "", "measure").get("resident_bytes", 0))
    return played.cpu_ns(0, "connect"), resident, agreed


async def _cost(kind: Kind, devices: int, port: int, authority: Path) -> Cost:
    _, few_bytes, _ = await _connected(kind, FEW, port, authority)
    cpu_ns, many_bytes, agreed = await _connected(kind, devices, port, authority)
    return Cost(cpu_ns / devices / 1000, (many_bytes - few_bytes) / (devices - FEW), agreed)


def _openssl_us(kind: Kind, port: int, authority: Path, seconds: int) -> float:
    """Processor time (µs) that a handshake costs `openssl s_time`, which counts its own."""
    version = f"-tls{kind.version.replace('.', '_')}"
    command = ["openssl", "s_time", "-connect", f"127.0.0.1:{port}", "-new", "-time", str(seconds)]
    command += ["-CAfile", str(authority), "-verify", "2", version]
    if kind.ciphers is not None:
        command += ["-ciphersuites" if kind.version == "1.3" else "-cipher", kind.ciphers]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counts = re.findall(r"^(\d+) connections in", done.stdout, re.MULTILINE)
    if done.returncode or not counts:
        raise LoadgenError(f"openssl s_time failed: {(done.stderr or done.stdout)[-200:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return cpu_s * 1e6 / int(counts[0])


@asynccontextmanager
async def _broker(kind: Kind, directory: Path) -> AsyncIterator[tuple[int, Path]]:
    """A Mosquitto for such connections: its port, and the authority of its certificate."""
    files = make_certificates(directory / "tls", ["127.0.0.1", "localhost"])
    secured = kind.transport in ("tls", "wss")
    lines: tuple[str, ...] = ()
    if kind.transport in ("ws", "wss"):
        # Mosquitto 2.0.11 wants a listener beside those for WebSocket.
        lines = ("protocol websockets", f"listener 0 {directory / 'socket'}")
    settings = ProgramSettings(
        certificate=files.certificate if secured else None,
        key=files.key if secured else None,
        more_lines=lines,
    )
    async with run_mosquitto(settings) as broker:
        yield broker.endpoints[0].port, files.authority


async def _measured(kind: Kind, devices: int, seconds: int) -> str:
    with TemporaryDirectory(prefix="loadgen-bench-") as directory:
        async with _broker(kind, Path(directory)) as (port, authority):
            cost = await _cost(kind, devices, port, authority)
            line = f"{kind.transport:9} {cost.agreed or '-':37} {cost.cpu_us:>10.0f} µs"
            line += f" {cost.bytes_each / 1000:>10.1f} KB"
            if kind.transport == "tls":
                openssl_us = await asyncio.to_thread(_openssl_us, kind, port, authority, seconds)
                line += f" {openssl_us:>11.0f} µs {cost.cpu_us / openssl_us:>6.2f}"
            return line


def _kinds(arguments: argparse.Namespace) -> list[Kind]:
    kinds = []
    for transport in arguments.transports.split(","):
        if transport in ("tls", "wss"):
            versions = arguments.versions.split(",")
            kinds += [Kind(transport, version, arguments.ciphers) for version in versions]
        else:
            kinds.append(Kind(transport))
    return kinds


def main() -> int:
    """Measure each kind of connection and print its line."""
    parser = argparse.ArgumentParser(description="cost of TLS and WebSocket connections")
    parser.add_argument("--devices", default="2k", metavar="N")
    parser.add_argument("--transports", default="tcp,ws,tls", metavar="NAME,...")
    parser.add_argument("--versions", default="1.3,1.2", metavar="X.Y,...", help="of TLS")
    parser.add_argument("--ciphers", metavar="NAMES", help="of TLS 1.2, as OpenSSL writes them")
    parser.add_argument("--seconds", type=int, default=5, help="of each openssl s_time")
    arguments = parser.parse_args()
    try:
        devices = parse_count(arguments.devices)
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - SPARE
        if not FEW < devices <= most:
            raise LoadgenError(f"--devices must be more than {FEW} and at most {most:,} here")
        head = ("transport", "agreed on", "a connect", "idle", "openssl", "ratio")
        print("{:9} {:37} {:>13} {:>13} {:>14} {:>6}".format(*head), flush=True)
        for kind in _kinds(arguments):
            print(asyncio.run(_measured(kind, devices, arguments.seconds)), flush=True)
    except (LoadgenError, ValueError) as error:
        print(f"bench/tls.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
