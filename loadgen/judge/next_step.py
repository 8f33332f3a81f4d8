"""The next step of a search for the highest load that is still valid.

`next_step` is a pure function of the steps so far, each a separate run. The load is raised from
below until it fails, since one far above the limit would leave a backlog behind. Then the search
closes in on the limit, first at the load that the broker served, and confirms it with whole
windows. Loads above a failed one are taken to fail, too.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from loadgen.errors import ScenarioError
from loadgen.judge.ledger import Ledger
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.fields import Count, Quantity
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_number, shown
from loadgen.sentences import JUDGE_TEXT, Text

AIMS = ("rate", "devices", "base")
_STARTS = {"rate": 500.0, "devices": 500.0, "base": 20.0}
"""First loads: about 500 messages a second."""

GROWTH = 2.5  # factor of one raise: few steps, and no load more than 2.5 times the limit
PRECISION = 0.05
MOST_STEPS = 20
STEPS_LIMIT = 100
HINTS = 3
"""Steps at the load that a broker served in a failed step: if it serves less under overload, more
would mislead the search."""
STEP_RULE = 4
"""Number of the rule by which steps follow one another; a change of `next_step` raises it."""
SPARE = 2
"""Steps to spare for a repetition: if the confirmation fails, to step back and confirm."""
MOST_DOUBLINGS = 3
"""Each time that a load fails after it held, the search steps back twice as far, and is content
with half the precision. If each second has its own limit (standard deviation 15 %), 99 % of
searches end with a confirmed limit; with equal steps back, 69 %."""
DIGITS = 4
PRECISION_MINIMUM = 0.01
HOPELESS_SHARE = 0.1

OWN_CODES = frozenset({"GENERATOR_SATURATED", "WORKER_LOST", "CLOCK", "HOST_LIMIT"})
"""Reasons that make the generator, not the broker, the limit."""

Purpose = Literal["first", "raise", "lower", "close in", "again", "step back", "confirm"]
CONFIRMS: tuple[Purpose, ...] = ("confirm", "step back")
"""Purposes of the steps whose windows are whole, and all of which must hold."""
Ended = Literal["confirmed", "top of range", "out of steps", "nothing held"]


@dataclass(frozen=True, slots=True)
class Aim:
    """The field that a search varies, and the range of its loads; raises ScenarioError."""

    field: str
    start: float
    lowest: float
    highest: float
    precision: float = PRECISION
    integral: bool = False  # loads are whole numbers
    most_steps: int = MOST_STEPS

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest:
            raise ScenarioError(
                JUDGE_TEXT.EMPTY_RANGE(
                    field=self.field, start=self.start, highest=self.highest, lowest=self.lowest
                )
            )
        if not PRECISION_MINIMUM <= self.precision <= 1:
            raise ScenarioError(JUDGE_TEXT.PRECISION(precision=self.precision))
        if not 3 <= self.most_steps <= STEPS_LIMIT:
            raise ScenarioError(JUDGE_TEXT.STEPS(steps=self.most_steps))

    def document(self) -> dict[str, Any]:
        named = asdict(self)
        return {"whole" if name == "integral" else name: named[name] for name in named}


@dataclass(frozen=True, slots=True)
class Tried:
    """One step that was run: its load, and the reasons if it did not hold."""

    load: float
    purpose: Purpose
    valid: bool
    reasons: tuple[Reason, ...] = ()
    served: float | None = None  # load that the broker kept up with; None if unknown


@dataclass(frozen=True, slots=True)
class Probe:
    load: float
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Limit:
    """The end of a search: the highest load that held, and the reasons against the next one."""

    load: float | None  # None if none held
    above: float | None  # lowest load that failed; None if none did
    confirmed: bool
    ended: Ended
    reasons: tuple[Reason, ...] = ()

    @property
    def of_generator(self) -> bool:
        """True if the generator was the limit: the broker's remains unknown."""
        return any(reason.code in OWN_CODES for reason in self.reasons)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> bool:
            """Return `of_generator` by its old name, which is accepted until 1.0."""
            return object.__getattribute__(self, "of_generator" if name == "own" else name)


