import asyncio
import resource
from pathlib import Path

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.reflector import run_reflector, run_sink
from loadgen.brokers.watch import ProcessLoad
from loadgen.errors import CannotRunError
from loadgen.kernels.forwarding import PACKET_LIMIT_BYTES
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.packets import (
    Connect,
    Disconnect,
    PubAck,
    Publish,
    PubRec,
    PubRel,
    UnsubAck,
    Unsubscribe,
)
from loadgen.mqtt.properties import Properties
from loadgen.mqtt.reason_codes import ReasonCode
from loadgen.plan.scenario import read_toml
from tests.brokers.conftest import Client, ClientMaker

BROKEN = read_toml((Path(__file__).parent / "broken_packets.toml").read_text())["broken"]
LASTING = Properties(session_expiry_interval=3600)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_every_qos_and_version_to_every_other(
    reflector: Endpoint, client: ClientMaker, qos: int
) -> None:
    versions = (MQTT_3_1_1, MQTT_5)
    subscribers = [await client(reflector, f"s{v}{q}", v) for v in versions for q in (0, 1, 2)]
    for number, subscriber in enumerate(subscribers):
        answer = await subscriber.subscribe("t/#", qos=number % 3)
        assert answer.reason_codes == (number % 3,)
    payloads = [b"%d" % number for number in range(300)]
    for version in versions:
        publisher = await client(reflector, f"p{version}", version)
        await publisher.publish("t/1", *payloads, qos=qos)
        await publisher.publish("other", b"not for them", qos=qos)
    for number, subscriber in enumerate(subscribers):
        await subscriber.until_count(600)
        await subscriber.sync()
        assert [message.payload for message in subscriber.messages] == 2 * payloads
        assert {message.qos for message in subscriber.messages} == {min(qos, number % 3)}
        assert not any(message.dup or message.retain for message in subscriber.messages)


async def test_runs_of_many_topics_in_one_write(reflector: Endpoint, client: ClientMaker) -> None:
    subscriber = await client(reflector, "s", MQTT_5)
    await subscriber.subscribe("t/+")
    older = await client(reflector, "o", MQTT_3_1_1)
    await older.subscribe("t/1")
    publisher = await client(reflector, "p", MQTT_5)
    # 60 KB, so reads end inside packets.
    sent = [(f"t/{number // 50 % 3}", b"%08d" % number * 4) for number in range(2000)]
    for topic, payload in sent:
        publisher.send(Publish(topic, payload))
    await publisher.sync()
    await subscriber.sync()
    await older.sync()
    assert [(m.topic_name, m.payload) for m in subscriber.messages] == sent
    wanted = [payload for topic, payload in sent if topic == "t/1"]
    assert [m.payload for m in older.messages] == wanted


async def test_overlapping_subscriptions_deliver_once(
    reflector: Endpoint, client: ClientMaker, version: int
) -> None:
    both = await client(reflector, "s", version)
    await both.subscribe("a/#", qos=0)
    await both.subscribe("a/b", qos=1)
    await both.publish("a/b", b"x", qos=2)
    await both.sync()
    assert [message.qos for message in both.messages] == [1]


async def test_unsubscribe(reflector: Endpoint, client: ClientMaker, version: int) -> None:
    both = await client(reflector, "s", version)
    await both.subscribe("a", "b")
    both.send(Unsubscribe(7, ("a", "never")))
    answer = await both.until(UnsubAck)
    assert answer == UnsubAck(7, (0, 0) if version == MQTT_5 else ())
    await both.publish("a", b"x")
    await both.publish("b", b"y")
    assert [message.payload for message in both.messages] == [b"y"]


@pytest.mark.parametrize("qos", [0, 1])
async def test_shared_subscriptions_take_turns(
    reflector: Endpoint, client: ClientMaker, qos: int
) -> None:
    members = [await client(reflector, f"m{n}", (MQTT_5, MQTT_3_1_1)[n % 2]) for n in range(4)]
    for member in members:
        await member.subscribe("$share/g/t/#", qos=1)
    alone = await client(reflector, "alone")
    await alone.subscribe("t/#")
    publisher = await client(reflector, "p")
    payloads = [b"%d" % number for number in range(200)]
    await publisher.publish("t/1", *payloads, qos=qos)
    for member in members:
        await member.sync()
        assert len(member.messages) == 50
    await alone.sync()
    assert [message.payload for message in alone.messages] == payloads
    shared = [message.payload for member in members for message in member.messages]
    assert sorted(shared) == sorted(payloads)
    # Who leaves leaves its share to the others.
    await members[0].disconnect()
    await publisher.publish("t/1", *payloads[:90], qos=qos)
    for member in members[1:]:
        await member.sync()
        assert len(member.messages) == 80


