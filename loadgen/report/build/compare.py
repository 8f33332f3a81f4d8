"""Several runs of a case side by side: the difference, and whether it exceeds the spread. Pure.

Runs of the same case, scenario and broker, made from the same host by the same version of this
program, are repetitions: they make one *side*. Other sides are compared with the first one, which
is the baseline if there is one. A remark lists differences of sides other than the load.

A difference is that of the medians of two sides. The statistics, for sides with n and m runs, are
those of the logarithms of their values, or of the values if one of them is not above 0:

- both have two runs or more: Welch's t interval at 95 %, degrees of freedom after Welch and
  Satterthwaite, rounded down;
- only one has: its standard deviation is used for both, with its n - 1 degrees of freedom;
- neither has: the spread is unknown.

A difference exceeds the spread if it is larger than the half width of that interval. A regression
is a change for the worse by more than the bound. If a side has three runs or more, the change must
exceed the spread as well. There are many lines: one in twenty may exceed the spread by chance.

Sides of different loads have no shares: twice the rate is not 100 % better.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, median, stdev
from typing import Any, Literal

from loadgen.cases.registry import CASES
from loadgen.errors import RunDirectoryError
from loadgen.plan.fields import Load
from loadgen.report.build.rows import DATA, END_TO_END, FIGURES, keyed
from loadgen.report.messages import Message
from loadgen.report.render.text import name, number
from loadgen.report.score_card import ScoreCard
from loadgen.run.seal import digest_of
from loadgen.sentences import listed

DEFAULT_BOUND = 0.05
"""Default bound: the tolerated change for the worse, as a share of the baseline."""

LEAST_REPETITIONS = 3
"""Least number of runs of a side that makes a difference within the spread tolerable."""

_T_95: Mapping[int, float] = {int(freedom): t for freedom, t in DATA["student_t_95"].items()}
"""Two-sided 95 % quantile of Student's t by degrees of freedom; between two, the lower counts."""

_OF_THE_HOST = ("host", "kernel", "cpu_model", "cores")
"""Keys of a run's environment."""

_SETUP = ("hosts", "endpoint", "port", *_OF_THE_HOST, "program")
"""Facts other than load and broker that influence the figures."""

_WORDS = {"cpu_model": "processor", "program": "program version"}

Better = Literal["higher", "lower"]

_BETTER: Mapping[str, Better] = DATA["better"]
"""Units of figures that can be better or worse."""

_GATING = frozenset({"value", "avg", "p50", "p99"})
"""Columns whose change can be a regression; a single worst value or a deviation cannot."""

_LONGEST_LABEL = 120
_LONGEST_TWIN = 60
_MOST_GONE = 10

_LARGE = 2.0
"""Factor from which on a difference is shown as a multiple."""


@dataclass(frozen=True, slots=True)
class Side:
    """Repetitions: `runs` are places in the list of cards."""

    label: str
    runs: tuple[int, ...]
    baseline: bool = False


@dataclass(frozen=True, slots=True)
class Sample:
    """The values of a side's runs; `stdev` is that of the sample, None for a single run."""

    values: tuple[float, ...]
    median: float
    mean: float
    stdev: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The median of a side less that of the first side.

    `ratio` is that of the medians and `share` the difference relative to the first side, both None
    if that is 0 or the loads differ. `half_width` is that of the 95 % interval of the logarithm of
    the ratio, or of the difference if a value is not above 0. For too few runs it is None, and so
    is `exceeds`.
    """

    absolute: float
    share: float | None
    ratio: float | None
    half_width: float | None
    exceeds: bool | None
    regression: bool


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tolerated change of figures for the worse, as a share: a default and exceptions by name.

    A name is that of a column, as 99P, of a row, as FANIN, or of both, as FANIN 99P; the more
    precise name counts.
    """

    default: float = DEFAULT_BOUND
    named: Mapping[str, float] = field(default_factory=dict)

    def of(self, row: str, column: str) -> float:
        """Return the bound of a row's figure; `column` is its title."""
        return next((self.named[n] for n in _names(row, column) if n in self.named), self.default)

    def unknown(self, comparisons: "Sequence[Comparison]") -> str:
        """Return a name that no line of these has, or ""."""
        lines = [line for comparison in comparisons for line in comparison.lines]
        names = {one for line in lines for one in _names(line.name, line.column)}
        return next((name for name in self.named if name not in names), "")


def _names(row: str, column: str) -> tuple[str, ...]:
    """Return the names of a row's figure in bounds, the most precise first."""
    # FANIN is short for "FANIN, Received rate" and its like.
    short = row.partition(",")[0]
    names = (f"{row} {column}", f"{short} {column}", row, short, column)
    return tuple(map(str.casefold, names))


