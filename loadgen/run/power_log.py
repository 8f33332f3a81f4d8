"""Samples of power during a run, by RAPL or a command, in power.jsonl for the score card.

Each line has the time, the reading and `covers`: the part of the system that is measured.
"""

import asyncio
import os
import re
import signal
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from loadgen.errors import CannotRunError
from loadgen.run.rundir import EventLog, appending
from loadgen.run.tasks import sampled
from loadgen.sentences import RUN_TEXT

POWER_FILE = "power.jsonl"
POWERCAP = Path("/sys/class/powercap")
_COMMAND_LIMIT_S = 10.0
_LONGEST_OUTPUT = 100_000
_PAIR = re.compile(r"\s*([^\W\d][^:]*?)\s*:\s+(\S.*?)\s*")
_RAPL_COVERS = "processor packages of this host by RAPL: no disks, fans or losses of power supplies"
Reading = Mapping[str, Any]


class RaplPackages:
    """The energy counters of the host's processor packages (powercap/powercap.rst), in joules.

    A counter wraps at `max_energy_range_uj`; the readings do not. They begin at 0.
    """

    def __init__(self, powercap: Path = POWERCAP) -> None:
        """Raise CannotRunError if the host has no package that can be read."""
        self._zones: dict[str, tuple[Path, int]] = {}
        """The counter of each package, and its range."""
        try:
            for zone in sorted(powercap.glob("intel-rapl:*")):
                name = (zone / "name").read_text("utf-8").strip().replace("-", " ")
                # psys and zones within a package would be counted twice.
                if name.startswith("package") and zone.name.count(":") == 1:
                    range_uj = int((zone / "max_energy_range_uj").read_text("utf-8"))
                    self._zones[name] = zone / "energy_uj", range_uj
            self._last = self._counters()
        except (OSError, ValueError) as error:
            raise CannotRunError(RUN_TEXT.RAPL_UNREADABLE(error=str(error))) from None
        if not self._zones:
            raise CannotRunError(RUN_TEXT.NO_RAPL(path=powercap))
        self._used = dict.fromkeys(self._zones, 0)

    def read(self) -> Reading:
        """Return the joules of each package since the first reading."""
        before, self._last = self._last, self._counters()
        for name, (_, range_uj) in self._zones.items():
            self._used[name] += (self._last[name] - before[name]) % range_uj
        return {f"{name} total energy (J)": used / 1e6 for name, used in self._used.items()}

    def _counters(self) -> dict[str, int]:
        return {name: int(path.read_text("utf-8")) for name, (path, _) in self._zones.items()}


async def read_command(command: str) -> Reading:
    return reading_of(await output_of("--power-command", command))


async def output_of(option: str, command: str) -> str:
    """Run the command of an option; raise CannotRunError if it fails, or takes too long."""
    child = await asyncio.create_subprocess_shell(
        command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    try:
        output, _ = await asyncio.wait_for(child.communicate(), _COMMAND_LIMIT_S)
    except TimeoutError:
        text = RUN_TEXT.COMMAND_SLOW(option=option, seconds=_COMMAND_LIMIT_S)
        raise CannotRunError(text) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
    if child.returncode:
        raise CannotRunError(RUN_TEXT.COMMAND_FAILED(option=option, status=child.returncode))
    return output[:_LONGEST_OUTPUT].decode("utf-8", "replace")


def reading_of(output: str) -> Reading:
    """Return the names and values in the output of a command; raise CannotRunError."""
    text = output.strip()
    with suppress(orjson.JSONDecodeError):
        document = orjson.loads(text)
        return document if isinstance(document, dict) else {"power (W)": str(document)}
    pairs = [match for line in text.splitlines() if (match := _PAIR.fullmatch(line))]
    if pairs:
        return {match[1]: match[2] for match in pairs}
    if re.match(r"[\d.,]+\s*\S{0,12}$", text):
        return {"power (W)": text}
    raise CannotRunError(RUN_TEXT.NO_WATTS(output=text[:60]))


@asynccontextmanager
async def sampled_power(
    directory: Path, events: EventLog, *, rapl: bool, command: str | None, powercap: Path = POWERCAP
) -> AsyncIterator[None]:
    """Log power once a second for the length of the block; raise CannotRunError without a source.

    A later failure is an event of the run, and a gap in the log.
    """
    if not rapl and command is None:
        yield
        return
    packages = RaplPackages(powercap) if command is None else None
    # Not the command itself, which may have a login.
    covers = _RAPL_COVERS if packages else "output of --power-command"

    with appending(directory / POWER_FILE) as file:

        async def sample() -> None:
            begun_ns = time.time_ns()
            reading = packages.read() if packages else await read_command(command or "")
            at_s = (begun_ns + time.time_ns()) / 2e9
            line = {**reading, "time": round(at_s, 6), "covers": covers}
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

        async with sampled(sample, partial(events.write, "power_not_sampled")):
            yield
