"""Published figures, and whether a run may be held against one.

A figure may be compared with another where both were measured under like conditions: a pure
question of `Conditions` to `Conditions`, whose answer is a list of differences.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

PUBLISHED_SOURCE = "IBM MessageSight Appliance v1.0 Performance Benchmarks, 2013"

Handshakes = tuple[tuple[str, str], ...]
"""(TLS version, cipher) of each kind of connection; () where nothing is encrypted."""


def plain_number(value: float) -> str:
    """A whole number as it is, another with four significant digits."""
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"


def _size(value: tuple[int, int]) -> str:
    low, high = value
    return f"{low:,} bytes" if low == high else f"{low:,} to {high:,} bytes"


def _encrypted(value: Handshakes) -> str:
    return " and ".join(f"{version} {cipher}" for version, cipher in value) or "not encrypted"


def _rate(value: float) -> str:
    return f"{plain_number(value)} msgs/sec"


def _condition(
    shown: str | Callable[[Any], str], what: str = "", default: str | None = None
) -> Any:
    """A field of `Conditions`: how its value is told, a format or a function, after `what`."""
    told = shown.format if isinstance(shown, str) else shown
    return field(default=default, metadata={"what": what, "told": told})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under what figures were measured.

    None in a published row: it does not depend on it. None in ours: the run did not record it.
    `producers` and `producer_rate` are the load of the row: in LATENCY the background.
    """

    interface: str | None = _condition("{}", default="MQTT")
    qos: int | None = _condition("QoS {}")
    size_bytes: tuple[int, int] | None = _condition(_size, "messages of ")
    topics: int | None = _condition("{:,} topics")
    ratio: int | None = _condition("1:{:,}", "fanout ")
    # Messages a second of the timed pair, and of one producer.
    pair_rate: float | None = _condition(_rate, "the timed pair at ")
    producers: int | None = _condition("{:,} producers", "load of ")
    producer_rate: float | None = _condition(_rate, "each producer at ")
    devices: int | None = _condition("{:,} devices")
    handshakes: Handshakes | None = _condition(_encrypted)  # noqa: RUF009 (it makes a field)
    # Whether each device has a user and rights of its own.
    access_control: bool | None = _condition(
        lambda own: "a user of its own for each device" if own else "one connection policy for all"
    )
    # Whether messages are on disk before they are acknowledged.
    stored_first: bool | None = _condition(
        lambda first: f"stored {'before' if first else 'after'} it is acknowledged"
    )

    def differences(self, ours: "Conditions") -> tuple[str, ...]:
        """Where a run differs from this published row, a few words each; none: comparable."""
        pairs = ((one, getattr(self, one.name), getattr(ours, one.name)) for one in fields(self))
        return tuple(
            f"{one.metadata['what']}{one.metadata['told'](there)} there, "
            f"{'not recorded' if here is None else one.metadata['told'](here)} here"
            for one, there, here in pairs
            if there is not None and (here is None or not _alike(one.name, there, here))
        )


def _alike(name: str, there: Any, here: Any) -> bool:
    if isinstance(there, float):
        return math.isclose(there, here, rel_tol=1e-6)
    if name == "handshakes" and there and here:
        # Every connection has the published version, and the published cipher in its name.
        return all(any(v == version and c in cipher for v, c in there) for version, cipher in here)
    return bool(there == here)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The columns of a row; None where the published card is empty. Latencies in microseconds."""

    value: float | None = None
    avg: float | None = None
    p50: float | None = None
    p99: float | None = None
    max: float | None = None
    stdev: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedFigure(Figures):
    """A published row that a case can be held against: its name, what it measures, its columns.

    `high_water_mark` is in messages. `bounds` are the columns of which the report says "less than".
    `relation` says what is alike and what is not where the row has another name than the case.
    `least_qos`: of several rows, this one stands for runs of that QoS and above.

    Source: "IBM MessageSight Appliance v1.0 Performance Benchmarks" (test date April 22, 2013),
    section "Score card"; high-water marks and the ratios of FANOUT.SEC from its section "Additional
    test results data". They were measured on that report's appliance and network: a yardstick for
    what a case is about, not a result of ours.
    """

    name: str
    measure: str
    high_water_mark: int | None = None
    bounds: tuple[str, ...] = ()
    relation: str = ""
    least_qos: int = 0
    conditions: Conditions = Conditions()


PUBLISHED_TLS: Handshakes = (("TLSv1.2", "AES256"),)
"""Appendix A: TLS 1.2 at least, cipher category BEST (NSA Suite B), a server key of 2,048 bits;
Appendix D: the clients offered AES256 in OpenSSL's notation."""

SECURED = ".SEC"
"""Ends the name of a row whose connections are encrypted."""

EFFICIENCY = (".MPW", ".MPU")
"""End the names of rows that divide another row."""


def counterparts(
    figures: tuple[PublishedFigure, ...], ours: Conditions, published: object = None
) -> tuple[PublishedFigure, ...]:
    """The figures that a run stands beside; `published` is the row that the scenario names.

    An encrypted run is held against the secured row where there is one, never against the other;
    of the lines of one row, against those that are most like it.
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
    own = [figure for figure in figures if figure.name in row]
    kept: dict[tuple[str, str], PublishedFigure] = {}
    # Of equals the first: what the score card itself shows.
    for figure in sorted(own, key=lambda one: len(one.conditions.differences(ours))):
        kept.setdefault((figure.name, figure.measure), figure)
    return tuple(figure for figure in own if figure in kept.values())
