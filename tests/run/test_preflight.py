"""The check of a broker before the load, and the words about one that cannot play the case."""

import itertools
import re
import shlex
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import BrokerRefusedError, HostLimitError, ScenarioError
from loadgen.mqtt.packets import Disconnect, PubAck, PubRec, SubAck
from loadgen.mqtt.properties import Properties
from loadgen.plan.plan import Plan
from loadgen.plan.rehearsal import ASKED
from loadgen.run import preflight
from loadgen.run.broker_provider import plan_for
from loadgen.run.environment import host_of
from loadgen.run.preflight import check_broker, check_host, downgraded
from loadgen.sentences import Text
from tests.brokers.little_broker import LittleBroker, serving_little
from tests.tables import table


async def checked(
    brokers: LittleBroker | Sequence[LittleBroker], case: str, **fields: Any
) -> ServedBroker:
    several = [brokers] if isinstance(brokers, LittleBroker) else brokers
    async with AsyncExitStack() as stack:
        endpoints = tuple([await stack.enter_async_context(serving_little(b)) for b in several])
        urls = [f"mqtt://{endpoint.address}" for endpoint in endpoints]
        plan = resolve(build_scenario(case, None, {"broker_name": "x", "broker": urls, **fields}))
        plan = await plan_for(plan, endpoints)
        return await check_broker(plan, ServedBroker.at(endpoints))


async def lack(brokers: LittleBroker | Sequence[LittleBroker], case: str, **fields: Any) -> Text:
    """Return the sentence of the refusal, an empty one for none."""
    try:
        await checked(brokers, case, **fields)
    except BrokerRefusedError as error:
        assert str(error).isprintable()
        text: Text = error.values.get("what", error.args[0])
        return text
    return Text()


def plan_of_fanin(**fields: Any) -> Plan:
    return resolve(build_scenario("fanin", None, {"broker": "mqtt://127.0.0.1:1", **fields}))


def able(
    connack: Mapping[str, int] | None = None, grants: int = 2, answers: str = "", **own: Any
) -> LittleBroker:
    """Return a broker that states limits, grants no more than a QoS, or answers PUBACK to
    everything."""
    broker = LittleBroker(connack=Properties(**connack or {}), **own)  # type: ignore[arg-type]
    if grants < 2:
        broker.suback = lambda packet: SubAck(
            packet.packet_id, tuple(min(one.qos, grants) for one in packet.subscriptions)
        )
    if answers:
        broker.acknowledgement = lambda packet: PubAck(packet.packet_id)
    return broker


CASES = ("fanin", "fanout", "persistent", "latency", "connburst", "request", "queue")


PLAYED = [
    (case, mqtt, qos)
    for case, mqtt, qos in itertools.product(CASES, ("3.1.1", "5"), (0, 1, 2))
    if (case != "queue" or (mqtt, qos) == ("5", 1)) and (case != "persistent" or qos)
]


@pytest.mark.parametrize(("case", "mqtt", "qos"), PLAYED)
async def test_an_able_broker_is_asked_in_the_words_of_the_run(
    case: str, mqtt: str, qos: int
) -> None:
    broker = LittleBroker()
    fields: dict[str, Any] = {"mqtt": mqtt, "qos": qos}
    if case == "connburst" and qos:
        fields["subscribe"] = True
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
    plant = {one for one in asked if not one.startswith("loadgen-probe")}
    assert plant == {"plant-0-0", "plant-1-0"}


@pytest.mark.parametrize("row", table("refusals")["refusals"], ids=str)
async def test_the_setting_that_is_named_avoids_the_refusal(row: dict[str, Any]) -> None:
    case, fields, avoids = row["case"], row["fields"], row.get("avoids")
    text = await lack(able(**row["able"]), case, **fields)
    assert (text.code, text.values.get("use")) == (row["code"], row.get("use"))
    if avoids is None:
        words = shlex.split(row["use"].removeprefix("use "))
        avoids = {name[2:]: value for name, value in zip(words[::2], words[1::2], strict=True)}
    assert not await lack(able(**row["able"]), case, **(fields | avoids))
    assert not await lack(LittleBroker(), case, **fields)


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_refused_publication_shows_code_and_reason_string(qos: int) -> None:
    reason = Properties(reason_string="forbidden by \x1b[1mpolicy")
    kind = PubAck if qos == 1 else PubRec
    broker = LittleBroker(acknowledgement=lambda packet: kind(packet.packet_id, 0x90, reason))
    text = await lack(broker, "fanin", qos=qos, mqtt="5")
    assert text.code == "PUBLISH_REFUSED"
    assert text.values["name"] == r"Topic Name invalid (0x90): forbidden by \x1b[1mpolicy"
    publication = text.values["publication"].values
    assert (publication["group"], publication["qos"]) == ("publishers", qos)
    assert publication["size_bytes"] == 32


