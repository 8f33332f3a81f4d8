"""Message sizes from the published formulas."""

import pytest

from loadgen.specjms.build_model import Choices, model_of
from loadgen.specjms.expected import type_rates
from loadgen.specjms.messages import TYPES, number_of
from loadgen.specjms.sizes import DEFAULT_QUANTITIES, message_sizes


def test_sizes_follow_the_formulas() -> None:
    quantities = dict(DEFAULT_QUANTITIES)
    quantities["order_lines"] = (1, 2, 3)
    sizes = message_sizes(quantities)
    assert sizes[number_of("order")] == tuple(
        round(1024 * (0.0565 * x + 1.4534)) for x in (1, 2, 3)
    )
    quantities["cash_desks"] = (4, 4, 4)
    quantities["sales_lines"] = (7, 7, 7)
    one = round(1024 * (0.0139 * 4 + 0.3650 * 7 + 0.9813))
    assert message_sizes(quantities)[number_of("statInfoSM")] == (one, one, one)


def test_a_price_update_has_one_size() -> None:
    assert message_sizes()[number_of("priceUpdate")] == (237, 237, 237)


def test_classes_are_in_order_and_hold_header_and_trailer() -> None:
    for name, (small, medium, large) in zip(TYPES, message_sizes(), strict=True):
        assert 72 < small <= medium <= large, name


@pytest.mark.parametrize(("topology", "base"), [("horizontal", 100), ("vertical", 300)])
def test_the_mean_message_sent_has_about_two_kilobytes(topology: str, base: int) -> None:
    model = model_of(Choices(topology=topology, base=base))  # type: ignore[arg-type]
    sent = bytes_sent = 0.0
    for rate, options in zip(type_rates(model), model.messages, strict=True):
        mean = sum(p * s for p, s in zip(model.class_percent, options.sizes_bytes, strict=True))
        sent += rate.sent
        bytes_sent += rate.sent * mean / 100
    assert bytes_sent / sent == pytest.approx(2048, rel=0.1)
