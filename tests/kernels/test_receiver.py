"""The way of one message from its bytes to the counts: files entered, and calls between them.

It runs in plain Python, where each call can be seen.
"""

import os
import sys
from pathlib import Path
from types import FrameType

import pytest

from loadgen.kernels import arrays
from tests.kernels.test_traffic import MEASURE_FROM_NS, Bench, message, publish

KERNELS = Path(arrays.__file__).parent
ACCESS = {"arrays", "reactor"}
"""Not counted: fields, which are one instruction when compiled, and the caller."""


def file_of(frame: FrameType | None) -> str:
    path = Path(frame.f_code.co_filename) if frame is not None else Path()
    return path.stem if path.parent == KERNELS else ""


@pytest.mark.skipif(os.environ.get("NUMBA_DISABLE_JIT") != "1", reason="it is compiled")
@pytest.mark.parametrize(("qos", "calls"), [(0, 10), (1, 11)])
def test_one_message_enters_six_files(qos: int, calls: int) -> None:
    bench = Bench(qos=qos, receive_qos=qos)
    data = publish(message(0), qos=qos, packet_id=qos)
    between: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        pair = file_of(frame.f_back), file_of(frame)
        if event == "call" and pair[0] != pair[1] and "" not in pair and not ACCESS & {*pair}:
            between.append(pair)

    sys.setprofile(note)
    try:
        bench.receive(bench.subscriber, data, now_ns=MEASURE_FROM_NS + 9)
    finally:
        sys.setprofile(None)
    assert bench.counted() == {"measure": {"received": 1, "received_bytes": len(data)}}
    files = {file for pair in between for file in pair}
    assert files == {"receiver", "packet_bytes", "counting", "payload", "crc", "accounting"}
    assert len(between) == calls
