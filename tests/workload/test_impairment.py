"""What is wrong with a link, read from text."""

import pytest

from loadgen.workload.impairment import Impairment, parse_impairment


@pytest.mark.parametrize(
    ("text", "found", "words"),
    [
        (
            "delay=20ms,jitter=5ms,rate=1mbit,stall=2s@10s,cut=30s",
            Impairment(0.02, 0.005, 1e6, 2, 10, 30),
            "20 ms of delay, 5 ms of jitter, 1 Mbit/s, a stall of 2 s every 10 s, a cut every 30 s",
        ),
        (
            " rate = 64kbit , group = subscribers ",
            Impairment(0, 0, 64e3, group="subscribers"),
            None,
        ),
        ("rate=2.5Gbit", Impairment(bits_per_s=2.5e9), "2,500 Mbit/s"),
        ("delay=0", Impairment(), "the relay alone"),
    ],
)
def test_a_list_of_parts(text: str, found: Impairment, words: str | None) -> None:
    assert parse_impairment(text) == found
    assert words is None or str(found) == words


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "'' is no part of it"),
        ("loss=1%", "'loss=1%' is no part of it"),
        ("delay=1s,delay=2s", "delay is given twice"),
        ("delay=2h", "'2h' is too large"),
        ("delay=1ms,jitter=2ms", "the jitter is longer than the delay"),
        ("rate=0.5kbit", "is not from 1kbit"),
        ("rate=1MB", "'1MB' is not a rate such as 1mbit"),
        ("stall=2s@1s", "is not LENGTH@EVERY with a shorter length"),
        ("stall=2s", "nothing is given"),
        ("cut=0", "a cut every 0 s is none"),
        ("delay=1s,group=", "the group has no name"),
    ],
)
def test_what_it_cannot_be(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        parse_impairment(text)
