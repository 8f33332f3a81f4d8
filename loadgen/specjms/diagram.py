"""The configuration diagram of a disclosure (run rules, section 6.3), as SVG.

Hosts of clients on the left, addresses of the broker on the right, the network between them; a
submission wants it as JPEG, which any browser makes of it. Pure: a run's document in, text out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from xml.sax.saxutils import escape

_LINE: Final = 18
_WIDTH: Final = 320
_GAP: Final = 160
_MARGIN: Final = 20
_CHARACTERS: Final = 46
"""Of a line in a box."""

Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Box:
    title: str
    lines: tuple[str, ...]

    @property
    def height(self) -> int:
        return _LINE * (len(self.lines) + 2)


def diagram(run: Document, supply: Document) -> str:
    """The system under test as run.json and specjms.json of a run know it."""
    clients, server = _clients(run, supply), _server(run)
    height = max(sum(box.height + _MARGIN for box in side) for side in (clients, [server]))
    width = 2 * (_MARGIN + _WIDTH) + _GAP
    middle = _MARGIN + (height - _MARGIN) // 2
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + _MARGIN}" '
        f'width="{width}" height="{height + _MARGIN}" font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height + _MARGIN}" fill="white"/>',
    ]
    right = _MARGIN + _WIDTH + _GAP
    y = _MARGIN
    for box in clients:
        parts += _drawn(box, _MARGIN, y)
        parts.append(
            f'<line x1="{_MARGIN + _WIDTH}" y1="{y + box.height // 2}" x2="{right}" '
            f'y2="{middle}" stroke="black"/>'
        )
        y += box.height + _MARGIN
    parts += _drawn(server, right, middle - server.height // 2)
    network = "loopback" if _is_local(run) else "network"
    parts.append(
        f'<text x="{right - _GAP // 2}" y="{middle - 8}" text-anchor="middle">'
        f"{network}, {escape(_shown(_broker(run).get('protocol') or 'MQTT'))}</text>"
    )
    return "\n".join((*parts, "</svg>")) + "\n"


def _drawn(box: _Box, x: int, y: int) -> list[str]:
    lines = [f'<tspan x="{x + 10}" dy="{_LINE}">{escape(_shown(one))}</tspan>' for one in box.lines]
    return [
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{box.height}" fill="none" '
        'stroke="black"/>',
        f'<text x="{x + 10}" y="{y + _LINE}"><tspan font-weight="bold">'
        f"{escape(_shown(box.title))}</tspan>{''.join(lines)}</text>",
    ]


def _shown(text: object) -> str:
    """A line of printable characters, cut where it would leave its box."""
    plain = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(text))
    return plain if len(plain) <= _CHARACTERS else plain[: _CHARACTERS - 1] + "…"


def _broker(run: Document) -> Document:
    found = run.get("broker")
    return found if isinstance(found, Mapping) else {}


def _is_local(run: Document) -> bool:
    return bool(_broker(run).get("started_by_us"))


def _clients(run: Document, supply: Document) -> Sequence[_Box]:
    plan, host = run.get("plan") or {}, run.get("environment") or {}
    agents = ", ".join(f"{count} {kind}" for kind, count in supply["locations"].items())
    machine = (
        f"{host.get('cpu_model') or 'processor unknown'}",
        f"{host.get('cores') or '?'} processors, {int(host.get('memory_bytes') or 0) >> 20:,} MiB",
        f"{host.get('os') or ''} {host.get('kernel') or ''}",
    )
    hosts = int(plan.get("hosts") or 1)
    shared = f"{plan.get('workers') or '?'} worker processes on {hosts} host{'s' * (hosts > 1)}"
    first = (*machine, shared, f"agents: {agents}", f"controller: {run.get('program') or ''}")
    return [
        _Box(f"Client node 1: {host.get('host') or ''}", first),
        *(
            _Box(f"Client node {number}", ("as described in hosts",))
            for number in range(2, hosts + 1)
        ),
    ]


def _server(run: Document) -> _Box:
    broker = _broker(run)
    addresses = [str(url) for url in broker.get("urls") or ()]
    where = ("on client node 1",) if _is_local(run) else ("machine: FILL IN",)
    name = f"{broker.get('name') or '?'} {broker.get('version') or ''}"
    return _Box(f"Server node: {name}", (*where, *addresses[:12]))
