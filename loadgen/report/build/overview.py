"""Several runs as one table: a row a side and figure, repetitions merged into mean and spread."""

from collections.abc import Sequence
from dataclasses import dataclass

from loadgen.report.build.compare import Cell, Comparison, cell_of
from loadgen.report.build.rows import Row, RowKey, in_report_order, keyed
from loadgen.report.model import ScoreCard
from loadgen.report.render.text import counted, name, number


@dataclass(frozen=True, slots=True)
class MergedRow:
    """A row of the published card over the runs of one side.

    `cells` are in the order of `rows.FIGURES`; `label` tells the side from others of its case, ""
    where there is no other; `places` are those of its runs, `invalid` is how many of them are.
    """

    row: Row
    label: str
    places: tuple[int, ...]
    invalid: int
    cells: tuple[Cell | None, ...]
    remarks: tuple[str, ...]

    @property
    def words(self) -> str:
        """Which runs these are, in words."""
        runs = len(self.places)
        bad = "INVALID" if self.invalid == runs else f"{self.invalid} INVALID"
        parts = (self.label, counted(runs, "run"), bad if self.invalid else "")
        return ", ".join(filter(None, parts))


MOST_APART = 6
"""Of more runs than this the merged table is the first thing seen, and each run is folded."""


def is_merged(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> bool:
    """Whether runs are shown as sides: there are repetitions, or too many runs for a row each."""
    repeated = any(len(side.runs) > 1 for one in comparisons for side in one.sides)
    return repeated or len(cards) > MOST_APART


def merged_rows(cards: Sequence[ScoreCard], comparisons: Sequence[Comparison]) -> list[MergedRow]:
    """The rows of all sides in the order of the published card; a run without others is a side."""
    sides = [
        (side.label if len(comparison.sides) > 1 else "", side.runs)
        for comparison in comparisons
        for side in comparison.sides
    ]
    compared = {run for _, runs in sides for run in runs}
    sides += [("", (place,)) for place in range(len(cards)) if place not in compared]
    known = [[keyed(cards[run].rows) for run in runs] for _, runs in sides]
    # The run of a side that has most rows names them.
    templates = [max(side, key=len) for side in known]
    key_of = {id(row): key for template in templates for key, row in template.items()}
    found: dict[RowKey, list[MergedRow]] = {}
    for place, row in in_report_order([[*template.values()] for template in templates]):
        label, runs = sides[place]
        same = [rows[key_of[id(row)]] for rows in known[place] if key_of[id(row)] in rows]
        columns = zip(*(one.figures for one in same), strict=True)
        found.setdefault(key_of[id(row)], []).append(
            MergedRow(
                row=row,
                label=label,
                places=runs,
                invalid=sum(cards[run].verdict.word == "INVALID" for run in runs),
                cells=tuple(cell_of([v for v in column if v is not None]) for column in columns),
                remarks=tuple(dict.fromkeys(one.remark for one in same if one.remark)),
            )
        )
    # The sides of a figure below one another.
    return [one for rows in found.values() for one in rows]


def cell_text(cell: Cell | None) -> str:
    """Mean and standard deviation; "" for nothing."""
    if cell is None:
        return ""
    return number(cell.mean) + ("" if cell.stdev is None else f" ± {number(cell.stdev)}")


def about_lines(cards: Sequence[ScoreCard]) -> list[str]:
    """When, on what, and against what the runs were made, a line each; for the top of a card."""
    days = sorted({str(card.run.started)[:10] for card in cards if card.run.started})
    when = " to ".join(dict.fromkeys((days[0], days[-1]))) if days else ""
    lines = [when] if when else []
    lines += dict.fromkeys(filter(None, map(_host, cards)))
    lines += dict.fromkeys(filter(None, map(_broker, cards)))
    more = len(lines) - _MOST_LINES
    return lines if more <= 0 else [*lines[:_MOST_LINES], f"and {more} more, see each run"]


_MOST_LINES = 7
_GIB = 1 << 30


def _host(card: ScoreCard) -> str:
    found = card.run.environment
    cores, memory = found.get("cores"), found.get("memory_bytes")
    parts = (
        found.get("cpu_model"),
        counted(cores, "core") if isinstance(cores, int) else "",
        f"{memory / _GIB:.0f} GiB" if isinstance(memory, int) else "",
        found.get("os"),
        f"kernel {found['kernel']}" if found.get("kernel") else "",
    )
    host, about = found.get("host"), ", ".join(str(part) for part in parts if part)
    return name(f"Load host {host}: {about}" if about else f"Load host {host}") if host else ""


def _broker(card: ScoreCard) -> str:
    broker = card.run.broker
    local = broker.get("started_by_us") or any(map(_is_loopback, broker.get("urls") or ()))
    title = card.run.broker_name or "Broker"
    return name(f"{title}, on the same host as the load" if local else f"{title}, on another host")


def _is_loopback(url: object) -> bool:
    host = str(url).partition("://")[2].rpartition("@")[2]
    return host.startswith(("127.", "localhost", "[::1]"))
