"""How long a search takes, and what it finds, against brokers whose limit is known.

    python -m bench.search                    ceilings of 600, 2,000 and 5,000 messages a second
    python -m bench.search --ceiling 1000     this one
    python -m bench.search --before ../old    with the package of another checkout, too, in turn

Each is `loadgen search fanin --for rate` with all defaults. The broker is a relay in Python, which
serves no more than some 7,000 messages a second on a slow host.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from tests.instruments.relay import run_erring
from tests.instruments.runs import url_of

HERE = Path(__file__).parents[1]


async def found(root: Path, url: str) -> str:
    """Search with the package in `root`; return seconds, steps and the limit."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "search"
        words = ("search", "fanin", "--for", "rate", "--broker", url, "--quiet", "--out", str(out))
        began = time.monotonic()
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen", *words),
            env={**os.environ, "PYTHONPATH": str(root)},
            cwd=root,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        if await program.wait() not in (0, 1):
            raise SystemExit(f"the search ended with status {program.returncode}")
        seconds = time.monotonic() - began
        steps = len((out / "steps.jsonl").read_text().splitlines())
        limit = json.loads((out / "search.json").read_text())["limit"] or {}
    confirmed = "confirmed" if limit.get("confirmed") else "not confirmed"
    return f"{seconds:6.1f} s, {steps:2} steps, {limit.get('load')} {confirmed}"


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--ceiling", type=float, action="append", help="messages a second")
    parser.add_argument("--before", type=Path, help="another checkout, searched with in turn")
    given = parser.parse_args()
    roots = [HERE] if given.before is None else [given.before.resolve(), HERE]
    for ceiling in given.ceiling or (600.0, 2_000.0, 5_000.0):
        async with run_erring(f"ceiling={ceiling:g}") as broker:
            for root in roots:
                words = await found(root, url_of(broker))
                print(f"{ceiling:8,.0f}/s {root.name}: {words}", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
