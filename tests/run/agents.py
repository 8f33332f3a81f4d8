"""Agents as processes of this machine, for tests of runs on several hosts."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadgen.run.hosts.remote_host import Hosts, listening

GATHER_S = 90.0
_END_S = 20.0


@dataclass
class Agents:
    """Agents that came to `address`, and their processes by the number of their host."""

    address: tuple[str, int]
    hosts: Hosts
    processes: list[asyncio.subprocess.Process]

    async def words(self, number: int) -> str:
        """Return why an agent ended, as it prints it."""
        output, _ = await asyncio.wait_for(self.processes[number].communicate(), _END_S)
        return str(json.loads(output.splitlines()[-1])["ended"])


@asynccontextmanager
async def agents(
    count: int,
    *,
    address: str = "127.0.0.1",
    within: Sequence[Sequence[str]] = (),
    relays: Mapping[int, tuple[str, int]] | None = None,
    targets: list[tuple[str, int]] | None = None,
    secret: str | None = None,
    one_machine: bool = True,
) -> AsyncIterator[Agents]:
    """`count` agents; `within[host]` are words before the command, such as `ip netns exec NAME`.

    The agent of a host in `relays` connects to that address instead; `targets` gets the
    coordinator's. `secret` is one that the coordinator does not know: nobody is waited for.
    """
    async with listening(address, one_machine=one_machine) as server:
        if targets is not None:
            targets.append(server.address)
        processes = []
        for number in range(count):
            settings = {
                "coordinator": (relays or {}).get(number, server.address),
                "secret": secret or server.secret,
                "host": number,
            }
            process = await asyncio.create_subprocess_exec(
                *(within[number] if within else ()),
                *(sys.executable, "-P", "-m", "loadgen.run.hosts.agent"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(settings).encode() + b"\n")
        try:
            hosts = Hosts(()) if secret else await server.gathered(count, GATHER_S)
            yield Agents(server.address, hosts, processes)
        finally:
            server.close()
            for process in processes:
                try:
                    await asyncio.wait_for(process.wait(), _END_S)
                except TimeoutError:
                    process.kill()
                    await process.wait()
