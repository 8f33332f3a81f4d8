"""What a broker is asked before the load, and what is said of one that cannot play the case."""

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import BrokerRefusedError
from loadgen.mqtt.packets import Disconnect, PubAck, PubRec, SubAck, Subscribe
from loadgen.mqtt.properties import Properties
from loadgen.plan.rehearsal import ASKED
from loadgen.run.broker_provider import plan_for
from loadgen.run.preflight import check_broker
from tests.brokers.little_broker import LittleBroker, serving_little


async def checked(
    brokers: LittleBroker | Sequence[LittleBroker], case: str, **fields: Any
) -> ServedBroker:
    """The broker after the question; raises what the question does."""
    several = [brokers] if isinstance(brokers, LittleBroker) else brokers
    async with AsyncExitStack() as stack:
        endpoints = tuple([await stack.enter_async_context(serving_little(b)) for b in several])
        named = [f"mqtt://{endpoint.address}" for endpoint in endpoints]
        plan = resolve(build_scenario(case, None, {"broker": named, **fields}))
        plan = await plan_for(plan, endpoints)
        return await check_broker(plan, ServedBroker("external", "unknown", endpoints))


async def told(brokers: LittleBroker | Sequence[LittleBroker], case: str, **fields: Any) -> str:
    """The refusal, "" for none."""
    try:
        await checked(brokers, case, **fields)
    except BrokerRefusedError as error:
        assert str(error).isprintable()
        return str(error)
    return ""


def old() -> LittleBroker:
    return LittleBroker(versions=(4,))


def limited(**limits: int) -> Callable[[], LittleBroker]:
    return lambda: LittleBroker(connack=Properties(**limits))  # type: ignore[arg-type]


def granting(most: int) -> Callable[[], LittleBroker]:
    def answer(packet: Subscribe) -> SubAck:
        return SubAck(packet.packet_id, tuple(min(one.qos, most) for one in packet.subscriptions))

    return lambda: LittleBroker(suback=answer)


def puback_for_qos_2() -> LittleBroker:
    return LittleBroker(acknowledgement=lambda packet: PubAck(packet.packet_id))


CASES = ("fanin", "fanout", "persistent", "latency", "connburst", "request", "queue")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("mqtt", ["3.1.1", "5"])
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_an_able_broker_is_asked_in_the_words_of_the_run(
    case: str, mqtt: str, qos: int
) -> None:
    broker = LittleBroker()
    fields: dict[str, Any] = {"mqtt": mqtt, "qos": qos}
    if (case == "queue" and (mqtt, qos) != ("5", 1)) or (case == "persistent" and qos == 0):
        return
    served = await checked(broker, case, **fields)
    assert served.remarks == ()
    assert all(packet.payload.startswith(ASKED) for packet in broker.published)
    if case != "connburst":
        assert {packet.qos for packet in broker.published} == {qos}
        assert max(len(packet.payload) for packet in broker.published) == 32
    # Identifiers that no device of the run has, and one of ours that asks for the version.
    own = [one for one in broker.connects if not one.client_id.startswith("loadgen-probe")]
    assert all(re.fullmatch(r"lg[0-9a-f]{8}\w\d-\d+a", one.client_id) for one in own)
    assert len(own) < len(broker.connects)


async def test_identifiers_that_the_user_chose_are_the_ones_that_ask() -> None:
    broker = LittleBroker()
    await checked(broker, "fanin", client_id="plant-{group}-{device}")
    asked = {one.client_id for one in broker.connects}
    assert {one for one in asked if not one.startswith("loadgen-probe")} == {
        "plant-0-0",
        "plant-1-0",
    }


