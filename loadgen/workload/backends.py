"""What is known of the brokers behind a bridge, and which side was the limit. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Side = Literal["none", "generator", "front", "backend", "front or backend"]

BUSY_SHARE = 0.9
"""A broker process without a tenth of its time idle is what limits a rate that was missed."""


@dataclass(frozen=True, slots=True)
class BackendFacts:
    """One backend: `number` counts from 1, `url` has no password.

    consumers        planned; connect_failures and disconnects are theirs
    expected         deliveries of the window's messages on its topics; received: those that came
    high_water_mark  most messages between producers and its consumers, in samples a second apart
    growth           by how many messages that number rose over the window
    busy_share       of its process, None where it is not known
    """

    number: int
    url: str
    consumers: int
    connect_failures: int = 0
    disconnects: int = 0
    expected: int = 0
    received: int = 0
    high_water_mark: int = 0
    growth: float = 0.0
    busy_share: float | None = None

    @property
    def name(self) -> str:
        return f"backend {self.number} ({self.url})"


@dataclass(frozen=True, slots=True)
class Limit:
    """Which side limited the rate, and the figures that say so."""

    side: Side
    detail: str


def by_backend(
    backends: Sequence[BackendFacts], count: Callable[[BackendFacts], int], what: str
) -> str:
    """`; 5 connections at backend 2 (URL)` for each backend that counts any; "" for none."""
    counts = [f"{count(b):,} {what} {b.name}" for b in backends if count(b) > 0]
    return f"; {', '.join(counts)}" if counts else ""


def limit_of(
    backends: Sequence[BackendFacts], front_busy: float | None, codes: Sequence[str]
) -> Limit:
    """The side that was the limit of a run with these reasons against it (`codes`).

    A broker shows it by its processor time, where that is known; else by where messages stayed:
    producers that could not send are held back by the front, messages that the front took and no
    consumer got are between the front and that backend.
    """
    busiest = sorted(
        (
            *((front_busy, 0, "the front broker") for _ in range(front_busy is not None)),
            *((b.busy_share, b.number, b.name) for b in backends if b.busy_share is not None),
        ),
        reverse=True,
    )
    nearest = f"; {busiest[0][2]} used {busiest[0][0]:.0%} of a processor" if busiest else ""
    if "GENERATOR_SATURATED" in codes:
        return Limit("generator", f"the load generator had no time left{nearest}")
    gone = [b.name for b in backends if b.disconnects]
    if gone:
        return Limit("backend", f"{', '.join(gone)} lost its consumers")
    if not {"RATE_MISSED", "BACKLOG_GROWS", "LOST"} & set(codes):
        return Limit("none", f"all that was asked for was forwarded{nearest}")
    if busiest and (busiest[0][0] or 0.0) >= BUSY_SHARE:
        share, number, name = busiest[0]
        return Limit("backend" if number else "front", f"{name} used {share:.0%} of a processor")
    if "RATE_MISSED" in codes:
        return Limit("front", f"the front broker took fewer messages than were due{nearest}")
    most = max(backends, key=lambda b: (b.growth, b.expected - b.received), default=None)
    where = "" if most is None else f" in front of {most.name}"
    return Limit("front or backend", f"messages stayed behind the front broker{where}{nearest}")
