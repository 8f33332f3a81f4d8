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
from loadgen.mqtt.packets import Connect, Publish, PubRec, PubRel, UnsubAck, Unsubscribe
from loadgen.mqtt.properties import Properties
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
    await both.subscribe("a/#", "a/b", "a/+", "+/b/#", qos=1)
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


async def test_large_packets(reflector: Endpoint, client: ClientMaker) -> None:
    one = await client(reflector, "s")
    assert one.connack.properties.maximum_packet_size == PACKET_LIMIT_BYTES
    await one.subscribe("m")
    large = bytes(range(256)) * (3 << 12)
    await one.publish("m", large, b"small")
    assert [message.payload for message in one.messages] == [large, b"small"]


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


async def _raw(reflector: Endpoint, data: bytes) -> Client:
    raw = Client(reflector, Connect("raw"))
    await raw.open()
    raw.send_bytes(data)
    return raw


_CONNECT_5 = bytes.fromhex("100e00044d5154540502003c0000 0161".replace(" ", ""))


@pytest.mark.parametrize("after_connect", BROKEN)  # type: ignore[arg-type]
async def test_broken_packets_close_only_their_connection(
    reflector: Endpoint, client: ClientMaker, after_connect: str
) -> None:
    good = await client(reflector, "good")
    await good.subscribe("t")
    raw = await _raw(reflector, _CONNECT_5 + bytes.fromhex(after_connect))
    assert await raw.gone() is None
    await raw.close()
    await good.publish("t", b"still here")
    assert [message.payload for message in good.messages] == [b"still here"]


async def test_unsupported_protocol_is_refused(reflector: Endpoint) -> None:
    raw = await _raw(reflector, bytes.fromhex("100f00064d51497364700602003c000161"))
    assert await raw.gone() is None
    await raw.close()


async def test_a_restart_ends_its_sessions(client: ClientMaker) -> None:
    async with run_reflector() as reflector:
        before, pid = reflector.endpoints, reflector.pid
        one = await client(before[0], "s")
        reflector.kill()
        assert await one.gone() is None
        await reflector.start()
        assert reflector.endpoints == before
        assert reflector.pid != pid
        assert not (await client(before[0], "s")).connack.session_present
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