@pytest.mark.parametrize(("mqtt", "name"), [("3.1.1", "Failure (0x80)"), ("5", "Unspecified err")])
async def test_a_refused_subscription_is_named(mqtt: str, name: str) -> None:
    broker = LittleBroker(suback=lambda packet: SubAck(packet.packet_id, (0x80,)))
    text = await lack(broker, "fanin", mqtt=mqtt)
    assert text.code == "SUBSCRIBE_REFUSED" and text.values["name"].startswith(name)
    assert text.values["subscription"].values["group"] == "subscriber"


async def test_a_session_that_is_kept_silently_counts() -> None:
    assert not await lack(LittleBroker(silent=True), "persistent")
    assert (await lack(LittleBroker(sessions=False), "persistent")).code == "NO_SESSION"


async def test_a_broker_may_let_go_of_an_identifier_late() -> None:
    broker = LittleBroker()
    broker.drops = lambda _: 2 <= sum(not one.clean_start for one in broker.connects) <= 3
    assert not await lack(broker, "persistent")
    broker.drops = lambda packet: not packet.clean_start
    text = await lack(broker, "persistent")
    assert text.code == "SESSION_REFUSED" and text.values["error"].code == "CLOSES_THIS_CLIENT"


async def test_a_connection_that_ends_is_reported_with_its_request() -> None:
    text = await lack(LittleBroker(suback=lambda _packet: None), "fanin")
    assert text.code == "SUBSCRIBE_ENDED"
    assert text.values["reason"] == "the broker closed the connection"
    broker = LittleBroker(acknowledgement=lambda _packet: Disconnect(0x97))
    text = await lack(broker, "fanin", qos=1, mqtt="5", size=5_000)
    assert text.code == "PUBLISH_ENDED" and text.values["reason"] == "Quota exceeded (0x97)"
    assert text.values["publication"].values["size_bytes"] == 5_000


async def test_a_message_that_does_not_come_back_is_reported() -> None:
    text = await lack(LittleBroker(delivered=lambda _packet, _qos: ()), "fanout")
    assert text.code == "NOT_DELIVERED"
    assert (text.values["group"], text.values["receiver"]) == ("publishers", "subscribers")
    assert (text.values["size_bytes"], text.values["qos"]) == (32, 0)
    text = await lack(LittleBroker(delivered=lambda _packet, _qos: (0,)), "fanout", qos=1)
    assert text.code == "QOS_DELIVERED"
    assert (text.values["delivered"], text.values["qos"], text.values["use"]) == (0, 1, "--qos 0")


async def test_consumers_that_all_get_a_message_share_nothing() -> None:
    text = await lack(LittleBroker(shares=False), "queue")
    assert (text.code, text.values["copies"]) == ("NO_SHARED", 2)
    assert text.values["needs"].startswith("which queue needs; take another broker")
    text = await lack(able({"shared_subscription_available": 0}), "queue")
    assert text.code == "NO_SHARED_STATED" and text.values["needs"]


async def test_a_queue_cannot_do_without_its_version() -> None:
    assert "take another broker" in (await lack(LittleBroker(versions=(4,)), "queue")).values["use"]


async def test_sizes_of_a_supply_chain_are_held_against_the_packet_limit() -> None:
    text = await lack(able({"maximum_packet_size": 8_192}), "specjms", base=1)
    assert (text.code, text.values["limit_bytes"]) == ("SIZE_LIMIT", 8_192)


async def test_with_anyway_it_is_a_remark() -> None:
    lacking = replace(LittleBroker(), connack=Properties(maximum_qos=0, receive_maximum=7))
    served = await checked(lacking, "fanin", qos=1, mqtt="5", anyway=True, keep_alive=9)
    codes = [remark.code for remark in served.remarks if isinstance(remark, Text)]
    assert codes == ["QOS_LIMIT", "RECEIVE_MAXIMUM"]
    window = served.remarks[1]
    assert isinstance(window, Text)
    assert (window.values["most"], window.values["window"]) == (7, 100)
    with pytest.raises(BrokerRefusedError) as caught:
        await checked(lacking, "fanin", qos=1, mqtt="5")
    assert caught.value.code == "LACKS"


