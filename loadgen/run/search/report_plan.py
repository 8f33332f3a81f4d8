"""The measurements of `loadgen report`: what is run on which broker, for how long, and what is not.

The items are in `report_items.toml`, the most important first, or in `suite_NAME.toml` for a public
suite. A measurement is a sweep of one item on one broker; `report_runs` plays it.
"""

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from pydantic import TypeAdapter

from loadgen.cases.registry import CASES, build_scenario
from loadgen.errors import ScenarioError
from loadgen.judge.next_step import aim_for, requirements
from loadgen.judge.published import Conditions
from loadgen.plan.fields import did_you_mean, redact_url
from loadgen.plan.scenario import Scenario, read_toml
from loadgen.plan.units import parse_seconds
from loadgen.run.search.search import STEP_S, Search
from loadgen.run.search.sweep import Sweep
from loadgen.run.tuning import shipped
from loadgen.sentences import RUN_TEXT, read_table

WINDOWS_S = (900.0, 300.0, 120.0, 60.0, 30.0, 20.0, 10.0, 5.0, 3.0, 2.0, 1.0)
"""Windows of a step, of which a budget gets the longest that fits."""
REPEAT = 3  # runs of an item without a search; a search confirms by as many windows
_STEPS, _WHOLE_STEPS = 12, 9
_STEP_OVERHEAD_S = 2.1
_SHARE_OF_WINDOW = 0.5
_RUN_OVERHEAD_S = 5.0
"""The costs here were measured on two cores. A step that ends early takes half of its window."""
_RUN_WINDOWS = 2  # windows of a step that a run without a search lasts
_WARMUP_S = 2.0
_OF_THE_USER = ("case", "broker", "source_address", "hosts")
_CONDITIONS = TypeAdapter(Conditions)


@dataclass(frozen=True, slots=True)
class ReportRow:
    name: str
    unit: str
    figure: str


@dataclass(frozen=True, slots=True, eq=False)
class ReportItem:
    """One thing to measure; the keys of `report_items.toml`.

    An item of a `suite` has the fields of a shipped `scenario`, which it runs once and as long as
    that says. `published` has the figures of other brokers by their names, measured under these
    `conditions`.
    """

    name: str
    case: str
    search: str = ""
    fields: Mapping[str, object] = field(default_factory=dict)
    vary: tuple[str, ...] = ()
    best: str = ""
    charts: bool = False
    rows: tuple[ReportRow, ...] = ()
    suite: str = ""
    scenario: str = ""
    published: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    conditions: Conditions | None = None

    @property
    def repeat(self) -> int:
        return 1 if self.scenario else REPEAT

    def duration_s(self, window_s: float) -> float:
        """Return the length of a run without a search."""
        windows_s = _RUN_WINDOWS * window_s
        duration = self.fields.get("duration")
        return windows_s if duration is None else min(windows_s, parse_seconds(duration))

    @property
    def points(self) -> int:
        return max(1, len(self.vary) - 1)

    def seconds(self, window_s: float) -> float:
        """Return the approximate time that the item takes on one broker."""
        if not self.search:
            run_s = self.duration_s(window_s) + _WARMUP_S + _RUN_OVERHEAD_S
            return self.points * self.repeat * run_s
        # The steps of the other cases end early.
        is_whole = bool(CASES[self.case].disclosure)
        steps, share = (_WHOLE_STEPS, 1.0) if is_whole else (_STEPS, _SHARE_OF_WINDOW)
        steps_s = steps * (share * window_s + _STEP_OVERHEAD_S)
        return self.points * (steps_s + REPEAT * window_s + _RUN_OVERHEAD_S)


