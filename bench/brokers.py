"""A matrix of every case, run at a small size against each broker of another maker.

    python -m bench.brokers --write docs/brokers.md

Brokers that are not installed are left out, with a line on stderr (see `bench/foreign.py`).
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
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
"""Options that make a case small."""
RUN_S: Final = 120
ATTEMPTS: Final = 4
BEGIN: Final = "<!-- tables: python -m bench.brokers --write docs/brokers.md -->\n"
END: Final = "<!-- end of tables -->\n"
RUNS: Final = "yes"
YES: Final = "✓"
NO: Final = "✗"
COLUMNS: Final = {
    "3.1.1": "MQTT 3.1.1",
    "5": "MQTT 5",
    "QoS 2": "QoS 2",
    "mqtt": "TCP",
    "mqtts": "TLS",
    "ws": "WebSocket",
    "wss": "WebSocket, TLS",
}
"""Titles of the columns: MQTT versions, QoS 2 and transports."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The exit status of a run, with its reasons or its error."""

    status: int
    text: str


async def play(case: str, endpoint: Endpoint, authority: Path, *more: str) -> Ending:
    """Run a case at a small size against a broker."""
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
            return Ending(-1, f"did not end within {RUN_S} s")
    assert process.returncode is not None
    line = err.decode(errors="replace").strip()
    if "Traceback" in line:
        return Ending(process.returncode, f"TRACEBACK {line.splitlines()[-1]}")
    if process.returncode in (0, 1) and out:
        verdict = json.loads(out)["verdict"]
        reasons = [f"{reason['code']}: {reason['detail']}" for reason in verdict["reasons"]]
        return Ending(process.returncode, "; ".join(reasons) or RUNS)
    return Ending(process.returncode, line.removeprefix("loadgen: "))


async def judged(case: str, endpoint: Endpoint, authority: Path, *more: str) -> Ending:
    """Run a case, again if this host was too slow for a verdict on the broker."""
    for _ in range(ATTEMPTS):
        ending = await play(case, endpoint, authority, *more)
        if not ending.text.startswith("GENERATOR_SATURATED"):
            break
    return ending


def steady(text: str) -> str:
    """Return the text without the parts that differ between cases and runs."""
    text = re.sub(r"\b(mqtts?|wss?)://[^\s;,)]*", "the broker", text)
    text = re.sub(r"the subscription of \S+ to [^\s;]+", "a subscription", text)
    text = re.sub(r"(a publication) of \S+ to [^\s;]+( at QoS \d) with \S+ bytes?", r"\1\2", text)
    text = re.sub(r"\b\d[\d,.]* (of [\d,]+ )?(connect|deliver|message|device)", r"some \2", text)
    text = re.sub(r"(the specification) [\d,]+ times?; the first: ", r"\1: ", text)
    text = re.sub(r"^(GENERATOR_SATURATED): .*", r"\1: this host was too slow for a verdict", text)
    return text.replace("|", "\\|").replace(" (--anyway runs nevertheless)", "")


async def cell_of(case: str, broker: Foreign, *more: str) -> str:
    """Return the result of a case, or "" if loadgen itself does not allow it."""
    ending = await judged(case, broker.endpoints[0], broker.authority, *more)
    return "" if ending.status == 2 else steady(ending.text)


def ways_to_play(broker: Foreign) -> dict[str, tuple[str, ...]]:
    """Return the rows of a broker, with their options."""
    return {
        f"{broker.name} 3.1.1": ("--mqtt=3.1.1",),
        f"{broker.name} 5": ("--mqtt=5",),
        f"{broker.name} QoS 2": ("--qos=2",),
    }


async def rows_of(broker: Foreign) -> dict[str, list[str]]:
    """Run every case in each way; a row has a cell for each case."""
    rows: dict[str, list[str]] = {}
    for name, options in ways_to_play(broker).items():
        cells = rows[name] = []
        for case in CASES:
            allowed = options[0] != "--qos=2" or "qos" in CASES[case].scenario.fields()
            cells.append(await cell_of(case, broker, *options) if allowed else "")
            print(f"{name} {case}: {cells[-1]}", file=sys.stderr, flush=True)
    return rows