@dataclass(frozen=True, slots=True)
class Line:
    """One number of the card over all sides; None for a side that lacks it.

    `differences` has one for each side after the first. `bound` is the tolerated change for the
    worse, None for a line that is not gated.
    """

    name: str
    description: str
    unit: str
    column: str
    better: Better | None
    cells: tuple[Sample | None, ...]
    differences: tuple[Difference | None, ...]
    bound: float | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sides of one case; `bound` is None without a baseline.

    `invalid` are the places of sides that worsened from VALID to INVALID. `remarks` are reasons
    for which the sides, or the runs of the baseline, are hard to compare.
    """

    case: str
    sides: tuple[Side, ...]
    lines: tuple[Line, ...]
    bound: float | None
    invalid: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()


def compare(
    cards: Sequence[ScoreCard], baselines: Sequence[bool] = (), bounds: Bounds = Bounds()
) -> list[Comparison]:
    """Return a comparison for each case with several runs, in the order of the cards.

    `baselines` marks the cards of the baseline; if there are any, each case must have a baseline
    and another run. Raise RunDirectoryError otherwise.
    """
    marks = list(baselines) or [False] * len(cards)
    cases: dict[str, list[int]] = {}
    for place, card in enumerate(cards):
        cases.setdefault(card.run.case, []).append(place)
    comparisons = []
    for case, places in cases.items():
        marked = {place for place in places if marks[place]}
        if any(marks) and not 0 < len(marked) < len(places):
            missing = Message.BASELINE_ALONE if marked else Message.NO_BASELINE
            raise RunDirectoryError(missing(case=name(case, 40)))
        if len(places) > 1:
            comparisons.append(_comparison(case, cards, places, marked, bounds))
    return comparisons


def difference_text(difference: Difference | None) -> str:
    """Return a difference as a share or a multiple, or in the unit without these."""
    if difference is None:
        return ""
    share, ratio = difference.share, difference.ratio
    if not difference.absolute:
        return "equal"
    if share is None or ratio is None:
        return number(difference.absolute)
    if ratio >= _LARGE:
        return f"{number(ratio)} times"
    if 0 < ratio <= 1 / _LARGE:
        return f"1/{number(1 / ratio)}"
    return f"{100 * share:+.1f} %"


def spread_text(difference: Difference | None) -> str:
    """Return the certainty of a difference in words; "" for a clear one, and for equal sides."""
    if difference is None or difference.exceeds or not difference.absolute:
        return ""
    return "too few runs to tell" if difference.exceeds is None else "too noisy to tell"


def regressions(comparisons: Sequence[Comparison]) -> list[str]:
    """Return each regression as one line for people."""
    lines = []
    for comparison in comparisons:
        labels = [name(side.label, _LONGEST_LABEL) for side in comparison.sides]
        lines += [
            f"{labels[place]}: INVALID, the baseline is VALID" for place in comparison.invalid
        ]
        lines += [
            f"{name(line.name, 140)} {line.column}: {regression_text(line, place)} "
            f"({labels[place]})"
            for line in comparison.lines
            for place, difference in enumerate(line.differences, start=1)
            if difference is not None and difference.regression
        ]
    return lines


def regression_text(line: Line, place: int) -> str:
    """Return a regression in words: the figure of the side at a place and the baseline's."""
    first, other, difference = line.cells[0], line.cells[place], line.differences[place - 1]
    parts = (
        f"{number(other.median if other else None)} {name(line.unit, 20)} against "
        f"{number(first.median if first else None)} of the baseline",
        difference_text(difference),
        f"a regression beyond {100 * (line.bound or 0.0):g} %",
        spread_text(difference),
    )
    return ", ".join(filter(None, parts))


