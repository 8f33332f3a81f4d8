"""Locations, rates and product families."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.specjms import topology
from loadgen.specjms.messages import LocationKind
from tests.specjms.models import model_with

# Run rules, section 3.6.1, tables 1 and 2, as printed.
VERTICAL = (0.76190476, 0.213333334, 0.05, 1.62162162, 5.77200577, 0.142314991, 0.102564103)


def horizontal(base: int) -> tuple[float, ...]:
    return (
        *(1.539201540 * base, 2.133333334 * -(-base // 5), 6.0, 3.378378378 * base),
        *(11.544011544 * base, 11.385199240, 9.230769230),
    )


@pytest.mark.parametrize("base", [1, 4, 5, 15, 100, 500])
def test_horizontal_rates_are_those_printed(base: int) -> None:
    rates = topology.input_rates("horizontal", base, topology.horizontal_locations(base))
    assert rates == pytest.approx(horizontal(base), rel=1e-8)


@pytest.mark.parametrize("base", [1, 10, 300])
def test_vertical_rates_are_those_printed(base: int) -> None:
    rates = topology.input_rates("vertical", base, topology.VERTICAL_LOCATIONS)
    assert rates == pytest.approx([rate * base for rate in VERTICAL], rel=1e-8)


@pytest.mark.parametrize(
    ("base", "expected"), [(1, (1, 1, 1)), (5, (5, 1, 2)), (15, (15, 3, 6)), (101, (101, 21, 41))]
)
def test_horizontal_locations_grow_with_base(base: int, expected: tuple[int, int, int]) -> None:
    places = topology.horizontal_locations(base)
    assert (places.supermarkets, places.distribution_centers, places.suppliers) == expected
    assert places.of(LocationKind.HQ) == 1


def test_vertical_locations_are_fixed() -> None:
    assert [topology.VERTICAL_LOCATIONS.of(kind) for kind in LocationKind] == [10, 2, 5, 1]


@given(st.integers(3, 200))
def test_two_or_three_suppliers_answer_equally_often(suppliers: int) -> None:
    families = model_with(base=5, topology="freeform", locations={"SP": suppliers}).families
    answers = [topology.suppliers_of(family, suppliers) for family in range(families)]
    assert [len(found) for found in answers] == [2, 3] * suppliers
    assert all(len(set(found)) == len(found) for found in answers)
    assert {len(own) for own in topology.families_of(suppliers, families)} == {5}


@given(st.integers(1, 30), st.integers(1, 90))
def test_families_and_suppliers_agree(suppliers: int, families: int) -> None:
    offered = topology.families_of(suppliers, families)
    for family in range(families):
        answering = {k for k in range(suppliers) if family in offered[k]}
        assert answering == set(topology.suppliers_of(family, suppliers))
        assert 1 <= len(answering) <= 3
