"""A user's requirements for figures of the measurement window: `end_to_end.p99<5ms`, `lost==0`."""

import re
from dataclasses import dataclass

from loadgen.plan.units import parse_number, parse_seconds, shown

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
"""States of messages to be sent; the other states are of deliveries."""
STATES = (
    *SENDERS_STATES,
    *("expected", "intact", "damaged", "lost", "unobserved", "repeated_allowed", "repeated"),
    *("delivered_refused", "misrouted", "foreign", "out_of_order", "below_qos", "violations"),
    *("lost_acknowledged", "lost_unacknowledged"),
)
"""States of the ledger that a threshold can name."""
RATES = ("sent_rate", "received_rate")
"""Messages a second of the window: those that were sent, and those that arrived intact."""

FORMS = "a condition such as end_to_end.p99<5ms, lost==0 or lost<0.1%"

_THRESHOLD = re.compile(r"\s*([a-z0-9_.]+)\s*(<=|>=|==|<|>)\s*(\S+)\s*", re.ASCII)


@dataclass(frozen=True, slots=True)
class Threshold:
    """A requirement `figure comparison bound`."""

    text: str
    figure: str
    comparison: str
    bound: float  # µs for a latency, else messages or messages a second
    share: bool = False  # the bound is a share of intended messages or expected deliveries

    @property
    def is_latency(self) -> bool:
        return "." in self.figure


def is_threshold(text: str) -> bool:
    return _THRESHOLD.fullmatch(text) is not None


def parse_threshold(text: str) -> Threshold:
    """Read a threshold; raise ValueError for another form, an unknown figure or a wrong value."""
    from loadgen.metrics.interval import SERIES  # late: it imports the libraries for tables

    match = _THRESHOLD.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a condition")
    figure, comparison, value = match.groups()
    series, dot, statistic = figure.partition(".")
    if dot:
        if series not in SERIES or statistic not in STATISTICS:
            raise ValueError(
                f"{shown(figure)} is not a latency; known are {', '.join(SERIES)}, each with "
                f"{', '.join('.' + name for name in STATISTICS)}"
            )
        if value[-1].isdigit():
            raise ValueError(f"{shown(text)} has no unit; write {value}ms or {value}us")
        return Threshold(text.strip(), figure, comparison, parse_seconds(value) * 1e6)
    if figure not in (*STATES, *RATES):
        raise ValueError(f"{shown(figure)} is unknown; known are {', '.join((*STATES, *RATES))}")
    share = value.endswith("%") and figure in STATES
    bound = parse_number(value[:-1]) / 100 if share else parse_number(value)
    if share and bound > 1:
        raise ValueError(f"{shown(value)} is more than 100%")
    return Threshold(text.strip(), figure, comparison, bound, share)
