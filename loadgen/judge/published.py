"""Published figures, and the differences between their conditions and those of a run."""

import math
from dataclasses import dataclass, fields
from typing import Any

from loadgen.sentences import JUDGE_TEXT, Text, counted, read_table, render

PUBLISHED_SOURCE = "IBM MessageSight Appliance v1.0 Performance Benchmarks, 2013"

Handshakes = tuple[tuple[str, str], ...]
"""(TLS version, cipher) of each kind of connection; () without encryption.

Published rows: TLS 1.2 at least, cipher category BEST (NSA Suite B; Appendix A), of which the
clients offered AES256 in OpenSSL's notation (Appendix D)."""


def plain_number(value: float) -> str:
    """Return an integer as it is, another number with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def per_second(value: float, noun: str = "msg") -> str:
    number = plain_number(value)
    return f"{number} {noun if number == '1' else noun + 's'}/sec"


_WORDS = read_table("loadgen.judge", "conditions.toml")
"""Each condition in words; of one that is true or false, those of both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """The conditions of a measurement.

    None in a published row: the row does not depend on it. None in a run's: it was not recorded.
    """

    # mqttbench, and with it every published row that names no other interface, is MQTT 3.1.
    interface: str | None = "MQTT 3.1"
    qos: int | None = None
    size_bytes: tuple[int, int] | None = None
    topics: int | None = None
    ratio: int | None = None
    pair_rate: float | None = None  # messages a second of the timed pair
    producers: int | None = None  # the load of the row: in LATENCY the background
    producer_rate: float | None = None  # messages a second of one producer
    devices: int | None = None
    subscribed: bool | None = None
    endpoints: int | None = None
    timed_s: float | None = None
    handshakes: Handshakes | None = None
    access_control: bool | None = None  # each device has a separate user and rights
    stored_first: bool | None = None  # messages are on disk before they are acknowledged

    def differences(self, ours: "Conditions") -> tuple[Text, ...]:
        """Return the differences of a run from this published row; comparable if there are none."""
        pairs = [
            (one.name, getattr(self, one.name), getattr(ours, one.name)) for one in fields(self)
        ]
        return tuple(
            JUDGE_TEXT.DIFFERENCE(
                ours="not recorded for this run" if here is None else _shown(name, here),
                published=_shown(name, there),
            )
            for name, there, here in pairs
            if there is not None and (here is None or not _alike(name, there, here))
        )


def _shown(condition: str, value: Any) -> str:
    words = _WORDS[condition]
    if isinstance(value, bool):
        return str(words[value])
    if condition == "size_bytes":
        low, high = value
        value = (f"{low:,} to " if low < high else "") + counted(high, "byte")
    elif condition == "handshakes":
        value = " and ".join(map(" ".join, value)) or "not encrypted"
    elif condition.endswith("rate"):
        value = per_second(value)
    return render(condition, [words], {"value": value})


def _alike(name: str, there: Any, here: Any) -> bool:
    if isinstance(there, float):
        return math.isclose(there, here, rel_tol=1e-6)
    if name == "handshakes" and there and here:
        # Every connection has the published version, and the published cipher in its name.
        return all(any(v == version and c in cipher for v, c in there) for version, cipher in here)
    return bool(there == here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The columns of a row; None if empty in the published card. Latencies in microseconds."""

    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedFigure(Figures):
    """A published row to compare a case with: its name, its measure, its columns.

    Source: "IBM MessageSight Appliance v1.0 Performance Benchmarks" (test date April 22, 2013),
    section "Score card"; high-water marks and the ratios of FANOUT.SEC from its section "Additional
    test results data". They were measured on that report's appliance and network.
    """

    name: str
    measure: str
    high_water_mark: int | None = None  # messages
    bounds: tuple[str, ...] = ()  # columns for which the report has "less than"
    relation: str = ""  # likeness and difference of a row with another name than the case
    least_qos: int = 0  # of several rows, this one is for runs of this QoS and above
    conditions: Conditions = Conditions()


SECURED = ".SEC"  # ends the name of a row whose connections are encrypted

EFFICIENCY = (".MPW", ".MPU")  # end the names of rows that divide another row


def counterparts(
    figures: tuple[PublishedFigure, ...], ours: Conditions, published: object = None
) -> tuple[PublishedFigure, ...]:
    """Return the figures to compare a run with; `published` is the row that the scenario names.

    An encrypted run is compared with the secured row if there is one. Of several lines of a row,
    those with the most similar conditions are compared.
    """
    names = [figure.name for figure in figures if not figure.name.endswith(EFFICIENCY)]
    chosen = published if published in names else None
    if chosen is None:
        qos = ours.qos or 0
        least = max((f.least_qos for f in figures if f.least_qos <= qos), default=0)
        chosen = next((f.name for f in figures if f.least_qos == least), None)
    if ours.handshakes != () and f"{chosen}{SECURED}" in names:
        chosen = f"{chosen}{SECURED}"
    row = {chosen, *(f"{chosen}{part}" for part in EFFICIENCY)}
    lines = [figure for figure in figures if figure.name in row]
    nearest: dict[tuple[str, str], PublishedFigure] = {}
    # Of equals the first: the one that the published score card shows.
    for figure in sorted(lines, key=lambda line: len(line.conditions.differences(ours))):
        nearest.setdefault((figure.name, figure.measure), figure)
    return tuple(figure for figure in lines if figure in nearest.values())
