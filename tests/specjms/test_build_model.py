"""The changes that a scenario may make in each topology."""

from typing import Any

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from loadgen.specjms.build_model import changed_options, model_of
from loadgen.specjms.messages import MESSAGES, number_of
from loadgen.specjms.scenario import SupplyChain
from loadgen.specjms.topology import Locations
from tests.specjms.models import model_with
from tests.specjms.test_messages import ARTICLE

ORDER, CALL = number_of("order"), number_of("callForOffers")


def test_defaults_are_those_of_the_message_table() -> None:
    model = model_with()
    for message, options in zip(MESSAGES, model.messages, strict=True):
        assert options.qos == int(message.persistent)
        # Column D is of topics; what is persistent waits in queues, too.
        assert options.durable == (message.durable or message.persistent)
        assert options.transacted == message.transacted
        assert options.queue == (not message.pubsub)
        assert options.handlers == (1 if message.pubsub else 2)
    assert changed_options(model) == ()


@pytest.mark.parametrize("topology", ["horizontal", "vertical"])
@pytest.mark.parametrize("override", ARTICLE["fixed"])
def test_controlled_topologies_refuse_what_the_rules_fix(
    topology: Any, override: dict[str, Any]
) -> None:
    with pytest.raises(ScenarioError, check=lambda error: "ONLY_FREEFORM" in error.code) as error:
        model_with(topology=topology, **override)
    assert "\n" not in str(error.value)
    model_with(topology="freeform", **override)


def test_controlled_topologies_allow_agents_handlers_drivers_and_connections() -> None:
    model = model_with(
        base=10,
        agents={"DC": 2},
        connections={"SM": 1},
        handlers=3,
        drivers=2,
        interactions={"5": {"drivers": 4}},
        messages={"statInfoSM": {"handlers": 5}},
    )
    assert model.locations == Locations(10, 2, 4, 1)
    assert model.drivers == (2, 2, 2, 2, 4, 2, 2)
    assert model.messages[ORDER].handlers == 3
    assert model.messages[number_of("statInfoSM")].handlers == 5
    assert changed_options(model) == ()


def test_freeform_takes_what_is_named_and_leaves_the_rest_off() -> None:
    model = model_with(
        topology="freeform",
        base=1,
        locations={"SM": 7, "HQ": 2},
        interactions={"3": 2.5, "4": {"rate": 9, "drivers": 3}, "7": "off"},
        quantities={"order_lines": [1, 2, 3], "percent": [50, 30, 20]},
    )
    assert model.locations == Locations(7, 1, 1, 2)
    assert model.rates == (0, 0, 2.5, 9.0, 0, 0, 0)
    assert model.drivers[3] == 3
    assert model.class_percent == (50, 30, 20)
    assert "topology: freeform" in changed_options(model)


def test_a_types_own_options_win_over_those_of_all() -> None:
    model = model_with(
        handlers=1,
        messages={
            "all": {"persistent": False, "queue": False, "target": "Central"},
            "order": {"qos": 2, "target": "LocationID", "transacted": False},
        },
    )
    order, conf = model.messages[ORDER], model.messages[number_of("orderConf")]
    assert (order.qos, order.target, order.transacted, order.queue) == (
        2,
        "LocationID",
        False,
        False,
    )
    assert (conf.qos, conf.target) == (0, "Central")
    changed = changed_options(model)
    assert "order: qos 2" in changed
    assert "orderConf: queue False" in changed


def test_which_messages_share_a_topic_says_nothing_of_queues() -> None:
    central = {"all": {"target": "Central"}}
    assert not any("order:" in one for one in changed_options(model_with(messages=central)))


def test_where_all_share_a_topic_no_family_has_one_of_its_own() -> None:
    def subscription(**options: object) -> str:
        everything = {"queue": False, "target": "Central"}
        messages = {"all": everything, "callForOffers": options}
        return model_with(messages=messages).messages[number_of("callForOffers")].subscription

    assert model_with().messages[number_of("callForOffers")].subscription == "family"
    assert subscription() == "OR"
    assert subscription(subscription="IN") == "IN"
    assert subscription(target="LocationID-MessageType") == "family"


@pytest.mark.parametrize(("choices", "words"), ARTICLE["refusals"])
def test_bad_choices_are_refused_in_one_line(choices: dict[str, Any], words: str) -> None:
    with pytest.raises(ScenarioError) as error:
        model_with(**choices)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_a_scenario_says_it_all() -> None:
    scenario = build_scenario(
        "specjms",
        {
            "topology": "freeform",
            "base": 3,
            "locations": {"SM": 4},
            "interactions": {"1": 5},
            "messages": {"order": {"handlers": 7}},
            "quantities": {"order_lines": [1, 2, 3]},
        },
        {"families": "9", "check_every": "10"},
    )
    assert isinstance(scenario, SupplyChain)
    assert scenario.table("locations") == {"SM": 4}
    model = model_of(scenario)
    assert (model.families, model.check_every, model.rates[0]) == (9, 10, 5.0)
    assert model.messages[ORDER].handlers == 7
