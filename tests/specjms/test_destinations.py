"""Topic names, filters and selectors: each consumer gets its messages, and no others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.mqtt.topics import filter_matches
from loadgen.specjms import chain_model
from loadgen.specjms.destinations import (
    Selector,
    destination_name,
    properties_of,
    selector_of,
    subscriptions_of,
    topic_of,
    user_property,
)
from loadgen.specjms.messages import MESSAGES, number_of
from tests.examples import examples
from tests.specjms.models import model_with
from tests.tables import rows_of

ORDER, CALL, PRICE = (number_of(n) for n in ("order", "callForOffers", "priceUpdate"))


def model(
    target: str = "LocationID-MessageType",
    subscription: str = "family",
    selectors: chain_model.Selectors = "broker",
    *,
    queue: bool = False,
    handlers: int = 1,
) -> chain_model.Model:
    return model_with(
        base=15,
        handlers=handlers,
        selectors=selectors,
        messages={
            "all": {"queue": queue, "target": target},
            "callForOffers": {"subscription": subscription},
        },
    )


def satisfies(selector: Selector, properties: bytes) -> bool:
    """Evaluate a JMS selector; properties are complete and follow each other."""
    held = set()
    while properties:
        key = int.from_bytes(properties[1:3])
        size = 5 + key + int.from_bytes(properties[3 + key : 5 + key])
        held.add(properties[:size])
        properties = properties[size:]
    return all(any(one in held for one in term) for term in selector)


NAMES = """
DC2_OrderQ SM2_OrderConfQ DC2_ShipDepQ HQ2_StatsQ SM2_ShipArrQ DC2_ShipConfQ HQ_ProductFamilyT2
DC2_IncomingOffersQ SP2_POrderQ DC2_POrderConfQ HQ2_InvoiceQ DC2_PShipArrQ SP2_ShipConfQ
HQ2_ShipDCStatsQ HQ_PriceUpdateT SM2_InvMovementQ HQ2_SMStatsQ HQ_ProductAnnouncementT
HQ_CreditCardHotlistT
"""


def test_queues_are_named_as_in_the_kit() -> None:
    usual = model_with(topology="freeform", base=15, headquarters=4)
    names = [
        destination_name(usual, number, min(2, chain_model.destinations_of(usual, number) - 1))
        for number in range(len(MESSAGES))
    ]
    assert names == NAMES.split()


def test_a_queue_is_a_shared_subscription_where_it_has_several_handlers() -> None:
    assert subscriptions_of(model(queue=True), "r", ORDER, 2) == (("r/DC2/OrderQ",),)
    several = model(queue=True, handlers=3)
    assert subscriptions_of(several, "r", ORDER, 2) == (("$share/DC2_OrderQ/r/DC2/OrderQ",),)
    # A pub/sub message goes to every consumer, however many handlers queues have.
    assert subscriptions_of(several, "r", PRICE, 2) == (("r/HQ/PriceUpdateT",),)


@pytest.mark.parametrize(("target", "topic", "pattern"), rows_of("specjms.six_targets"))
def test_six_target_destinations(target: str, topic: str, pattern: str) -> None:
    assert topic_of(model(target), "r", ORDER, 2) == topic
    assert subscriptions_of(model(target), "r", ORDER, 2) == ((pattern,),)
    client = model(target, selectors="client")
    # Without levels, the whole topic arrives, and the properties select.
    base = "/".join(topic.split("/")[: 3 if target == "LocationID-MessageType" else 2])
    assert topic_of(client, "r", ORDER, 2) == base
    assert subscriptions_of(client, "r", ORDER, 2) == ((base,),)


def test_a_user_property_is_encoded_as_in_a_packet() -> None:
    assert user_property("AB", "x") == b"\x26\x00\x02AB\x00\x01x"


def test_properties_are_those_that_the_selector_names() -> None:
    client = model("Central", selectors="client")
    assert properties_of(client, ORDER, 2) == (
        user_property("LocationType", "DC")
        + user_property("TargetLocationID", "DC2")
        + user_property("MessageType", "order")
    )
    assert properties_of(model("Central"), ORDER, 2) == b""
    assert selector_of(model("Central"), ORDER, 2) == ()


@pytest.mark.parametrize("subscription", chain_model.SUBSCRIPTION_TYPES)
def test_ways_to_ask_for_product_families(subscription: str) -> None:
    own = model("LocationID-MessageType", subscription)
    families = chain_model.families_at(own, 1)
    packets = subscriptions_of(own, "r", CALL, 1)
    if subscription == "family":
        assert packets == (tuple(f"r/HQ/ProductFamilyT{family}" for family in families),)
    elif subscription == "IN":
        assert packets == (("r/HQ/ProductFamilyT/+/+/+/+",),)
    else:
        filters = [f"r/HQ/ProductFamilyT/+/+/+/PF{family}" for family in families]
        assert [text for packet in packets for text in packet] == filters
        assert len(packets) == (1 if subscription == "OR" else len(families))


@examples(60)
@given(
    st.sampled_from(chain_model.TARGETS),
    st.sampled_from(chain_model.SUBSCRIPTION_TYPES),
    st.sampled_from(["broker", "client"]),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_every_consumer_gets_its_messages_and_no_other(
    target: str, subscription: str, selectors: chain_model.Selectors, queue: bool, draw: int
) -> None:
    made = model(target, subscription, selectors, queue=queue)
    number = draw % len(MESSAGES)
    place = (draw // 19) % made.count_of(MESSAGES[number].consumer)
    filters = [f for p in subscriptions_of(made, "r", number, place) for f in p]
    selector = selector_of(made, number, place)
    for other, message in enumerate(MESSAGES):
        for destination in range(chain_model.destinations_of(made, other)):
            topic = topic_of(made, "r", other, destination)
            hits = sum(filter_matches(pattern, topic) for pattern in filters)
            got = hits > 0 and satisfies(selector, properties_of(made, other, destination))
            meant = other == number
            if meant and message.spread == "one":
                meant = destination == place
            elif meant and message.spread == "family":
                # IN is one filter for all families; the payload tells them apart.
                every = subscription == "IN" and selectors == "broker"
                meant = every or destination in chain_model.families_at(made, place)
            assert got == meant, (topic, filters)
            assert hits <= 1  # or the broker would deliver twice
