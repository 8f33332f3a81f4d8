"""What is said of brokers of other makers: each case played against each of them, as a table.

    python -m bench.brokers --write docs/brokers.md

Those that are not installed are left out, with a line on stderr (see `bench/foreign.py`).
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.foreign import MAKES, Foreign, run_foreign
from loadgen.brokers.endpoints import Endpoint
from loadgen.cases.registry import CASES
from loadgen.errors import LoadgenError, MissingProgramError

SMALL: Final = {
    "duration": "1s",
    "warmup": "0.5s",
    "devices": "20",
    "rate": "100",
    "background_rate": "50",
    "topics": "2",
    "ratio": "3",
    "pairs": "2",
    "queues": "2",
    "consumers": "2",
    "responders": "2",
    "base": "1",
}
"""What makes a case small, where it understands it."""
RUN_S: Final = 120
VERSIONS: Final = ("3.1.1", "5")


@dataclass(frozen=True, slots=True)
class Said:
    """How a run ended: its exit status and, in one line, what it said."""

    status: int
    text: str


async def play(case: str, endpoint: Endpoint, authority: Path, *more: str) -> Said:
    """A small run of a case against a broker."""
    fields = CASES[case].scenario.fields()
    login = (
        f"{endpoint.username.replace('@', '%40')}:{endpoint.password}@" if endpoint.username else ""
    )
    url = f"{endpoint.scheme}://{login}{endpoint.address}{endpoint.path}"
    small = [
        f"--{name.replace('_', '-')}={value}" for name, value in SMALL.items() if name in fields
    ]
    trust = [f"--tls-ca={authority}"] if endpoint.tls else []
    words = (case, "horizontal") if "topology" in fields else (case,)
    with tempfile.TemporaryDirectory(prefix="loadgen-table-") as made:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "loadgen", *words, f"--broker={url}", *small, *trust, *more),
            *("--quiet", "--json", f"--out={made}/run"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(RUN_S):
                out, err = await process.communicate()
        except TimeoutError:
            process.kill()
            await process.wait()
            return Said(-1, f"did not end within {RUN_S} s")
    assert process.returncode is not None
    said = err.decode(errors="replace").strip()
    if "Traceback" in said:
        return Said(process.returncode, f"TRACEBACK {said.splitlines()[-1]}")
    if process.returncode in (0, 1) and out:
        verdict = json.loads(out)["verdict"]
        reasons = [f"{one['code']}: {one['detail']}" for one in verdict["reasons"]]
        return Said(process.returncode, "<br>".join(reasons) or "VALID")
    return Said(process.returncode, said.removeprefix("loadgen: "))


def steady(text: str) -> str:
    """The text without what differs from one run to the next: addresses and topics of the run."""
    text = re.sub(r"\b(mqtts?|wss?)://[^\s;,)]*", "the broker", text)
    text = re.sub(r"\blg[0-9a-f]{8}/", "lg.../", text)
    return text.replace("|", "\\|").replace(" (--anyway runs without it)", "")


async def rows_of(broker: Foreign) -> list[str]:
    """A row for each case and version of MQTT: what is said, and what is with --anyway."""
    found = []
    first = broker.endpoints[0]
    for case in CASES:
        for version in VERSIONS:
            said = await play(case, first, broker.authority, f"--mqtt={version}")
            if said.status == 2:
                continue
            anyway = Said(0, "")
            if said.status == 3:
                anyway = await play(case, first, broker.authority, f"--mqtt={version}", "--anyway")
            cells = (broker.name, case, version, steady(said.text), steady(anyway.text))
            row = f"| {' | '.join(cells)} |"
            print(row, file=sys.stderr, flush=True)
            found.append(row)
    return found


async def transports_of(broker: Foreign, host: str) -> list[str]:
    """A row for each way in: the first case over it."""
    found = []
    for endpoint in broker.endpoints:
        said = await play(next(iter(CASES)), endpoint, broker.authority)
        row = f"| {broker.name} | {endpoint.scheme} | {host} | {steady(said.text)} |"
        print(row, file=sys.stderr, flush=True)
        found.append(row)
    return found


async def tables(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """The rows of both tables, over the brokers of these names that are installed."""
    cases: list[str] = []
    ways: list[str] = []
    for name in names:
        for host in ("127.0.0.1", "::1"):
            try:
                async with run_foreign(name, host) as broker:
                    ways += await transports_of(broker, host)
                    if host == "127.0.0.1" and broker.endpoints[0].scheme == "mqtt":
                        cases += await rows_of(broker)
            except MissingProgramError as error:
                print(error, file=sys.stderr)
                break
            except LoadgenError as error:
                ways.append(f"| {name} | | {host} | {steady(str(error))} |")
    return cases, ways


def main(arguments: Sequence[str]) -> int:
    """Play, and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default=",".join(MAKES), help="names, as nats,aedes")
    parser.add_argument("--write", type=Path, help="document whose tables are made anew")
    given = parser.parse_args(arguments)
    cases, ways = asyncio.run(tables(given.brokers.split(",")))
    text = "\n".join(
        [
            "| broker | case | MQTT | what is said | with `--anyway` |",
            "|---|---|---|---|---|",
            *cases,
            "",
            "| broker | way in | address | what is said |",
            "|---|---|---|---|",
            *ways,
        ]
    )
    if given.write is None:
        print(text)
        return 0
    document = given.write.read_text("utf-8")
    begin, end = (
        "<!-- tables: python -m bench.brokers --write docs/brokers.md -->\n",
        "<!-- end of tables -->\n",
    )
    before, _, rest = document.partition(begin)
    given.write.write_text(f"{before}{begin}{text}\n{end}{rest.partition(end)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
