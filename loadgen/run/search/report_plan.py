"""The measurements of `loadgen report`: what is run on which broker, for how long, and what is not.

The items are in `report_items.toml`, the most important first. A measurement is a sweep of one item
on one broker; `report_runs` plays it.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from loadgen.judge.next_step import aim_for, requirements
from loadgen.plan.fields import did_you_mean, redact_url
from loadgen.plan.scenario import Scenario
from loadgen.run.search.search import STEP_S, Search
from loadgen.run.search.sweep import Sweep
from loadgen.sentences import RUN_TEXT, read_table

WINDOWS_S = (30.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.0)
"""Windows of a step, of which a budget gets the longest that fits."""
REPEAT = 3
"""Runs of an item without a search; a search confirms by as many windows."""
_STEPS = 13
_STEP_OVERHEAD_S = 1.5
_SHARE_OF_WINDOW = 0.5
_RUN_OVERHEAD_S = 5.0
"""Costs of a search, from searches on two cores: a step that ends early takes half its window."""
_RUN_WINDOWS = 2
"""Windows of a step that a run without a search lasts."""
_WARMUP_S = 2.0


@dataclass(frozen=True, slots=True)
class ReportRow:
    """A row of the report: the figure of an item that it shows."""

    name: str
    unit: str
    figure: str


@dataclass(frozen=True, slots=True, eq=False)
class ReportItem:
    """One thing to measure; the keys of `report_items.toml`."""

    name: str
    case: str
    search: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    vary: tuple[str, ...] = ()
    best: str = ""
    charts: bool = False
    rows: tuple[ReportRow, ...] = ()

    @property
    def points(self) -> int:
        return max(1, len(self.vary) - 1)

    def seconds(self, window_s: float) -> float:
        """Return the time that the item takes on one broker, about."""
        if not self.search:
            run_s = _RUN_WINDOWS * window_s + _WARMUP_S + _RUN_OVERHEAD_S
            return self.points * REPEAT * run_s
        steps_s = _STEPS * (_SHARE_OF_WINDOW * window_s + _STEP_OVERHEAD_S)
        return self.points * (steps_s + REPEAT * window_s + _RUN_OVERHEAD_S)


@dataclass(frozen=True, slots=True)
class ReportBroker:
    """A broker of a report: its URLs, and the MQTT version of each case that it can play.

    `lacks` has the reason for each case that it cannot. `secured` are its encrypted URLs, `fields`
    those of its scenarios alone.
    """

    name: str
    urls: tuple[str, ...]
    secured: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """An item on one broker, counted from 1; `secured` is its row with TLS."""

    item: ReportItem
    broker: int
    secured: bool = False

    @property
    def title(self) -> str:
        """Name of its rows: FANOUT, FANOUT.SEC."""
        return self.item.case.upper() + (".SEC" if self.secured else "")

    @property
    def folder(self) -> str:
        """Its directory within that of the report."""
        return f"{self.item.name}{'-sec' if self.secured else ''}/broker-{self.broker}"


@dataclass(frozen=True, slots=True)
class LeftOut:
    measurement: Measurement
    reason: str


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """The measurements in the order of their importance; `fields` are those of every scenario."""

    brokers: tuple[ReportBroker, ...]
    measurements: tuple[Measurement, ...]
    left_out: tuple[LeftOut, ...]
    window_s: float
    fields: Mapping[str, Any]
    budget_s: float | None = None

    @property
    def seconds(self) -> float:
        """The time that all measurements take, about."""
        return sum(each.item.seconds(self.window_s) for each in self.measurements)


@cache
def report_items() -> tuple[ReportItem, ...]:
    return tuple(
        ReportItem(
            **{
                **item,
                "vary": tuple(item.get("vary", ())),
                "rows": tuple(ReportRow(*row) for row in item.get("rows", ())),
            }
        )
        for item in read_table("loadgen.run.search", "report_items.toml")["item"]
    )


def chosen_items(only: Sequence[str]) -> tuple[ReportItem, ...]:
    """Return the items of these names or cases, all for none; raise ScenarioError."""
    items = report_items()
    words = tuple(sorted({item.name for item in items} | {item.case for item in items}))
    for name in only:
        if name not in words:
            hint = did_you_mean(name, words)
            raise ScenarioError(RUN_TEXT.UNKNOWN_ITEM(name=name[:60], items=words, hint=hint))
    return tuple(item for item in items if not only or {item.name, item.case} & {*only})


def report_plan(
    brokers: Sequence[ReportBroker],
    fields: Mapping[str, Any],
    *,
    only: Sequence[str] = (),
    budget_s: float | None = None,
) -> ReportPlan:
    """Return the measurements that fit the budget, with the longest window for which all fit.

    Of a budget that is too short for all, the last items are left out. Raise ScenarioError for an
    unknown item.
    """
    possible, left_out = [], []
    for item in chosen_items(only):
        for secured in (False, True):
            for place, broker in enumerate(brokers, start=1):
                if secured and not (broker.secured and item.rows):
                    continue
                measurement = Measurement(item, place, secured)
                reason = broker.lacks.get(item.case) or _contradiction(measurement, broker, fields)
                if reason:
                    left_out.append(LeftOut(measurement, reason))
                else:
                    possible.append(measurement)
    if budget_s is None:
        return ReportPlan(tuple(brokers), tuple(possible), tuple(left_out), STEP_S, fields)

    def needed_s(window_s: float) -> float:
        return sum(each.item.seconds(window_s) for each in possible)

    window_s = next((each for each in WINDOWS_S if needed_s(each) <= budget_s), WINDOWS_S[-1])
    fitting: list[Measurement] = []
    rest_s = budget_s
    # All brokers or none: a figure of one broker alone compares nothing.
    for together in dict.fromkeys((each.item, each.secured) for each in possible):
        members = [each for each in possible if (each.item, each.secured) == together]
        item_s = len(members) * together[0].seconds(window_s)
        if item_s <= rest_s:
            rest_s -= item_s
            fitting += members
        else:
            left_out += [LeftOut(each, "the budget is too short for it") for each in members]
    possible = fitting
    return ReportPlan(tuple(brokers), tuple(possible), tuple(left_out), window_s, fields, budget_s)


def _contradiction(
    measurement: Measurement, broker: ReportBroker, fields: Mapping[str, Any]
) -> str:
    """Return the reason why no scenario can be made of a measurement, "" if one can."""
    try:
        _scenario(measurement, broker, fields, STEP_S)
    except ScenarioError as error:
        return str(error)
    return ""


def report_scenario(plan: ReportPlan, measurement: Measurement) -> Scenario:
    broker = plan.brokers[measurement.broker - 1]
    return _scenario(measurement, broker, plan.fields, plan.window_s)


def _scenario(
    measurement: Measurement, broker: ReportBroker, fields: Mapping[str, Any], window_s: float
) -> Scenario:
    """Return the scenario of a measurement; raise ScenarioError if its fields do not fit."""
    item = measurement.item
    urls = broker.secured if measurement.secured else broker.urls
    values: dict[str, Any] = {"broker": urls, **item.fields, **fields, **broker.fields}
    if not item.search:
        values |= {"duration": math.ceil(_RUN_WINDOWS * window_s), "warmup": _WARMUP_S}
    if version := broker.versions.get(item.case):
        values["mqtt"] = version
    known = build_scenario(item.case, None, {}).fields()
    applying = fields_for(urls, values)
    return build_scenario(
        item.case, None, {name: value for name, value in applying.items() if name in known}
    )


def fields_for(urls: Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that apply to these URLs: those of TLS only to encrypted ones."""
    encrypted = urls[0].partition("://")[0] in ("mqtts", "wss")
    return {name: v for name, v in fields.items() if encrypted or not name.startswith("tls_")}