@dataclass(frozen=True, slots=True)
class ReportBroker:
    """A broker of a report: its URLs, and the MQTT version of each case that it can play.

    `lacks` has the reason for each case that it cannot. `secured` are its encrypted URLs, `fields`
    are for its scenarios only.
    """

    name: str
    urls: tuple[str, ...]
    secured: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Measurement:
    """An item on one broker, counted from 1; `secured` is its row with TLS."""

    item: ReportItem
    broker: int
    secured: bool = False
    reason: str = ""  # the reason why it is left out

    @property
    def title(self) -> str:
        """Name of its rows: FANOUT, FANOUT.SEC."""
        return (self.item.name if self.item.scenario else self.item.case.upper()) + self._secured

    @property
    def name(self) -> str:
        return self.item.name + self._secured

    @property
    def _secured(self) -> str:
        return ".SEC" if self.secured else ""

    @property
    def folder(self) -> str:
        return f"{self.item.name}{'-sec' if self.secured else ''}/broker-{self.broker}"


@dataclass(frozen=True, slots=True)
class ReportPlan:
    """The measurements in the order of their importance; `fields` are those of every scenario."""

    brokers: tuple[ReportBroker, ...]
    measurements: tuple[Measurement, ...]
    left_out: tuple[Measurement, ...]
    window_s: float
    fields: Mapping[str, Any]
    budget_s: float | None = None
    suite: str = ""

    @property
    def seconds(self) -> float:
        """The time that all measurements take, about."""
        return sum(each.item.seconds(self.window_s) for each in self.measurements)


SUITES = ("mqttbs",)


@cache
def report_items(suite: str = "") -> tuple[ReportItem, ...]:
    """Return the items of a report, or of a suite; raise ScenarioError for an unknown suite."""
    if suite and suite not in SUITES:
        raise ScenarioError(RUN_TEXT.UNKNOWN_SUITE(name=suite[:60], known=SUITES))
    file = f"suite_{suite}.toml" if suite else "report_items.toml"
    table = read_table("loadgen.run.search", file)
    return tuple(_item(keys, table.get("suite", "")) for keys in table["item"])


def _item(keys: Mapping[str, Any], suite: str) -> ReportItem:
    made = {
        **keys,
        "suite": suite,
        "vary": tuple(keys.get("vary", ())),
        "rows": tuple(ReportRow(*row) for row in keys.get("rows", ())),
    }
    if "scenario" in keys:
        file = shipped("scenarios") / keys["scenario"]
        fields = read_toml(file.read_text("utf-8"), file.name)
        # The addresses of a file are those of documentation.
        made["fields"] = {k: v for k, v in fields.items() if k not in _OF_THE_USER}
        made["case"] = fields["case"]
        made["conditions"] = _CONDITIONS.validate_python(keys["conditions"])
    return ReportItem(**made)


def chosen_items(only: Sequence[str], suite: str = "") -> tuple[ReportItem, ...]:
    """Return the items of these names or cases, or all if none is named; raise ScenarioError."""
    items = report_items(suite)
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
    suite: str = "",
) -> ReportPlan:
    """Return the measurements that fit the budget, with the longest window for which all fit.

    Of a budget that is too short for all, the last items are left out. Raise ScenarioError for an
    unknown item.
    """
    plan = ReportPlan(tuple(brokers), (), (), STEP_S, fields, budget_s, suite)
    possible: list[Measurement] = []
    left_out: list[Measurement] = []
    for item in chosen_items(only, suite):
        for secured in (False, True):
            for place, broker in enumerate(brokers, start=1):
                if secured and not (broker.secured and item.rows):
                    continue
                measurement = Measurement(item, place, secured)
                reason = broker.lacks.get(item.case, "")
                try:
                    report_scenario(plan, measurement)
                except ScenarioError as error:
                    reason = reason or str(error)
                (left_out if reason else possible).append(replace(measurement, reason=reason))
    window_s, fitting = math.inf if suite else STEP_S, possible
    if budget_s is not None:

        def needed_s(window_s: float) -> float:
            return sum(each.item.seconds(window_s) for each in possible)

        window_s = next((each for each in WINDOWS_S if needed_s(each) <= budget_s), WINDOWS_S[-1])
        fitting = []
        rest_s = budget_s
        # All brokers or none: a figure of one broker alone compares nothing.
        for together in dict.fromkeys((each.item, each.secured) for each in possible):
            members = [each for each in possible if (each.item, each.secured) == together]
            item_s = len(members) * together[0].seconds(window_s)
            if item_s <= rest_s:
                rest_s -= item_s
                fitting += members
            else:
                reason = "the budget is too short"
                left_out += [replace(each, reason=reason) for each in members]
    return replace(plan, measurements=tuple(fitting), left_out=tuple(left_out), window_s=window_s)


