"""The disclosure of a run: comparison with its repetition, and the files that a tool can fill.

Run rules, section 3.4: a repetition is a second measurement of the same length that does not
overlap with the first, with an equal or better result. It is equal if it is valid and its rates are
within the audit's tolerance. Values that only a person can provide are marked FILL IN.
"""

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from loadgen.specjms.audit import TOLERANCE_PERCENT
from loadgen.specjms.chain_model import NOTICE, TRANSACTIONS
from loadgen.specjms.rules import REPETITION

FILL_IN: Final = "FILL IN"
_FILES: Final = (
    "submission/submission.xml",
    "destinationSetup.txt",
    "JMSServerConfig/serverSetup.txt",
)
_FREE: Final = frozenset(
    (
        *("seed", "broker_pid", "broker_metrics", "report_every"),
        *("pdu", "pdu_timezone", "pdu_columns", "pdu_format", "pdu_offset"),
        *("power", "power_command", "wait_quiet"),
    )
)  # that may differ in a repetition: none of them changes the load

_SAME_S: Final = 0.001  # tolerated difference in length of two windows

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """A run's run.json and the document of its case; `sealed` if the run has a valid seal."""

    run: Mapping[str, Any]
    document: Mapping[str, Any]
    sealed: bool = True


def valid(played: FinishedRun) -> bool:
    """Return True if the run was judged VALID and was not interrupted."""
    verdict = played.run.get("verdict") or {}
    return bool(verdict.get("valid")) and not played.run.get("interrupted")


def verdict_of(played: FinishedRun) -> str:
    """Return "VALID", or "INVALID: " and every reason with its code."""
    if valid(played):
        return "VALID"
    verdict = played.run.get("verdict")
    reasons = [(one["code"], one["detail"]) for one in (verdict or {}).get("reasons") or ()]
    if played.run.get("interrupted") and all(code != "INTERRUPTED" for code, _ in reasons):
        reasons.insert(0, ("INTERRUPTED", "the run was stopped before its end"))
    if verdict is None:
        reasons.append(("INTERRUPTED", "the run ended without a verdict"))
    return f"INVALID: {'; '.join(f'{code} ({detail})' for code, detail in reasons)}"


