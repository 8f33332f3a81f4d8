"""The message header against zlib and struct, and templates of its body."""

import json
import struct
import zlib
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadgen.errors import ScenarioError
from loadgen.kernels.crc import by_tables, crc32, crc32_of_28
from loadgen.kernels.payload import (
    HEADER_BYTES,
    HEX_BYTES,
    IN_FIELD,
    IN_PROPERTY,
    SHORT_BYTES,
    body_crc_states,
    copy_number,
    crc_of_body,
    fill_template,
    has_intact_header,
    is_copy,
    is_intact,
    lengthen,
    make_body,
    move_in,
    move_out,
    send_offset_ns,
    stamp,
    stamp_short,
)
from loadgen.plan.payload_template import read_template
from tests.examples import examples
from tests.programs import python
from tests.refusals import refused
from tests.tables import table

TEMPLATES = table("templates")
U32 = (1 << 32) - 1
I63 = (1 << 63) - 1
LATEST_NS = 1 << 62


def _stamped(
    body: bytes,
    *,
    run_tag: int = 1,
    stream: int = 2,
    sequence: int = 3,
    intended_ns: int = 4,
    sent_ns: int = 5,
    before: int = 0,
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return a payload with a header, after `before` other bytes."""
    out = np.full(before + HEADER_BYTES + len(body), 0xAA, np.uint8)
    out[before + HEADER_BYTES :] = np.frombuffer(body, np.uint8)
    stamp(out, before, run_tag, stream, sequence, intended_ns, sent_ns, zlib.crc32(body))
    return out


@given(st.binary(max_size=200), st.data())
@examples(150)
def test_crc_is_zlibs_for_any_range_and_start(data: bytes, choice: st.DataObject) -> None:
    start = choice.draw(st.integers(0, len(data)))
    end = choice.draw(st.integers(start, len(data)))
    before = choice.draw(st.sampled_from([0, 1, 0x80000000, U32]))
    buffer = np.frombuffer(bytearray(data), np.uint8)
    wanted = zlib.crc32(data[start:end], before)
    assert crc32(before, buffer, start, end) == wanted
    assert by_tables(before, buffer, start, end) == wanted


@given(st.binary(min_size=28, max_size=28), st.integers(0, U32))
@examples(150)
def test_crc_of_a_header_in_words_is_zlibs(data: bytes, before: int) -> None:
    first, *words = struct.unpack("<Iqqq", data)
    assert crc32_of_28(before, first, *words) == zlib.crc32(data, before)


@pytest.mark.parametrize("size", [0, 15, 16, 127, 128, 191, 192, 1000, 4096, 65_537])
def test_crc_of_large_bodies_is_zlibs(size: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + 3).astype(np.uint8)
    for start in range(3):
        wanted = zlib.crc32(data[start : start + size].tobytes(), 7)
        assert crc32(7, data, start, start + size) == wanted


@pytest.mark.compiled
def test_without_the_processors_instruction_the_same_comes_out() -> None:
    """Compile for a processor without carry-less multiplication."""
    code = (
        "import zlib, numpy as np; from loadgen.kernels import crc;"
        "data = np.arange(300).astype(np.uint8); assert not crc.FOLDS;"
        "assert crc.crc32(5, data, 1, 300) == zlib.crc32(data[1:], 5);"
        "assert crc.crc32_of_28(5, 6, 7, 8, 9) == zlib.crc32(b''.join("
        "n.to_bytes(4 if n == 6 else 8, 'little') for n in range(6, 10)), 5)"
    )
    done = python("-c", code, NUMBA_CPU_NAME="generic")
    assert done.returncode == 0, done.stderr


def _numbers(*values: int) -> dict[str, int]:
    return dict(
        zip(("run_tag", "stream", "sequence", "intended_ns", "sent_ns"), values, strict=True)
    )


@given(
    st.builds(_numbers, *(st.integers(0, most) for most in (U32, U32, I63, LATEST_NS, LATEST_NS))),
    st.binary(max_size=40),
    st.integers(0, 9),
)
@example(_numbers(U32, U32, I63, LATEST_NS, 0), b"", 0)
@example(_numbers(0, 0, 0, 0, LATEST_NS), b"x", 3)
@examples(150)
def test_a_header_reads_back_as_it_was_stamped(
    numbers: dict[str, int], body: bytes, before: int
) -> None:
    out = _stamped(body, before=before, **numbers)
    offset_ns = np.float32(max(numbers["sent_ns"] - numbers["intended_ns"], 0))
    assert send_offset_ns(out, before) == int(offset_ns)
    assert not is_copy(out, before)
    assert is_intact(out, before, len(out))
    assert (out[:before] == 0xAA).all()
    assert out[before + HEADER_BYTES :].tobytes() == body
    message = out[before:].tobytes()
    crc = zlib.crc32(message[:28], zlib.crc32(message[32:]))
    assert struct.unpack("<IIqqfI", message[:32]) == (
        *[*numbers.values()][:4],
        float(offset_ns),
        crc,
    )


@given(
    st.integers(0, U32),
    st.integers(0, (1 << 24) - 1),
    st.integers(0, U32),
    st.integers(0, (1 << 36) * 1000 - 1),
    st.integers(0, 1 << 50),
    st.integers(0, 15),
    st.binary(max_size=15),
)
@example(U32, (1 << 24) - 1, U32, (1 << 36) * 1000 - 1, 1 << 50, 15, b"x")
@examples(150)
def test_a_short_header_is_lengthened_to_what_it_stands_for(
    tag: int, stream: int, sequence: int, since_ns: int, offset_ns: int, copy: int, body: bytes
) -> None:
    crc, begun_ns, end = zlib.crc32(body), 5_000_000_000, SHORT_BYTES + len(body)
    out = np.zeros(end + HEADER_BYTES, np.uint8)
    out[SHORT_BYTES:end] = np.frombuffer(body, np.uint8)
    stamp_short(out, 0, tag, stream, sequence, since_ns, offset_ns, crc, copy)
    short = out[:SHORT_BYTES].tobytes()
    checksum = zlib.crc32(tag.to_bytes(4, "little") + short[:14] + bytes(10), crc) & 0xFFFF
    first, second = struct.unpack("<QQ", short)
    assert (first & 0xFF, first >> 8 & 0xFFFFFF, first >> 32) == (tag & 0xFF, stream, sequence)
    assert (second & (1 << 36) - 1, second >> 48) == (since_ns // 1000, checksum)
    assert lengthen(out, 0, end, end, tag ^ 1, begun_ns) == -1
    assert lengthen(out, 0, end, end, tag, begun_ns) == crc
    due_ns = begun_ns + since_ns // 1000 * 1000
    assert struct.unpack("<IIqq", out[end : end + 24].tobytes()) == (tag, stream, sequence, due_ns)
    assert has_intact_header(out, end, crc) and copy_number(out, end) == copy
    least = 0.5 if copy else 31 / 32
    assert least * offset_ns - 2 <= send_offset_ns(out, end) <= max(offset_ns, 1) * 1.0001
    for position in range(1, end):
        out[position] ^= 1
        crc = lengthen(out, 0, end, end, tag, begun_ns)
        assert not has_intact_header(out, end, crc)
        out[position] ^= 1


@given(st.integers(0, LATEST_NS), st.integers(0, 15))
@example(0, 0)
@example(0, 1)
@example(1, 1)
@example(LATEST_NS, 1)
@examples(150)
def test_the_send_offset_has_seven_digits_and_five_in_a_copy(offset_ns: int, copy: int) -> None:
    out = np.zeros(HEADER_BYTES, np.uint8)
    stamp(out, 0, 1, 2, 3, LATEST_NS - 1, LATEST_NS - 1 + offset_ns, 0, copy)
    assert is_intact(out, 0, HEADER_BYTES)
    assert is_copy(out, 0) == bool(copy)
    assert copy_number(out, 0) == copy
    assert abs(send_offset_ns(out, 0) - offset_ns) <= offset_ns * (2e-6 if copy else 6e-8)


def test_a_header_is_right_by_itself_when_its_body_is_known() -> None:
    out = _stamped(b"0123456789")
    out[-1] ^= 1
    assert not is_intact(out, 0, len(out))
    assert has_intact_header(out, 0, zlib.crc32(b"0123456789"))
    out[8] ^= 1
    assert not has_intact_header(out, 0, zlib.crc32(b"0123456789"))


@pytest.mark.parametrize("body", [b"", b"0123456789", bytes(100)])
def test_one_flipped_bit_anywhere_is_noticed(body: bytes) -> None:
    out = _stamped(body, run_tag=0x10AD, sequence=77, intended_ns=10**18, sent_ns=10**18 + 12)
    assert is_intact(out, 0, len(out))
    for position in range(len(out)):
        for bit in range(8):
            out[position] ^= 1 << bit
            assert not is_intact(out, 0, len(out)), (position, bit)
            out[position] ^= 1 << bit
    assert is_intact(out, 0, len(out))


def test_a_body_that_lost_or_gained_bytes_is_noticed() -> None:
    out = _stamped(b"0123456789")
    assert not is_intact(out, 0, len(out) - 1)
    longer = np.concatenate((out, np.zeros(1, np.uint8)))
    assert not is_intact(longer, 0, len(longer))


@pytest.mark.compiled
def test_a_prefix_of_a_large_body_has_its_crc_though_not_every_one_is_kept() -> None:
    body = make_body(3_000_000, 7)
    states = body_crc_states(body)
    assert len(states) < 300_000
    exact, block = 1 << 18, 1 << 16
    lengths = [0, 1, exact - 1, exact, exact + 1, exact + block - 1, exact + block, 3_000_000]
    for length in (*lengths, *np.random.default_rng(1).integers(0, 3_000_001, 20).tolist()):
        assert crc_of_body(states, body, length) == zlib.crc32(body[:length].tobytes()), length


def test_the_body_is_printable_and_depends_only_on_the_seed() -> None:
    body = make_body(1000, 5)
    assert body.tobytes().isalnum()
    assert body.tobytes() == make_body(1000, 5).tobytes()
    assert body.tobytes() != make_body(1000, 6).tobytes()
    assert make_body(2000, 5)[:1000].tobytes() == body.tobytes()


def filled(
    text: bytes, *, device: int = 3, sequence: int = 12, time_ms: int = 0, random: int = 5
) -> bytes:
    body, places, _ = read_template(text)
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


@pytest.mark.parametrize(("text", "told"), TEMPLATES["filled"])
def test_widths_and_fills(text: str, told: str) -> None:
    assert filled(text.encode()).decode() == told


@given(
    st.integers(0, 1 << 40), st.integers(1, 18), st.sampled_from([b"", b"0"]), st.binary(max_size=9)
)
@examples(200)
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


@pytest.mark.compiled
def test_random_digits_of_two_places_are_independent() -> None:
    pairs = Counter(filled(b"{random:01}{random:02}", random=n) for n in range(100_000))
    assert len(pairs) == 1000
    assert max(pairs.values()) < 200  # 100 on average


@pytest.mark.parametrize(("text", "code", "values"), TEMPLATES["refused"])
def test_what_is_refused(text: str, code: str, values: dict[str, object]) -> None:
    with refused(code, ScenarioError, **values):
        read_template(text.encode())


@given(st.binary(max_size=120), st.integers(0, 120), st.binary(min_size=65, max_size=65))
@examples(150)
def test_a_header_beside_the_payload_leaves_it_to_the_byte(
    body: bytes, at: int, before: bytes
) -> None:
    run_tag, at = 0x80000001, min(at, len(body))
    gapped = body[:at] + b"0" * HEADER_BYTES + body[at:]
    for place, message in ((IN_PROPERTY, body), (IN_FIELD + at, gapped)):
        whole = _stamped(message, run_tag=run_tag, before=len(before))
        whole[: len(before)] = np.frombuffer(before, np.uint8)
        folded = whole.tobytes()
        move_out(whole, len(before), place)
        if place == IN_PROPERTY:
            payload, text = len(before) + HEADER_BYTES, len(before) - HEADER_BYTES
            assert whole[payload:].tobytes() == body
        else:
            payload, text = len(before), len(before) + at
            assert whole[:payload].tobytes() == before
            assert whole[payload:text].tobytes() == body[:at]
            assert whole[text + HEX_BYTES :].tobytes() == body[at:]
        digits = whole[text : text + HEX_BYTES].tobytes()
        assert bytes.fromhex(digits.decode()) == folded[len(before) : len(before) + HEADER_BYTES]
        assert move_in(whole.copy(), payload, text, place, run_tag + 1) == -1
        for damaged in (text + 20, text + 63):
            other = whole.copy()
            other[damaged] = ord("P") if other[damaged] != ord("9") else ord("@")
            assert move_in(other, payload, text, place, run_tag) == len(before)
            assert not is_intact(other, len(before), len(other))
        assert move_in(whole, payload, text, place, run_tag) == len(before)
        assert whole[len(before) :].tobytes() == folded[len(before) :]
        assert is_intact(whole, len(before), len(whole))
