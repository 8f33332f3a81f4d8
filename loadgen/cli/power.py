"""`loadgen power LOG...`: what power logs say, before a run or after it."""

import json
from collections.abc import Iterator

from loadgen.cli.options import Flags
from loadgen.cli.result_text import aligned
from loadgen.report.power.power import Overview, overview, verdict_on
from loadgen.report.power.settings import LOG_OPTIONS, log_settings
from loadgen.sentences import percent


def show(flags: Flags) -> int:
    settings = log_settings(flags["logs"], *(flags[name] for name in LOG_OPTIONS))
    assert settings is not None, "the command requires a log"
    shown = overview(settings, flags["from_"], flags["to"])
    withheld, remark = verdict_on(shown.outlets)
    if flags["json_"]:
        document = {
            "watts": None if withheld else shown.watts,
            "withheld": withheld,
            "remark": remark,
            "outlets": [
                {"log": o.log, "outlet": o.outlet, "watts": o.watts, "samples": o.samples}
                for o in shown.outlets
            ],
            "unused": [
                {"log": log, "column": column, "reason": reason}
                for log, samples in shown.logs
                for column, reason, _ in samples.unused
            ],
        }
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        print(*_lines(shown), sep="\n")
        print(f"all outlets: {'withheld' if withheld else f'{shown.watts:,.2f} W'}")
        if remark:
            print(remark)
    return 0


def _lines(shown: Overview) -> Iterator[str]:
    for log, samples in shown.logs:
        yield f"{log}: {samples.format.name or 'titles with units'}"
        yield f"  used: {', '.join(samples.used)}"
        if samples.unused:
            unused = (f"{column} ({why})" for column, why, _ in samples.unused)
            yield f"  not used: {', '.join(unused)}"
    header = ("outlet", "mean W", "samples", "covered", "gaps", "longest s", "step W", "kWh")
    rows = [
        (
            outlet.name,
            f"{outlet.watts:,.2f}",
            str(outlet.samples),
            percent(outlet.coverage),
            str(len(outlet.gaps)),
            f"{max(outlet.gaps, default=0):.6g}",
            f"{outlet.step:.3g}",
            ""
            if outlet.energy is None
            else f"{outlet.energy.counter_kwh:.4g}, {outlet.energy.result}",
        )
        for outlet in shown.outlets
    ]
    yield from aligned([header, *rows], left=(0,))
    yield f"window: {shown.window}"
