"""Gives what reads other people's bytes inputs that are wrong, for as long as one wants.

python -m tests.fuzz                                   every target, ten seconds each
python -m tests.fuzz kernels codec --seconds 600 --seed 7
NUMBA_BOUNDSCHECK=1 python -m tests.fuzz kernels       with an eye on every index

An input may end in a result or in the documented error. Another exception, an input that takes
over ten seconds, or memory that grows is a find: the input is written to FIND, to be kept in
tests/fuzz/seeds once it is understood.
"""

import argparse
import os
import random
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.fuzz.kernels import PLAYED, messaging_players, supply_chain_players
from tests.fuzz.targets import TARGETS, Target, remove_scratch

KERNELS = {"kernels": messaging_players, "supply-chain": supply_chain_players}
HANG_S = 10
GROWTH_KB = 200_000
_SETTLED_INPUTS = 2000
_BATCH = 20_000


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    names = [*KERNELS, *TARGETS]
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(names))
    parser.add_argument("--seconds", type=float, default=10, help="for each target, as 600")
    parser.add_argument("--seed", type=int, default=1, help="the same seed, the same inputs")
    parser.add_argument("--find", type=Path, default=Path("find"), help="file for a find's input")
    found = parser.parse_args()
    if unknown := set(found.targets) - set(names):
        parser.error(f"no target {sorted(unknown)[0]!r}; there are {', '.join(names)}")
    found.targets = found.targets or names
    return found


class _HangError(Exception):
    """An input took too long."""


def _on_alarm(_number: int, _frame: object) -> None:
    raise _HangError(f"over {HANG_S} s")


def _resident_kb() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def _play_kernels(players: Callable[[int], Any], seed: int, seconds: float) -> tuple[int, str]:
    """Inputs played and what went wrong, "" for nothing."""
    played, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        for number, player in enumerate(players(seed)):
            for _ in range(20):
                signal.alarm(HANG_S * 20)
                try:
                    player.play(_BATCH)
                except (AssertionError, IndexError) as error:
                    where = f"seed {seed}, player {number}, input {player.state[PLAYED]}"
                    return played, f"{where}: {error!r}"
                finally:
                    signal.alarm(0)
                played += _BATCH
        seed += 100
    return played, ""


def _play(target: Target, seed: int, seconds: float, find: Path) -> tuple[int, str]:
    chance, corpus = random.Random(seed), target.corpus()
    with suppress(*target.errors):
        target.play(corpus[0])  # what has to be compiled is no hang
    played, end_s, settled_kb = 0, time.monotonic() + seconds, 0
    while time.monotonic() < end_s:
        data = target.change(chance, chance.choice(corpus), corpus)
        signal.alarm(HANG_S)
        try:
            target.play(data)
        except target.errors:
            pass
        except Exception:
            find.write_bytes(data)
            return played, f"{traceback.format_exc(limit=-6)}input in {find}"
        finally:
            signal.alarm(0)
        played += 1
        if played == _SETTLED_INPUTS:
            settled_kb = _resident_kb()
        if settled_kb and played % 1000 == 0 and _resident_kb() - settled_kb > GROWTH_KB:
            return played, f"memory grew by more than {GROWTH_KB} KB"
    return played, ""


def main() -> int:
    arguments = _arguments()
    signal.signal(signal.SIGALRM, _on_alarm)
    wrong = 0
    for name in arguments.targets:
        begun_s = time.monotonic()
        if name in KERNELS:
            played, why = _play_kernels(KERNELS[name], arguments.seed, arguments.seconds)
        else:
            played, why = _play(TARGETS[name], arguments.seed, arguments.seconds, arguments.find)
        seconds = time.monotonic() - begun_s
        rate = f"{played:>12,} inputs {played / seconds:>11,.0f}/s"
        print(f"{name:<17} {rate}  {why or 'none wrong'}", flush=True)
        wrong += bool(why)
    return 1 if wrong else 0


if __name__ == "__main__":
    try:
        raise SystemExit(main())
    finally:
        remove_scratch()