async def test_durable_session_holds_messages(
    reflector: Endpoint, client: ClientMaker, version: int
) -> None:
    options = {} if version == MQTT_3_1_1 else {"properties": LASTING}
    first = await client(reflector, "durable", version, clean_start=False, **options)
    assert not first.connack.session_present
    await first.subscribe("q/#", qos=1)
    await first.disconnect()
    publisher = await client(reflector, "p")
    payloads = [b"%d" % number for number in range(500)]
    await publisher.publish("q/1", *payloads, qos=1)
    await publisher.publish("q/1", b"QoS 0 is not held", qos=0)
    second = await client(reflector, "durable", version, clean_start=False, **options)
    assert second.connack.session_present
    await second.until_count(500)
    assert [message.payload for message in second.messages] == payloads
    await second.sync()
    await second.disconnect()
    # A clean start ends it.
    third = await client(reflector, "durable", version, clean_start=True)
    assert not third.connack.session_present
    await publisher.publish("q/1", b"nobody", qos=1)
    await third.sync()
    assert third.messages == []


@pytest.mark.parametrize("qos", [1, 2])
async def test_unacknowledged_messages_come_again(
    reflector: Endpoint, client: ClientMaker, qos: int
) -> None:
    first = await client(reflector, f"d{qos}", clean_start=False, properties=LASTING)
    await first.subscribe("q", qos=2)
    first.acknowledges = False
    publisher = await client(reflector, "p")
    await publisher.publish("q", b"0", b"1", b"2", qos=qos)
    await first.until_count(3)
    if qos == 2:
        first.send(PubRec(first.messages[0].packet_id))
        await first.sync()
    await first.close()
    second = await client(reflector, f"d{qos}", clean_start=False, properties=LASTING)
    again = 3 if qos == 1 else 2
    await second.until_count(again)
    await second.sync()
    assert [message.payload for message in second.messages] == [b"0", b"1", b"2"][3 - again :]
    assert all(message.dup for message in second.messages)
    await second.disconnect()
    third = await client(reflector, f"d{qos}", clean_start=False, properties=LASTING)
    await third.sync()
    assert third.connack.session_present
    assert third.messages == []


async def test_receive_maximum_is_kept(reflector: Endpoint, client: ClientMaker) -> None:
    slow = await client(reflector, "slow", properties=Properties(receive_maximum=3))
    await slow.subscribe("q", qos=1)
    slow.acknowledges = False
    publisher = await client(reflector, "p")
    await publisher.publish("q", *[b"x"] * 10, qos=1)
    await slow.sync()
    assert len(slow.messages) == 3
    slow.acknowledges = True
    for message in slow.messages[:3]:
        slow.send(PubAck(message.packet_id))
    await slow.until_count(10)


async def test_pubrec_in_any_order(reflector: Endpoint, client: ClientMaker) -> None:
    subscriber = await client(reflector, "s")
    await subscriber.subscribe("q", qos=2)
    subscriber.acknowledges = False
    await (await client(reflector, "p")).publish("q", b"0", b"1", b"2", b"3", qos=2)
    await subscriber.until_count(4)
    for place in (2, 0, 3, 1):
        packet_id = subscriber.messages[place].packet_id
        subscriber.send(PubRec(packet_id))
        assert await subscriber.until(PubRel) == PubRel(packet_id)


async def test_qos_2_is_served_once_though_sent_twice(
    reflector: Endpoint, client: ClientMaker
) -> None:
    subscriber = await client(reflector, "s")
    await subscriber.subscribe("q", qos=2)
    publisher = await client(reflector, "p", clean_start=False, properties=LASTING)
    publisher.acknowledges = False
    publisher.send(Publish("q", b"once", 2, packet_id=9))
    await publisher.until(PubRec)
    await publisher.close()
    again = await client(reflector, "p", clean_start=False, properties=LASTING)
    again.send(Publish("q", b"once", 2, packet_id=9, dup=True))
    await again.until(PubRec)
    await subscriber.sync()
    assert [message.payload for message in subscriber.messages] == [b"once"]


async def test_properties_reach_the_subscriber(reflector: Endpoint, client: ClientMaker) -> None:
    properties = Properties(content_type="text", user_property=(("a", "1"), ("a", "2")))
    new, old = await client(reflector, "n", MQTT_5), await client(reflector, "o", MQTT_3_1_1)
    await new.subscribe("p")
    await old.subscribe("p")
    new.send(Publish("p", b"x", properties=properties))
    await new.sync()
    await old.sync()
    assert new.messages == [Publish("p", b"x", properties=properties)]
    assert old.messages == [Publish("p", b"x")]


