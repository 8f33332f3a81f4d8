"""Agents as processes of this machine, for tests of runs on several hosts."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from loadgen.control.hosts import Hosts, listening

GATHER_S = 90.0


@dataclass
class Agents:
    """Agents that came, and their processes by the number of their host."""

    hosts: Hosts
    processes: list[asyncio.subprocess.Process]

    async def words(self, number: int) -> str:
        """Why an agent ended, as it says."""
        output, _ = await self.processes[number].communicate()
        return str(json.loads(output.splitlines()[-1])["ended"])


@asynccontextmanager
async def agents(
    count: int,
    *,
    address: str = "127.0.0.1",
    within: Sequence[Sequence[str]] = (),
    doors: tuple[str, int] | None = None,
) -> AsyncIterator[Agents]:
    """`count` agents; `within[host]` are words before the command, such as `ip netns exec NAME`.

    `doors` is where they connect instead of the coordinator itself: a relay.
    """
    async with listening(address, one_machine=True) as door:
        processes = []
        for number in range(count):
            settings = {"coordinator": doors or door.address, "secret": door.secret, "host": number}
            process = await asyncio.create_subprocess_exec(
                *(within[number] if within else ()),
                *(sys.executable, "-P", "-m", "loadgen.control.agent"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
            )
            processes.append(process)
            assert process.stdin is not None
            process.stdin.write(json.dumps(settings).encode() + b"\n")
        try:
            yield Agents(await door.gathered(count, GATHER_S), processes)
        finally:
            door.close()
            for process in processes:
                try:
                    await asyncio.wait_for(process.wait(), 20)
                except TimeoutError:
                    process.kill()
                    await process.wait()
