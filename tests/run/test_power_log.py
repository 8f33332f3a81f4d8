"""Power that a run samples: a made-up tree of RAPL, and commands of a shell."""

import asyncio
from pathlib import Path

import orjson
import pytest

from loadgen.errors import CannotRunError
from loadgen.report.power.formats import parse_columns
from loadgen.report.power.power import overview
from loadgen.report.power.settings import log_settings
from loadgen.run.power_log import POWER_FILE, RaplPackages, read_command, reading_of, sampled_power
from loadgen.run.rundir import EventLog
from tests.refusals import refused
from tests.tables import rows_of

RANGE_UJ = 262_143_328_850


def zone(powercap: Path, place: str, name: str, energy_uj: int) -> Path:
    directory = powercap / f"intel-rapl:{place}"
    directory.mkdir(parents=True)
    (directory / "name").write_text(f"{name}\n")
    (directory / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
    (directory / "energy_uj").write_text(f"{energy_uj}\n")
    return directory


def log_of(directory: Path, seconds: float, **source: object) -> list[dict[str, object]]:
    async def run() -> None:
        events = EventLog(directory, ())
        async with sampled_power(directory, events, **source):  # type: ignore[arg-type]
            await asyncio.sleep(seconds)
        events.close()

    asyncio.run(run())
    return [orjson.loads(line) for line in (directory / POWER_FILE).read_bytes().splitlines()]


def test_packages_without_their_parts_and_across_a_wrap(tmp_path: Path) -> None:
    first = zone(tmp_path, "0", "package-0", RANGE_UJ - 5_000_000)
    zone(tmp_path, "0:0", "core", 1)
    zone(tmp_path, "1", "package-1", 7_000_000)
    zone(tmp_path, "2", "psys", 9)
    source = RaplPackages(tmp_path)
    (first / "energy_uj").write_text("40000000\n")
    assert source.read() == {"package 0 total energy (J)": 45.0, "package 1 total energy (J)": 0.0}


def test_a_host_without_rapl_is_refused(tmp_path: Path) -> None:
    with refused("NO_RAPL", CannotRunError):
        RaplPackages(tmp_path / "powercap")
    (zone(tmp_path, "0", "package-0", 1) / "energy_uj").unlink()
    with refused("RAPL_UNREADABLE", CannotRunError):
        RaplPackages(tmp_path)


@pytest.mark.parametrize(("output", "reading"), rows_of("run.outputs"))
def test_outputs_of_commands(output: str, reading: dict[str, object]) -> None:
    assert reading_of(output) in (reading, {"power (W)": "165"})


@pytest.mark.parametrize(("command", "code"), rows_of("run.power_commands"))
def test_a_command_without_watts_is_refused(command: str, code: str) -> None:
    with refused(code, CannotRunError):
        asyncio.run(read_command(command))


def test_a_command_is_sampled_until_the_end(tmp_path: Path) -> None:
    command = f"echo x >> {tmp_path}/calls; test $(wc -l < {tmp_path}/calls) -ne 2 && echo 165.5 W"
    lines = log_of(tmp_path, 3.2, rapl=False, command=command)
    assert 3 <= len(lines) <= 5
    assert {line["power (W)"] for line in lines} == {"165.5 W"}
    assert b"power_not_sampled" in (tmp_path / "events.jsonl").read_bytes()
    settings = log_settings([tmp_path / POWER_FILE], "UTC", "time=time")
    assert settings is not None and settings.columns == parse_columns("time=time")
    assert overview(settings).watts == 165.5


def test_rapl_is_read_by_the_score_card(tmp_path: Path) -> None:
    zone(tmp_path / "powercap", "0", "package-0", 5)
    lines = log_of(tmp_path, 1.2, rapl=True, command=None, powercap=tmp_path / "powercap")
    assert "processor packages" in str(lines[0]["covers"])
    settings = log_settings([tmp_path / POWER_FILE], "UTC", "time=time")
    assert settings is not None
    (outlet,) = overview(settings).outlets
    assert (outlet.outlet, outlet.watts) == ("package 0 total", 0.0)
