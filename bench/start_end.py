"""Where the time of a run goes that is not its load: start and end, step by step.

    python bench/start_end.py                       five short runs of each case on Mosquitto,
                                                    after one to warm
    python bench/start_end.py --case fanin --tls    of one case, with options of a run

Least of each step over the runs, in seconds of wall time, and of their sum. Steps are told apart by
what the run itself writes: its lines of progress, its events and its files.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from loadgen.cases.registry import CASES

DURATION_S = 2.0
STEPS = (
    "imports, options",
    "broker, question, workers",
    "configure",
    "connect, subscribe",
    "lead",
    "load beyond its length",
    "drain with --settle",
    "stop",
    "verdict, files",
    "score card",
    "end of the process",
)
PROGRAM = "import sys; from loadgen.cli.main import main; main()"


def words_of(case: str) -> list[str]:
    """The command of a case, with the first of its variants where these are commands."""
    variants = CASES[case].variants
    return [case] if variants is None else [case, next(iter(variants.commands))]


def play(case: str, broker: str, extra: list[str]) -> dict[str, float]:
    """One run: seconds that each step took."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        options = ["--duration", f"{DURATION_S:g}", "--warmup", "0s", "--broker", broker]
        program = [sys.executable, "-c", PROGRAM, *words_of(case), *options]
        command = [*program, "--out", str(out), *extra]
        ahead_ns = time.time_ns() - time.monotonic_ns()
        begun_ns = time.monotonic_ns()
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            lines = [(time.monotonic_ns(), line) for line in process.stderr]
        ended_ns = time.monotonic_ns()
        if process.returncode not in (0, 1):
            raise SystemExit(f"{case} ended with status {process.returncode}: {lines[-1][1]}")
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        phases = {one["detail"]: one["time_ns"] for one in events if one["kind"] == "phase"}
        windows = json.loads((out / "run.json").read_text())["windows"]
        load_ns, load_end_ns = windows.get("measure") or windows["hold"]
        ready_ns = windows.get("subscribe", windows["connect"])[1]
        moments = [begun_ns, lines[0][0], phases["configure"], phases["connect"], ready_ns, load_ns]
        after = [load_end_ns, phases.get("drain", phases["stop"]), phases["stop"]]
        sealed_ns = (out / "SHA256SUMS").stat().st_mtime_ns - ahead_ns
        after += [events[-1]["time_ns"], sealed_ns, lines[-1][0], ended_ns]
        pairs = [*itertools.pairwise(moments), *itertools.pairwise(after)]
        return dict(zip(STEPS, ((then - now) / 1e9 for now, then in pairs), strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs, after one that is not counted")
    parser.add_argument("--broker", default="mosquitto", help="as of loadgen (mosquitto)")
    parser.add_argument("--case", action="append", choices=CASES, help="these (all but run)")
    given, extra = parser.parse_known_args()
    # "run" plays the groups of a file: scenarios/run.toml.
    cases = given.case or [case for case in CASES if case != "run"]
    runs: dict[str, list[dict[str, float]]] = {}
    for case in cases:
        play(case, given.broker, extra)
        runs[case] = [play(case, given.broker, extra) for _ in range(given.repeat)]
    print(f"{'least of each, s':<26}" + "".join(f"{case:>11}" for case in cases))
    for step in STEPS:
        least = (min(run[step] for run in runs[case]) for case in cases)
        print(f"{step:<26}" + "".join(f"{value:11.3f}" for value in least))
    sums = [sorted(sum(run.values()) for run in runs[case]) for case in cases]
    print(f"{'together, least':<26}" + "".join(f"{values[0]:11.3f}" for values in sums))
    middle = given.repeat // 2
    print(f"{'together, median':<26}" + "".join(f"{values[middle]:11.3f}" for values in sums))


if __name__ == "__main__":
    main()
