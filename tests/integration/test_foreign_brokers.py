"""Brokers of other makers, asked and played against as a user would."""

import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from bench import foreign as foreign_brokers
from bench.foreign import MAKES, Foreign, Make, Place, Start, run_foreign
from loadgen.api import run_async, scenario
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import CASES, build_scenario, resolve
from loadgen.errors import BrokerRefusedError, CannotRunError, ScenarioError
from loadgen.run.broker_provider import plan_for
from loadgen.run.preflight import check_broker
from loadgen.run.survey import Survey, survey
from loadgen.sentences import Text
from tests.instruments.relay import run_relay
from tests.needs import needs_ipv6
from tests.verdicts import faults

NEEDS_5 = ("queue", "specjms")
"""Cases that share subscriptions."""
OUTSIDE = "bridge"
"""Needs brokers behind the one that is asked."""


@dataclass(frozen=True)
class Known:
    """What is known of a make from its documentation, or from the protocol as it was seen."""

    mqtt: tuple[int, ...]
    maximum_qos: int = 2
    shares: bool = False


KNOWN = {
    "mosquitto": Known((3, 4, 5), shares=True),
    "nats": Known((4,)),
    "nats-tls": Known((4,)),
    "aedes": Known((3, 4)),
    "rabbitmq": Known((3, 4), 1),
    "ejabberd": Known((4, 5)),
    "activemq": Known((3, 4)),
}
NAMES = [
    pytest.param(
        name, marks=pytest.mark.skipif(make.find() is None, reason=f"{name} is not installed")
    )
    for name, make in MAKES.items()
]


SILENT: dict[tuple[str, str], str] = {}
"""Why an installed broker could not be used at an address: nothing waits for it twice."""


@asynccontextmanager
async def foreign_or_skip(name: str, host: str = "127.0.0.1") -> AsyncIterator[Foreign]:
    async with AsyncExitStack() as stack:
        if (name, host) not in SILENT:
            try:
                broker = await stack.enter_async_context(run_foreign(name, host))
            except CannotRunError as error:
                SILENT[name, host] = str(error)
        if (name, host) in SILENT:
            pytest.skip(SILENT[name, host])
        yield broker


@pytest.fixture
async def foreign(request: pytest.FixtureRequest) -> AsyncIterator[Foreign]:
    async with foreign_or_skip(request.param) as broker:
        yield broker


