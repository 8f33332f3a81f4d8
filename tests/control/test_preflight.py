"""What is said of a broker that cannot play the case: the setting that it names does avoid it."""

from dataclasses import replace
from typing import Any

import pytest

from loadgen.brokers.endpoints import Endpoint, parse_endpoint
from loadgen.brokers.probe import BrokerFacts
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.control import preflight
from loadgen.control.targets import plan_for
from loadgen.errors import BrokerRefusedError

ENDPOINT = parse_endpoint("mqtt://127.0.0.1:1")
ABLE = BrokerFacts(ENDPOINT, "b 1", (4, 5), 65_535, 2, None, 0, None, True, True, True, True)


async def told(
    monkeypatch: pytest.MonkeyPatch, facts: BrokerFacts, case: str, **fields: Any
) -> str:
    """The refusal, "" for none."""

    async def probe(_endpoint: Endpoint, **_options: Any) -> BrokerFacts:
        return facts

    monkeypatch.setattr("loadgen.brokers.probe.probe", probe)
    workload = resolve(build_scenario(case, None, fields))
    plan = await plan_for(workload, (ENDPOINT,))
    try:
        await preflight._asked(workload, plan, ServedBroker("external", "unknown", (ENDPOINT,)))
    except BrokerRefusedError as error:
        assert "\n" not in str(error)
        return str(error)
    return ""


OLD = replace(ABLE, versions=(4,), maximum_qos=None, shared_subscription_available=None)


@pytest.mark.parametrize(
    ("facts", "case", "fields", "setting", "avoids"),
    [
        (OLD, "fanin", {"mqtt": "5"}, "use --mqtt 3.1.1", {"mqtt": "3.1.1"}),
        (replace(ABLE, versions=(5,)), "fanin", {}, "use --mqtt 5", {"mqtt": "5"}),
        (
            OLD,
            "specjms",
            {"base": 1},
            "use --mqtt 3.1.1 --handlers 1",
            {"mqtt": "3.1.1", "handlers": 1},
        ),
        (
            OLD,
            "specjms",
            {"base": 1, "handlers": 1, "selectors": "client"},
            "use --mqtt 3.1.1 --selectors broker",
            {"mqtt": "3.1.1", "selectors": "broker"},
        ),
        (replace(ABLE, maximum_qos=0), "fanin", {"qos": 1}, "use --qos 0", {"qos": 0}),
        (
            replace(ABLE, maximum_qos=0),
            "specjms",
            {"base": 1},
            'use --messages \'{"all": {"qos": 0}}\'',
            {"messages": '{"all": {"qos": 0}}'},
        ),
        (
            replace(ABLE, maximum_packet_size_bytes=1_000),
            "fanin",
            {"size": 1_000},
            "1,000 bytes at most",
            {"size": 999},
        ),
    ],
)
async def test_the_setting_that_is_named_avoids_the_refusal(
    monkeypatch: pytest.MonkeyPatch,
    facts: BrokerFacts,
    case: str,
    fields: dict[str, Any],
    setting: str,
    avoids: dict[str, Any],
) -> None:
    assert setting in await told(monkeypatch, facts, case, **fields)
    assert await told(monkeypatch, facts, case, **(fields | avoids)) == ""
    assert await told(monkeypatch, ABLE, case, **fields) == ""


async def test_sizes_of_a_supply_chain_are_held_against_the_packet_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = replace(ABLE, maximum_packet_size_bytes=8_192)
    text = await told(monkeypatch, small, "specjms", base=1)
    assert "8,192 bytes at most" in text and "raise the broker's limit" in text


async def test_a_queue_cannot_do_without_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "take another broker" in await told(monkeypatch, OLD, "queue")