def report_scenario(plan: ReportPlan, measurement: Measurement) -> Scenario:
    """Return the scenario of a measurement; raise ScenarioError if its fields do not fit."""
    item, broker = measurement.item, plan.brokers[measurement.broker - 1]
    urls = broker.secured if measurement.secured else broker.urls
    values: dict[str, Any] = {"broker": urls, **item.fields, **plan.fields, **broker.fields}
    if not item.search:
        values |= {"duration": item.duration_s(plan.window_s), "warmup": _WARMUP_S}
    if "mqtt" in item.fields:
        values["mqtt"] = item.fields["mqtt"]
    elif version := broker.versions.get(item.case):
        values["mqtt"] = version
    known = build_scenario(item.case, None, {}).fields()
    applying = fields_for(urls, values).items()
    return build_scenario(item.case, None, {name: v for name, v in applying if name in known})


def fields_for(urls: Sequence[str], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that apply to these URLs: those of TLS only to encrypted ones."""
    encrypted = urls[0].partition("://")[0] in ("mqtts", "wss")
    return {name: v for name, v in fields.items() if encrypted or not name.startswith("tls_")}


def sweep_of(measurement: Measurement, plan: ReportPlan, limit_s: float | None = None) -> Sweep:
    """Return the runs or searches of a measurement, which take about `limit_s` together."""
    item = measurement.item
    each_s = None if limit_s is None else limit_s / item.points
    scenario = report_scenario(plan, measurement)

    def searching(varied: Scenario) -> Search:
        aim = aim_for(varied, item.search)
        return Search(varied, aim, requirements(varied, ()), plan.window_s, each_s)

    axes = ((item.vary[0], item.vary[1:]),) if item.vary else ()
    if item.search:
        return Sweep(scenario, axes, search=searching)
    limit_s = math.inf if limit_s is None else limit_s
    return Sweep(scenario, axes, repeat=item.repeat, again=True, limit_s=limit_s)


def command_of(measurement: Measurement, plan: ReportPlan) -> str:
    """Return the command that makes a measurement alone, without options of the user."""
    item, broker = measurement.item, plan.brokers[measurement.broker - 1]
    kind = "sweep" if item.vary else "search" if item.search else ""
    verb = ["run", f"scenarios/{item.scenario}"] if item.scenario else [kind, item.case]
    words = ["loadgen", *filter(None, verb)]
    urls = broker.secured if measurement.secured else broker.urls
    words += [word for url in urls for word in ("--broker", redact_url(url))]
    fields = {} if item.scenario else item.fields
    words += [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
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
    """Return what was found at the brokers as JSON values without passwords."""
    keys = ("name", "versions", "lacks")
    return {"brokers": [{key: getattr(each, key) for key in keys} for each in plan.brokers]}


def brokers_of_document(
    document: Mapping[str, Any],
    brokers: Sequence[Sequence[str]],
    extras: Sequence[Mapping[str, Any]],
) -> list[ReportBroker]:
    """Return the brokers of a document, with the URLs and fields of the command line."""
    return [
        ReportBroker(each["name"], *split_urls(urls), each["versions"], each["lacks"], its)
        for each, urls, its in zip(document["brokers"], brokers, extras, strict=True)
    ]


def split_urls(urls: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the URLs of a broker, and the encrypted ones if it has others, too."""
    secured = tuple(url for url in urls if url.partition("://")[0] in ("mqtts", "wss"))
    plain = tuple(url for url in urls if url not in secured)
    return (plain, secured) if plain else (secured, ())
