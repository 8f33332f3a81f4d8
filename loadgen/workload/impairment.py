"""What is wrong with a link between devices and broker, as text and as a value.

delay=20ms,jitter=5ms,rate=1mbit,stall=2s@10s,cut=30s,group=subscribers
"""

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from loadgen.workload.units import parse_seconds, shown

LONGEST_S: Final = 3_600.0
LEAST_BITS_PER_S: Final = 1_000.0
_BITS: Final = {"bit": 1, "kbit": 10**3, "mbit": 10**6, "gbit": 10**9}
_TIMES: Final = ("delay", "jitter", "cut")
FORM: Final = (
    "parts of delay=20ms, jitter=5ms, rate=1mbit, stall=2s@10s, cut=30s and group=NAME, separated "
    "by commas"
)


@dataclass(frozen=True, slots=True)
class Impairment:
    """Delay and rate are of each connection and each way; times in seconds, 0 for none.

    Every byte is late by `delay_s`, give or take `jitter_s`, and none overtakes another. Every
    `stall_every_s` of the window nothing passes for `stall_s`, and every `cut_s` all connections
    are reset. `group` names the devices, "" for all.
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    bits_per_s: float = 0.0
    stall_s: float = 0.0
    stall_every_s: float = 0.0
    cut_s: float = 0.0
    group: str = ""

    def __str__(self) -> str:
        """In words, for people."""
        told = [
            (self.delay_s, f"{_time(self.delay_s)} of delay"),
            (self.jitter_s, f"{_time(self.jitter_s)} of jitter"),
            (self.bits_per_s, f"{self.bits_per_s / 1e6:,g} Mbit/s"),
            (self.stall_s, f"a stall of {_time(self.stall_s)} every {_time(self.stall_every_s)}"),
            (self.cut_s, f"a cut every {_time(self.cut_s)}"),
        ]
        return ", ".join(words for value, words in told if value) or "the relay alone"


def _time(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def parse_impairment(text: str) -> Impairment:
    """The impairment that a text names; ValueError says in one line what is wrong with it."""
    given: dict[str, str] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or name not in (*_TIMES, "rate", "stall", "group"):
            raise ValueError(f"{shown(part)} is no part of it")
        if name in given:
            raise ValueError(f"{name} is given twice")
        given[name] = value
    found = {f"{name}_s": _seconds(given[name]) for name in _TIMES if name in given}
    if "stall" in given:
        length, at, every = given["stall"].partition("@")
        found["stall_s"], found["stall_every_s"] = _seconds(length), _seconds(every)
        if not at or not 0 < found["stall_s"] < found["stall_every_s"]:
            raise ValueError(f"{shown(given['stall'])} is not LENGTH@EVERY with a shorter length")
    if "rate" in given:
        found["bits_per_s"] = _bits_per_s(given["rate"])
    impairment = Impairment(**found, group=given.get("group", ""))
    if impairment.jitter_s > impairment.delay_s:
        raise ValueError("the jitter is longer than the delay")
    if given.get("group") == "":
        raise ValueError("the group has no name")
    if "cut" in given and not impairment.cut_s:
        raise ValueError("a cut every 0 s is none")
    return impairment


def _seconds(text: str) -> float:
    seconds = parse_seconds(text)
    if seconds > LONGEST_S:
        raise ValueError(f"{shown(text)} is too large")
    return seconds


def _bits_per_s(text: str) -> float:
    found = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)([kmg]?bit)", text.lower())
    if found is None:
        raise ValueError(f"{shown(text)} is not a rate such as 1mbit or 500kbit")
    rate = float(Decimal(found[1]) * _BITS[found[2]])
    if not LEAST_BITS_PER_S <= rate <= 1e12:
        raise ValueError(f"{shown(text)} is not from 1kbit to 1,000gbit")
    return rate
