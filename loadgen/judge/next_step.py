"""Where the limit is: what a search tries next, given what it has tried.

`next_step` is a pure function of the steps so far, so that a search is deterministic, can go on
where it stopped, and is tested without a clock or a broker:

    raise     from below, by a constant factor, until a load fails: a load far above the limit
              would leave behind a backlog, or a broker in a state of its own
    lower     only where the first load failed already
    close in  between the highest load that held and the lowest that failed, first where the
              failed step says that the broker stood, then by halving the ratio of the two
    again     a second look at a load that failed although the broker served what it was given
    confirm   a second run at the limit; where that fails, the search steps back first

Each step is a run of its own with its own warm-up. A load that failed is taken to fail above, too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from loadgen.errors import ScenarioError
from loadgen.judge.ledger import Ledger
from loadgen.judge.verdict import Reason, Verdict
from loadgen.plan.fields import Bounded, Count
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import parse_number, shown

AIMS = ("rate", "devices", "base")

GROWTH = 2.5
"""Factor of one raise: of those from 2 to 4 it finds 1,000 to 100,000 in the fewest steps without
a load more than 2.5 times the limit."""
PRECISION = 0.05
MOST_STEPS = 15
HINTS = 3
"""Steps that may go where a failed step says that the broker stood; a broker that loses its way
under overload would lead the search astray, halving does not."""
SPARE = 2
"""Steps that a second look leaves for a confirmation that fails: to step back, and confirm."""
DIGITS = 4
"""Significant digits of a load: as good as any precision from 1 % on, and readable."""
PRECISION_MINIMUM = 0.01

OWN_CODES = frozenset({"GENERATOR_SATURATED", "WORKER_LOST", "CLOCK", "HOST_LIMIT"})
"""Reasons that say that this side was the limit, whatever else there was to say."""

Purpose = Literal["first", "raise", "lower", "close in", "again", "step back", "confirm"]
Ended = Literal["confirmed", "top of range", "out of steps", "nothing held"]


@dataclass(frozen=True, slots=True)
class Aim:
    """What is searched: the scenario's field and the loads that may be tried.

    `whole` loads are integers; `precision` is the greatest share by which the lowest load that
    failed may exceed the limit. Raises ScenarioError.
    """

    field: str
    start: float
    lowest: float
    highest: float
    precision: float = PRECISION
    whole: bool = False
    most_steps: int = MOST_STEPS

    def __post_init__(self) -> None:
        if not 0 < self.lowest <= self.start <= self.highest:
            raise ScenarioError(
                f"{self.field}: a search from {self.start:,g} to {self.highest:,g} goes nowhere; "
                f"allowed: --from below --to, both from {self.lowest:,g}"
            )
        if not PRECISION_MINIMUM <= self.precision <= 1:
            raise ScenarioError(
                f"precision: {self.precision:.4g} is out of range; allowed: 1% to 100%"
            )
        if not 3 <= self.most_steps <= 100:
            raise ScenarioError(f"most_steps: {self.most_steps} is out of range; allowed: 3 to 100")


@dataclass(frozen=True, slots=True)
class Tried:
    """One step that was run: whether the load held, else why not.

    `served` is the load that the broker kept up with, as far as the run shows, None where it does
    not.
    """

    load: float
    purpose: Purpose
    valid: bool
    reasons: tuple[Reason, ...] = ()
    served: float | None = None


@dataclass(frozen=True, slots=True)
class Probe:
    """The next step."""

    load: float
    purpose: Purpose


@dataclass(frozen=True, slots=True)
class Limit:
    """The end of a search: the highest load that held, and why the next one did not.

    `load` is None where none held; `above` is the lowest load that failed, None where none did.
    `own` says that the generator was the limit: then nothing is known of the broker's.
    """

    load: float | None
    above: float | None
    confirmed: bool
    ended: Ended
    reasons: tuple[Reason, ...] = ()

    @property
    def own(self) -> bool:
        return any(reason.code in OWN_CODES for reason in self.reasons)


def aim_for(
    scenario: Scenario,
    what: str,
    *,
    start: float | None = None,
    highest: float | None = None,
    precision: float = PRECISION,
    most_steps: int = MOST_STEPS,
) -> Aim:
    """The aim of `loadgen search CASE --for what`; raises ScenarioError.

    `rate` is the case's `rate`. `devices` is what the case has more of when it grows: devices,
    or the pairs of PERSISTENT, or the subscribers a topic of FANOUT.
    """
    if what not in AIMS:
        raise ScenarioError(f"for: {shown(what)} is unknown; allowed: {', '.join(AIMS)}")
    known = scenario.fields()
    fields = {aim: aim for aim in AIMS} | {"devices": scenario.grows}
    field = fields[what]
    spec = known.get(field)
    if not isinstance(spec, Bounded):
        others = ", ".join(aim for aim in AIMS if fields[aim] in known)
        raise ScenarioError(f"for: {scenario.case} has no {field}; allowed: {others}")
    whole = isinstance(spec, Count)
    lowest = max(spec.minimum, 1.0 if whole else 0.0)
    if start is None:
        start = 500.0 if field in ("rate", "devices") else 1.0
        if field == "rate":
            start = max(5.0, start / scenario.deliveries())
        start = min(max(start, lowest), spec.maximum if highest is None else highest)
    return Aim(
        field=field,
        start=round(start) if whole else start,
        lowest=lowest,
        highest=min(spec.maximum, highest if highest is not None else spec.maximum),
        precision=precision,
        whole=whole,
        most_steps=most_steps,
    )


# What a step must hold ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Require:
    """What a load must hold beside being VALID in all that is not named here.

    `lost` is the share of deliveries that may be missing; `p99_s` bounds the case's latency, None
    for any; the others say whether that reason counts.
    """

    lost: float = 0.0
    p99_s: float | None = Scenario.search_p99_s
    backlog: bool = True
    order: bool = True
    duplicates: bool = True

    def unmet(self, verdict: Verdict, ledger: Ledger) -> tuple[Reason, ...]:
        """The reasons of a run's verdict that count; the ledger is its window's."""
        ignored = {
            code
            for code, counts in (
                ("BACKLOG_GROWS", self.backlog),
                ("OUT_OF_ORDER", self.order),
                ("DUPLICATED", self.duplicates),
                # A message that was held and never came again is not one of these deliveries.
                ("LOST", not 0 < ledger.lost <= self.lost * ledger.expected),
            )
            if not counts
        }
        return tuple(reason for reason in verdict.reasons if reason.code not in ignored)


def requirements(scenario: Scenario, given: Sequence[str]) -> Require:
    """What `--require NAME=VALUE` (or several with commas between) asks for; raises ScenarioError.

    What is not given is the case's default, or the scenario's own `latency_bound`.
    """
    values: dict[str, object] = {}
    for item in (part.strip() for text in given for part in text.split(",")):
        name, equals, value = item.partition("=")
        if name not in _REQUIREMENTS or not equals:
            known = ", ".join(f"{key}={example}" for key, (_, example, _) in _REQUIREMENTS.items())
            raise ScenarioError(f"require: {shown(item)} is unknown; allowed: {known}")
        field, example, read = _REQUIREMENTS[name]
        if field in values:
            raise ScenarioError(f"require: {name} is given twice")
        try:
            values[field] = read(value)
        except ValueError as error:
            raise ScenarioError(f"require: {name}: {error}; allowed: {name}={example}") from None
    bound = scenario.latency_bound
    values.setdefault("p99_s", scenario.search_p99_s if bound is None else bound)
    return Require(**values)  # type: ignore[arg-type]


def parse_share(value: str) -> float:
    """A share from 0 to 1: `5%`, `0.05`; raises ValueError."""
    text = value.strip()
    share = parse_number(text[:-1]) / 100 if text.endswith("%") else parse_number(text)
    if share > 1:
        raise ValueError(f"{shown(value)} is more than all; write 5% or 0.05")
    return share


def _read_bound(value: str) -> object:
    """The bound of the latency, within those of the field that a step's scenario gets."""
    return None if value == "off" else Scenario.fields()["latency_bound"].parse(value)