async def transports_of(broker: Foreign, host: str) -> list[str]:
    """Run the first case over each transport, and return the cells."""
    cells = []
    for endpoint in broker.endpoints:
        ending = await judged(next(iter(CASES)), endpoint, broker.authority)
        cells.append(f"{endpoint.scheme} at {host}: {steady(ending.text)}")
        print(f"{broker.name} {cells[-1]}", file=sys.stderr, flush=True)
    return cells


async def measured(names: Iterable[str]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the rows of the matrix, and the transports of each broker that is installed."""
    rows: dict[str, list[str]] = {}
    transports: dict[str, list[str]] = {}
    for name in names:
        for host in ("127.0.0.1", "::1"):
            try:
                async with run_foreign(name, host) as broker:
                    transports.setdefault(name, []).extend(await transports_of(broker, host))
                    if host == "127.0.0.1" and broker.endpoints[0].scheme == "mqtt":
                        rows |= await rows_of(broker)
            except MissingProgramError as error:
                print(error, file=sys.stderr)
                break
            except LoadgenError as error:
                line = steady(str(error).splitlines()[0])
                transports.setdefault(name, []).append(f"at {host}: {line}")
    return rows, transports


def matrix(rows: Mapping[str, Sequence[str]], transports: Mapping[str, Sequence[str]]) -> list[str]:
    """Return one row per broker, with footnotes for what does not work everywhere."""
    brokers: dict[str, dict[str, str]] = {}
    notes: list[str] = []
    for name, cells in rows.items():
        broker, _, way = name.partition(" ")
        results = {case: cell for case, cell in zip(CASES, cells, strict=True) if cell}
        brokers.setdefault(broker, {})[way] = _mark(results, notes)
    for name, cells in transports.items():
        row = brokers.setdefault(name.removesuffix("-tls"), {})
        by_scheme: dict[str, dict[str, str]] = {}
        for cell in cells:
            where, _, result = cell.partition(": ")
            scheme, _, address = where.partition(" at ")
            by_scheme.setdefault(scheme, {})[address] = result
        row |= {scheme: _mark(results, notes) for scheme, results in by_scheme.items()}
    head = [("", "broker"), *COLUMNS.items()]
    lines = [
        f"| {' | '.join(title for _, title in head)} |",
        "|---" * len(head) + "|",
    ]
    for broker, row in brokers.items():
        lines.append(f"| {broker} | {' | '.join(row.get(way, NO) for way in COLUMNS)} |")
    return [*lines, "", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]


def _mark(results: Mapping[str, str], notes: list[str]) -> str:
    """Return the mark of a cell with the numbers of its footnotes, which are added to `notes`."""
    causes: dict[str, list[str]] = {}
    for case, result in results.items():
        if result != RUNS:
            causes.setdefault(_cause(result), []).append(case)
    numbers = []
    for cause, cases in causes.items():
        note = cause if len(cases) == len(results) else f"{', '.join(cases)}: {cause}"
        if note not in notes:
            notes.append(note)
        numbers.append(f" [{notes.index(note) + 1}]")
    runs = any(result == RUNS for result in results.values())
    return (YES if runs else NO) + "".join(numbers)


def _cause(text: str) -> str:
    """Return a reason without its advice."""
    text = re.sub(r" \([^()]*\(\d+\)\)", "", text)
    code, colon, detail = text.partition(": ")
    if colon and code.isupper():
        return f"{detail} (`{code}`)"
    cause = text.partition("; ")[0].partition(", which ")[0]
    return cause.removeprefix("the broker ")


def main(arguments: Sequence[str]) -> int:
    """Run all cases, and print or write the matrix."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default=",".join(MAKES), help="names, such as nats,aedes")
    parser.add_argument("--write", type=Path, help="document whose tables to replace")
    options = parser.parse_args(arguments)
    rows, transports = asyncio.run(measured(options.brokers.split(",")))
    text = "\n".join(matrix(rows, transports))
    if options.write is None:
        print(text)
        return 0
    document = options.write.read_text("utf-8")
    before, _, rest = document.partition(BEGIN)
    options.write.write_text(f"{before}{BEGIN}{text}\n{END}{rest.partition(END)[2]}", "utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
