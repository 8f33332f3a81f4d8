"""The result of a run in a terminal: verdict and headline first, all figures on request."""

import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
from typing import TextIO

from loadgen.cases.registry import CASES
from loadgen.cli.options import Flags
from loadgen.judge.codes import REASONS
from loadgen.judge.next_step import AIMS
from loadgen.plan.tables import as_cell
from loadgen.report.build.rows import FIGURES
from loadgen.report.build.run_section import latency_tables
from loadgen.report.headline import headline
from loadgen.report.render.text import name, notice_lines, number, text_of
from loadgen.report.render.write import indented
from loadgen.report.score_card import Curves, ScoreCard
from loadgen.sentences import counted, duration

_WIDTH = 100
_LABEL = 11  # columns of a line's label
_BARS = "▁▂▃▄▅▆▇█"
_GAP = "  "
_MOST_BARS = 40
_MIB = 1 << 20
_RETURNS = (("returns", "return", "return"), ("stored", "catch_up", "message"))
_REPLACED = ("--rate", "-r", "--out", "-o")
_ONLY_SHOWN = ("--json", "--quiet", "--long", "--closed")
"""Options that the suggested command does not repeat, with a value and without."""


@dataclass(frozen=True, slots=True)
class Paper:
    """The properties of a stream: a terminal has charts, and lines that fit its width."""

    width: int = _WIDTH
    terminal: bool = False
    colour: bool = False


def paper_of(stream: TextIO) -> Paper:
    """Return the properties of a stream; NO_COLOR is respected (https://no-color.org)."""
    if not stream.isatty():
        return Paper()
    colour = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return Paper(shutil.get_terminal_size().columns, terminal=True, colour=colour)


def print_result(
    flags: Flags, document: object | None, lines: Callable[[Paper], Iterable[str]]
) -> None:
    """Print lines to stdout, or with `--json` a document, and unless quiet the lines to stderr."""
    as_json, quiet = flags["json_"], flags["quiet"]
    if document is not None:
        print(indented(document).decode(), end="", flush=True)
    if not (as_json and quiet):
        stream = sys.stderr if as_json else sys.stdout
        print("\n".join(lines(paper_of(stream))), file=stream, flush=True)


def tell(lines: Sequence[str]) -> None:
    print("\n".join(lines), file=sys.stderr)


def two_lines(card: ScoreCard, paper: Paper = Paper()) -> list[str]:
    """Return the verdict and the headline, after the notice of the case."""
    run, verdict = card.run, card.verdict
    codes = ", ".join(dict.fromkeys(name(code, 40) for code in verdict.codes))
    about = (run.case, run.broker_name or "broker", run.protocol, duration(run.seconds * 1e6))
    answer = answer_lines(verdict.valid, codes, about, headline(card), paper)
    return [*notice_lines(card.notice, paper.width), *answer]


def answer_lines(
    valid: bool, details: str, about: Sequence[str], figures: str, paper: Paper
) -> list[str]:
    """Return the first lines of every result: the verdict and its subject, then the figures."""
    word = "VALID" if valid else "INVALID"
    shown = f"\x1b[1;{32 if valid else 31}m{word}\x1b[0m" if paper.colour else word
    subject = " · ".join(name(part) for part in about if part)
    first, *more = wrapped(f"{' '.join(filter(None, (word, details)))}  {subject}", paper)
    return [first.replace(word, shown, 1), *more, *(wrapped(figures, paper) if figures else ())]


def result_lines(
    card: ScoreCard, directory: Path, paper: Paper = Paper(), *, long: bool = False
) -> list[str]:
    """Return the result of a run in about twelve lines; with `long`, all figures follow."""
    lines = [*two_lines(card, paper), *labelled(_parts(card, directory, paper), paper)]
    return [*lines, "", *all_figures(card, paper)] if long else lines


def labelled(parts: Iterable[tuple[str, str]], paper: Paper) -> Iterator[str]:
    """Yield texts with their labels before them, in lines that fit."""
    for label, text in parts:
        first, *more = wrapped(text, paper, _LABEL) or [""]
        yield f"{label:<{_LABEL}}{first}".rstrip()
        yield from (" " * _LABEL + line for line in more)


def wrapped(text: str, paper: Paper, indent: int = 0) -> list[str]:
    """Return a text in lines that fit a terminal; a pipe gets one line."""
    if not paper.terminal:
        return [text]
    # A figure stays together with its unit.
    bound = (
        text.replace(" · ", " ·\n").replace(" ", "\0").replace("\n", " ") if " · " in text else text
    )
    lines = wrap(bound, paper.width - indent, break_on_hyphens=False, break_long_words=False)
    return [line.replace("\0", " ") for line in lines]