def _read_switch(value: str) -> bool:
    if value not in ("on", "off"):
        raise ValueError(f"{shown(value)} is neither on nor off")
    return value == "on"


_REQUIREMENTS: Mapping[str, tuple[str, str, Callable[[str], object]]] = MappingProxyType(
    {
        "lost": ("lost", "0.1%", parse_share),
        "p99": ("p99_s", "100ms or off", _read_bound),
        **{name: (name, "on or off", _read_switch) for name in ("backlog", "order", "duplicates")},
    }
)


# The search -----------------------------------------------------------------------------------


def bracket_of(tried: Sequence[Tried]) -> tuple[float | None, float | None]:
    """Highest load that holds and lowest that fails, None as long as there is no such load.

    The latest step at a load decides: a second look overrules the first one, a confirmation that
    fails takes back what held.
    """
    latest = {step.load: step.valid for step in tried}
    above = min((load for load, valid in latest.items() if not valid), default=None)
    held = (load for load, valid in latest.items() if valid and (above is None or load < above))
    return max(held, default=None), above


def next_step(aim: Aim, tried: Sequence[Tried]) -> Probe | Limit:
    """What to run next, or where the limit is. The same steps always give the same answer."""
    left = aim.most_steps - len(tried)
    if not tried:
        return Probe(aim.start, "first")
    below, above = bracket_of(tried)
    if left <= 0:
        return _end(aim, tried, "out of steps")
    if _is_doubtful(aim, tried, below) and left > SPARE + _steps_to_close(aim, below, above):
        return Probe(tried[-1].load, "again")
    if below is None:
        assert above is not None
        if above <= aim.lowest:
            return _end(aim, tried, "nothing held")
        return Probe(_tidy(aim, max(aim.lowest, above / GROWTH**2)), "lower")
    if above is None and below < aim.highest and left > 1:
        return Probe(_tidy(aim, min(aim.highest, below * GROWTH)), "raise")
    if above is not None and left > 1 and not _is_closed(aim, below, above):
        return _between(aim, tried, below, above)
    if sum(step.valid for step in tried if step.load == below) < 2:
        return Probe(below, "confirm")
    if above is None:
        return _end(aim, tried, "top of range" if below >= aim.highest else "out of steps")
    return _end(aim, tried, "confirmed" if _is_closed(aim, below, above) else "out of steps")