@pytest.mark.parametrize(
    "program",
    [
        "import socket, sys, time; s = socket.create_server(('127.0.0.1', int(sys.argv[1])));"
        " time.sleep(60)",
        "raise SystemExit('no')",
    ],
)
async def test_a_broker_that_is_installed_and_does_not_answer_is_skipped(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(python: str, place: Place) -> Start:
        return Start((python, "-c", program, str(place.ports["mqtt"])))

    monkeypatch.setitem(MAKES, "silent", Make(lambda: sys.executable, start, ("mqtt",)))
    monkeypatch.setattr(foreign_brokers, "_ANSWER_S", 0.2)
    with pytest.raises(pytest.skip.Exception):
        async with foreign_or_skip("silent"):
            pass
    assert SILENT.pop(("silent", "127.0.0.1"))


def url_of(endpoint: Endpoint) -> str:
    login = ""
    if endpoint.username:
        login = f"{endpoint.username.replace('@', '%40')}:{endpoint.password}@"
    return f"{endpoint.scheme}://{login}{endpoint.address}{endpoint.path}"


def trust(broker: Foreign, endpoint: Endpoint) -> dict[str, Any]:
    return {"tls_ca": str(broker.authority)} if endpoint.tls else {}


async def surveyed(broker: Foreign, endpoint: Endpoint) -> Survey:
    given = {"broker": [url_of(endpoint)], **trust(broker, endpoint)}
    return await survey(given, ServedBroker.at((endpoint,)))


async def refused(*endpoints: Endpoint, case: str = "fanin", **fields: object) -> Text:
    """The one line that a run ends with before its load; "" where it would begin."""
    text = Text()
    urls = [url_of(endpoint) for endpoint in endpoints]
    try:
        plan = resolve(build_scenario(case, None, {"broker": urls, **fields}))
        served = ServedBroker.at(endpoints)
        await check_broker(await plan_for(plan, endpoints), served)
    except (BrokerRefusedError, ScenarioError) as error:
        lack = error.values.get("what", error.args[0])
        text = lack if isinstance(lack, Text) else Text(lack)
    return text


@pytest.mark.parametrize("foreign", NAMES, indirect=True)
async def test_what_it_can_do_and_play(foreign: Foreign) -> None:
    known = KNOWN[foreign.name]
    found = await surveyed(foreign, foreign.endpoints[0])
    assert found.greeting.versions == known.mqtt
    features = {name: feature.value for name, feature in found.features.items()}
    assert features["maximum_qos"] == known.maximum_qos
    assert features["shared_subscription_available"] is known.shares
    for name in ("retain", "wildcard_subscription", "session", "will"):
        assert features[f"{name}_available"] is True, name
    assert features["payload_bytes"] == 256 << 10
    assert (features["receive_maximum"] is None) == (5 not in known.mqtt)
    lacking = {name for name, answer in found.cases.items() if not answer.runs} - {OUTSIDE}
    assert lacking == set(() if known.shares else NEEDS_5)
    assert all(answer.lacks for name, answer in found.cases.items() if name in lacking)


@pytest.mark.parametrize("foreign", NAMES, indirect=True)
async def test_every_way_in(foreign: Foreign) -> None:
    for endpoint in foreign.endpoints:
        assert await refused(endpoint, **trust(foreign, endpoint)) == "", endpoint.scheme


@pytest.mark.parametrize("foreign", NAMES, indirect=True)
async def test_what_it_lacks_is_one_line_before_the_load(foreign: Foreign) -> None:
    known, endpoint = KNOWN[foreign.name], foreign.endpoints[0]
    fields = trust(foreign, endpoint)
    text = await refused(endpoint, qos=2, **fields)
    if known.maximum_qos == 2:
        assert not text
    else:
        assert (text.code, text.values["granted"]) == ("QOS_GRANTED", 1)
    for case in CASES:
        text = await refused(endpoint, case=case, mqtt="5", **fields)
        if 5 not in known.mqtt and case != OUTSIDE:
            assert text.code == "OTHER_VERSION", case
    if 5 in known.mqtt and not known.shares:
        assert (await refused(endpoint, case="queue", **fields)).code == "NO_SHARED_STATED"


@needs_ipv6
@pytest.mark.parametrize("name", NAMES)
async def test_a_run_over_ipv6_from_the_url_to_the_score_card(name: str, tmp_path: Path) -> None:
    async with foreign_or_skip(name, "::1") as broker:
        endpoint = broker.endpoints[0]
        assert endpoint.address.startswith("[::1]:")
        assert (await surveyed(broker, endpoint)).greeting.versions == KNOWN[name].mqtt
        chosen = scenario(
            "fanout",
            broker=url_of(endpoint),
            topics=2,
            ratio=2,
            rate=100,
            qos=1,
            duration=1,
            warmup=0.3,
            settle=0.2,
            **trust(broker, endpoint),
        )
        result = await run_async(chosen, tmp_path / "run")
    assert not faults(result.reasons)
    assert result.counts.received == result.counts.expected > 0
    assert f"{endpoint.address}" in json.dumps(dict(result.card.run.scenario))


@pytest.mark.parametrize(
    "foreign", [one for one in NAMES if one.values[0] != "nats-tls"], indirect=True
)
async def test_behind_a_relay_that_closes_every_tenth_connection(
    foreign: Foreign, tmp_path: Path
) -> None:
    async with run_relay(foreign.endpoints[0]) as relay:
        login = foreign.endpoints[0]
        endpoint = replace(login, port=relay.endpoints[0].port)
        assert await refused(endpoint, case="connburst") == ""
        await relay.set_faults("close=1/10")
        chosen = scenario("connburst", broker=url_of(endpoint), devices=40, duration=1, anyway=True)
        result = await run_async(chosen, tmp_path / "run")
    assert result.reasons[0].code == "CONNECT_FAILED"
    assert "of 40 devices connected" in result.reasons[0].detail
    assert "closed before CONNACK; has the broker reached a limit?" in result.reasons[0].detail
    assert len(faults(result.reasons)) == 1
