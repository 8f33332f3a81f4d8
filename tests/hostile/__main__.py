"""Runs against a broker that means harm, and what each says of it.

python -m tests.hostile                    every misdeed, to one device of a run
python -m tests.hostile --everyone         to everyone: the question before the load, and probe
python -m tests.hostile huge-publish
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from loadgen.brokers.reflector import run_reflector
from tests.hostile.broker import MISDEEDS, hostile

_LONGEST_S = 90.0


def _private_bytes(coordinator: int) -> int:
    """Return the private memory of the process' descendants, which play devices."""
    total = 0
    with suppress(psutil.Error):
        for process in psutil.Process(coordinator).children(recursive=True):
            with suppress(psutil.Error):
                total += process.memory_full_info().uss
    return total


async def _played(arguments: list[str]) -> tuple[int, str, str, int, float]:
    """Return exit status, stdout, stderr, most private memory of its children, and seconds."""
    began_s, most_bytes = time.monotonic(), 0
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "loadgen", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip

    async def watch() -> None:
        nonlocal most_bytes
        while True:
            most_bytes = max(most_bytes, _private_bytes(process.pid))
            await asyncio.sleep(0.1)

    watching = asyncio.ensure_future(watch())
    try:
        out, err = await asyncio.wait_for(process.communicate(), _LONGEST_S)
    except TimeoutError:
        process.terminate()
        out, err = await process.communicate()
        err += b"\nHANGS"
    finally:
        watching.cancel()
    seconds = time.monotonic() - began_s
    return process.returncode or 0, out.decode(), err.decode(), most_bytes, seconds


def run_arguments(port: int, out: Path, *more: str) -> list[str]:
    return [
        *("fanin", "--devices", "4", "--rate", "200", "--qos", "1", "--mqtt", "5"),
        *("--warmup", "300ms", "--duration", "1.5", "--drain", "2", "--settle", "100ms"),
        *("--in-flight", "1", "--workers", "1", "--connect-timeout", "3", "--json", "--quiet"),
        *("--broker", f"mqtt://127.0.0.1:{port}", "--out", str(out), *more),
    ]


def verdict_of(out: str) -> list[str]:
    card: dict[str, Any] = json.loads(out) if out.startswith("{") else {}
    reasons = card.get("verdict", {}).get("reasons", [])
    return [f"{one['code']}: {one['detail']}" for one in reasons]


async def _tell(name: str, everyone: bool) -> None:
    async with run_reflector() as good:
        async with hostile(name, good.endpoints[0], everyone=everyone) as (broker, port):
            with tempfile.TemporaryDirectory(prefix="hostile-") as directory:
                arguments = run_arguments(port, Path(directory) / "run")
                status, out, err, most_bytes, seconds = await _played(arguments)
                print(f"{name}: status {status}, {seconds:.1f} s, {most_bytes >> 20} MiB, "
                      f"{broker.harmed} harmed")  # fmt: skip
                for line in verdict_of(out) or [""]:
                    print(f"    {line[:200]}")
                print(f"    stderr: {re.sub(chr(10), ' | ', err.strip())[-300:]}")
                if everyone:
                    arguments = ["probe", "--broker", f"mqtt://127.0.0.1:{port}"]
                    status, out, err, _, seconds = await _played(arguments)
                    print(f"    probe: status {status}, {seconds:.1f} s: {err.strip()[-300:]}")
        sys.stdout.flush()


async def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("misdeeds", nargs="*", metavar="MISDEED", help=", ".join(MISDEEDS))
    parser.add_argument("--everyone", action="store_true", help="harm those too that ask before")
    arguments = parser.parse_args()
    for name in arguments.misdeeds or MISDEEDS:
        await _tell(name, arguments.everyone)


if __name__ == "__main__":
    asyncio.run(_main())
