"""The view of steps: those of a search under way, and the rate steps of a run."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol, TextIO

from loadgen.report.headline import duration
from loadgen.report.render.text import notice_lines
from loadgen.run.progress import describe, live_on

if TYPE_CHECKING:
    from rich.console import RenderableType

    from loadgen.judge.rate_step_verdict import RateStepVerdict
    from loadgen.run.search.search import SearchState, SearchStep


def bracket_line(state: "SearchState") -> str:
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
            f"step {number} of at most {most}: {state.probe.purpose} {state.probe.load:,.10g}"
        )
    return "; ".join(parts)


def step_line(step: "SearchStep") -> str:
    """Return one step as a line of text."""
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


def rate_step_lines(steps: Sequence["RateStepVerdict"]) -> list[str]:
    """Return a line for each rate step of a run."""
    lines = []
    for number, step in enumerate(steps, start=1):
        facts = step.facts
        p99_us = facts.service.latency_p99_us
        p99 = "" if p99_us is None else f", p99 {duration(p99_us)}"
        why = "; ".join(f"{reason.code}: {reason.detail}" for reason in step.verdict.reasons)
        lines.append(
            f"step {number}: {step.step.share * 100:.6g}% {step.rate:,.10g}/s  "
            f"{'VALID' if step.verdict.valid else 'INVALID'}, "
            f"sent {facts.begun / (facts.window_s or 1.0):,.0f}/s, owed {step.owed:,}{p99}"
            f"{'; ' if why else ''}{why}"
        )
    return lines


class Show(Protocol):
    """Shows the state of a search under a heading."""

    def __call__(self, state: "SearchState", heading: str = "") -> None: ...


@contextmanager
def search_progress(stream: TextIO, *, quiet: bool = False, notice: str = "") -> Iterator[Show]:
    """Show a search's states on `stream`.

    `notice` is what must stand before any figure; it is shown once, before the first state, and
    stays. So a search that is refused is answered in one line.
    """
    notices = iter(notice_lines(notice))
    if quiet:
        yield lambda state, heading="": None
    elif stream.isatty():
        with live_on(stream) as live:

            def show(state: "SearchState", heading: str = "") -> None:
                for line in notices:
                    live.console.print(line, markup=False, highlight=False)
                live.update(_drawn(state, heading), refresh=True)

            yield show
    else:
        yield _plain(stream, notices)


def _drawn(state: "SearchState", heading: str) -> "RenderableType":
    from rich.console import Group
    from rich.text import Text

    # A broker's text may look like markup: Text is taken as it is.
    lines = [Text(bracket_line(state), style="bold")]
    lines += [
        Text(step_line(step), style="green" if step.tried.valid else "red") for step in state.steps
    ]
    if heading:
        lines.insert(0, Text(heading))
    if state.snapshot is not None:
        lines.append(Text(describe(state.snapshot), no_wrap=True, overflow="ellipsis"))
    return Group(*lines)


def _plain(stream: TextIO, notices: Iterator[str]) -> Show:
    shown: set[tuple[str, int, bool]] = set()

    def show(state: "SearchState", heading: str = "") -> None:
        key = (heading, len(state.steps), state.probe is None)
        if state.snapshot is not None or key in shown:
            return
        shown.add(key)
        lines = [*notices, *map(step_line, state.steps[-1:])]
        if state.probe is not None:
            lines.append(": ".join(filter(None, (heading, bracket_line(state)))))
        for line in lines:
            print(line, file=stream, flush=True)

    return show
