"""The formulas of a correct run, against the figures derived from the run rules."""

import pytest

from loadgen.specjms.expected import MessageRate, group_rates, interaction_messages, mix
from loadgen.specjms.messages import GROUPS, MixGroup
from tests.specjms.models import model_with

MODELS = [
    model_with(base=100),
    model_with(topology="freeform", base=23, headquarters=3),
    model_with(topology="vertical", base=300),
    model_with(topology="freeform", base=3, interactions={"2": 4.0, "7": 1}),
]


@pytest.mark.parametrize("base", [10, 100, 500])  # with less there are not three suppliers
def test_horizontal_totals(base: int) -> None:
    total = sum(group_rates(model_with(base=base)).values(), MessageRate())
    assert total.sent == pytest.approx(28.211 * base + 26.615, rel=1e-4)
    assert total.received == pytest.approx(55.467 * base, rel=1e-4)


def test_horizontal_mix() -> None:
    shares = mix(group_rates(model_with(base=100)))
    assert shares == pytest.approx({"a": 37.2, "b": 12.7, "c": 24.4, "d": 25.7}, abs=0.06)


def test_vertical_totals_and_mix() -> None:
    rates = group_rates(model_with(topology="vertical", base=300))
    total = sum(rates.values(), MessageRate())
    assert total.sent == pytest.approx(14.287 * 300, rel=1e-4)
    assert total.received == pytest.approx(17.261 * 300, rel=1e-4)
    shares = mix(rates)
    assert shares == pytest.approx({"a": 14.2, "b": 6.0, "c": 39.1, "d": 40.7}, abs=0.06)
    assert shares["c"] + shares["d"] == pytest.approx(79.8, abs=0.06)


def test_groups_follow_the_table_of_totals() -> None:
    model = MODELS[0]
    i1, i2, i3, i4, i5, i6, i7 = model.rates
    stores, z = 100, 2.5
    rates = group_rates(model)
    expected: dict[MixGroup, tuple[float, float]] = {
        "a": (i6 + i7, stores * (i6 + i7)),
        "b": (i2 + i3, z * i2 + stores * i3),
        "c": (i1 + i2 + i5, i1 + i2 + i5),
        "d": (5 * i1 + (5 + z) * i2 + i4, 5 * i1 + (5 + z) * i2 + i4),
    }
    for group in GROUPS:
        assert (rates[group].sent, rates[group].received) == pytest.approx(expected[group])


def test_messages_of_one_interaction() -> None:
    counts = interaction_messages(MODELS[0])
    assert (counts[0].sent, counts[0].received) == pytest.approx((6, 6))
    assert (counts[1].sent, counts[1].received) == pytest.approx((7 + 2.5, 6 + 2 * 2.5))
    assert (counts[2].sent, counts[2].received) == pytest.approx((1, 100))
    assert interaction_messages(MODELS[3])[0] == MessageRate()
