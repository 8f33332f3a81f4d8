"""Where the time of a run goes that is not its load: start and end, step by step.

    python bench/start_end.py                       five short runs on Mosquitto, after one to warm
    python bench/start_end.py --broker reflector    on another broker

Least and median of each step over the runs, in seconds of wall time. Steps are told apart by what
the run itself writes: its lines of progress, its events and its files.
"""

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DURATION_S = 2.0
STEPS = (
    "imports, options",
    "broker, question, workers",
    "configure",
    "connect, subscribe",
    "lead",
    "window beyond its length",
    "drain with --settle",
    "stop",
    "verdict, files",
    "score card",
    "end of the process",
)


def play(broker: str, extra: list[str]) -> dict[str, float]:
    """One run: seconds that each step took."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        command = [
            *(sys.executable, "-m", "loadgen.cli.main", "fanin", "--devices", "100"),
            *("--duration", f"{DURATION_S:g}", "--warmup", "0s", "--broker", broker),
            *("--out", str(out), *extra),
        ]
        program = "import sys; from loadgen.cli.main import main; main()"
        command[1:3] = ["-c", program]
        ahead_ns = time.time_ns() - time.monotonic_ns()
        moments = [time.monotonic_ns()]
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            first, last = 0, 0
            for _ in process.stderr:
                last = time.monotonic_ns()
                first = first or last
        ended_ns = time.monotonic_ns()
        if process.returncode not in (0, 1):
            raise SystemExit(f"the run ended with status {process.returncode}")
        events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
        phases = {one["detail"]: one["time_ns"] for one in events if one["kind"] == "phase"}
        windows = json.loads((out / "run.json").read_text())["windows"]
        sealed_ns = (out / "SHA256SUMS").stat().st_mtime_ns - ahead_ns
        moments += [first, phases["configure"], phases["connect"]]
        moments += [windows["subscribe"][1], windows["measure"][0]]
        moments += [phases["drain"] - int(DURATION_S * 1e9), phases["stop"] - int(DURATION_S * 1e9)]
        took = [(then - now) / 1e9 for now, then in itertools.pairwise(moments)]
        rest = [phases["stop"], events[-1]["time_ns"], sealed_ns, last, ended_ns]
        took += [(then - now) / 1e9 for now, then in itertools.pairwise(rest)]
        return dict(zip(STEPS, took, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs, after one that is not counted")
    parser.add_argument("--broker", default="mosquitto", help="as of loadgen (mosquitto)")
    given, extra = parser.parse_known_args()
    play(given.broker, extra)
    runs = [play(given.broker, extra) for _ in range(given.repeat)]
    print(f"{'step':<28} {'least':>8} {'median':>8}  s")
    for step in STEPS:
        took = [run[step] for run in runs]
        print(f"{step:<28} {min(took):8.3f} {statistics.median(took):8.3f}")
    sums = [sum(run.values()) for run in runs]
    print(f"{'together':<28} {min(sums):8.3f} {statistics.median(sums):8.3f}")


if __name__ == "__main__":
    main()
