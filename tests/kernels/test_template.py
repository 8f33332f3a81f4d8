"""Payload templates: what is filled in, where, and what is refused."""

import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import ScenarioError
from loadgen.kernels.payload import fill_template
from loadgen.plan.payload_template import no_template, read_template


def filled(
    text: bytes, *, device: int = 3, sequence: int = 12, time_ms: int = 0, random: int = 5
) -> bytes:
    body, places = read_template(text)
    out = np.full(len(body) + 8, 0xAA, np.uint8)
    out[4:-4] = body
    fill_template(out, 4, places, device, sequence, time_ms, random)
    assert out[:4].tobytes() == out[-4:].tobytes() == b"\xaa" * 4
    return out[4:-4].tobytes()


def test_places_are_filled_where_they_stand() -> None:
    text = b'{"id": "m{device:05}", "n": {sequence:6}, "at": {time_ms}}'
    told = filled(text, device=42, sequence=7, time_ms=1_763_000_000_123)
    assert told == b'{"id": "m00042", "n":      7, "at": 1763000000123}'
    assert json.loads(told) == {"id": "m00042", "n": 7, "at": 1_763_000_000_123}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"{device}", b"0000003"),
        (b"{sequence}", b"0000000012"),
        (b"{sequence:1}", b"2"),  # its last digits
        (b"{device:3}|", b"  3|"),
        (b"{device:03}|", b"003|"),
        (b"{{device:1}}", b"{3}"),
        (b"{device:1}{device:1}", b"33"),
    ],
)
def test_widths_and_fills(text: bytes, told: bytes) -> None:
    assert filled(text) == told


def test_zero_is_a_digit() -> None:
    assert filled(b"{sequence:3}", sequence=0) == b"  0"


@given(
    st.integers(0, 1 << 40), st.integers(1, 18), st.sampled_from([b"", b"0"]), st.binary(max_size=9)
)
@settings(deadline=None, max_examples=200)
def test_a_number_is_read_back_and_nothing_else_changes(
    sequence: int, digits: int, zero: bytes, around: bytes
) -> None:
    around = around.replace(b"{", b"(").replace(b"}", b")")
    text = around + b"{sequence:" + zero + str(digits).encode() + b"}" + around
    told = filled(text, sequence=sequence)
    assert told.startswith(around)
    assert told.endswith(around)
    number = told[len(around) : len(told) - len(around)]
    assert len(number) == digits
    assert int(number) == sequence % 10**digits


def test_random_digits_differ_by_message_and_place_and_are_the_same_again() -> None:
    text = b"{random:6} {random:6}"
    seen = {filled(text, random=number) for number in range(50)}
    assert len(seen) == 50
    assert all(one[:6] != one[7:] for one in seen)
    assert filled(text, random=7) == filled(text, random=7)


def test_random_digits_of_two_places_are_independent() -> None:
    pairs = Counter(filled(b"{random:01}{random:02}", random=n) for n in range(100_000))
    assert len(pairs) == 1000
    assert max(pairs.values()) < 200  # 100 on average


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"plain", "no place to fill"),
        (b'{"a": 1}', "no place to fill"),
        (b"{devise} {sequence}", "{devise} is not known"),
        (b"{sequence:19}", "1 to 18"),
        (b"{sequence:0}", "1 to 18"),
    ],
)
def test_what_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ScenarioError, match="payload_template") as raised:
        read_template(text)
    assert why in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_template_has_no_places() -> None:
    assert len(no_template()) == 0
