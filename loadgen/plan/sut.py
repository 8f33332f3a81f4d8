"""A user's description of the system under test: `--sut sut.toml`.

Parts and lines are those of the published report's section "System under test". The description is
not verified: its size is limited, and it is stored in run.json and shown on the score card. Only
rack units and `stored_first` are used further.
"""

from collections.abc import Mapping
from typing import Any, Final

from loadgen.errors import ScenarioError
from loadgen.plan.fields import did_you_mean
from loadgen.plan.scenario import read_toml
from loadgen.plan.units import shown

Description = Mapping[str, Mapping[str, Any]]
"""Values by part and line."""

PARTS: Final[Mapping[str, str]] = {
    "broker": "Broker",
    "machine": "Machine of the broker",
    "network": "Network elements",
    "power": "Power unit",
    "clients": "Client machines",
}
"""Tables of the file, and the title of each on the score card."""

LINES: Final[Mapping[str, str]] = {
    "count": "Machines",
    "vendor_and_model": "Vendor and model",
    "version": "Version",
    "build": "Build",
    "configuration": "Configuration",
    "stored_first": "Stores a message before it acknowledges it",
    "processors": "Processors",
    "caches": "L1/L2/L3 cache",
    "memory_speed": "Memory speed",
    "memory_size": "Memory size",
    "bus": "PCIe bus speed",
    "disks": "Disks",
    "nic": "NIC",
    "nic_software": "NIC FW/SW",
    "bios": "BIOS version",
    "hardware_revision": "Hardware revision",
    "cables": "Cables",
    "receptacles": "Receptacle type",
    "plug": "Plug type",
    "rack_units": "Rack units",
    "power_supplies": "Power supplies",
    "os": "OS and version",
    "runtime": "Runtime",
    "notes": "Notes",
}
"""Keys of a table, in the order of the score card, and the title of each."""

FILE_LIMIT_CHARACTERS: Final = 64 * 1024
TEXT_LIMIT: Final = 300
LIST_LIMIT: Final = 20
_LARGEST_NUMBER: Final = 1_000_000
_KIND: Final[Mapping[str, type]] = {"count": int, "rack_units": float, "stored_first": bool}


def read_description(text: str) -> dict[str, dict[str, Any]]:
    """Read a description from a file's text; raise ScenarioError that names part and line."""
    tables = read_toml(text, "sut: the file", FILE_LIMIT_CHARACTERS)
    if not tables:
        raise ScenarioError(f"sut: the file describes nothing; allowed: {', '.join(PARTS)}")
    return {part: _part(part, table) for part, table in tables.items()}


def _part(part: str, table: object) -> dict[str, Any]:
    if part not in PARTS:
        raise ScenarioError(
            f"sut: {shown(part)} is unknown; allowed: {', '.join(PARTS)}"
            f"{did_you_mean(part, tuple(PARTS))}"
        )
    if not isinstance(table, dict):
        raise ScenarioError(f"sut: {part} is not a table; allowed: [{part}] with a line for each")
    for line in table:
        if line not in LINES:
            hint = did_you_mean(line, tuple(LINES)) or f"; allowed: {', '.join(LINES)}"
            raise ScenarioError(f"sut: {part}: {shown(line)} is unknown{hint}")
    return {
        line: _value(f"sut: {part}.{line}", line, table[line]) for line in LINES if line in table
    }


def _value(where: str, line: str, value: object) -> object:
    kind = _KIND.get(line, str)
    if kind is bool:
        if isinstance(value, bool):
            return value
        raise ScenarioError(f"{where}: {shown(value)} is not true or false")
    if kind in (int, float):
        numbers = (int,) if kind is int else (int, float)
        if isinstance(value, numbers) and not isinstance(value, bool):
            if 0 < value <= _LARGEST_NUMBER:
                return value
            raise ScenarioError(
                f"{where}: {shown(value)} is out of range; allowed: up to {_LARGEST_NUMBER:,}"
            )
        raise ScenarioError(f"{where}: {shown(value)} is not a number")
    texts = value if isinstance(value, list) else [value]
    if not texts or len(texts) > LIST_LIMIT:
        raise ScenarioError(f"{where}: allowed: 1 to {LIST_LIMIT} texts")
    return [_text(where, one) for one in texts] if isinstance(value, list) else _text(where, value)


def _text(where: str, value: object) -> str:
    if not isinstance(value, str):
        raise ScenarioError(f"{where}: {shown(value)} is not text; write it in quotes")
    if not value.strip() or not value.isprintable():
        raise ScenarioError(f"{where}: {shown(value)} is not text of one line")
    if len(value) > TEXT_LIMIT:
        raise ScenarioError(f"{where}: the text has more than {TEXT_LIMIT} characters")
    return value