def mismatch(main: FinishedRun, again: FinishedRun) -> str:
    """Return the reasons why the second run does not repeat the first, empty if it does."""
    if main.run.get("id") == again.run.get("id"):
        return "it is the same run"
    asked = [(key, main.document[key], again.document[key]) for key in ("topology", "base")]
    ours, theirs = main.run.get("scenario") or {}, again.run.get("scenario") or {}
    names = sorted((ours.keys() | theirs.keys()) - _FREE)
    asked += [(name, ours.get(name), theirs.get(name)) for name in names]
    ours, theirs = main.run.get("broker") or {}, again.run.get("broker") or {}
    # The address is not compared: a private broker has another port each time.
    names = [n for n in ("name", "version", "protocol") if ours.get(n) and theirs.get(n)]
    asked += [(f"broker's {name}", ours[name], theirs[name]) for name in names]
    other = dict.fromkeys(
        f"its {name.replace('_', ' ')} is {second}, not {first}"
        for name, first, second in asked
        if first != second
    )
    if other:
        more = len(other) - _MOST_NAMED
        return "; ".join([*list(other)[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])
    first_span, second_span = _window(main), _window(again)
    if first_span is None or second_span is None:
        return "run.json of one of them does not say when it was measured"
    first_s, second_s = first_span[1] - first_span[0], second_span[1] - second_span[0]
    if abs(first_s - second_s) > _SAME_S:
        return f"it was measured for {second_s:,.1f} s, not {first_s:,.1f} s"
    if first_span[0] < second_span[1] and second_span[0] < first_span[1]:
        return "their measurement periods overlap"
    return ""


def _window(played: FinishedRun) -> tuple[float, float] | None:
    """Return the measurement period in seconds of the wall clock, comparable across hosts."""
    clock = played.run.get("clock") or {}
    window = (played.run.get("windows") or {}).get("measure")
    if not window or window[1] is None or "wall_ns" not in clock or "monotonic_ns" not in clock:
        return None
    start, end = ((moment - clock["monotonic_ns"] + clock["wall_ns"]) / 1e9 for moment in window)
    return start, end


def shortfalls(main: FinishedRun, again: FinishedRun) -> tuple[str, ...]:
    """Return the figures in which a repetition is worse than the main run."""
    worse = [] if valid(again) else [f"repetition {verdict_of(again)}"]
    for name, first, second in zip(("sent", "received"), _rates(main), _rates(again), strict=True):
        below = -_percent(first, second)
        if below > TOLERANCE_PERCENT:
            worse.append(
                f"the repetition {name} {below:.1f} % less a second than the main run "
                f"(tolerated: {TOLERANCE_PERCENT} %)"
            )
    return tuple(worse)


def comparison(main: FinishedRun, again: FinishedRun) -> str:
    """Compare two runs in a few sentences: rates, difference, verdicts, and the rule of 3.4."""
    (sent, received), (sent_again, received_again) = _rates(main), _rates(again)
    result = "the repetition is equal or better"
    if worse := shortfalls(main, again):
        result = f"the repetition is NOT equal or better: {'; '.join(worse)}"
    if why := mismatch(main, again):
        result = f"the second run does not repeat the first: {why}"
    verdicts = " and ".join("VALID" if valid(one) else "INVALID" for one in (main, again))
    return (
        f"Reproducibility (run rules, section 3.4): main run and repetition sent {sent:,.1f} and "
        f"{sent_again:,.1f} messages/s ({_percent(sent, sent_again):+.2f} %), received "
        f"{received:,.1f} and {received_again:,.1f} ({_percent(received, received_again):+.2f} %); "
        f"they are {verdicts}; {result}."
    )


def _rates(played: FinishedRun) -> tuple[float, float]:
    """Return the messages of all types sent and received per second in the window."""
    window_s = played.document["window_s"] or 1.0
    types = played.document["types"]
    return (
        sum(one["sent"] for one in types) / window_s,
        sum(one["received"] for one in types) / window_s,
    )


def _percent(first: float, second: float) -> float:
    return (second - first) / first * 100 if first else 0.0


def disclosed_files(main: FinishedRun, repeat: FinishedRun | None) -> dict[str, str]:
    """Return the texts of the disclosure, by their names in its archive."""
    from jinja2 import Environment

    values = {
        "run": main.run,
        "supply": main.document,
        **{name: main.run.get(name) or {} for name in ("plan", "broker", "environment")},
        "noncompliance": _noncompliance(main, repeat),
        "notes": [NOTICE, TRANSACTIONS, *_result_lines(main, repeat)],
        "NOTICE": NOTICE,
        "FILL_IN": FILL_IN,
    }
    files: dict[str, str] = {}
    for name in _FILES:
        file = f"disclosure_files/{name.rpartition('/')[2]}.j2"
        template = (pkgutil.get_data("loadgen.specjms", file) or b"").decode()
        environment = Environment(autoescape=name.endswith(".xml"), keep_trailing_newline=True)
        text = environment.from_string(template).render(values)
        # XML 1.0 may not hold some characters.
        files[name] = "".join(
            c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text
        )
    files["ProviderModule/README.txt"] = "No provider module: the harness speaks MQTT itself.\n"
    return files


def _noncompliance(main: FinishedRun, repeat: FinishedRun | None) -> list[str]:
    """Return all reasons against compliance that a tool can determine."""
    broken = [] if valid(main) else [f"main run {verdict_of(main)}"]
    if repeat is not None:
        broken += shortfalls(main, repeat)
    broken += [
        f"the {name} carries no seal, so later changes to it cannot be ruled out"
        for name, finished in (("main run", main), ("repetition", repeat))
        if finished is not None and not finished.sealed
    ]
    broken += [
        rule["rule"] + (" was not judged" if rule["kept"] is None else "")
        for rule in main.document["rules"]
        if rule["kept"] is not True and rule["rule"] != REPETITION
    ]
    audit = main.document["audit"]
    broken += [f"audit test {name}" for name, test in audit.items() if not test["pass"]]
    if repeat is None:
        broken.append("no repetition (3.4)")
    return broken


def _result_lines(main: FinishedRun, repeat: FinishedRun | None) -> list[str]:
    lines = []
    for name, finished in (("main run", main), ("repetition", repeat)):
        if finished is None:
            lines.append(f"{name}: none in this bundle")
            continue
        supply = finished.document
        passed = all(test["pass"] for test in supply["audit"].values())
        lines.append(
            f"{name}: {supply['topology']} topology, BASE {supply['base']}, "
            f"{supply['window_s']:.0f} s measured, audit {'passed' if passed else 'failed'}, "
            f"{verdict_of(finished)}{'' if finished.sealed else ', not sealed'}"
        )
    return lines
