"""Numbers, times and sizes as people write them."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.plan.units import parse_count, parse_number, parse_seconds, parse_size, shown
from loadgen.sentences import duration
from tests.examples import examples
from tests.tables import rows_of

NUMBERS = {
    1000: 1000, 0.25: 0.25, "0": 0, "10k": 10_000, "10K": 10_000, "2.5M": 2_500_000,
    "1G": 10**9, "1e6": 1_000_000, "10_000": 10_000, " 7 ": 7,
}  # fmt: skip
TIMES = {
    10: 10, 1.5: 1.5, "10": 10, "0": 0, "500ms": 0.5, "250us": 250e-6, "250µs": 250e-6,
    "5m": 300, "5min": 300, "1h": 3600, "2d": 172_800,
}  # fmt: skip
SIZES = {
    32: (32, 32), "32": (32, 32), "32-256": (32, 256), " 32 - 256 ": (32, 256),
    "1KiB": (1024, 1024), "1k-1KiB": (1000, 1024), "1MB": (1_000_000, 1_000_000),
    "64KiB-2MiB": (65_536, 2_097_152), (32, 256): (32, 256), ("32", "64"): (32, 64),
}  # fmt: skip


@pytest.mark.parametrize(
    ("parse", "given", "value"),
    [
        (parse, given, value)
        for parse, values in ((parse_number, NUMBERS), (parse_seconds, TIMES), (parse_size, SIZES))
        for given, value in values.items()
    ],
)
def test_quantities_as_people_write_them(
    parse: Callable[[object], object], given: object, value: object
) -> None:
    assert parse(given) == value


def test_a_range_may_be_a_list() -> None:
    assert parse_size([32, 256]) == (32, 256)


REFUSED: list[object] = [
    *(None, True, "", "   ", "-1", -1, "- 5", "-.5", "nan", "NaN", "inf", "-inf"),
    *(math.nan, math.inf, -math.inf, "1e99", 10**400, "9" * 5000, "ten", "1,5", "1.2.3"),
    *("10 000", "0x10", "١٢", "1__\n2", [1], {}, b"1"),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: ascii(type(value)))
@pytest.mark.parametrize("parse", [parse_number, parse_count, parse_seconds, parse_size])
def test_what_is_no_quantity_is_refused_in_one_line(parse: object, value: object) -> None:
    assert callable(parse)
    with pytest.raises(ValueError) as caught:
        parse(value)
    text = str(caught.value)
    assert text.isprintable() and 0 < len(text) < 200


def test_an_unknown_unit_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"\bms\b.*\bh\b"):
        parse_seconds("5M")
    with pytest.raises(ValueError, match="k, K, M, G"):
        parse_number("5m")


def test_a_count_is_whole() -> None:
    assert parse_count("2.5k") == 2500
    with pytest.raises(ValueError, match=r"2\.5"):
        parse_count("2.5")
    with pytest.raises(ValueError, match=r"32\.5"):
        parse_size("32.5")


def test_a_range_is_in_order() -> None:
    with pytest.raises(ValueError, match="256-32"):
        parse_size("256-32")
    with pytest.raises(ValueError, match="1, 2, 3"):
        parse_size([1, 2, 3])


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300), st.integers(), st.floats()))
@examples(100)
def test_shown_is_one_short_printable_line(value: object) -> None:
    text = shown(value)
    assert text.isprintable() and len(text) <= 60


def test_shown_survives_a_list_with_a_number_too_long_to_print() -> None:
    assert shown([1 << 200_000]) == "a list with too many levels or digits"


@given(st.text(max_size=50))
@examples(200)
def test_any_text_gives_a_number_or_a_value_error(text: str) -> None:
    for parse in (parse_number, parse_seconds):
        try:
            number = parse(text)
        except ValueError as error:
            assert str(error).isprintable()
        else:
            assert math.isfinite(number) and number >= 0


@given(st.integers(0, 10**15))
@examples(100)
def test_whole_numbers_are_exact(number: int) -> None:
    assert parse_count(number) == parse_count(str(number)) == number


@pytest.mark.parametrize(("microseconds", "text"), rows_of("plan.durations"))
def test_a_duration_has_the_unit_of_its_size(microseconds: float, text: str) -> None:
    assert duration(microseconds) == text
