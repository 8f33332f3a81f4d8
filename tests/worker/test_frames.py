"""Frames: any cut of the byte stream gives the same frames."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import CannotRunError
from loadgen.worker.frames import FRAME_LIMIT_BYTES, FrameReader, encode_frame
from tests.examples import examples
from tests.refusals import refused

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)
frames = st.lists(
    st.tuples(st.dictionaries(st.text(max_size=6), values, max_size=3), st.binary(max_size=60)),
    max_size=6,
)


@given(frames, st.lists(st.integers(0, 2000), max_size=20))
@examples(100)
def test_frames_cut_anywhere_come_back_whole(
    wanted: list[tuple[dict[str, object], bytes]], cuts: list[int]
) -> None:
    data = b"".join(encode_frame(header, block) for header, block in wanted)
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    reader = FrameReader()
    found = []
    for start, end in pairwise(edges):
        found += reader.feed(data[start:end])
    assert found == wanted
    assert reader.feed(b"") == []


def test_dataclasses_and_arrays_become_json() -> None:
    @dataclass
    class Point:
        x: int

    header = {"point": Point(3), "array": np.arange(3), "number": np.int64(7)}
    assert FrameReader().feed(encode_frame(header)) == [
        ({"point": {"x": 3}, "array": [0, 1, 2], "number": 7}, b"")
    ]


@pytest.mark.parametrize("lengths", [(FRAME_LIMIT_BYTES + 1, 0), (0, FRAME_LIMIT_BYTES + 1)])
def test_an_absurd_length_is_refused_at_once(lengths: tuple[int, int]) -> None:
    data = b"".join(length.to_bytes(4, "big") for length in lengths)
    with refused("OUT_OF_STEP", CannotRunError):
        FrameReader().feed(data)
