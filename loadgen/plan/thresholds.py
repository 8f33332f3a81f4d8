"""What a user requires of a run: `end_to_end.p99<5ms`, `lost==0`, `received_rate>=9.9k`.

The figures are those of the measurement window: a statistic of a latency series, as in the score
card's `latency`; a state of the window's ledger; what was sent or received a second.
"""

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from loadgen.judge.ledger import Ledger
from loadgen.plan.units import parse_number, parse_seconds, shown

if TYPE_CHECKING:
    from loadgen.metrics.reducer import LatencySummary

COMPARISONS: Mapping[str, Callable[[float, float], bool]] = MappingProxyType(
    {
        "<=": operator.le,
        ">=": operator.ge,
        "==": operator.eq,
        "<": operator.lt,
        ">": operator.gt,
    }
)
STATISTICS = ("avg", "min", "p50", "p90", "p99", "p99.9", "max", "stdev")
SENDERS_STATES = (
    "intended",
    "sent",
    "owed",
    "acknowledged",
    "refused",
    "unacknowledged",
    "given_up",
)
"""States of messages to be sent; others are of deliveries."""
STATES = ("intended", *(state.name for state in fields(Ledger)))
BETWEEN_HOSTS = ("end_to_end", "transit", "reconnect")
"""Series that begin at one device and end at another."""
RATES = ("sent_rate", "received_rate")
"""Messages a second of the window: those that the schedule sent, and those that came intact."""

GROWING = frozenset(
    {
        *("refused", "damaged", "repeated", "misrouted", "foreign", "out_of_order", "below_qos"),
        *("violations", "sent", "expected", "intact"),
    }
)
"""States of which a run only ever has more as it goes on."""

FORMS = "a figure, <, <=, ==, >= or > and a value, as end_to_end.p99<5ms, lost==0, lost<0.1%"

_THRESHOLD = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|==|<|>)\s*(\S+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Threshold:
    """`figure comparison bound`; the bound is in µs of a latency, in messages or messages a second,
    or, with `share`, in parts of the messages intended, or of the deliveries expected."""

    text: str
    figure: str
    comparison: str
    bound: float
    share: bool = False

    @property
    def is_latency(self) -> bool:
        return "." in self.figure

    def holds(self, value: float) -> bool:
        return COMPARISONS[self.comparison](value, self.bound)


@dataclass(frozen=True, slots=True)
class Measured:
    """What thresholds are held against: a window's latencies by series, its ledger, its length.

    `begun` are the messages that the schedule sent, without responses; None while the run lasts.
    """

    latencies: Mapping[str, "LatencySummary"]
    ledger: Ledger
    begun: int | None
    window_s: float
    apart_us: float = 0.0  # by how much two hosts' clocks may differ

    def may_be(self, threshold: Threshold, value: float) -> tuple[float, ...]:
        """The least and the greatest that the figure may really be."""
        if threshold.figure.partition(".")[0] not in BETWEEN_HOSTS or not self.apart_us:
            return (value,)
        return value - self.apart_us, value + self.apart_us

    def figure(self, threshold: Threshold) -> float | None:
        """The figure that the threshold names; None where it was not measured."""
        series, _, statistic = threshold.figure.partition(".")
        if threshold.is_latency:
            found: float | None = getattr(
                self.latencies.get(series), statistic.replace(".", "_"), None
            )
            return found
        if threshold.figure in RATES:
            count = self.begun if threshold.figure == "sent_rate" else self.ledger.intact
            return count / self.window_s if count is not None and self.window_s else None
        state: int | None = getattr(self.ledger, threshold.figure)
        if state is None or not threshold.share:
            return state
        ledger = self.ledger
        whole = ledger.intended if threshold.figure in SENDERS_STATES else ledger.expected
        return state / whole if whole else None

    def missing(self, threshold: Threshold) -> str:
        """Why there is no such figure."""
        series, _, statistic = threshold.figure.partition(".")
        found = self.latencies.get(series)
        if not threshold.is_latency or found is None or not found.count:
            return "nothing was measured of it"
        many = f"its {found.count:,} values are" if found.count > 1 else "its one value is"
        return f"{many} too few for {statistic}; .max is {found.max:,.6g} µs"


def is_threshold(text: str) -> bool:
    """Whether this has the form of a threshold."""
    return _THRESHOLD.fullmatch(text) is not None


def parse_threshold(text: str) -> Threshold:
    """Raises ValueError for another form, an unknown figure or a value of another kind."""
    from loadgen.metrics.interval import SERIES  # and all that tables need

    match = _THRESHOLD.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is no threshold")
    figure, comparison, value = match.groups()
    series, dot, statistic = figure.partition(".")
    if dot:
        if series not in SERIES or statistic not in STATISTICS:
            raise ValueError(
                f"{shown(figure)} is no latency; there are {', '.join(SERIES)}, each with "
                f"{', '.join('.' + name for name in STATISTICS)}"
            )
        if value[-1].isdigit():
            raise ValueError(f"{shown(text)} has no unit; write {value}ms or {value}us")
        return Threshold(text.strip(), figure, comparison, parse_seconds(value) * 1e6)
    if figure not in (*STATES, *RATES):
        raise ValueError(f"{shown(figure)} is unknown; there are {', '.join((*STATES, *RATES))}")
    share = value.endswith("%") and figure in STATES
    bound = parse_number(value[:-1]) / 100 if share else parse_number(value)
    return Threshold(text.strip(), figure, comparison, bound, share)


def missed(thresholds: Iterable[Threshold], measured: Measured) -> tuple[str, ...]:
    """Each threshold that does not hold, and what was measured instead."""
    found = []
    for threshold in thresholds:
        value = measured.figure(threshold)
        if value is None:
            found.append(f"{threshold.text}: {measured.missing(threshold)}")
        elif not all(map(threshold.holds, values := measured.may_be(threshold, value))):
            clocks = f", give or take {measured.apart_us:,.6g} µs of two clocks"
            said = _written(value, threshold) + (clocks if len(values) > 1 else "")
            found.append(f"{threshold.text}: it was {said}")
    return tuple(found)


def hopeless(thresholds: Iterable[Threshold], so_far: Measured) -> tuple[str, ...]:
    """Each upper bound that what was measured so far is above, and by what.

    A state that only grows cannot come back. A latency could: that of the run so far is judged.
    """
    upper = [
        replace(one, comparison="<=" if one.comparison == "==" else one.comparison)
        for one in thresholds
        if one.comparison in ("<", "<=", "==")
        and (one.is_latency or (one.figure in GROWING and not one.share))
    ]
    measured = [one for one in upper if so_far.figure(one) is not None]
    return missed(measured, so_far)


def _written(value: float, threshold: Threshold) -> str:
    if threshold.is_latency:
        return f"{value:,.6g} µs"
    if threshold.share:
        return f"{value * 100:.6g}%"
    return f"{value:,.6g}"
