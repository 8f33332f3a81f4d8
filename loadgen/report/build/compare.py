"""Several runs of a case side by side: the difference, and whether it exceeds the spread. Pure.

Runs of the same case, scenario and broker, made from the same host by the same version of this
program, are repetitions: they make one *side*. Other sides are compared with the first one, which
is the baseline if there is one. A remark lists differences of sides other than the load.

A difference is that of the medians of two sides. It exceeds the spread if it is larger than
`half_width` of the logarithms of the values, or of the values if one of them is not above 0. One
line in twenty may exceed it by chance. A regression is a change for the worse by more than the
bound; if a side has three runs or more, it must exceed the spread as well.

Sides of different loads have no shares: twice the rate is not 100 % better.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

from loadgen.cases.registry import CASES
from loadgen.errors import RunDirectoryError
from loadgen.plan.fields import Load
from loadgen.report.build.rows import DATA, END_TO_END, FIGURES, mostly_own
from loadgen.report.render.text import name, number
from loadgen.report.score_card import ScoreCard
from loadgen.run.seal import digest_of
from loadgen.run.search.sweep import SweepResult
from loadgen.sentences import REPORT_TEXT, counted, listed

DEFAULT_BOUND = 0.05
"""Default bound: the tolerated change for the worse, as a share of the baseline."""
LEAST_REPETITIONS = 3
"""Number of runs of a side from which on a difference within the spread is tolerated."""
_T_95: Mapping[int, float] = {int(freedom): t for freedom, t in DATA["student_t_95"].items()}
"""Two-sided 95 % quantile of Student's t by degrees of freedom; between two, the lower counts."""
_OF_THE_HOST = ("host", "kernel", "cpu_model", "cores")  # keys of a run's environment
_SETUP = ("hosts", "endpoint", "port", *_OF_THE_HOST, "program")
"""Facts other than load and broker that influence the figures."""
_WORDS = {"cpu_model": "processor", "program": "program version"}
Better = Literal["higher", "lower"]
_BETTER: Mapping[str, Better] = DATA["better"]  # units of figures that can be better or worse
_GATING = frozenset({"value", "avg", "p50", "p99"})
"""Columns whose change can be a regression; a single worst value or a deviation cannot."""
_LONGEST_LABEL = 120
_LONGEST_TWIN = 60
_MOST_GONE = 10
_LARGE = 2.0  # factor from which on a difference is shown as a multiple


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
    if that is 0 or the loads differ. `half_width` and `exceeds` are None for too few runs.
    """

    absolute: float
    share: float | None
    ratio: float | None
    half_width: float | None
    exceeds: bool | None
    regression: bool

    @property
    def text(self) -> str:
        """The difference as a share or a multiple, or in the unit without these."""
        if not self.absolute:
            return "equal"
        if self.share is None or self.ratio is None:
            return number(self.absolute)
        if self.ratio >= _LARGE:
            return _times(self.ratio)
        if 0 < self.ratio <= 1 / _LARGE:
            return f"{_times(1 / self.ratio)} lower"
        shown = f"{100 * self.share:+.1f} %"
        return "equal" if shown[1:] == "0.0 %" else shown

    @property
    def certainty(self) -> str:
        """The certainty in words; "" for a clear difference, and for equal sides."""
        if self.exceeds or self.text == "equal":
            return ""
        return "too few runs to tell" if self.exceeds is None else "too noisy to tell"


def _times(ratio: float) -> str:
    return f"{float(f'{ratio:.3g}'):,.10g} times"


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

    @property
    def title(self) -> str:
        """The row and its figure; a row's value needs no title."""
        return self.name if self.figure == "value" else f"{self.name} {self.figure}"

    @property
    def figure(self) -> str:
        """The figure as scorecard.json names it: p99.9 for the published 99.9P."""
        key = next(key for key, title in FIGURES.items() if title == self.column)
        return key.replace("_", ".")