@pytest.mark.parametrize(
    ("able", "case", "fields", "setting", "avoids"),
    [
        (old, "fanin", {"mqtt": "5"}, "use --mqtt 3.1.1", {"mqtt": "3.1.1"}),
        (lambda: LittleBroker(versions=(5,)), "fanin", {}, "use --mqtt 5", {"mqtt": "5"}),
        (
            old,
            "specjms",
            {"base": 1},
            "use --mqtt 3.1.1 --handlers 1",
            {"mqtt": "3.1.1", "handlers": 1},
        ),
        (
            old,
            "specjms",
            {"base": 1, "handlers": 1, "selectors": "client"},
            "use --mqtt 3.1.1 --selectors broker",
            {"mqtt": "3.1.1", "selectors": "broker"},
        ),
        (limited(maximum_qos=0), "fanin", {"qos": 1, "mqtt": "5"}, "use --qos 0", {"qos": 0}),
        (granting(1), "fanin", {"qos": 2}, "use --qos 1", {"qos": 1}),
        (puback_for_qos_2, "fanin", {"qos": 2}, "with PUBACK; use --qos 1", {"qos": 1}),
        (
            limited(maximum_qos=0),
            "specjms",
            {"base": 1},
            'use --messages \'{"all": {"qos": 0}}\'',
            {"messages": '{"all": {"qos": 0}}'},
        ),
        (
            limited(maximum_packet_size=1_000),
            "fanin",
            {"size": 1_000, "mqtt": "5"},
            "1,000 bytes at most",
            {"size": 900},
        ),
        (
            limited(wildcard_subscription_available=0),
            "fanin",
            {"mqtt": "5"},
            "allows no wildcard subscription, which fanin needs",
            {"mqtt": "3.1.1"},
        ),
        (
            lambda: LittleBroker(sessions=False),
            "fanin",
            {"durable": True, "qos": 1},
            "keeps no session of a client that is away, needed by subscriber; allow it there, or "
            "use --no-durable",
            {"durable": False},
        ),
    ],
)
async def test_the_setting_that_is_named_avoids_the_refusal(
    able: Callable[[], LittleBroker],
    case: str,
    fields: dict[str, Any],
    setting: str,
    avoids: dict[str, Any],
) -> None:
    assert setting in await told(able(), case, **fields)
    assert await told(able(), case, **(fields | avoids)) == ""
    assert await told(LittleBroker(), case, **fields) == ""


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_refused_publication_shows_code_and_reason_string(qos: int) -> None:
    said = Properties(reason_string="forbidden by \x1b[1mpolicy")
    kind = PubAck if qos == 1 else PubRec
    broker = LittleBroker(acknowledgement=lambda packet: kind(packet.packet_id, 0x90, said))
    text = await told(broker, "fanin", qos=qos, mqtt="5")
    assert "refused a publication of publishers to lg" in text
    assert rf"at QoS {qos} with 32 bytes: Topic Name invalid (0x90): forbidden by \x1b[1mp" in text


@pytest.mark.parametrize(("mqtt", "name"), [("3.1.1", "Failure (0x80)"), ("5", "Unspecified err")])
async def test_a_refused_subscription_is_told(mqtt: str, name: str) -> None:
    broker = LittleBroker(suback=lambda packet: SubAck(packet.packet_id, (0x80,)))
    text = await told(broker, "fanin", mqtt=mqtt)
    assert "refused the subscription of subscriber to lg" in text
    assert name in text


async def test_a_session_that_is_kept_and_not_told_of_is_one() -> None:
    assert await told(LittleBroker(silent=True), "persistent") == ""
    assert "keeps no session of a client" in await told(LittleBroker(sessions=False), "persistent")


async def test_a_broker_may_let_go_of_an_identifier_late() -> None:
    broker = LittleBroker()
    broker.drops = lambda _: 2 <= sum(not one.clean_start for one in broker.connects) <= 3
    assert await told(broker, "persistent") == ""
    broker.drops = lambda packet: not packet.clean_start
    assert "closes this client's connection without an answer" in await told(broker, "persistent")


async def test_a_connection_that_ends_is_told_with_what_was_asked() -> None:
    text = await told(LittleBroker(suback=lambda _packet: None), "fanin")
    assert "ended the connection (the broker closed the connection) at the subscription" in text
    broker = LittleBroker(acknowledgement=lambda _packet: Disconnect(0x97))
    text = await told(broker, "fanin", qos=1, mqtt="5", size=5_000)
    assert "ended the connection at a publication of publishers to lg" in text
    assert "with 5,000 bytes (Quota exceeded (0x97)); check what it allows" in text


