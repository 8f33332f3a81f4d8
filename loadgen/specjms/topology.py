"""Locations and rates from BASE, who serves whom, and who supplies what.

Rates: SPECjms2007 run rules, section 3.6.1, tables 1 and 2, as the exact intervals behind the
printed decimals. Numbers of locations: HQ, SM, DC and SP of the thesis of K. Sachs (TU Darmstadt
2010) and of the model that its authors' group published. Not published, and chosen here: the
number of headquarters instances (1), and the product families: twice as many as suppliers, offered
by two and three suppliers alternately, so that each supplier offers five.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

from loadgen.specjms.messages import Kind

__all__ = [
    "VERTICAL_LOCATIONS",
    "Locations",
    "Topology",
    "families_for",
    "families_of",
    "horizontal_locations",
    "input_rates",
    "suppliers_of",
]

Topology = Literal["horizontal", "vertical", "freeform"]


@dataclass(frozen=True, slots=True)
class Locations:
    """How many locations of each kind there are.

    Supermarket k is served by distribution centre k mod DCs and reports to headquarters k mod HQs;
    distribution centre k reports to headquarters k mod HQs. All numbers count from 0.
    """

    supermarkets: int
    distribution_centers: int
    suppliers: int
    headquarters: int = 1

    def of(self, kind: Kind) -> int:
        return (
            self.supermarkets,
            self.distribution_centers,
            self.suppliers,
            self.headquarters,
        )[kind]

    def served_by(self, distribution_center: int) -> int:
        """Supermarkets that this distribution centre serves."""
        return len(range(distribution_center, self.supermarkets, self.distribution_centers))


def horizontal_locations(base: int, headquarters: int = 1) -> Locations:
    """Locations of the horizontal topology: they grow with BASE."""
    return Locations(base, -(-base // 5), -(-2 * base // 5), headquarters)


VERTICAL_LOCATIONS: Final = Locations(10, 2, 5, 1)
"""Locations of the vertical topology, whatever BASE."""

_HORIZONTAL: Final = (
    ("SM", Fraction("1000") / Fraction("649.6875")),
    ("DC", Fraction("1000") / Fraction("468.75")),
    ("", Fraction(6)),
    ("SM", Fraction(1000) / 296),
    ("SM", Fraction("1000") / Fraction("86.625")),
    ("", Fraction(6000, 527)),
    ("", Fraction(120, 13)),
)
"""Per interaction: for each of which location, and how often a second (296 ms is one in 3.38)."""

_VERTICAL: Final = (
    Fraction("1") / Fraction("1.3125"),
    Fraction("1") / Fraction("4.6875"),
    Fraction(1, 20),
    Fraction(60, 37),
    Fraction("1") / Fraction("0.17325"),
    Fraction(75, 527),
    Fraction(1) / Fraction("9.75"),
)
"""Per interaction: how often a second in the whole system at BASE 1."""


def input_rates(topology: Topology, base: int, locations: Locations) -> tuple[float, ...]:
    """Interactions begun a second in the whole system, one entry an interaction.

    Horizontal rates are fixed for each location, vertical ones grow with BASE. Raises ValueError
    for the freeform topology, whose rates its scenario names.
    """
    if topology == "vertical":
        return tuple(float(rate * base) for rate in _VERTICAL)
    if topology != "horizontal":
        raise ValueError("a freeform topology has no rates of its own")
    places = {
        "SM": locations.supermarkets,
        "DC": locations.distribution_centers,
        "": 1,
    }
    return tuple(float(rate * places[place]) for place, rate in _HORIZONTAL)


def families_for(suppliers: int) -> int:
    """Product families for so many suppliers, where a scenario names none."""
    return 2 * suppliers


def suppliers_of(family: int, suppliers: int) -> tuple[int, ...]:
    """Who offers a product family: two suppliers for the even ones, three for the odd ones.

    Families are dealt around the circle of suppliers, so that each offers as many as its
    neighbours; with fewer suppliers than that, all of them.
    """
    first = 5 * (family // 2) + 2 * (family % 2)
    count = min(2 + family % 2, suppliers)
    return tuple((first + place) % suppliers for place in range(count))


def families_of(suppliers: int, families: int) -> tuple[tuple[int, ...], ...]:
    """The families that each supplier offers, ascending."""
    offered: list[list[int]] = [[] for _ in range(suppliers)]
    for family in range(families):
        for supplier in suppliers_of(family, suppliers):
            offered[supplier].append(family)
    return tuple(map(tuple, offered))