def half_width(first: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the half width of the 95 % interval of two means' difference; None if too few."""
    n, m = len(first), len(other)
    if n < 2 and m < 2:
        return None
    if n >= 2 and m >= 2:
        a, b = stdev(first) ** 2 / n, stdev(other) ** 2 / m
        error = a + b
        freedom = error**2 / (a**2 / (n - 1) + b**2 / (m - 1)) if error else float(n + m - 2)
    else:
        many = first if n >= 2 else other
        error = stdev(many) ** 2 * (1 / n + 1 / m)
        freedom = float(len(many) - 1)
    # Welch's degrees of freedom can round to just below a whole number.
    tabled = max(tabled for tabled in _T_95 if tabled <= max(freedom + 1e-9, 1))
    return _T_95[tabled] * math.sqrt(error)


# --- sides ----------------------------------------------------------------------------------


def _comparison(
    case: str, cards: Sequence[ScoreCard], places: Sequence[int], marked: set[int], bounds: Bounds
) -> Comparison:
    facts = {place: facts_of(cards[place]) for place in places}
    groups: dict[tuple[bool, str], list[int]] = {}
    # Baselines are one side, even of different facts: the user chose them.
    for place in sorted(places, key=lambda place: place not in marked):
        key = (True, "") if place in marked else (False, digest_of(facts[place]))
        groups.setdefault(key, []).append(place)
    firsts = [facts[runs[0]] for runs in groups.values()]
    differing = differing_facts(firsts)
    sides = []
    for (baseline, _), runs in groups.items():
        label = label_of(facts[runs[0]], differing)
        role = "baseline" if baseline else "run" if marked else ""
        shown = f"{role} ({label})" if role and label else role or label or "all runs"
        sides.append(Side(shown, tuple(runs), baseline))
    loads = [
        {key: value for key, value in of_side.items() if _load_of_fact(key) == "amount"}
        for of_side in firsts
    ]
    # With a baseline the user chose the comparison, even of different loads.
    alike = [bool(marked) or not differing_facts([loads[0], load]) for load in loads[1:]]
    lines = _lines(cards, sides, alike, bounds if marked else None)
    valid = [all(cards[run].verdict.valid for run in side.runs) for side in sides]
    return Comparison(
        case=case,
        sides=tuple(sides),
        lines=lines,
        bound=bounds.default if marked else None,
        invalid=tuple(
            place for place in range(1, len(sides)) if marked and valid[0] and not valid[place]
        ),
        remarks=(
            *_remarks([[facts[run] for run in side.runs] for side in sides]),
            *_not_compared(lines),
        ),
    )


Facts = Mapping[str, Any]


@cache
def _loads() -> Mapping[str, Load]:
    """Return the effect of each field on the load, by the names of run.json."""
    fields = (field for case in CASES.values() for field in case.scenario.fields().values())
    return {field.name: field.load for field in fields}


def _load_of_fact(key: str) -> Load | None:
    return _loads().get(key.removeprefix("scenario."))


def facts_of(card: ScoreCard) -> Facts:
    """Return the facts that repetitions of a run share."""
    run = card.run
    # A field that an older version does not have equals an empty one.
    scenario = [item for item in run.scenario.items() if item[1] not in (None, [], {}, ())]
    # A broker started for the run has another port each time.
    urls = [] if run.broker.get("started_by_us") else map(str, run.broker.get("urls") or ())
    ends = [found.groups("") for url in urls if (found := _URL.fullmatch(url))]
    return {
        "broker": run.broker_name,
        "protocol": run.protocol,
        **{f"scenario.{key}": value for key, value in scenario if _loads().get(key) != "none"},
        "hosts": run.hosts,
        "endpoint": " ".join(before + path for before, _, path in ends) or None,
        "port": " ".join(port for _, port, _ in ends) or None,
        **{key: run.environment.get(key) for key in _OF_THE_HOST},
        "program": run.program,
    }


_URL = re.compile(r"((?:\w+://)?[^/]*?)(?::(\d+))?(/.*)?", re.DOTALL)
"""Any text, split into the part before the port, the port, and the path."""


def load_of(card: ScoreCard) -> str:
    """Digest the requested load and the load host: cards with the same digest form a history.

    The broker and the versions of broker and program are not in it, as their effect is the subject
    of the history. An option that is off or 0 equals one that an older version does not have.
    """
    facts, environment = facts_of(card), card.run.environment
    asked = {key: value for key, value in facts.items() if key.startswith("scenario.") and value}
    host = {key: environment.get(key) for key in ("host", "cpu_model", "cores")}
    return digest_of(asked | host | {"protocol": card.run.protocol, "hosts": card.run.hosts})


def differing_facts(facts: Sequence[Facts]) -> list[str]:
    """Return the keys that differ; the ports of two brokers always do."""
    keys = dict.fromkeys(key for one in facts for key in one)
    differing = [key for key in keys if len({digest_of(one.get(key)) for one in facts}) > 1]
    return [key for key in differing if key != "port" or "broker" not in differing]


def label_of(facts: Facts, keys: Iterable[str]) -> str:
    """Return these facts in words, such as "rate 1,000"."""
    return name(", ".join(_shown(key, facts.get(key)) for key in keys), _LONGEST_LABEL)


def _shown(key: str, value: object) -> str:
    shown = "not given" if value is None else str(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        shown = number(value)
    return shown if key in ("broker", "protocol") and value else f"{fact_words(key)} {shown}"


def fact_words(key: str) -> str:
    return _WORDS.get(key, key.removeprefix("scenario."))


def _remarks(sides: Sequence[Sequence[Facts]]) -> Iterable[str]:
    """Yield remarks about sides with differences other than load and broker.

    Only a baseline can hold runs that are not repetitions of each other.
    """
    if mixed := differing_facts(sides[0]):
        yield (
            f"The runs of the first side are no repetitions of each other: they differ in "
            f"{_and(mixed)}. Its median and spread mix them."
        )
    differing = differing_facts([one for side in sides for one in side])
    other = [key for key in differing if key in _SETUP]
    if len(sides) > 1 and other:
        yield f"The sides differ in {_and(other)}: a difference may come from there."


def _and(keys: Sequence[str]) -> str:
    words = [fact_words(key) for key in keys]
    return name(" and ".join(filter(None, (", ".join(words[:-1]), words[-1]))), _LONGEST_LABEL)


def _not_compared(lines: Sequence[Line]) -> Iterable[str]:
    """Yield a remark about gated figures that the baseline has and a side lacks."""
    gone = [
        f"{line.name} {line.column}"
        for line in lines
        if line.bound is not None and line.cells[0] is not None and None in line.cells
    ]
    if gone:
        yield (
            f"Not compared, for the baseline has a figure and a run has none: "
            f"{name(listed(gone, _MOST_GONE))}."
        )


# --- lines ----------------------------------------------------------------------------------


def _lines(
    cards: Sequence[ScoreCard], sides: Sequence[Side], alike: Sequence[bool], bounds: Bounds | None
) -> tuple[Line, ...]:
    """Return a line for each number of the cards; `alike` marks sides of the first one's load."""
    numbers = {place: _numbers(cards[place]) for side in sides for place in side.runs}
    # In the order of the card that has most of them.
    ordered = sorted(numbers.values(), key=len, reverse=True)
    descriptions = {key: of_card[key][1] for of_card in reversed(ordered) for key in of_card}
    keys = dict.fromkeys(key for of_card in ordered for key in of_card)
    # FANOUT has two rows of one name and unit, which differ in their descriptions. "messages" says
    # too little if a name has several units.
    twins = Counter((title, unit, column) for title, unit, _, column in keys)
    units = Counter(title for title, _ in {(title, unit) for title, unit, _, _ in keys})
    lines = []
    for key in keys:
        title, unit, _, column = key
        if twins[title, unit, column] > 1 or (unit == "messages" and units[title] > 1):
            title = f"{title}, {name(descriptions[key].partition('.')[0], _LONGEST_TWIN)}"
        cells = tuple(
            sample_of([numbers[run][key][0] for run in side.runs if key in numbers[run]])
            for side in sides
        )
        better = _BETTER.get(unit)
        gates = bounds.of(title, FIGURES[column]) if bounds and column in _GATING else None
        differences = tuple(
            _difference(cells[0], cell, better if same else None, gates, shared=same)
            for cell, same in zip(cells[1:], alike, strict=True)
        )
        lines.append(
            Line(
                title,
                descriptions[key],
                unit,
                FIGURES[column],
                better,
                cells,
                differences,
                bound=gates if better else None,
            )
        )
    return tuple(lines)


_Key = tuple[str, str, int, str]
"""Name, unit, place among rows with that name and unit, and column."""


def _numbers(card: ScoreCard) -> dict[_Key, tuple[float, str]]:
    """Return a card's numbers with descriptions."""
    numbers: dict[_Key, tuple[float, str]] = {}
    for (title, unit, place), row in keyed(card.rows).items():
        short = END_TO_END if title.endswith(f".{END_TO_END}") else title
        for column, value in zip(FIGURES, row.figures, strict=True):
            if value is not None:
                numbers[short, unit, place, column] = (float(value), row.description)
    numbers["lost", "messages", 0, "value"] = (
        float(card.counts.lost),
        "Deliveries of messages intended in the window that did not come.",
    )
    return numbers


def sample_of(values: Iterable[float | None]) -> Sample | None:
    """Return the sample of the values, None without any."""
    numbers = tuple(value for value in values if value is not None)
    if not numbers:
        return None
    deviation = stdev(numbers) if len(numbers) > 1 else None
    return Sample(numbers, median(numbers), fmean(numbers), deviation)


def _difference(
    first: Sample | None,
    other: Sample | None,
    better: Better | None,
    bound: float | None,
    *,
    shared: bool,
) -> Difference | None:
    if first is None or other is None:
        return None
    absolute = other.median - first.median
    related = first.median != 0 and shared
    share = absolute / abs(first.median) if related else None
    positive = min(*first.values, *other.values) > 0
    scale = math.log if positive else float
    width = half_width([*map(scale, first.values)], [*map(scale, other.values)])
    distance = abs(scale(other.median) - scale(first.median))
    exceeds = None if width is None else distance > width
    repeated = max(len(first.values), len(other.values)) >= LEAST_REPETITIONS
    excused = repeated and exceeds is False
    worse = share is not None and better is not None and (share < 0) == (better == "higher")
    return Difference(
        absolute=absolute,
        share=share,
        ratio=other.median / first.median if related else None,
        half_width=width,
        exceeds=exceeds,
        regression=bool(
            bound is not None and worse and share is not None and abs(share) > bound and not excused
        ),
    )