def aim_for(
    scenario: Scenario,
    target: str,
    *,
    start: float | None = None,
    highest: float | None = None,
    precision: float = PRECISION,
    most_steps: int = MOST_STEPS,
) -> Aim:
    """Return the aim of `loadgen search CASE --for TARGET`; raises ScenarioError."""
    if target not in AIMS:
        raise ScenarioError(JUDGE_TEXT.UNKNOWN_TARGET(target=shown(target), targets=AIMS))
    known = scenario.fields()
    fields = {aim: aim for aim in AIMS} | {"devices": scenario.grows}
    field = fields[target]
    spec = known.get(field)
    if not isinstance(spec, Quantity):
        targets = tuple(aim for aim in AIMS if fields[aim] in known)
        raise ScenarioError(
            JUDGE_TEXT.TARGET_OF_OTHER_CASE(case=scenario.case, field=field, targets=targets)
        )
    integral = isinstance(spec, Count)
    lowest = max(spec.minimum, 1.0 if integral else 0.0)
    if start is None:
        start = _STARTS.get(field, 1.0)
        if field == "rate":
            # Deliveries, not messages, make the broker's work.
            start = max(5.0, start / getattr(scenario, "ratio", 1))
        start = min(max(start, lowest), spec.maximum if highest is None else highest)
    return Aim(
        field=field,
        start=round(start) if integral else start,
        lowest=lowest,
        highest=min(spec.maximum, highest if highest is not None else spec.maximum),
        precision=precision,
        integral=integral,
        most_steps=most_steps,
    )


@dataclass(frozen=True, slots=True)
class Require:
    """The requirements that a load must hold; it must be VALID in all other respects."""

    lost: float = 0.0  # share of deliveries that may be missing
    p99_s: float | None = Scenario.search_p99_s  # bound of the case's latency; None for any
    backlog: bool = True  # this and the following: True if the reason counts
    order: bool = True
    duplicates: bool = True

    def unmet(self, verdict: Verdict, ledger: Ledger) -> tuple[Reason, ...]:
        """Return the reasons of a run's verdict that count; the ledger is its window's."""
        ignored = {
            code
            for code, counts in (
                ("BACKLOG_GROWS", self.backlog or ledger.unobserved > self.lost * ledger.expected),
                ("OUT_OF_ORDER", self.order),
                ("DUPLICATED", self.duplicates),
                # A message that was held and not delivered again is not one of these deliveries.
                ("LOST", not 0 < ledger.lost <= self.lost * ledger.expected),
            )
            if not counts
        }
        return tuple(reason for reason in verdict.reasons if reason.code not in ignored)


def requirements(scenario: Scenario, texts: Sequence[str]) -> Require:
    """Return the requirements in `--require lost<0.1%,backlog=off`; raises ScenarioError.

    Others are the defaults of case and scenario. The form `lost=0.1%` is read until 1.0.
    """
    values: dict[str, object] = {}
    for item in (part.strip() for text in texts for part in text.split(",")):
        written = _REQUIREMENT.fullmatch(item)
        name = "" if written is None else written[1] or written[2]
        if written is None or name not in _REQUIREMENTS:
            forms = tuple(example for _, example, _ in _REQUIREMENTS.values())
            raise ScenarioError(JUDGE_TEXT.UNKNOWN_REQUIREMENT(item=shown(item), forms=forms))
        field, example, read = _REQUIREMENTS[name]
        if field in values:
            raise ScenarioError(JUDGE_TEXT.REQUIRED_TWICE(name=name))
        try:
            values[field] = read(written[3])
        except ValueError as error:
            message = JUDGE_TEXT.REQUIREMENT(name=name, error=str(error), example=example)
            raise ScenarioError(message) from None
    bound = scenario.latency_bound
    values.setdefault("p99_s", scenario.search_p99_s if bound is None else bound)
    return Require(**values)  # type: ignore[arg-type]


def parse_share(value: str) -> float:
    """Read a share from 0 to 1: `5%`, `0.05`; raises ValueError."""
    text = value.strip()
    share = parse_number(text[:-1]) / 100 if text.endswith("%") else parse_number(text)
    if share > 1 or (share == 1 and "%" not in text):
        raise ValueError(JUDGE_TEXT.SHARE(value=shown(value)))
    return share


