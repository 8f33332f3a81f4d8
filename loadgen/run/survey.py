"""What a broker can do and which cases it can play: the question before the load, for all of them.

Every case is asked for at its defaults, in the version of MQTT that it would use, or in another
that the broker speaks and the case can use.
"""

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import CannotRunError, ScenarioError
from loadgen.mqtt.constants import VERSION_NAMES
from loadgen.plan.case import Case
from loadgen.plan.scenario import Scenario
from loadgen.run.preflight import check_host, wanted
from loadgen.run.secrets import take_secrets, with_login, with_passphrase
from loadgen.run.targets import plan_for

if TYPE_CHECKING:
    from loadgen.brokers.features import Feature
    from loadgen.brokers.probe import Greeting
    from loadgen.brokers.rehearse import Wanted
    from loadgen.brokers.talk import Patience

_REACH_S: Final = 5.0
_ANSWERS: Final = 4


@dataclass(frozen=True, slots=True)
class CaseAnswer:
    """Whether a broker can play a case; `runs` is None where that could not be asked.

    `mqtt` is the version that was asked for, `lacks` what the broker does not give or, where it
    could not be asked, why.
    """

    runs: bool | None
    mqtt: str
    lacks: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """All that was found out about a broker: features and cases by the names that JSON has."""

    greeting: "Greeting"
    version: str
    features: "Mapping[str, Feature]"
    cases: Mapping[str, CaseAnswer]


async def survey(given: Mapping[str, Any], broker: ServedBroker) -> Survey:
    """Ask a broker for everything at once.

    `given` are fields of a scenario that say how to connect.

    Raises what `greet` does, and ScenarioError for fields that do not fit together.
    """
    from loadgen.brokers.features import QUIET_S, TRIALS, trials_of
    from loadgen.brokers.probe import greet, version_of
    from loadgen.brokers.talk import Patience, in_turn

    first = next(iter(CASES.values()))
    take_secrets(_scenario(first, given).plain())
    if broker.started_by_us:
        # By its name a case would have it started with what the case needs beside it.
        given = {**given, "broker": [one.redacted for one in broker.endpoints]}
    broker = with_login(broker, given)
    scenario = _scenario(first, given)
    workload = with_passphrase(resolve(scenario))
    check_host(workload)
    asking = wanted(workload, await plan_for(workload, broker.endpoints), broker)
    endpoint, context = broker.endpoints[0], asking.tls_context
    greeting = await greet(
        endpoint,
        tls_context=context,
        timeout_s=min(scenario.connect_timeout, _REACH_S),
        versions=(workload.version,) if given.get("mqtt") else tuple(VERSION_NAMES),
        login=asking.connects[0],
    )
    # A way that is long makes every answer late.
    patience = Patience(QUIET_S + _ANSWERS * greeting.answered_s)
    # All is prepared before anything is asked, so that no broker waits for this processor.
    cases = {
        case.name: await _prepared(case, given, broker, greeting, patience)
        for case in CASES.values()
    }
    patience.hear()
    work: list[Coroutine[Any, Any, Any]] = [
        version_of(endpoint, greeting.newest, context),
        *trials_of(greeting, context, patience),
        *map(_ask, cases.values()),
    ]
    version, *found = await in_turn(work)
    if version == "unknown" and broker.started_by_us:
        version = f"{broker.name} {broker.version}"
    features = dict(zip(TRIALS, found, strict=False))
    answers = dict(zip(CASES, found[len(TRIALS) :], strict=True))
    return Survey(greeting, version, features, answers)


async def _prepared(
    case: Case[Any],
    given: Mapping[str, Any],
    broker: ServedBroker,
    greeting: "Greeting",
    patience: "Patience",
) -> "CaseAnswer | Wanted":
    """What the broker is to be asked for this case; the answer where that is known already."""
    from loadgen.brokers.features import TRIAL_S

    mqtt = None
    try:
        scenario = _suited(case, given, greeting)
        mqtt = scenario.mqtt
        workload = with_passphrase(resolve(scenario))
        asking = wanted(workload, await plan_for(workload, broker.endpoints), broker)
    except (CannotRunError, ScenarioError) as error:
        return CaseAnswer(None if mqtt is None else False, mqtt or "", (str(error),))
    return replace(asking, answer_s=TRIAL_S, return_s=TRIAL_S, patience=patience, names=False)


async def _ask(case: "CaseAnswer | Wanted") -> CaseAnswer:
    """The question before the load."""
    from loadgen.brokers.features import TRIAL_S
    from loadgen.brokers.rehearse import rehearse

    if isinstance(case, CaseAnswer):
        return case
    mqtt = VERSION_NAMES[case.version]
    try:
        async with asyncio.timeout(TRIAL_S):
            found = await rehearse(case)
    except CannotRunError as error:
        return CaseAnswer(False, mqtt, (str(error),))
    except TimeoutError:
        return CaseAnswer(False, mqtt, (f"no answer within {TRIAL_S:g} s",))
    return CaseAnswer(not found.lacks, mqtt, found.lacks, found.remarks)


def _suited(case: Case[Any], given: Mapping[str, Any], greeting: "Greeting") -> Scenario:
    """The scenario at its defaults in a version that the broker speaks, its own one if it can."""
    own = _scenario(case, given)
    spoken = [VERSION_NAMES[version] for version in reversed(greeting.versions)]
    for mqtt in [] if own.mqtt in spoken else spoken:
        try:
            return _scenario(case, {**given, "mqtt": mqtt})
        except ScenarioError:
            continue
    return own


def _scenario(case: Case[Any], given: Mapping[str, Any]) -> Scenario:
    known = case.scenario.fields()
    return build_scenario(
        case.name, None, {name: value for name, value in given.items() if name in known}
    )
