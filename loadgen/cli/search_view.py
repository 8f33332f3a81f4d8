"""Terminal output of searches and sweeps, during and after them, and of the rate steps of a run."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from loadgen.cli.result_text import Paper, aligned, answer_lines, labelled, tell
from loadgen.judge.next_step import limit_sentence
from loadgen.judge.verdict import RateStepVerdict
from loadgen.report.build.sweep_report import VERDICT, columns_of, ranges_of
from loadgen.report.build.sweep_table import SweepTable
from loadgen.report.headline import headline
from loadgen.report.render.text import name, notice_for, notice_lines
from loadgen.report.score_card import ScoreCard
from loadgen.run.progress import progress_on
from loadgen.run.search.search import SearchResult, SearchState, SearchStep
from loadgen.run.search.sweep import SweepResult, SweepState
from loadgen.sentences import counted, duration


def bracket_line(state: SearchState) -> str:
    """Return the range of the limit and the current step as one line."""
    below, above = state.bracket
    field = state.search.aim.field
    low = "none held yet" if below is None else f"{below:,.10g} held"
    high = "none failed yet" if above is None else f"{above:,.10g} failed"
    parts = [f"{state.search.scenario.case} {field}: {low}, {high}"]
    if state.probe is not None:
        number = len(state.steps) + 1
        most = state.search.aim.most_steps
        parts.append(
            f"step {number} of at most {most}: {state.probe.load:,.10g} ({state.probe.purpose})"
        )
    return "; ".join(parts)


def step_line(step: SearchStep) -> str:
    tried = step.tried
    parts = [
        f"{step.number:>2} {'held' if tried.valid else 'failed':<6} "
        f"{tried.load:,.10g} ({tried.purpose})"
    ]
    if step.sent_per_s is not None and step.received_per_s is not None:
        parts.append(f"out {step.sent_per_s:,.0f}/s, in {step.received_per_s:,.0f}/s")
    if step.p99_us is not None:
        parts.append(f"p99 {duration(step.p99_us)}")
    return "; ".join((", ".join(parts), *(f"{why.code}: {why.detail}" for why in tried.reasons)))


def rate_step_lines(steps: Sequence[RateStepVerdict]) -> list[str]:
    lines = []
    for number, step in enumerate(steps, start=1):
        facts = step.facts
        p99_us = facts.service.latency_p99_us
        p99 = "" if p99_us is None else f", p99 {duration(p99_us)}"
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in step.verdict.reasons)
        lines.append(
            f"step {number}: {step.step.share * 100:.6g}% {facts.schedule.target_rate:,.10g}/s  "
            f"{'VALID' if step.verdict.valid else 'INVALID'}, "
            f"sent {facts.on_time / (facts.window_s or 1.0):,.0f}/s, unsent {step.owed:,}{p99}"
            f"{'; ' if why else ''}{why}"
        )
    return lines


def search_lines(
    result: SearchResult, card: ScoreCard | None, paper: Paper, *, brief: bool = False
) -> list[str]:
    """Return the limit, the figures at it, and unless brief, the steps and where the files are."""
    assert result.limit is not None
    case, out = result.search.scenario.case, result.directory
    limit, best = result.limit, result.best
    broker = () if card is None else (card.run.broker_name, card.run.protocol)
    answer = answer_lines(
        result.exit_status == 0,
        "",
        (f"search {case}", *broker, limit_sentence(result.search.aim, limit)),
        "" if card is None else headline(card),
        paper,
    )
    lines = [*notice_lines(notice_for(case), paper.width), *answer]
    if brief:
        return lines
    page = (
        "" if best is None or best.run is None else f" · page {out / best.run / 'scorecard.html'}"
    )
    more = f"continue with a larger --most-steps and --out {out}"
    parts = [
        *(("", f"{why.code}: {name(why.detail)}") for why in limit.reasons),
        *(("" if step.number > 1 else "steps", step_line(step)) for step in result.steps),
        ("files", f"{out}{page}"),
        *([("next", more)] if limit.ended == "out of steps" else ()),
    ]
    return [*lines, *labelled(parts, paper)]


def sweep_lines(
    table: SweepTable, result: SweepResult, paper: Paper, *, brief: bool = False
) -> list[str]:
    """Return the verdict, the ranges of the main figures, the table, and where the files are."""
    wrong = sum(not row.valid for row in table.rows)
    rows = counted(len(table.rows), "row")
    answer = answer_lines(
        result.exit_status == 0,
        f"{wrong} of {rows}" if wrong else rows,
        (f"sweep {table.case} by {', '.join(table.axes)}", table.broker, table.protocol),
        ranges_of(table),
        paper,
    )
    notices = notice_lines(table.notice, paper.width)
    if brief:
        return [*notices, *answer]
    columns = columns_of(table)
    cells = [[*map(name, row)] for row in ([*columns], *zip(*columns.values(), strict=True))]
    left = ([*columns].index(VERDICT),)
    parts = [("files", f"{result.directory} · page {result.directory / 'table.html'}")]
    steps = any(row.limit and "out of steps" in row.limit["ended"] for row in table.rows)
    if steps or result.interrupted:
        more = " and a larger --most-steps" if steps else ""
        parts.append(("next", f"continue with the same command, --out {result.directory}{more}"))
    return [*notices, *answer, "", *aligned(cells, left, paper), "", *labelled(parts, paper)]


Show = Callable[[SearchState | SweepState], None]


@contextmanager
def progress_of(*, quiet: bool = False, notice: str = "") -> Iterator[Show]:
    """Show searches and sweeps on stderr: a line for each run and each step of a search."""
    # Shown before the first state, so that a refused command prints only one line.
    notices = iter(notice_lines(notice))
    shown: set[tuple[object, ...]] = set()
    with progress_on(sys.stderr, quiet=quiet) as progress:

        def show(state: SearchState | SweepState) -> None:
            sweep = state if isinstance(state, SweepState) else None
            heading = _heading(sweep) if sweep else ""
            search = state if isinstance(state, SearchState) else state.searching
            snapshot = state.snapshot if search is None else search.snapshot
            if snapshot is not None:
                if search is None or sys.stderr.isatty():
                    progress(snapshot)
                return
            lines = [heading]
            key: tuple[object, ...] = (heading,)
            if search is not None:
                key = (heading, len(search.steps), search.probe is None)
                lines = [step_line(step) for step in search.steps[-1:]]
                if search.probe is not None:
                    lines.append(": ".join(filter(None, (heading, bracket_line(search)))))
            elif sweep and sweep.point.search is not None:
                return  # its first step has the heading
            if key not in shown and not quiet:
                shown.add(key)
                tell([*notices, *lines])

        yield show


def _heading(state: SweepState) -> str:
    values = ", ".join(f"{name}={value}" for name, value in state.point.values.items())
    repetition = f", repetition {state.repetition}" if state.repetition > 1 else ""
    again = f", attempt {state.again + 1}: other load disturbed the last one" if state.again else ""
    return f"{state.number} of {state.total}: {values}{repetition}{again}"