@dataclass(frozen=True, slots=True)
class Comparison:
    """The sides of one case; `bound` is None without a baseline.

    `invalid` are the places of sides that are INVALID, unlike the baseline. `remarks` are reasons
    for which the sides, or the runs of the baseline, are hard to compare.
    """

    case: str
    sides: tuple[Side, ...]
    lines: tuple[Line, ...]
    bound: float | None
    invalid: tuple[int, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bounds:
    """Tolerated change of figures for the worse, as a share: a default and exceptions by name.

    A name is that of a column (99P), a row (FANIN) or both (FANIN 99P); the most precise counts.
    """

    default: float = DEFAULT_BOUND
    named: Mapping[str, float] = field(default_factory=dict)

    def of(self, row: str, column: str) -> float:
        """Return the bound of a row's figure; `column` is its title."""
        return next((self.named[n] for n in _names(row, column) if n in self.named), self.default)

    def unknown(self, comparisons: Sequence[Comparison]) -> str:
        """Return a name that no line of these has, or ""."""
        lines = [line for comparison in comparisons for line in comparison.lines]
        names = {one for line in lines for one in _names(line.name, line.column)}
        return next((name for name in self.named if name not in names), "")


def _names(row: str, column: str) -> tuple[str, ...]:
    # FANIN is short for "FANIN, Received rate" and its like.
    short = row.partition(",")[0]
    names = (f"{row} {column}", f"{short} {column}", row, short, column)
    return tuple(map(str.casefold, names))


def compare(
    cards: Sequence[ScoreCard],
    baselines: Sequence[bool] = (),
    bounds: Bounds = Bounds(),
    names: Sequence[str] = (),
) -> list[Comparison]:
    """Return a comparison for each case with several runs, in the order of the cards.

    Kinds of a case, such as its topologies, are separate cases here. `baselines` marks the cards of
    the baseline; if there are any, each case must have a VALID baseline and another run. INVALID
    ones are left out, with a remark. `names` replace those of the brokers. Raise RunDirectoryError.
    """
    cases: dict[tuple[str, ...], dict[int, Facts]] = {}
    for place, card in enumerate(cards):
        broker = {"broker": names[place]} if names else {}
        cases.setdefault(_kind_of(card), {})[place] = {**facts_of(card), **broker}
    comparisons = []
    for (case, *kinds), facts in cases.items():
        marked = {place for place in facts if baselines and baselines[place]}
        invalid = {place for place in marked if not cards[place].verdict.valid}
        if invalid and invalid == marked:
            raise RunDirectoryError(REPORT_TEXT.BASELINE_INVALID(case=name(case, 40)))
        facts = {place: of for place, of in facts.items() if place not in invalid}
        marked -= invalid
        if any(baselines) and not 0 < len(marked) < len(facts):
            missing = REPORT_TEXT.BASELINE_ALONE if marked else REPORT_TEXT.NO_BASELINE
            raise RunDirectoryError(missing(case=name(" ".join((case, *kinds)), 40)))
        if len(facts) > 1:
            compared = _comparison(case, cards, facts, marked, bounds)
            left_out = [name(cards[place].run.id, 60) for place in sorted(invalid)]
            remark = REPORT_TEXT.BASELINE_LEFT_OUT(runs=listed(left_out, _MOST_GONE))
            remarks = (remark, *compared.remarks) if left_out else compared.remarks
            comparisons.append(replace(compared, remarks=remarks))
    return comparisons


def _kind_of(card: ScoreCard) -> tuple[str, ...]:
    """Return the case of a run, and its kind of that case, such as its topology."""
    scenario = card.run.scenario.items()
    return card.run.case, *(str(value) for key, value in scenario if _loads().get(key) == "kind")


def _comparison(
    case: str,
    cards: Sequence[ScoreCard],
    facts: "Mapping[int, Facts]",
    marked: set[int],
    bounds: Bounds,
) -> Comparison:
    groups: dict[str, list[int]] = {}
    # Baselines are one side, even of different facts: the user chose them.
    for place in sorted(facts, key=lambda place: place not in marked):
        key = "" if place in marked else digest_of(facts[place])
        groups.setdefault(key, []).append(place)
    firsts = [facts[runs[0]] for runs in groups.values()]
    differing = differing_facts(firsts)
    sides = []
    for (key, runs), of_side in zip(groups.items(), firsts, strict=True):
        label = label_of(of_side, differing)
        role = "" if not marked else "run" if key else "baseline"
        label = f"{role} ({label})" if role and label else role or label or "all runs"
        sides.append(Side(label, tuple(runs), baseline=not key))
    loads = [
        {k: v for k, v in of_side.items() if _loads().get(k.removeprefix("scenario.")) == "amount"}
        for of_side in firsts
    ]
    # With a baseline the user chose the comparison, even of different loads.
    alike = [bool(marked) or not differing_facts([loads[0], load]) for load in loads[1:]]
    lines = tuple(_lines(cards, sides, alike, bounds if marked else None))
    valid = [all(cards[run].verdict.valid for run in side.runs) for side in sides]
    worse = [place for place in range(1, len(sides)) if marked and not valid[place]]
    remarks = [*_remarks([[facts[run] for run in side.runs] for side in sides], lines)]
    late = [keys for place in facts if (keys := mostly_own(cards[place].latency))]
    if late:
        figures = tuple(dict.fromkeys(key.replace("_", ".") for keys in late for key in keys))
        values = {"late": len(late), "runs": len(facts), "figures": figures}
        remarks.append(REPORT_TEXT.OWN_DELAY_OF_RUNS(**values))
    return Comparison(
        case=case,
        sides=tuple(sides),
        lines=lines,
        bound=bounds.default if marked else None,
        invalid=tuple(worse),
        remarks=tuple(remarks),
    )


def _remarks(sides: "Sequence[Sequence[Facts]]", lines: Sequence[Line]) -> Iterator[str]:
    """Yield remarks about differences other than load and broker, and about missing figures."""

    def words(keys: Sequence[str]) -> str:
        words = [_WORDS.get(key, key.removeprefix("scenario.")) for key in keys]
        return name(" and ".join(filter(None, (", ".join(words[:-1]), words[-1]))), _LONGEST_LABEL)

    # Only a baseline can hold runs that are not repetitions of each other.
    if mixed := differing_facts(sides[0]):
        yield REPORT_TEXT.NOT_REPETITIONS(facts=words(mixed))
    differing = differing_facts([one for side in sides for one in side])
    other = [key for key in differing if key in _SETUP]
    if len(sides) > 1 and other:
        yield REPORT_TEXT.SIDES_DIFFER(facts=words(other))
    gone = [
        f"{line.name} {line.column}"
        for line in lines
        if line.bound is not None and line.cells[0] is not None and None in line.cells
    ]
    if gone:
        yield REPORT_TEXT.NOT_COMPARED(figures=name(listed(gone, _MOST_GONE)))


@dataclass(frozen=True, slots=True)
class Check:
    """A condition of the gate for a side or a run; an inconclusive one is skipped."""

    side: str
    figure: str
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    text: str = ""


def checks(comparison: Comparison) -> Iterator[Check]:
    """Yield the verdict of each side and each gated figure, if there is a baseline.

    A figure is skipped if a run lacks it, if its baseline is 0, and if a change for the worse
    beyond the bound is within the spread.
    """
    if comparison.bound is None:
        return
    labels = [side.label for side in comparison.sides]
    for place, label in enumerate(labels[1:], start=1):
        failed = place in comparison.invalid
        text = "INVALID, the baseline is VALID" if failed else ""
        yield Check(label, "verdict", "failed" if failed else "passed", text)
    for line in comparison.lines:
        first, *others = line.cells
        for label, cell, difference in zip(labels[1:], others, line.differences, strict=True):
            if line.bound is None or first is None:
                continue
            figure = f"{line.name} {line.column}"
            if difference is None or cell is None:
                yield Check(label, figure, "skipped", "the run has no such figure")
                continue
            sign = -1 if line.better == "higher" else 1
            is_known = difference.share is not None or not difference.absolute
            is_beyond = sign * (difference.share or 0.0) > line.bound
            against = f"{number(cell.median)} {name(line.unit, 20)} against {number(first.median)}"
            beyond = f"a regression beyond {100 * line.bound:g} %" if is_beyond else ""
            parts = (f"{against} of the baseline", difference.text, beyond, difference.certainty)
            text = ", ".join(filter(None, parts))
            if difference.regression:
                yield Check(label, figure, "failed", text)
            elif is_beyond or not is_known:
                yield Check(label, figure, "skipped", text)
            else:
                yield Check(label, figure)


def regressions(comparisons: Sequence[Comparison]) -> list[str]:
    """Return each failed check as one line for people."""
    return [
        f"{name(check.side)}: {check.text}"
        if check.figure == "verdict"
        else f"{name(check.figure)}: {check.text} ({name(check.side)})"
        for comparison in comparisons
        for check in checks(comparison)
        if check.outcome == "failed"
    ]


Facts = Mapping[str, Any]
_URL = re.compile(r"((?:\w+://)?[^/]*?)(?::(\d+))?(/.*)?", re.DOTALL)
"""The part before the port, the port, and the path."""


@cache
def _loads() -> Mapping[str, Load]:
    """Return the effect of each field on the load, by the names of run.json."""
    fields = (field for case in CASES.values() for field in case.scenario.fields().values())
    return {field.name: field.load for field in fields}


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


def load_of(card: ScoreCard) -> str:
    """Digest the requested load and the load host: cards with the same digest form a history.

    Broker and versions are not in it: their effect is the subject of the history. An option that is
    off or 0 equals one that an older version does not have.
    """
    facts, environment = facts_of(card), card.run.environment
    asked = {key: value for key, value in facts.items() if key.startswith("scenario.") and value}
    host = {key: environment.get(key) for key in ("host", "cpu_model", "cores")}
    return digest_of(asked | host | {"protocol": card.run.protocol, "hosts": card.run.hosts})


def differing_facts(facts: Sequence[Facts]) -> list[str]:
    """Return the keys that differ, without the port if the brokers differ."""
    keys = dict.fromkeys(key for one in facts for key in one)
    differing = [key for key in keys if len({digest_of(one.get(key)) for one in facts}) > 1]
    return [key for key in differing if key != "port" or "broker" not in differing]


def label_of(facts: Facts, keys: Iterable[str]) -> str:
    """Return these facts in words, such as "rate 1,000"; a broker's name says where it is."""
    keys = list(keys)
    labels = []
    for key in keys:
        if key == "endpoint" and "broker" in keys:
            continue
        value = facts.get(key)
        shown = "not given" if value is None else str(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            shown = number(value)
        named = key in ("broker", "protocol") and value
        title = _WORDS.get(key, key.removeprefix("scenario."))
        labels.append(shown if named else f"{title} {shown}")
    return name(", ".join(labels), _LONGEST_LABEL)


def _lines(
    cards: Sequence[ScoreCard], sides: Sequence[Side], alike: Sequence[bool], bounds: Bounds | None
) -> Iterator[Line]:
    """Yield a line for each number of the cards; `alike` marks sides of the first one's load."""
    numbers = {place: _numbers(cards[place]) for side in sides for place in side.runs}
    # In the order of the card that has most of them.
    ordered = sorted(numbers.values(), key=len, reverse=True)
    descriptions = {key: of_card[key][1] for of_card in reversed(ordered) for key in of_card}
    keys = dict.fromkeys(key for of_card in ordered for key in of_card)
    # The description is added to a title if rows share name and unit, as FANOUT's do, and to one in
    # messages if its name has other units, too.
    twins = Counter((title, unit, column) for title, unit, _, column in keys)
    units = Counter(title for title, _ in {(title, unit) for title, unit, _, _ in keys})
    for key in keys:
        title, unit, _, column = key
        if twins[title, unit, column] > 1 or (unit == "messages" and units[title] > 1):
            title = f"{title}, {name(descriptions[key].partition('.')[0], _LONGEST_TWIN)}"
        cells = []
        for side in sides:
            values = tuple(numbers[run][key][0] for run in side.runs if key in numbers[run])
            deviation = stdev(values) if len(values) > 1 else None
            sample = Sample(values, median(values), fmean(values), deviation) if values else None
            cells.append(sample)
        better = _BETTER.get(unit)
        gates = bounds.of(title, FIGURES[column]) if bounds and column in _GATING else None
        yield Line(
            name=title,
            description=descriptions[key],
            unit=unit,
            column=FIGURES[column],
            better=better,
            cells=tuple(cells),
            differences=tuple(
                None
                if cells[0] is None or cell is None
                else _difference(cells[0], cell, better if same else None, gates, shared=same)
                for cell, same in zip(cells[1:], alike, strict=True)
            ),
            bound=gates if better else None,
        )


_Key = tuple[str, str, int, str]
"""Name, unit, place among rows with that name and unit, and column."""


def _numbers(card: ScoreCard) -> dict[_Key, tuple[float, str]]:
    """Return a card's numbers with descriptions, by keys that another run of its case shares."""
    numbers: dict[_Key, tuple[float, str]] = {}
    places: Counter[tuple[str, str]] = Counter()
    for row in card.rows:
        title = END_TO_END if row.name.endswith(f".{END_TO_END}") else row.name
        for column, value in zip(FIGURES, row.figures, strict=True):
            if value is not None:
                key = (title, row.unit, places[row.name, row.unit], column)
                numbers[key] = (float(value), row.description)
        places[row.name, row.unit] += 1
    description = "Deliveries of messages intended in the window that did not arrive."
    numbers["lost", "messages", 0, "value"] = (float(card.counts.lost), description)
    return numbers


def _difference(
    first: Sample, other: Sample, better: Better | None, bound: float | None, *, shared: bool
) -> Difference:
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
    worse_by = 0.0 if share is None or better is None else share
    if better == "higher":
        worse_by = -worse_by
    return Difference(
        absolute=absolute,
        share=share,
        ratio=other.median / first.median if related else None,
        half_width=width,
        exceeds=exceeds,
        regression=bound is not None and worse_by > bound and not excused,
    )


def half_width(first: Sequence[float], other: Sequence[float]) -> float | None:
    """Return the half width of Welch's 95 % interval of two means' difference; None if unknown.

    Degrees of freedom are those of Welch and Satterthwaite, rounded down. If only one side has two
    values or more, its deviation is used for both.
    """
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


@dataclass(frozen=True, slots=True, repr=False)
class ComparedSide:
    """The runs of a side, with their directories; `spoiled` counts those that were made again."""

    name: str
    directories: tuple[Path, ...]
    cards: tuple[ScoreCard, ...]
    spoiled: int = 0

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the reasons against its runs, each once."""
        return tuple(dict.fromkeys(code for card in self.cards for code in card.verdict.codes))

    @property
    def valid(self) -> bool:
        return self.invalid_runs == 0

    @property
    def invalid_runs(self) -> int:
        return sum(not card.verdict.valid for card in self.cards)

    @property
    def broker(self) -> str:
        """Name and version of the broker of its first run."""
        return self.cards[0].run.broker_name

    def __repr__(self) -> str:
        verdict = "VALID" if self.valid else f"INVALID {', '.join(self.codes)}"
        return f"ComparedSide({self.name!r}, {counted(len(self.cards), 'run')}, {verdict})"


@dataclass(frozen=True, slots=True, repr=False)
class Compared:
    """A comparison of sides, a `Comparison` for each case that they have."""

    sides: tuple[ComparedSide, ...]
    cases: tuple[Comparison, ...]

    @property
    def valid(self) -> bool:
        return all(side.valid for side in self.sides)

    @property
    def codes(self) -> tuple[str, ...]:
        """Codes of the reasons against runs of any side, each once."""
        return tuple(dict.fromkeys(code for side in self.sides for code in side.codes))

    @property
    def rows(self) -> tuple[Line, ...]:
        return tuple(line for comparison in self.cases for line in comparison.lines)

    @property
    def notices(self) -> tuple[str, ...]:
        """Notices that must precede the figures, each once."""
        return tuple(dict.fromkeys(card.notice for card in self.cards if card.notice))

    @property
    def cards(self) -> tuple[ScoreCard, ...]:
        """The score cards of all runs, those of the first side first."""
        return tuple(card for side in self.sides for card in side.cards)

    def __repr__(self) -> str:
        names = " and ".join(side.name for side in self.sides)
        word = "VALID" if self.valid else "INVALID"
        return f"Compared({names}: {word}, {counted(len(self.rows), 'row')})"


def sides_of(result: SweepResult, card_of: Callable[[Path], ScoreCard]) -> list[ComparedSide]:
    """Return the sides of a sweep over brokers that have runs, with their brokers' names.

    If these are the same, their URLs follow.
    """
    spoiled: Counter[str] = Counter()
    for one in result.measured:
        spoiled[one.key] += one.spoiled
    sides = [
        ComparedSide(
            point.values["broker"], tuple(runs), tuple(map(card_of, runs)), spoiled[point.key]
        )
        for point in result.points
        if (runs := result.runs_of(point))
    ]
    brokers = [side.broker for side in sides]
    return [
        replace(side, name=side.broker)
        if side.broker and brokers.count(side.broker) == 1
        else replace(side, name=" ".join(filter(None, (side.broker, side.name))))
        for side in sides
    ]


def compare_sides(sides: Sequence[ComparedSide]) -> Compared:
    """Compare sides that a user named, the first with each of the others.

    Raise RunDirectoryError if no two sides have runs of the same kind.
    """
    cards = [card for side in sides for card in side.cards]
    names = [side.name for side in sides for _ in side.cards]
    kinds = [{_kind_of(card) for card in side.cards} for side in sides]
    if all(one.isdisjoint(other) for one, other in combinations(kinds, 2)):
        listing = tuple(name(" ".join(kind), 40) for kind in sorted(set().union(*kinds)))
        raise RunDirectoryError(REPORT_TEXT.NOTHING_ALIKE(kinds=listing))
    first, *others = compare(cards, names=names)
    if spoiled := sum(side.spoiled for side in sides):
        first = replace(first, remarks=(*first.remarks, REPORT_TEXT.REPEATED(runs=spoiled)))
    return Compared(tuple(sides), (first, *others))


def comparison_document(compared: Compared) -> dict[str, Any]:
    return {
        "schema": 1,
        **({"notice": " ".join(notices)} if (notices := compared.notices) else {}),
        "sides": [
            {
                "name": side.name,
                "broker": side.broker,
                "runs": [str(directory) for directory in side.directories],
                "valid": side.valid,
                "reasons": list(side.codes),
            }
            for side in compared.sides
        ],
        "rows": [
            {
                "case": comparison.case,
                "name": line.name,
                "column": line.figure,
                "unit": line.unit,
                "values": [cell and list(cell.values) for cell in line.cells],
                "medians": [cell and cell.median for cell in line.cells],
                "differences": [
                    one and {"ratio": one.ratio, "certain": one.exceeds} for one in line.differences
                ],
            }
            for comparison in compared.cases
            for line in comparison.lines
        ],
        "verdict": {"valid": compared.valid, "reasons": list(compared.codes)},
    }