def _end(aim: Aim, tried: Sequence[Tried], ended: Ended) -> Limit:
    below, above = bracket_of(tried)
    reasons = next((step.reasons for step in reversed(tried) if step.load == above), ())
    twice = sum(step.valid for step in tried if step.load == below) > 1
    return Limit(below, above, below is not None and twice, ended, reasons)


def _is_closed(aim: Aim, below: float, above: float) -> bool:
    return above <= below * (1 + aim.precision) or (aim.whole and above - below <= 1)


def _steps_to_close(aim: Aim, below: float | None, above: float | None) -> int:
    """Halvings that are left, and the confirmation."""
    ratio = GROWTH if below is None or above is None else above / below
    halvings = math.log(max(ratio, 1.0)) / math.log1p(aim.precision)
    return 1 + max(0, math.ceil(math.log2(max(halvings, 1.0))))


def _is_doubtful(aim: Aim, tried: Sequence[Tried], below: float | None) -> bool:
    """Whether the last step failed once, not for want of service, and by that costs much.

    A moment's disturbance of a shared host looks like that, and would end a search far below. So
    does a broker that was started anew meanwhile, however close the limit seems.
    """
    last = tried[-1]
    if last.valid:
        return False
    if not any(reason.code == "DISCONNECTED" for reason in last.reasons):
        if last.served is None or last.served < last.load / (1 + aim.precision):
            return False
        if below is not None and last.load <= below * (1 + aim.precision) ** 2:
            return False
    return sum(not step.valid for step in tried if step.load == last.load) == 1


def _between(aim: Aim, tried: Sequence[Tried], below: float, above: float) -> Probe:
    """The step that closes in best; strictly between the two."""
    failed = [step for step in tried if step.load == above]
    if any(step.valid for step in failed):
        # It held once: the limit is just below.
        back = above / (1 + aim.precision) * 1.002
        return Probe(_inside(aim, back, below, above), "step back")
    hint = failed[-1].served
    hints = sum(step.purpose == "close in" for step in tried)
    middle = math.sqrt(below * above)
    if hint is not None and hint < above / (1 + aim.precision) and hints < HINTS:
        guess = hint / (1 + aim.precision / 2)
        if guess <= below * (1 + aim.precision / 4):
            # What held is where the hint points: is there anything above it?
            guess = below * (1 + aim.precision) * 0.998
            if below > hint * (1 + aim.precision):
                guess = middle
        return Probe(_inside(aim, guess, below, above), "close in")
    return Probe(_inside(aim, middle, below, above), "close in")


def _inside(aim: Aim, load: float, below: float, above: float) -> float:
    tidy = _tidy(aim, load)
    if not below < tidy < above:
        # At 1 % and more apart, the digits of a load always reach between the two.
        tidy = _tidy(aim, math.sqrt(below * above))
    return tidy


def _tidy(aim: Aim, load: float) -> float:
    """The load as it is tried and shown: whole, or of a few digits."""
    if not aim.whole:
        load = float(f"{load:.{DIGITS}g}")
    else:
        load = float(round(load)) if load < 10**DIGITS else float(f"{load:.{DIGITS}g}")
    return min(aim.highest, max(aim.lowest, load))


def limit_sentence(aim: Aim, limit: Limit) -> str:
    """The limit in one sentence that never blames the broker for what the generator did."""
    codes = ", ".join(dict.fromkeys(reason.code for reason in limit.reasons))
    whose = f"{aim.field} of the generator, not of the broker" if limit.own else aim.field
    if limit.load is None:
        blame = "; the generator was the limit, not the broker" if limit.own else ""
        return f"no {aim.field} from {aim.lowest:,g} up held: {codes or 'nothing was tried'}{blame}"
    sure = "" if limit.confirmed else ", which held once and was not confirmed"
    if limit.above is None:
        more = "" if limit.ended == "top of range" else ", with no step left"
        return f"at least {limit.load:,.10g} {aim.field}{sure}: nothing that was tried failed{more}"
    wide = limit.above / limit.load - 1
    rough = wide > aim.precision and limit.ended == "out of steps"
    more = "; no step was left to close in: start nearer with --from" if rough else ""
    return (
        f"highest {whose}: {limit.load:,.10g}{sure}; {limit.above:,.10g} ({wide:.1%} more) failed: "
        f"{codes}{more}"
    )
