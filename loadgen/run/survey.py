"""The features of a broker and the cases that it can play, by the check before the load.

Every case is checked at its defaults, in its own version of MQTT or in another that both allow.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Final

from loadgen.brokers.ask import Greeting, greet
from loadgen.brokers.features import QUIET_S, TRIAL_S, Feature, features_of
from loadgen.brokers.process import ServedBroker
from loadgen.brokers.rehearsal import rehearse, version_of
from loadgen.cases.case import Case
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import CannotRunError, ScenarioError
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.scenario import Scenario
from loadgen.run.broker_provider import plan_for
from loadgen.run.preflight import check_host, wanted
from loadgen.run.secrets import take_secrets, with_login, with_secrets

_REACH_S: Final = 5.0
_ANSWERS: Final = 4


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """The result of a case; `runs` is None if the case could not be checked.

    `lacks` are the things that the broker lacks, or the reason why the case could not be checked.
    """

    runs: bool | None
    mqtt: str
    lacks: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """The results for a broker: features and cases by their names in JSON."""

    greeting: Greeting
    version: str
    features: Mapping[str, Feature]
    cases: Mapping[str, CaseAnswer]


async def survey(fields: Mapping[str, Any], broker: ServedBroker) -> Survey:
    """Try all features of a broker, and check it for all cases.

    `fields` are fields of a scenario that say how to connect. Raise the errors of `ask`, and
    ScenarioError for fields that do not fit together.
    """
    first = next(iter(CASES.values()))
    take_secrets(_scenario(first, fields).plain())
    if broker.started_by_us:
        # A case would start the named broker anew, with the settings that the case needs.
        fields = {**fields, "broker": [one.redacted for one in broker.endpoints]}
    broker = with_login(broker, fields)
    scenario = _scenario(first, fields)
    plan = with_secrets(resolve(scenario))
    check_host(plan)
    asking = wanted(await plan_for(plan, broker.endpoints), broker)
    endpoint, context = broker.endpoints[0], asking.tls_context
    greeting = await greet(
        endpoint,
        tls_context=context,
        timeout_s=min(scenario.connect_timeout, _REACH_S),
        versions=(plan.version,) if fields.get("mqtt") else tuple(VERSION_NAMES),
        login=asking.connects[0],
    )
    # On a long way every answer is late.
    quiet_s = QUIET_S + _ANSWERS * greeting.answered_s
    version = f"{broker.name} {broker.version}"
    if not broker.started_by_us:
        version = await version_of(endpoint, greeting.connect(), context)
    features = await features_of(greeting, context, quiet_s)

    async def answer_of(case: Case[Any]) -> CaseAnswer:
        """Check a case at its defaults, if possible in a version that the broker speaks."""
        mqtt = None
        try:
            scenario = _scenario(case, fields)
            spoken = [VERSION_NAMES[version] for version in reversed(greeting.versions)]
            for other in [] if scenario.mqtt in spoken else spoken:
                with suppress(ScenarioError):
                    scenario = _scenario(case, {**fields, "mqtt": other})
                    break
            mqtt = scenario.mqtt
            plan = with_secrets(resolve(scenario))
            asking = wanted(await plan_for(plan, broker.endpoints), broker)
            asking = replace(asking, answer_s=TRIAL_S, return_s=TRIAL_S, quiet_s=quiet_s)
            async with asyncio.timeout(TRIAL_S):
                rehearsed = await rehearse(asking)
        except (CannotRunError, ScenarioError) as error:
            return CaseAnswer(None if mqtt is None else False, mqtt or "", (error.args[0],))
        except TimeoutError:
            return CaseAnswer(False, mqtt or "", (f"no answer within {TRIAL_S:g} s",))
        return CaseAnswer(not rehearsed.lacks, scenario.mqtt, rehearsed.lacks, rehearsed.remarks)

    answers = {name: await answer_of(case) for name, case in CASES.items()}
    return Survey(greeting, version, features, answers)


def _scenario(case: Case[Any], fields: Mapping[str, Any]) -> Scenario:
    known = case.scenario.fields()
    values = {name: value for name, value in fields.items() if name in known}
    return build_scenario(case.name, None, values)