async def test_a_message_that_does_not_come_back_is_told() -> None:
    text = await told(LittleBroker(delivered=lambda _packet, _qos: ()), "fanout")
    assert "did not bring a message of 32 bytes at QoS 0 from publishers to subscribers" in text
    text = await told(LittleBroker(delivered=lambda _packet, _qos: (0,)), "fanout", qos=1)
    assert "delivers at QoS 0 what subscribers should get at QoS 1; use --qos 0" in text


async def test_consumers_that_all_get_a_message_share_nothing() -> None:
    text = await told(LittleBroker(shares=False), "queue")
    assert "has no shared subscriptions, which queue needs; take another broker, or fanout" in text
    assert "a message came to 2 consumers of one" in text
    text = await told(limited(shared_subscription_available=0)(), "queue")
    assert "says that it has no shared subscriptions, which queue needs" in text


async def test_a_queue_cannot_do_without_its_version() -> None:
    assert "take another broker" in await told(old(), "queue")


async def test_sizes_of_a_supply_chain_are_held_against_the_packet_limit() -> None:
    text = await told(limited(maximum_packet_size=8_192)(), "specjms", base=1)
    assert "8,192 bytes at most" in text and "raise the broker's limit" in text


async def test_with_anyway_it_is_a_remark() -> None:
    lacking = replace(LittleBroker(), connack=Properties(maximum_qos=0, receive_maximum=7))
    served = await checked(lacking, "fanin", qos=1, mqtt="5", anyway=True, keep_alive=9)
    lack, window = served.remarks
    assert "allows QoS 0 at most" in lack
    assert "takes 7 unacknowledged messages of a client (Receive Maximum)" in window
    assert "may have no more in flight, not 100" in window
    with pytest.raises(BrokerRefusedError, match=r"use --qos 0 \(--anyway runs without it\)"):
        await checked(lacking, "fanin", qos=1, mqtt="5")


async def test_a_keep_alive_of_the_brokers_own_is_a_remark_and_an_echo_is_none() -> None:
    own = limited(server_keep_alive=60)
    served = await checked(own(), "fanin", mqtt="5", keep_alive=9)
    assert len(served.remarks) == 1 and "sets its own Keep Alive of 60 s" in served.remarks[0]
    assert (await checked(own(), "fanin", mqtt="5", keep_alive=60)).remarks == ()


@pytest.mark.parametrize("case", ["fanin", "fanout", "persistent", "specjms"])
async def test_brokers_that_do_not_know_each_other_are_told(case: str) -> None:
    fields = {"base": 10} if case == "specjms" else {}
    text = await told([LittleBroker(), LittleBroker()], case, **fields)
    assert "do not know each other: a message that is published at one" in text
    assert ("use --separate-brokers, or give addresses" in text) == (case != "specjms")
    if case != "specjms":
        apart = await told([LittleBroker(), LittleBroker()], case, separate_brokers=True)
        assert apart == ""


async def test_addresses_of_one_broker_know_each_other() -> None:
    async with serving_little(LittleBroker()) as endpoint:
        two: tuple[Endpoint, ...] = (endpoint, endpoint)
        urls = [f"mqtt://{one.address}" for one in two]
        plan = resolve(build_scenario("fanin", None, {"broker": urls}))
        served = ServedBroker("external", "unknown", two)
        assert (await check_broker(await plan_for(plan, two), served)).remarks == ()


async def test_the_version_is_what_the_broker_says() -> None:
    assert (await checked(LittleBroker(), "fanin")).version == "unknown"
    said = replace(LittleBroker(), connack=Properties(user_property=(("Version", "x\x1b 7"),)))
    assert (await checked(said, "fanin", mqtt="5")).version == r"x\x1b 7"