def sweep_of(measurement: Measurement, plan: ReportPlan) -> Sweep:
    item = measurement.item
    scenario = report_scenario(plan, measurement)

    def searching(varied: Scenario) -> Search:
        aim = aim_for(varied, item.search)
        return Search(varied, aim, requirements(varied, ()), plan.window_s)

    axes = ((item.vary[0], item.vary[1:]),) if item.vary else ()
    if item.search:
        return Sweep(scenario, axes, search=searching)
    return Sweep(scenario, axes, repeat=REPEAT, again=True)


def command_of(measurement: Measurement, plan: ReportPlan) -> str:
    """Return the command that makes a measurement alone, without options of the user."""
    item, broker = measurement.item, plan.brokers[measurement.broker - 1]
    verb = (
        ["sweep", item.case] if item.vary else ["search", item.case] if item.search else [item.case]
    )
    words = ["loadgen", *verb]
    urls = broker.secured if measurement.secured else broker.urls
    words += [word for url in _redacted(urls) for word in ("--broker", url)]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in item.fields.items()]
    if item.vary:
        words.append(f"--set={item.vary[0]}={','.join(item.vary[1:])}")
    if item.search:
        words += [*(["--search"] if item.vary else []), "--for", item.search]
        words.append(f"--step-duration={plan.window_s:g}")
    else:
        scenario = report_scenario(plan, measurement)
        words += [f"--duration={scenario.duration:g}", f"--warmup={scenario.warmup:g}"]
    return shlex.join(words)


def plan_document(plan: ReportPlan) -> dict[str, Any]:
    """Return a plan as JSON values, without passwords, for `plan_of_document`."""
    return {
        "brokers": [
            asdict(each) | {"urls": _redacted(each.urls), "secured": _redacted(each.secured)}
            for each in plan.brokers
        ],
        "measurements": [_plain(each) for each in plan.measurements],
        "left_out": [{**_plain(each.measurement), "reason": each.reason} for each in plan.left_out],
        "window_s": plan.window_s,
        "budget_s": plan.budget_s,
    }


def plan_of_document(
    document: Mapping[str, Any],
    brokers: Sequence[Sequence[str]],
    fields: Mapping[str, Any],
    extras: Sequence[Mapping[str, str]],
) -> ReportPlan:
    """Return the plan of a document.

    URLs, with their passwords, and the fields of each broker are those of the command line.
    """
    items = {item.name: item for item in report_items()}

    def measurement(plain: Mapping[str, Any]) -> Measurement:
        return Measurement(items[plain["item"]], plain["broker"], plain["secured"])

    return ReportPlan(
        brokers=tuple(
            ReportBroker(each["name"], *split_urls(urls), each["versions"], each["lacks"], its)
            for each, urls, its in zip(document["brokers"], brokers, extras, strict=True)
        ),
        measurements=tuple(map(measurement, document["measurements"])),
        left_out=tuple(LeftOut(measurement(each), each["reason"]) for each in document["left_out"]),
        window_s=document["window_s"],
        fields=fields,
        budget_s=document["budget_s"],
    )


def split_urls(urls: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the URLs of a broker, and the encrypted ones if it has others, too."""
    secured = tuple(url for url in urls if url.partition("://")[0] in ("mqtts", "wss"))
    plain = tuple(url for url in urls if url not in secured)
    return (plain, secured) if plain else (secured, ())


def _plain(measurement: Measurement) -> dict[str, Any]:
    return {
        "item": measurement.item.name,
        "broker": measurement.broker,
        "secured": measurement.secured,
    }


def _redacted(urls: Sequence[str]) -> list[str]:
    return [redact_url(url) for url in urls]
