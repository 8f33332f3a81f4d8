"""Agents as processes of this machine, for tests of runs on several hosts."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO

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
    processes: list["subprocess.Popen[bytes]"]
    outputs: list[asyncio.StreamReader]

    async def words(self, number: int) -> str:
        line = await asyncio.wait_for(self.outputs[number].readline(), _END_S)
        return line.decode().removeprefix("loadgen agent: ").strip()


def _start(command: Sequence[str]) -> tuple["subprocess.Popen[bytes]", IO[bytes]]:
    """Start a program; return it and the end of the pipe from which its output can be read."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        command, stdout=writing, stderr=writing, stdin=subprocess.DEVNULL, start_new_session=True
    )
    os.close(writing)
    return process, os.fdopen(reading, "rb")


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
    loop = asyncio.get_running_loop()
    async with listening(address, 0, SECRET.encode()) as server:
        if targets is not None:
            targets.append(server.address)
        processes, outputs = [], []
        with TemporaryDirectory() as scratch, ExitStack() as stack:
            file = Path(scratch) / "secret"
            file.touch(0o600)
            file.write_text(secret)
            for number in range(count):
                host, port = (relays or {}).get(number, server.address)
                command = [
                    *(within[number] if within else ()),
                    *(sys.executable, "-m", "loadgen", "agent", "--join", f"{host}:{port}"),
                    *("--secret", f"file:{file}", "--label", _LABELS[number]),
                ]
                process, pipe = _start(command)
                processes.append(process)
                outputs.append(asyncio.StreamReader())
                stack.enter_context(pipe)
                protocol = partial(asyncio.StreamReaderProtocol, outputs[-1])
                transport, _ = await loop.connect_read_pipe(protocol, pipe)
                stack.callback(transport.close)
            try:
                foreign = secret != SECRET
                hosts = Hosts(()) if foreign else await server.gathered(count, GATHER_S)
                yield Agents(server.address, hosts, processes, outputs)
            finally:
                server.close()
                for process in processes:
                    if process.poll() is None:
                        os.killpg(process.pid, signal.SIGTERM)  # `unshare` ignores it
                    try:
                        await asyncio.to_thread(process.wait, _END_S)
                    except subprocess.TimeoutExpired:
                        process.kill()
                        process.wait()