def _read_switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(JUDGE_TEXT.SWITCH(value=shown(value)))
    return value == "on"


_REQUIREMENTS: Mapping[str, tuple[str, str, Callable[[str], object]]] = {
    "lost": ("lost", "lost<0.1%", parse_share),
    "p99": (
        "p99_s",
        "p99<100ms or p99=off",
        lambda value: None if value == "off" else Scenario.fields()["latency_bound"].parse(value),
    ),
    **{name: (name, f"{name}=off", _read_switch) for name in ("backlog", "order", "duplicates")},
}
"""Requirements of a search: field of `Require`, example and reader."""

_REQUIREMENT = re.compile(r"(?:(lost|p99)\s*<|(\w+)=)\s*([^=\s].*)")


def is_requirement(text: str) -> bool:
    """Return True for a requirement of a search, whose `lost<0.1%` tolerates losses."""
    written = _REQUIREMENT.fullmatch(text)
    return written is not None and (written[1] or written[2]) in _REQUIREMENTS


def bracket_of(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """Return the highest load that holds and the lowest that fails, by the last step at each."""
    latest = {step.load: step.valid for step in tried}
    above = min((load for load, valid in latest.items() if not valid), default=None)
    held = (load for load, valid in latest.items() if valid and (above is None or load < above))
    return max(held, default=None), above


def next_step(aim: Aim, tried: Sequence[Tried], left: int = STEPS_LIMIT) -> Probe | Limit:
    """Return the next step, or the limit if it is found or no step is `left`."""
    left = min(left, aim.most_steps - len(tried))
    if not tried:
        return Probe(aim.start, "first")
    below, above = bracket_of(tried)
    if left <= 0:
        return _end(aim, tried, "out of steps")
    ratio = GROWTH if below is None or above is None else max(above / below, 1.0)
    halvings = math.log2(max(math.log(ratio) / math.log1p(aim.precision), 1.0))
    # To close in and to confirm.
    needed = 1 + math.ceil(halvings)
    if _is_doubtful(aim, tried, below) and left > SPARE + needed:
        return Probe(tried[-1].load, "again")
    if below is None:
        assert above is not None
        # A host that is too busy for two steps at a small part of the first load is so for any.
        is_hopeless = len(tried) > 1 and all(
            step.load <= tried[0].load * HOPELESS_SHARE
            and any(reason.code in OWN_CODES for reason in step.reasons)
            for step in tried[-2:]
        )
        if above <= aim.lowest or is_hopeless:
            return _end(aim, tried, "nothing held")
        return Probe(_tidy(aim, max(aim.lowest, above / GROWTH**2)), "lower")
    if above is None and below < aim.highest and left > 1:
        return Probe(_tidy(aim, min(aim.highest, below * GROWTH)), "raise")
    confirmed = _is_confirmed(tried, below)
    if above is not None and not _is_closed(aim, tried, below, above):
        wavered = _times_wavered(tried)
        if wavered and not confirmed:
            back = above / math.sqrt(_spread(aim, wavered)) * 1.002
            if back > below:
                return Probe(_inside(aim, back, below, above), "step back")
        elif left > (1 if confirmed else 2):
            between = _between(aim, tried, below, above)
            return replace(between, purpose="confirm") if wavered else between
    if not confirmed:
        return Probe(below, "confirm")
    if above is None:
        return _end(aim, tried, "top of range" if below >= aim.highest else "out of steps")
    return _end(aim, tried, "confirmed" if _is_closed(aim, tried, below, above) else "out of steps")


def _end(aim: Aim, tried: Sequence[Tried], ended: Ended) -> Limit:
    below, above = bracket_of(tried)
    reasons = next((step.reasons for step in reversed(tried) if step.load == above), ())
    return Limit(below, above, _is_confirmed(tried, below), ended, reasons)


def _is_confirmed(tried: Sequence[Tried], load: float | None) -> bool:
    """Return True if all windows of a confirmation held at the load."""
    held = (step.purpose for step in tried if step.valid and step.load == load)
    return any(purpose in CONFIRMS for purpose in held)


def _times_wavered(tried: Sequence[Tried]) -> int:
    """Return how often a load failed after it or a higher one had held."""
    return sum(
        not step.valid and any(one.valid and one.load >= step.load for one in tried[:place])
        for place, step in enumerate(tried)
    )


def _spread(aim: Aim, wavered: int) -> float:
    """Return the ratio of two loads that the search can tell apart."""
    return float((1 + aim.precision) ** (2 ** min(wavered, MOST_DOUBLINGS)))


def _is_closed(aim: Aim, tried: Sequence[Tried], below: float, above: float) -> bool:
    """Return True if more steps would not tell the two loads apart."""
    wavered = _times_wavered(tried) if _is_confirmed(tried, below) else 0
    return above <= below * _spread(aim, wavered) or (aim.integral and above - below <= 1)


def _is_doubtful(aim: Aim, tried: Sequence[Tried], below: float | None) -> bool:
    """Return True if the last step failed once and this may have been a moment's disturbance."""
    last = tried[-1]
    if last.valid or last.purpose in CONFIRMS:
        return False
    if below is not None and last.load <= below * (1 + aim.precision) ** 2:
        return False
    codes = {reason.code for reason in last.reasons}
    # A broker that restarted, or a saturated generator, says nothing about the load. The first
    # failure decides where the search closes in: it counts if the broker did not serve the load.
    if not codes & {"DISCONNECTED", "GENERATOR_SATURATED"} and (
        last.purpose not in ("first", "raise")
        or last.served is None
        or last.served < last.load / (1 + aim.precision)
    ):
        return False
    return sum(not step.valid for step in tried if step.load == last.load) == 1


def _between(aim: Aim, tried: Sequence[Tried], below: float, above: float) -> Probe:
    """Return the step that closes in best, strictly between the two loads."""
    hint = next(step.served for step in reversed(tried) if step.load == above)
    hints = sum(step.purpose == "close in" for step in tried)
    load = middle = math.sqrt(below * above)
    if hint is not None and hint < above / (1 + aim.precision) and hints < HINTS:
        load = hint / (1 + aim.precision / 2)
        if load <= below * (1 + aim.precision / 4):
            # The load that held is the one the broker served: try one just above it.
            load = below * (1 + aim.precision) * 0.998
            if below > hint * (1 + aim.precision):
                load = middle
    return Probe(_inside(aim, load, below, above), "close in")


def _inside(aim: Aim, load: float, below: float, above: float) -> float:
    tidy = _tidy(aim, load)
    if not below < tidy < above:
        # The two differ by 1 % or more, so that a load of four digits lies between them.
        tidy = _tidy(aim, math.sqrt(below * above))
    return tidy


def _tidy(aim: Aim, load: float) -> float:
    """Round the load as it is tried and shown: to an integer, or a few digits."""
    exact = aim.integral and load < 10**DIGITS
    load = float(round(load)) if exact else float(f"{load:.{DIGITS}g}")
    return min(aim.highest, max(aim.lowest, load))


def limit_sentence(aim: Aim, limit: Limit) -> Text:
    codes = tuple(dict.fromkeys(reason.code for reason in limit.reasons))
    if limit.load is None:
        own = "the generator" if limit.of_generator else None
        return JUDGE_TEXT.NOTHING_HELD(field=aim.field, lowest=limit.above, codes=codes, limit=own)
    unconfirmed = None if limit.confirmed else JUDGE_TEXT.UNCONFIRMED()
    if limit.above is None:
        at_top = limit.ended == "top of range"
        ended = JUDGE_TEXT.TOP_OF_RANGE() if at_top else JUDGE_TEXT.NO_STEP_LEFT()
        return JUDGE_TEXT.NOTHING_FAILED(
            load=limit.load, field=aim.field, unconfirmed=unconfirmed, ended=ended
        )
    wider = limit.above / limit.load - 1
    rough = wider > aim.precision and limit.ended == "out of steps"
    highest = JUDGE_TEXT.LIMIT_OF_GENERATOR if limit.of_generator else JUDGE_TEXT.LIMIT
    return highest(
        field=aim.field,
        load=limit.load,
        unconfirmed=unconfirmed,
        above=limit.above,
        wider=wider,
        codes=codes,
        ended=JUDGE_TEXT.START_NEARER() if rough else None,
    )
