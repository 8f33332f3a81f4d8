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
ATTEMPTS: Final = 4
BEGIN: Final = "<!-- tables: python -m bench.brokers --write docs/brokers.md -->\n"
END: Final = "<!-- end of tables -->\n"


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


async def judged(case: str, endpoint: Endpoint, authority: Path, *more: str) -> Said:
    """`play`, again where this host was too slow for a verdict about the broker."""
    for _ in range(ATTEMPTS):
        said = await play(case, endpoint, authority, *more)
        if not said.text.startswith("GENERATOR_SATURATED"):
            break
    return said


def steady(text: str) -> str:
    """The text without what differs from one run to the next: addresses and topics of the run."""
    text = re.sub(r"\b(mqtts?|wss?)://[^\s;,)]*", "the broker", text)
    text = re.sub(r"\blg[0-9a-f]{8}/", "lg.../", text)
    return text.replace("|", "\\|").replace(" (--anyway runs without it)", "")


async def told(case: str, broker: Foreign, *more: str) -> str:
    """What is said of a case, and with --anyway where it was refused; "" for bad usage."""
    said = await judged(case, broker.endpoints[0], broker.authority, *more)
    if said.status == 2:
        return ""
    text = steady(said.text)
    if said.status == 3:
        forced = await judged(case, broker.endpoints[0], broker.authority, *more, "--anyway")
        if forced.text != said.text:
            text += f"<br>*anyway:* {steady(forced.text)}"
    return text


async def rows_of(broker: Foreign) -> list[str]:
    """A row for each case: what is said with each version of MQTT, and at QoS 2."""
    found = []
    for case in CASES:
        cells = [await told(case, broker, f"--mqtt={version}") for version in VERSIONS]
        fields = CASES[case].scenario.fields()
        cells.append(await told(case, broker, "--qos=2") if "qos" in fields else "")
        if any(cells):
            row = f"| {' | '.join((broker.name, case, *cells))} |"
            print(row, file=sys.stderr, flush=True)
            found.append(row)
    return found


async def transports_of(broker: Foreign, host: str) -> list[str]:
    """A row for each way in: the first case over it."""
    found = []
    for endpoint in broker.endpoints:
        said = await judged(next(iter(CASES)), endpoint, broker.authority)
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
                ways.append(f"| {name} | | {host} | {steady(str(error).splitlines()[0])} |")
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
            "| broker | case | MQTT 3.1.1 | MQTT 5 | QoS 2 |",
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
    before, _, rest = document.partition(BEGIN)
    given.write.write_text(f"{before}{BEGIN}{text}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
