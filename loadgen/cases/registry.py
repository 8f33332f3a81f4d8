"""All cases by name, found as `CASE` in the modules of this package, and their scenarios."""

import importlib
import pkgutil
import textwrap
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import loadgen.cases
from loadgen.cases.case import Case, ChartStyle
from loadgen.errors import ScenarioError
from loadgen.plan.fields import did_you_mean, option_of
from loadgen.plan.plan import Plan
from loadgen.plan.removed import removal
from loadgen.plan.scenario import Scenario
from loadgen.plan.units import shown
from loadgen.sentences import CASE_TEXT, PLAN_TEXT

RENAMED: Mapping[str, str] = MappingProxyType({"inflight_window": "max_unacknowledged"})
"""Earlier names of fields and their present names; the earlier ones are read until version 1.0."""

_KNOWN_CHARACTERS = 400


def _load_cases() -> dict[str, Case[Any]]:
    modules = {module.name for module in pkgutil.iter_modules(loadgen.cases.__path__)}
    names = modules - {"case", "registry"}
    cases = [importlib.import_module(f"loadgen.cases.{name}").CASE for name in names]
    return {case.name: case for case in sorted(cases, key=lambda case: case.place)}


CASES: Mapping[str, Case[Any]] = MappingProxyType(_load_cases())
"""Every case, in the order of help texts and tables."""


DOCUMENTS = tuple(case.document for case in CASES.values() if case.document)
"""Files that some cases write next to run.json."""

BEHAVIOURS = tuple(dict.fromkeys(case.behaviour for case in CASES.values()))
"""Every module with a behaviour of devices, without repetitions."""


def case_of(name: str) -> Case[Any]:
    if name not in CASES:
        known = tuple(CASES)
        raise ScenarioError(
            CASE_TEXT.UNKNOWN_CASE(
                name=shown(name), known=tuple(known), hint=did_you_mean(name, known)
            )
        )
    return CASES[name]


def style_of(name: str) -> ChartStyle:
    """Return the chart style of a case; the default style for an unknown name."""
    return CASES[name].charts if name in CASES else ChartStyle()


def resolve(scenario: Scenario) -> Plan:
    """Return the plan of a scenario before host and broker are known; raises ScenarioError."""
    case = CASES[scenario.case]
    return replace(case.plan(scenario, case.groups(scenario)), behaviour=case.behaviour)


def build_scenario(
    name: str, file: Mapping[str, object] | None, flags: Mapping[str, object]
) -> Scenario:
    """Build the scenario of a case; flags override the keys of a file, and those the defaults.

    Keys may be written with `-` or `_`. A flag of None was not given. Raises ScenarioError.
    """
    case = case_of(name)
    named = _underscored(file or {})
    given = _underscored({key: value for key, value in flags.items() if value is not None})
    for keys in (named, given):
        if (other := keys.pop("case", name)) != name:
            raise ScenarioError(CASE_TEXT.OTHER_CASE(case=case_of(str(other)).name))
    values = {**named, **given}
    fields = case.scenario.fields()
    for key in (key for key in values if key not in fields):
        raise ScenarioError(_not_understood(case, key))
    scenario: Scenario = case.scenario.of_options(values)
    return scenario


def require_groups(scenario: Scenario) -> None:
    """Raise an error if a user did not describe the groups of a case that needs this."""
    case = CASES[scenario.case]
    if case.takes_file and "group" not in scenario.model_fields_set:
        raise ScenarioError(CASE_TEXT.NO_GROUPS(case=case.name, example=case.example))


def vary(scenario: Scenario, changes: Mapping[str, object]) -> Scenario:
    """Return the scenario with changed fields, None for their defaults; raise ScenarioError."""
    given = {name: getattr(scenario, name) for name in scenario.model_fields_set if name != "case"}
    return build_scenario(scenario.case, given | dict(changes), {})


def _underscored(keys: Mapping[str, object]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in keys.items():
        written = key.replace("-", "_")
        name = RENAMED.get(written, written)
        if name in values:
            also = f"as {written}" if name != written else "once with - and once with _"
            raise ScenarioError(CASE_TEXT.TWICE(key=shown(name), ways=also))
        values[name] = value
    return values


def _not_understood(case: Case[Any], name: str) -> str:
    if removed := removal(name, "field"):
        return PLAN_TEXT.REMOVED(name=name, removed=removed)
    owners = [other.name for other in CASES.values() if name in other.scenario.fields()]
    if owners:
        return PLAN_TEXT.NOT_OF_CASE(option=option_of(name), case=case.name, owners=tuple(owners))
    known = tuple(case.scenario.fields())
    listing = textwrap.shorten(", ".join(known), _KNOWN_CHARACTERS, placeholder=" ... (see --help)")
    hint = did_you_mean(name, known) or f"; {case.name} has {listing}"
    return PLAN_TEXT.UNKNOWN_KEY(key=shown(name), hint=hint)