def _parts(card: ScoreCard, directory: Path, paper: Paper) -> Iterator[tuple[str, str]]:
    """Yield label and text of each line after the first two."""
    for reason in card.verdict.reasons:
        yield "", f"{name(reason.code, 40)}: {name(reason.detail)}"
    for remark in card.verdict.remarks:
        yield "remark", name(remark.detail)
    curves = card.curves
    if paper.terminal:
        yield from _charts(card, curves, min(_MOST_BARS, max(8, paper.width - 40)))
    timed = card.latency.get("connect")
    if card.has_messages and timed is not None and timed.p99_us is not None:
        counts = card.counts
        failures = f" · {counts.connect_failures:,} failed"
        lost = f" · {counted(counts.disconnects, 'disconnect')}"
        yield (
            "connects",
            f"{card.connect.connected:,} · p99 {duration(timed.p99_us)}{failures}{lost}",
        )
    for label, series, noun in _RETURNS:
        if (late := card.latency.get(series)) is not None and late.max_us is not None:
            latest = f"at most {duration(late.max_us)} after the return was due"
            yield label, f"{counted(late.count, noun)}, {latest}"
    yield "processor", _processor(card, curves)
    if card.power is not None:
        yield "power", f"{number(card.power.watts)} W"
    if card.ledger is not None:
        yield "ledger", _ledger(card)
    yield "files", f"{directory} · page {directory / 'scorecard.html'}"
    if following := _next(card):
        yield "next", following


def _charts(card: ScoreCard, curves: Curves, most: int) -> Iterator[tuple[str, str]]:
    """Yield a histogram of the latency and a line of the rate of each second."""

    series = "end_to_end" if card.has_messages else "connect"
    points = next((one.points for one in curves.distribution if one.series == series), ())
    if len(points) > 1 and 0 < points[0][1] < points[-1][1]:
        low, high = points[0][1], points[-1][1]
        bars = _bars([share**0.5 for share in _shares(points, most)])
        yield "latency", f"{duration(low)} {bars} {duration(high)}"
    column = "received" if card.has_messages else "connects"
    spans = zip(curves.course["at_s"].to_pylist(), curves.course[column].to_pylist(), strict=True)
    seconds = [value for at_s, value in spans if value is not None and 0 <= at_s < card.run.seconds]
    if card.has_messages and len(seconds) > 2:
        lowest, highest = number(round(min(seconds))), number(round(max(seconds)))
        text = lowest if lowest == highest else f"{lowest} to {highest}"
        yield "received", f"{_bars(_thinned(seconds, most))} {text} msg/s each second"


def _shares(points: Sequence[tuple[float, float]], bins: int) -> list[float]:
    """Return the share of a distribution in each of some bins, equally wide on a log scale."""
    from numpy import diff, geomspace, interp, log

    percents, values = zip(*points, strict=True)
    edges = geomspace(values[0], values[-1], bins + 1)
    shares: list[float] = diff(interp(log(edges), log(values), percents)).tolist()
    return shares


