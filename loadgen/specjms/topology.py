"""Locations and rates from BASE, and the relations of locations and product families.

The numbers of locations are those of the thesis of K. Sachs (TU Darmstadt 2010) and of the model
that its authors' group published. Two are not published and chosen here: one instance of the
headquarters, and twice as many product families as suppliers, so that each supplier offers five.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final, Literal

from loadgen.specjms.messages import SPECIFICATION, LocationKind

Topology = Literal["horizontal", "vertical", "freeform"]


@dataclass(frozen=True, slots=True)
class Locations:
    """Numbers of locations by kind.

    Supermarket k is served by distribution centre k mod DCs, and both report to headquarters k mod
    HQs. All numbers count from 0.
    """

    supermarkets: int
    distribution_centers: int
    suppliers: int
    headquarters: int = 1

    def of(self, kind: LocationKind) -> int:
        return (
            self.supermarkets,
            self.distribution_centers,
            self.suppliers,
            self.headquarters,
        )[kind]


def horizontal_locations(base: int, headquarters: int = 1) -> Locations:
    """Return the locations of the horizontal topology, which grow with BASE."""
    return Locations(base, -(-base // 5), -(-2 * base // 5), headquarters)


VERTICAL_LOCATIONS: Final = Locations(10, 2, 5, 1)  # for every BASE


def input_rates(topology: Topology, base: int, locations: Locations) -> tuple[float, ...]:
    """Return interactions begun per second in the whole system, one entry per interaction."""
    rates = []
    for interval in SPECIFICATION["intervals"]:
        count = base
        if topology == "horizontal":
            count = locations.of(LocationKind[interval["at"]]) if "at" in interval else 1
        rates.append(float(count * 1000 / Fraction(interval[topology])))
    return tuple(rates)


def suppliers_of(family: int, suppliers: int) -> tuple[int, ...]:
    """Return the suppliers of a product family: two for even families, three for odd ones.

    Families are assigned in turn, so that all suppliers offer about the same number.
    """
    first = 5 * (family // 2) + 2 * (family % 2)
    count = min(2 + family % 2, suppliers)
    return tuple((first + place) % suppliers for place in range(count))


@lru_cache(maxsize=8)
def families_of(suppliers: int, families: int) -> tuple[tuple[int, ...], ...]:
    """Return the families that each supplier offers, in ascending order."""
    offered: list[list[int]] = [[] for _ in range(suppliers)]
    for family in range(families):
        for supplier in suppliers_of(family, suppliers):
            offered[supplier].append(family)
    return tuple(map(tuple, offered))
