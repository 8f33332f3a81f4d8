"""Plays fault schedules and compares what each run says with what really happened.

python -m tests.faults --seeds 1-100
python -m tests.faults --seeds 17 --verbose
python -m tests.faults --clean 200
"""

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from loadgen.brokers.certificates import CertificateFiles, make_certificates
from loadgen.cases.registry import BEHAVIOURS
from loadgen.worker.warm import warm
from tests.faults.expected import differences, expected
from tests.faults.play import Played, can_limit, play
from tests.faults.schedules import KINDS, Schedule, draw, draw_kind


def _seeds(text: str) -> list[int]:
    """`1-100`, `7` or `1,5,9-12`."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def _clean(text: str) -> list[int]:
    return _seeds(text if "-" in text or "," in text else f"1-{text}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--seeds", type=_seeds, default=_seeds("1-100"), help="1-100, 7 or 1,5-9")
    parser.add_argument("--only", choices=KINDS, nargs="+", help="only schedules of these kinds")
    parser.add_argument(
        "--clean", type=_clean, metavar="N", help="N runs in which nothing goes wrong instead"
    )
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep what the runs wrote")
    parser.add_argument("--verbose", action="store_true", help="show reasons and ledgers")
    return parser.parse_args()


def _chosen(arguments: argparse.Namespace) -> Iterable[Schedule]:
    if arguments.clean is not None:
        return (draw_kind(seed, "clean") for seed in arguments.clean)
    drawn = map(draw, arguments.seeds)
    return (one for one in drawn if one.kind in (arguments.only or KINDS))


async def _result(
    schedule: Schedule, directory: Path, certificates: CertificateFiles
) -> tuple[Played | None, list[str]]:
    try:
        played = await play(schedule, directory, certificates)
    except Exception as error:
        return None, [f"did not play: {type(error).__name__}: {error}"]
    return played, differences(expected(schedule, played.truth), played.codes, played.ledger)


def _details(schedule: Schedule, played: Played) -> str:
    expectation = expected(schedule, played.truth)
    lines = [f"  fields   {schedule.fields}"]
    lines += [f"  reason   {text}" for text in played.reasons]
    lines.append(f"  required {', '.join(sorted(expectation.required)) or 'nothing'}")
    lines.append(f"  allowed  {', '.join(sorted(expectation.allowed))}")
    counts = Counter({name: len(found) for name, found in played.truth.faults.items()})
    lines.append(f"  faults   {dict(counts)}")
    for scope in ("window", "run"):
        spans, found = getattr(expectation, scope), played.ledger.get(scope, {})
        for name, span in spans.items():
            lines.append(f"  {scope:<8} {name:<18} {found.get(name)!s:>8}   must be {span}")
    return "\n".join(lines)


async def _main(arguments: argparse.Namespace) -> int:
    failed, count = [], 0
    with tempfile.TemporaryDirectory(prefix="faults-") as made:
        root = arguments.keep or Path(made)
        root.mkdir(parents=True, exist_ok=True)
        files = make_certificates(Path(made) / "ca", ["127.0.0.1"], clients=0, key="ecdsa")
        for schedule in _chosen(arguments):
            if schedule.kind == "quota" and not can_limit():
                print(f"{schedule.seed:>4} skipped: no quota can be set here", file=sys.stderr)
                continue
            directory = root / f"{schedule.kind.replace(' ', '-')}-{schedule.seed}"
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            began_s = time.monotonic()
            played, wrong = await _result(schedule, directory, files)
            seconds = time.monotonic() - began_s
            count += 1
            if wrong:
                failed.append(schedule.seed)
            word = "WRONG" if wrong else "right"
            codes = ",".join(played.codes) or "VALID" if played else "-"
            line = f"{schedule.seed:>4} {word} {seconds:5.1f} s  {schedule}  -> {codes}"
            print(line, *wrong, sep="\n       ", flush=True)
            if arguments.verbose and played is not None:
                print(_details(schedule, played), file=sys.stderr, flush=True)
            if arguments.keep is None:
                shutil.rmtree(directory, ignore_errors=True)
    seeds = ",".join(map(str, failed))
    print(f"{count - len(failed)} of {count} right" + (f"; wrong: {seeds}" if failed else ""))
    return 1 if failed else 0


if __name__ == "__main__":
    chosen = _arguments()
    # Compiling takes longer than a run may.
    for behaviour in BEHAVIOURS:
        warm(behaviour)
    raise SystemExit(asyncio.run(_main(chosen)))
