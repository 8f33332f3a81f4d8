"""`loadgen calibrate`: what this harness can do on this host."""

import json
import sys
from functools import partial
from typing import Any

from loadgen.cli.options import Flags
from loadgen.errors import CannotRunError
from loadgen.run import environment
from loadgen.run.calibrate import calibrate as measure
from loadgen.run.interrupt import interruptible
from loadgen.run.progress import progress_on
from loadgen.sentences import CLI_TEXT


def calibrate(flags: Flags) -> int:
    key = environment.identity()
    if flags["show"]:
        result = environment.stored_calibration(key)
        if result is None:
            raise CannotRunError(CLI_TEXT.NO_CALIBRATION())
    else:
        descriptors = environment.host_of().descriptors
        with progress_on(sys.stderr, quiet=flags["quiet"]) as progress:
            result = interruptible(partial(measure, key, descriptors, progress=progress))
        environment.store_calibration(result)
    if flags["json_"]:
        print(json.dumps(result, indent=2))
        return 0
    print("\n".join(_lines(result)))
    print(f"stored in {environment.calibration_path(key)}", file=sys.stderr)
    return 0


def _lines(result: dict[str, Any]) -> list[str]:
    connect = result["connect"]
    lines = [
        f"{connect['per_s']:>12,}  connects/s, {connect['cpu_us']:g} µs of processor time each"
    ]
    for way in ("send", "receive"):
        for kind in ("single", "batched"):
            found = result[way][kind]
            lines.append(
                f"{found['per_s']:>12,}  msgs/s {way} {kind}, with a core to itself: "
                f"{found['cpu_us']:g} µs each, measured at {found['rate']:,}/s"
            )
    latency = result["latency"]
    lines += [
        f"{'':>14}{name} µs at {rate:,.0f}/s: " + ", ".join(f"{k} {v:,.1f}" for k, v in us.items())
        for name, rate, us in (
            ("sent to received", latency["rate"], latency["transit_us"]),
            ("intended to received", latency["rate"], latency["end_to_end_us"]),
            ("send delay", latency["rate"], result["send_delay"]["latency_us"]),
        )
    ]
    lines.append(f"{'':>14}measured {result['made']} in {result['seconds']:g} s")
    return lines
