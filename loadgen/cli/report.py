"""`loadgen report --broker URL ...`: every row at its limit, in one document."""

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadgen.brokers.process import UNKNOWN
from loadgen.brokers.start import serve
from loadgen.cases.registry import CASES, build_scenario
from loadgen.cli import options
from loadgen.cli.app import REPORT_FIELDS
from loadgen.cli.cluster import on_testbed, parsed
from loadgen.cli.result_text import tell
from loadgen.cli.search_view import bracket_line
from loadgen.errors import ScenarioError
from loadgen.plan.fields import option_of, redact_url
from loadgen.plan.sut import read_description
from loadgen.plan.units import parse_seconds
from loadgen.report.build.report_document import report_document
from loadgen.report.power.log import require_readable
from loadgen.report.power.settings import LOG_OPTIONS, LogSettings, log_settings
from loadgen.report.render.write import to_json, write_report
from loadgen.run.preflight import check_scenario
from loadgen.run.progress import Progress, Snapshot, progress_on
from loadgen.run.rundir import directory_or_new
from loadgen.run.search import report_runs
from loadgen.run.search.report_plan import (
    Measurement,
    ReportBroker,
    ReportPlan,
    brokers_of_document,
    chosen_items,
    fields_for,
    report_plan,
    report_scenario,
    split_urls,
)
from loadgen.run.secrets import take_secrets
from loadgen.run.survey import survey
from loadgen.sentences import CLI_TEXT

QUICK_BUDGET = "9m"
_WATCHED = ("broker_pid", "broker_metrics")  # fields that a report has for each broker


def report(flags: options.Flags) -> int:
    brokers = [tuple(text.split(",")) for text in flags["broker"] or ["auto"]]
    fields = {name: flags[name] for name in REPORT_FIELDS if flags[name] is not None}
    if len(set(brokers)) < len(brokers):
        raise ScenarioError(CLI_TEXT.BROKER_TWICE())
    budget_s = _budget_s(flags)
    only = tuple(filter(None, (flags["only"] or "").split(",")))
    suite = flags["suite"] or ""
    chosen_items(only, suite)
    extras = [_of_broker(flags, place, len(brokers)) for place in range(len(brokers))]
    power = {place: logs for place, (_, logs) in enumerate(extras, start=1) if logs is not None}
    take_secrets({**fields, "broker": [url for urls in brokers for url in urls]})
    digest = report_runs.request_digest(brokers, fields, only, budget_s, suite)
    if flags["restart_command"]:
        report_runs.require_command(flags["restart_command"])
    own_fields = [fields_of_broker for fields_of_broker, _ in extras]
    for urls, own in zip(brokers, own_fields, strict=True):
        for same in filter(None, split_urls(urls)):
            given = fields_for(same, {**fields, **own, "broker": same})
            check_scenario(build_scenario(next(iter(CASES)), None, given))
    for logs in power.values():
        require_readable(logs)

    def planned(surveyed: Sequence[ReportBroker]) -> ReportPlan:
        named = [named_by_description(broker) for broker in surveyed]
        return report_plan(named, fields, only=only, budget_s=budget_s, suite=suite)

    if flags["plan"]:
        tell(plan_lines(planned(_surveyed(brokers, fields, own_fields))))
        return 0
    with directory_or_new(flags["out"], "report") as directory:
        document = report_runs.begun_plan(directory, digest)
        plan = planned(
            _surveyed(brokers, fields, own_fields, quiet=flags["quiet"])
            if document is None
            else brokers_of_document(document, brokers, own_fields)
        )
        if not flags["quiet"]:
            tell(plan_lines(plan))
        if not plan.measurements:
            tell(["loadgen: nothing of this plan can be measured; --plan says why"])
            return 1
        with progress_on(sys.stderr, quiet=flags["quiet"]) as progress:
            show = _shown_on(progress)

            async def work(directory: Path, testbed: Any) -> report_runs.ReportResult:
                restart = flags["restart_command"] or ""
                return await report_runs.play_report(
                    plan, directory, testbed, digest, restart_command=restart, watch=show
                )

            scenario = report_scenario(plan, plan.measurements[0])
            result = on_testbed(work, [scenario], "report", {**flags, "out": directory})
    return _written(result, power, flags)


def _budget_s(flags: options.Flags) -> float | None:
    if flags["quick"] and flags["budget"]:
        raise ScenarioError(CLI_TEXT.QUICK_AND_BUDGET())
    text = QUICK_BUDGET if flags["quick"] else flags["budget"]
    if text is None:
        return None
    seconds = parsed("--budget", text, parse_seconds)
    if seconds < 60:
        raise ScenarioError(CLI_TEXT.SHORT_BUDGET(text=text))
    return seconds


def _of_broker(
    flags: options.Flags, place: int, brokers: int
) -> tuple[dict[str, Any], LogSettings | None]:
    """Return the fields and the power logs of one broker; raise ScenarioError."""
    for name in ("sut", "pdu", *_WATCHED):
        count = len(flags[name] or ())
        if count not in (0, brokers):
            raise ScenarioError(CLI_TEXT.ONE_FOR_EACH(name=name, brokers=brokers))
    logs = flags["pdu"][place].split(",") if flags["pdu"] else ()
    settings = log_settings(logs, *(flags[name] for name in LOG_OPTIONS))
    fields = {name: flags[name][place] for name in ("sut", *_WATCHED) if flags[name]}
    if "broker_metrics" in fields:
        fields["broker_metrics"] = fields["broker_metrics"].split(",")
    return fields, settings