async def test_take_over(reflector: Endpoint, client: ClientMaker) -> None:
    first = await client(reflector, "same")
    second = await client(reflector, "same")
    assert await first.gone() == Disconnect(ReasonCode.SESSION_TAKEN_OVER)
    await second.sync()


async def test_large_packets(reflector: Endpoint, client: ClientMaker) -> None:
    one = await client(reflector, "s")
    assert one.connack.properties.maximum_packet_size == PACKET_LIMIT_BYTES
    await one.subscribe("m")
    large = bytes(range(256)) * (3 << 12)
    await one.publish("m", large, b"small")
    assert [message.payload for message in one.messages] == [large, b"small"]


async def test_empty_client_identifier(reflector: Endpoint, client: ClientMaker) -> None:
    names = [
        (await client(reflector, "")).connack.properties.assigned_client_identifier
        for _ in range(2)
    ]
    assert all(names)
    assert names[0] != names[1]


async def test_tables_grow(reflector: Endpoint, client: ClientMaker) -> None:
    durable = {"clean_start": False, "properties": LASTING}
    for number in range(300):
        one = await client(reflector, f"n{number}", **durable)
        await one.subscribe(f"n/{number}", "all/#", qos=1)
        await one.close()
    publisher = await client(reflector, "p")
    for number in range(300):
        await publisher.publish(f"n/{number}", b"%d" % number, qos=1)
    await publisher.publish("all/1", b"last", qos=1)
    for number in (0, 150, 299):
        one = await client(reflector, f"n{number}", **durable)
        await one.until_count(2)
        assert [message.payload for message in one.messages] == [b"%d" % number, b"last"]


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_a_connection_waits_for_a_descriptor(client: ClientMaker) -> None:
    async with run_reflector() as reflector:
        endpoint, pid = reflector.endpoints[0], reflector.pid
        used = _descriptors(pid)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 2, used + 2))
        first, _ = await client(endpoint, "1"), await client(endpoint, "2")
        third = asyncio.ensure_future(client(endpoint, "3"))
        load = ProcessLoad(lambda: (pid,))
        before = load.read()
        await asyncio.sleep(0.3)
        after = load.read()
        assert before is not None
        assert after is not None
        assert after["cpu_ns"] - before["cpu_ns"] < 100_000_000
        assert not third.done()
        await first.disconnect()
        await (await third).sync()


# --- hostile bytes --------------------------------------------------------------------------------


async def _raw(reflector: Endpoint, data: bytes) -> Client:
    raw = Client(reflector, Connect("raw"))
    await raw.open()
    raw.send_bytes(data)
    return raw


_CONNECT_5 = bytes.fromhex("100e00044d5154540502003c0000 0161".replace(" ", ""))


@pytest.mark.parametrize(("after_connect", "reason"), BROKEN)  # type: ignore[arg-type]
async def test_broken_packets_close_only_their_connection(
    reflector: Endpoint,
    client: ClientMaker,
    after_connect: str,
    reason: str,
) -> None:
    good = await client(reflector, "good")
    await good.subscribe("t")
    raw = await _raw(reflector, _CONNECT_5 + bytes.fromhex(after_connect))
    assert await raw.gone() == Disconnect(ReasonCode[reason])
    await raw.close()
    await good.publish("t", b"still here")
    assert [message.payload for message in good.messages] == [b"still here"]


async def test_unsupported_protocol_is_refused(reflector: Endpoint) -> None:
    raw = await _raw(reflector, bytes.fromhex("100f00064d51497364700402003c000161"))
    assert await raw.gone() is None
    await raw.close()


# --- knobs ----------------------------------------------------------------------------------------


async def test_a_restart_ends_its_sessions(client: ClientMaker) -> None:
    async with run_reflector() as reflector:
        before, pid = reflector.endpoints, reflector.pid
        one = await client(before[0], "s", clean_start=False, properties=LASTING)
        reflector.kill()
        assert await one.gone() is None
        await reflector.start()
        assert reflector.endpoints == before
        assert reflector.pid != pid
        again = await client(before[0], "s", clean_start=False, properties=LASTING)
        assert not again.connack.session_present
    with pytest.raises(CannotRunError) as caught:
        assert reflector.pid
    assert caught.value.code == "NOT_STARTED_YET"


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_the_sink_takes_everything_and_delivers_nothing(
    client: ClientMaker, version: int, qos: int
) -> None:
    async with run_sink() as sink:
        one = await client(sink.endpoints[0], "a", version)
        assert (await one.subscribe("t", "#", qos=qos)).reason_codes == (qos, qos)
        await one.publish("t", *[b"x" * 50] * 700, qos=qos)
        assert one.messages == []