def _thinned(values: Sequence[float], most: int) -> list[float]:
    """Return the values, or means of as many neighbours as needed for `most` values."""
    step = -(-len(values) // most)
    parts = [values[start : start + step] for start in range(0, len(values), step)]
    return [sum(part) / len(part) for part in parts]


def _bars(values: Sequence[float]) -> str:
    """Draw each value as a bar; one of 0 is blank."""
    highest = max(values) or 1.0
    most = len(_BARS) - 1
    return "".join(
        _BARS[min(most, int(value / highest * len(_BARS)))] if value > 0 else " "
        for value in values
    )


def _processor(card: ScoreCard, curves: Curves) -> str:
    """Return the processor time of generator and broker, and the generator's own delay."""
    shares: dict[str, list[float]] = {}
    for row in curves.processes.to_pylist():
        if row["used"] is not None and 0 <= row["at_s"] < max(card.run.seconds, 1.0):
            shares.setdefault(row["worker"], []).append(row["used"])
    used = sum(sum(part) / len(part) for part in shares.values())
    parts = [f"generator {_cores(used)} in {counted(card.run.workers, 'worker')}"]
    if own_us := card.details.get("own_delay_p99_us"):
        parts.append(f"its own delay up to {duration(own_us)}")
    load = card.broker
    if load is not None and load.cores is not None:
        memory = f", {load.resident_bytes_max / _MIB:,.0f} MiB" if load.resident_bytes_max else ""
        parts.append(f"broker {_cores(load.cores)}{memory}")
    return " · ".join(parts)


def _cores(used: float) -> str:
    """Return processor time as a share of a core, or as cores: 2.8 % of a core, 3.1 cores."""
    return f"{used:.2g} cores" if used >= 1 else f"{float(f'{100 * used:.2g}'):g} % of a core"


def _ledger(card: ScoreCard) -> str:
    """Return one sentence if every message is accounted for, else the states without a proof."""

    ledger = card.ledger or {}
    if ledger.get("proven"):
        return "every message is accounted for"
    gaps = "; ".join(map(name, ledger.get("imbalances", ())))
    return gaps or "the sums could not be checked; --long shows them"


def _next(card: ScoreCard) -> str:
    """Return the next command, or the advice of the first reason; "" without either."""

    if not card.verdict.valid:
        return advice_of(card.verdict.codes)
    words, case = card.run.command, card.run.case
    if words[:2] != ("loadgen", case) or CASES[case].variants:
        return ""
    aim = next(aim for aim in AIMS if aim in CASES[case].scenario.fields())
    rest = iter(words[2:])
    same = []
    for word in rest:
        if word in _REPLACED:
            next(rest, None)
        elif word not in _ONLY_SHOWN and word.partition("=")[0] not in _REPLACED:
            same.append(word)
    return shlex.join(("loadgen", "search", case, *same, "--for", aim))


def advice_of(codes: Iterable[str]) -> str:
    """Return the next step for the first of these codes that this version knows."""
    steps = {row.code: row.next for row in REASONS}
    return next((steps[code] for code in codes if steps.get(code)), "")


def all_figures(card: ScoreCard, paper: Paper = Paper()) -> list[str]:
    """Return the rows, latencies, sections and counters of a score card as lines."""

    lines = []
    if card.rows:
        rows = [
            (row.name, *map(number, row.figures), f"{row.unit}  {name(row.description)}")
            for row in card.rows
        ]
        remarks = [f"  {row.name}: {name(row.remark)}" for row in card.rows if row.remark]
        lines += [
            *aligned([("", *FIGURES.values(), ""), *rows], left=(0, 7), paper=paper),
            *remarks,
        ]
    for section in (*latency_tables(card), *card.sections):
        lines += ["", *wrap(f"{section.title}. {section.note}", min(_WIDTH, paper.width))]
        cells = [[text_of(as_cell(value).value) for value in row] for row in section.rows]
        lines += aligned([section.header, *cells], left=section.texts, paper=paper)
    counts = card.counts
    watermarks = (
        ("in all", counts.high_water_mark),
        ("to one subscription", counts.subscription_high_water_mark),
    )
    if marks := [f"{number(value)} {label}" for label, value in watermarks if value is not None]:
        lines += ["", f"Most messages in flight at once: {', '.join(marks)}"]
    if trouble := [f"{key.replace('_', ' ')} {number(n)}" for key, n in card.network.items() if n]:
        lines += ["", f"TCP of all programs on this host: {', '.join(trouble)}"]
    return lines


def aligned(
    rows: Sequence[Sequence[str]], left: Sequence[int], paper: Paper = Paper()
) -> list[str]:
    """Lay out columns, numbers to the right; leave out a column that has only a head.

    If they are too wide for a terminal, heads are wrapped, and then the widest column of texts.
    """
    filled = [c for c in range(len(rows[0])) if c in left or any(row[c] for row in rows[1:])]
    columns = [[row[column] for row in rows] for column in filled]
    widths = [max(map(len, column)) for column in columns]
    room = (paper.width if paper.terminal else sys.maxsize) - len(_GAP) * (len(columns) - 1)
    if sum(widths) > room:
        widths = [max(_longest_word(head), *map(len, cells), 1) for head, *cells in columns]
    if (excess := sum(widths) - room) > 0:
        widest = max((place for place, c in enumerate(filled) if c in left), key=widths.__getitem__)
        least = max(map(_longest_word, columns[widest]))
        widths[widest] = max(least, widths[widest] - excess)
    lines = []
    for row in zip(*columns, strict=True):
        parts = [
            wrap(cell, width or 1, break_on_hyphens=False) or [""]
            for cell, width in zip(row, widths, strict=True)
        ]
        for line in zip_longest(*parts, fillvalue=""):
            padded = (
                part.ljust(width) if number in left else part.rjust(width)
                for number, width, part in zip(filled, widths, line, strict=True)
            )
            lines.append(_GAP.join(padded).rstrip())
    return lines


def _longest_word(text: str) -> int:
    return max(map(len, text.split()), default=0)