def _surveyed(
    brokers: Sequence[Sequence[str]],
    fields: dict[str, Any],
    extras: Sequence[dict[str, Any]],
    *,
    quiet: bool = False,
) -> list[ReportBroker]:
    surveyed: list[ReportBroker] = []
    for urls, extra in zip(brokers, extras, strict=True):
        plain, secured = split_urls(urls)
        if not quiet:
            tell([f"checking {redact_url(urls[0])} ..."])
        answered = asyncio.run(_survey(plain, fields))
        # Mosquitto says "mosquitto version 2.0.11".
        url, name = answered.greeting.endpoint.redacted, answered.version.replace(" version ", " ")
        if name == UNKNOWN:
            name = url
        elif any(name == entry.name for entry in surveyed):
            name = f"{name} {url}"
        surveyed.append(
            ReportBroker(
                name,
                plain,
                secured,
                {case: answer.mqtt for case, answer in answered.cases.items() if answer.runs},
                {
                    # A broker that loadgen starts has another port each time.
                    case: "; ".join(answer.lacks).replace(url, redact_url(urls[0]))
                    or "it does not support this case"
                    for case, answer in answered.cases.items()
                    if answer.runs is False
                },
                extra,
            )
        )
    return surveyed


def named_by_description(broker: ReportBroker) -> ReportBroker:
    """Return a broker that does not report its name with that of its description, if it has one."""
    path = broker.fields.get("sut")
    if path is None or "://" not in broker.name:
        return broker
    try:
        described = read_description(Path(path).read_text("utf-8")).get("broker", {})
    except (OSError, UnicodeDecodeError):
        return broker  # the first run refuses it
    names = (described.get(key) for key in ("vendor_and_model", "version"))
    return replace(broker, name=" ".join(str(part) for part in names if part) or broker.name)


async def _survey(urls: Sequence[str], fields: dict[str, Any]) -> Any:
    async with serve(urls) as served:
        return await survey({**fields_for(urls, fields), "broker": [*urls]}, served)


def plan_lines(plan: ReportPlan) -> list[str]:
    """Return what is measured, for how long, and what is left out and why."""

    def listed_by(measurements: Iterable[Measurement]) -> str:
        return ", ".join(
            plan.brokers[each.broker - 1].name + (" with TLS" if each.secured else "")
            for each in measurements
        )

    lines = []
    for item in dict.fromkeys(each.item for each in plan.measurements):
        its = [each for each in plan.measurements if each.item is item]
        how = f"limit of {option_of(item.search)}" if item.search else "runs"
        by = f" for {item.points} values of {option_of(item.vary[0])}" if item.vary else ""
        minutes = len(its) * item.seconds(plan.window_s) / 60
        lines.append(f"{item.name:<22} {how}{by}; about {minutes:.1f} min on {listed_by(its)}")
    by_reason: dict[str, list[Measurement]] = {}
    for missing in plan.left_out:
        by_reason.setdefault(missing.reason, []).append(missing)
    for reason, its in by_reason.items():
        items = ", ".join(dict.fromkeys(each.item.name for each in its))
        brokers = listed_by({(m.broker, m.secured): m for m in its}.values())
        lines.append(f"left out on {brokers} ({reason}): {items}")
    windows = "" if plan.suite else f", windows of {plan.window_s:g} s"
    return [*lines, f"in all about {plan.seconds / 60:.0f} min{windows}"]


def _shown_on(progress: Progress) -> Callable[[report_runs.ReportState], None]:
    heading = ""

    def show(state: report_runs.ReportState) -> None:
        nonlocal heading
        entry = state.measurement
        title = (
            f"{state.number} of {state.total}: {entry.item.name}, broker {entry.broker}"
            f"{' with TLS' if entry.secured else ''}; about {state.left_s / 60:.0f} min left"
        )
        if state.restarting:
            progress(Snapshot("busy", busy=f"waiting for broker {entry.broker} ..."))
        elif title != heading:
            heading = title
            progress(Snapshot("busy", busy=title))
        elif state.sweep is not None and state.sweep.searching is not None:
            progress(Snapshot("search", busy=bracket_line(state.sweep.searching)))
        elif state.sweep is not None and state.sweep.snapshot is not None:
            progress(state.sweep.snapshot)

    return show


def _written(
    result: report_runs.ReportResult, power: dict[int, LogSettings], flags: options.Flags
) -> int:
    if not result.measured:
        tell([f"loadgen: nothing was measured; see {result.directory}"])
        return 130 if result.interrupted else 1
    report = report_document(result, ("loadgen", *sys.argv[1:]), power)
    paths = write_report(report, result.directory, "report")
    if flags["json_"]:
        print(to_json(report).decode(), end="", flush=True)
    else:
        print(paths["report.html"])
    if result.interrupted:
        again = f"the same command with --out {result.directory} continues"
        tell([f"loadgen: interrupted with {len(result.measured)} measurements; {again}"])
        return 130
    return 0