async def test_a_keep_alive_of_the_brokers_own_is_a_remark_but_an_echo_is_not() -> None:
    own = {"server_keep_alive": 60}
    (remark,) = (await checked(able(own), "fanin", mqtt="5", keep_alive=9)).remarks
    assert isinstance(remark, Text)
    assert (remark.code, remark.values["keep_alive_s"]) == ("KEEP_ALIVE", 60)
    assert (await checked(able(own), "fanin", mqtt="5", keep_alive=60)).remarks == ()


@pytest.mark.parametrize("case", ["fanin", "fanout", "persistent", "specjms"])
async def test_brokers_that_are_not_connected_are_reported(case: str) -> None:
    fields = {"base": 10} if case == "specjms" else {}
    text = await lack([LittleBroker(), LittleBroker()], case, **fields)
    assert text.code == "UNACQUAINTED"
    assert bool(text.values["separate"]) == (case != "specjms")
    if case != "specjms":
        assert not await lack([LittleBroker(), LittleBroker()], case, separate_brokers=True)


async def test_addresses_of_one_broker_are_connected() -> None:
    async with serving_little(LittleBroker()) as endpoint:
        two: tuple[Endpoint, ...] = (endpoint, endpoint)
        urls = [f"mqtt://{one.address}" for one in two]
        plan = resolve(build_scenario("fanin", None, {"broker": urls, "broker_name": "x"}))
        served = ServedBroker.at(two)
        assert (await check_broker(await plan_for(plan, two), served)).remarks == ()


async def test_a_broker_without_a_name_has_its_url() -> None:
    served = await checked(LittleBroker(), "fanin", broker_name=None)
    (remark,) = served.remarks
    assert isinstance(remark, Text)
    assert (remark.code, remark.values["where"]) == ("NAMELESS", served.name)
    assert served.name == f"mqtt://{served.endpoints[0].address}"


@pytest.mark.parametrize("mqtt", ["5", "3.1.1"])
async def test_a_connack_of_3_1_1_changes_the_version_of_the_run(mqtt: str) -> None:
    error = await lack(LittleBroker(lies=True), "fanin", mqtt=mqtt)
    assert bool(error) == (mqtt == "5")
    if error:
        plan = resolve(build_scenario("fanin", None, {"mqtt": mqtt}))
        older = downgraded(plan, BrokerRefusedError(error))
        assert older is not None and older.scenario.mqtt == "3.1.1"
        queue = resolve(build_scenario("queue", None, {}))
        assert downgraded(queue, BrokerRefusedError(error)) is None
    assert downgraded(plan_of_fanin(), BrokerRefusedError("other")) is None


@pytest.mark.parametrize(("address", "local"), [("127.0.0.0/24", True), ("192.0.2.0/24", False)])
def test_a_source_address_is_one_of_this_host(address: str, local: bool) -> None:
    plan = plan_of_fanin(source_address=address)
    if local:
        check_host(plan)
        return
    with pytest.raises(ScenarioError) as caught:
        check_host(plan)
    assert (caught.value.code, caught.value.values["address"]) == ("SOURCE_ADDRESS", "192.0.2.1")


async def test_the_version_is_what_the_broker_says() -> None:
    assert (await checked(LittleBroker(), "fanin")).version == "unknown"
    said = replace(LittleBroker(), connack=Properties(user_property=(("Version", "x\x1b 7"),)))
    assert (await checked(said, "fanin", mqtt="5")).version == r"x\x1b 7"


@pytest.mark.parametrize(
    ("broker", "devices", "instances"),
    [("reflector", 700, 1), ("reflector", 2_500, 3), ("mosquitto", 2_500, 1)],
)
def test_enough_reflectors(
    monkeypatch: pytest.MonkeyPatch, broker: str, devices: int, instances: int
) -> None:
    monkeypatch.setattr(preflight, "host_of", lambda: replace(host_of(), descriptors=1_000))
    fields = {"broker": broker, "devices": devices}
    assert preflight.completed(build_scenario("fanin", None, fields)).instances == instances
    of_user = build_scenario("fanin", None, {**fields, "instances": 1})
    assert preflight.completed(of_user).instances == 1


def test_reflectors_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    small = replace(host_of(), descriptors=1_000, memory_bytes=1 << 20)
    monkeypatch.setattr(preflight, "host_of", lambda: small)
    with pytest.raises(HostLimitError):
        preflight.completed(
            build_scenario("fanin", None, {"broker": "reflector", "devices": 2_500})
        )
