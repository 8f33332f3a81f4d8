"""Agents as processes of this machine, for tests of runs on several hosts."""

import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from loadgen.run.hosts.remote_host import Hosts, listening

SECRET = "5ec2e7" * 10
GATHER_S = 90.0
_END_S = 20.0
_LABELS = "abcdefgh"
"""Agents of one address are in the order of their labels."""


@dataclass
class Agents:
    """Agents that came to `address`, and their processes by the number of their host."""

    address: tuple[str, int]
    hosts: Hosts
    processes: list[asyncio.subprocess.Process]

    async def words(self, number: int) -> str:
        """Return the next reason that an agent prints."""
        output = self.processes[number].stderr
        assert output is not None
        line = await asyncio.wait_for(output.readline(), _END_S)
        return line.decode().removeprefix("loadgen agent: ").strip()


@asynccontextmanager
async def agents(
    count: int,
    *,
    address: str = "127.0.0.1",
    within: Sequence[Sequence[str]] = (),
    relays: Mapping[int, tuple[str, int]] | None = None,
    targets: list[tuple[str, int]] | None = None,
    secret: str = SECRET,
) -> AsyncIterator[Agents]:
    """`count` agents; `within[host]` are words before the command, such as `ip netns exec NAME`.

    The agent of a host in `relays` connects to that address instead; `targets` gets the
    coordinator's. With another `secret` than the coordinator's no agent is waited for.
    """
    async with listening(address, 0, SECRET.encode()) as server:
        if targets is not None:
            targets.append(server.address)
        processes = []
        with TemporaryDirectory() as scratch:
            file = Path(scratch) / "secret"
            file.touch(0o600)
            file.write_text(secret)
            for number in range(count):
                host, port = (relays or {}).get(number, server.address)
                process = await asyncio.create_subprocess_exec(
                    *(within[number] if within else ()),
                    *(sys.executable, "-m", "loadgen", "agent", "--join", f"{host}:{port}"),
                    *("--secret", f"file:{file}", "--label", _LABELS[number]),
                    stderr=asyncio.subprocess.PIPE,
                )
                processes.append(process)
            try:
                foreign = secret != SECRET
                hosts = Hosts(()) if foreign else await server.gathered(count, GATHER_S)
                yield Agents(server.address, hosts, processes)
            finally:
                server.close()
                for process in processes:
                    if process.returncode is None:
                        process.terminate()
                    try:
                        await asyncio.wait_for(process.communicate(), _END_S)
                    except TimeoutError:
                        process.kill()
                        await process.communicate()
