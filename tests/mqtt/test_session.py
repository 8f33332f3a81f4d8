"""The session as a client lives it (spec 3.1, 4), and against a model broker on a bad network."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from loadgen.errors import LocalProtocolError, RemoteProtocolError
from loadgen.mqtt.codec import decode, encode
from loadgen.mqtt.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    Subscription,
    UnsubAck,
    Unsubscribe,
)
from loadgen.mqtt.properties import NO_PROPERTIES, Properties
from loadgen.mqtt.session import MAX_WINDOW, Session, SessionState
from tests.mqtt.strategies import QUICK, THOROUGH, VERSIONS, packets, publishes, versions

_S = 1_000_000_000
both_versions = pytest.mark.parametrize("version", VERSIONS)


def _sent(session: Session) -> list[Packet]:
    """What the session wants to send, read as the broker reads it."""
    data = session.data_to_send()
    found, position = [], 0
    while (one := decode(data, position, len(data), session.version)) is not None:
        packet, position = one
        found.append(packet)
    assert position == len(data)
    return found


def _feed(session: Session, *several: Packet, now_ns: int = 0) -> list[Packet]:
    """Give packets of the broker to the session; the events they made."""
    session.receive_data(b"".join(encode(packet, session.version) for packet in several), now_ns)
    return session.events_received()


def _opened(
    version: int = 5,
    *,
    window: int = 4,
    clean_start: bool = True,
    keep_alive: int = 0,
    offer: Properties = NO_PROPERTIES,
    ours: Properties = NO_PROPERTIES,
) -> Session:
    session = Session(version, window=window)
    _reopen(session, False, clean_start=clean_start, keep_alive=keep_alive, offer=offer, ours=ours)
    return session


def _reopen(
    session: Session,
    session_present: bool,
    *,
    clean_start: bool = False,
    keep_alive: int = 0,
    offer: Properties = NO_PROPERTIES,
    ours: Properties = NO_PROPERTIES,
) -> list[Packet]:
    """Connect; what the session sent after CONNACK."""
    connect = Connect("c", session.version, clean_start, keep_alive, properties=ours)
    session.connect(connect, 0)
    assert _sent(session) == [connect]
    connack = ConnAck(session_present, 0, offer)
    assert _feed(session, connack) == [connack]
    return _sent(session)


def _blamed(session: Session, packet: Packet) -> int:
    """The session refuses the broker's packet: closed, and in MQTT 5 with DISCONNECT."""
    with pytest.raises(RemoteProtocolError) as caught:
        _feed(session, packet)
    assert session.state is SessionState.CLOSED
    code = caught.value.reason_code
    assert _sent(session) == ([Disconnect(code)] if session.version == 5 else [])
    return code


class TestConnect:
    """Spec 3.1, 3.2, 4.13."""

    @both_versions
    def test_states(self, version: int) -> None:
        session = Session(version)
        assert session.state is SessionState.IDLE
        session.connect(Connect("c", version), 0)
        assert session.state is SessionState.CONNECTING
        _feed(session, ConnAck())
        assert session.state is SessionState.CONNECTED
        assert session.connack == ConnAck()
        assert session.client_id == "c"
        session.data_to_send()
        session.disconnect(0)
        assert _sent(session) == [Disconnect()]
        assert session.state is SessionState.CLOSED
        assert _feed(session, PingResp()) == []

    @both_versions
    def test_refused(self, version: int) -> None:
        session = Session(version)
        session.connect(Connect("c", version), 0)
        assert _feed(session, ConnAck(False, 5 if version == 4 else 0x87)) == [session.connack]
        assert session.state is SessionState.CLOSED
        assert session.connack.reason_code in (5, 0x87)

    @both_versions
    def test_anything_else_before_connack(self, version: int) -> None:
        session = Session(version)
        session.connect(Connect("c", version), 0)
        with pytest.raises(
            RemoteProtocolError, match="PUBLISH while waiting for CONNACK"
        ) as caught:
            _feed(session, Publish("a"))
        assert caught.value.reason_code == 0x82
        assert _feed(session, ConnAck()) == []

    @both_versions
    def test_second_connack(self, version: int) -> None:
        assert _blamed(_opened(version), ConnAck()) == 0x82

    @both_versions
    @pytest.mark.parametrize(
        "packet",
        [
            lambda version: Connect("c", version),
            lambda version: Subscribe(1, (Subscription("a"),)),
            lambda version: Unsubscribe(1, ("a",)),
            lambda version: PingReq(),
        ],
    )
    def test_packets_of_a_client(self, packet: Callable[[int], Packet], version: int) -> None:
        assert _blamed(_opened(version), packet(version)) == 0x82

    def test_disconnect_of_the_server(self) -> None:
        """Spec 3.14; MQTT 3.1.1 gives it to the client only."""
        session = _opened(5)
        assert _feed(session, Disconnect(0x8B), Publish("a")) == [Disconnect(0x8B)]
        assert session.state is SessionState.CLOSED
        assert _blamed(_opened(4), Disconnect()) == 0x82

    def test_session_present_after_clean_start(self) -> None:
        session = Session(4)
        session.connect(Connect("c", 4), 0)
        with pytest.raises(RemoteProtocolError, match="Session Present"):
            _feed(session, ConnAck(True))

    def test_requests_in_the_wrong_state(self) -> None:
        session = Session()
        for request in (
            lambda: session.publish("a", b"", 0),
            lambda: session.subscribe((Subscription("a"),), 0),
            lambda: session.unsubscribe(("a",), 0),
            lambda: session.disconnect(0),
            lambda: session.auth(Auth(), 0),
            lambda: session.receive_data(b"x", 0),
        ):
            with pytest.raises(LocalProtocolError):
                request()
        opened = _opened()
        with pytest.raises(LocalProtocolError, match="once a network connection"):
            opened.connect(Connect("c"), 0)
        assert opened.data_to_send() == b""

    @pytest.mark.parametrize("window", [0, MAX_WINDOW + 1])
    def test_window_out_of_range(self, window: int) -> None:
        with pytest.raises(LocalProtocolError, match="window must be between"):
            Session(window=window)

    def test_assigned_client_identifier(self) -> None:
        session = Session()
        session.connect(Connect(""), 0)
        _feed(session, ConnAck(properties=Properties(assigned_client_identifier="auto-7")))
        assert session.client_id == "auto-7"

    def test_authentication(self) -> None:
        """Spec 4.12."""
        session = Session()
        method = Properties(authentication_method="SCRAM")
        session.connect(Connect("c", properties=method), 0)
        session.data_to_send()
        assert _feed(session, Auth(0x18, method)) == [Auth(0x18, method)]
        session.auth(Auth(0x18, method), 0)
        assert _sent(session) == [Auth(0x18, method)]
        _feed(session, ConnAck(properties=method))
        assert session.state is SessionState.CONNECTED
        assert _blamed(session, Auth(0x18, Properties(authentication_method="other"))) == 0x82
        assert _blamed(_opened(), Auth(0x18, method)) == 0x82


class TestPublish:
    """Spec 4.3, sender."""

    @both_versions
    def test_qos_0(self, version: int) -> None:
        session = _opened(version)
        assert session.publish("a", b"x", 0, retain=True) == 0
        assert _sent(session) == [Publish("a", b"x", retain=True)]
        assert session.in_flight == 0

    @both_versions
    def test_qos_1(self, version: int) -> None:
        session = _opened(version)
        packet_id = session.publish("a", b"x", 0, qos=1)
        assert _sent(session) == [Publish("a", b"x", 1, packet_id=packet_id)]
        assert session.in_flight == 1
        assert _feed(session, PubAck(packet_id)) == [PubAck(packet_id)]
        assert (session.in_flight, session.data_to_send()) == (0, b"")

    @both_versions
    def test_qos_2(self, version: int) -> None:
        session = _opened(version)
        packet_id = session.publish("a", b"x", 0, qos=2)
        assert _sent(session) == [Publish("a", b"x", 2, packet_id=packet_id)]
        assert _feed(session, PubRec(packet_id)) == [PubRec(packet_id)]
        assert _sent(session) == [PubRel(packet_id)]
        assert session.in_flight == 1
        assert _feed(session, PubComp(packet_id)) == [PubComp(packet_id)]
        assert (session.in_flight, session.data_to_send()) == (0, b"")

    @pytest.mark.parametrize("qos", [1, 2])
    def test_failure_ends_the_message(self, qos: int) -> None:
        session = _opened(window=1)
        packet_id = session.publish("a", b"x", 0, qos=qos)
        session.data_to_send()
        answer = PubAck(packet_id, 0x97) if qos == 1 else PubRec(packet_id, 0x97)
        assert _feed(session, answer) == [answer]
        assert (session.in_flight, session.data_to_send()) == (0, b"")
        assert session.can_publish

    @both_versions
    @pytest.mark.parametrize(
        ("qos", "answer"), [(1, PubRec), (1, PubComp), (2, PubAck), (2, PubComp)]
    )
    def test_answer_of_another_kind(
        self, version: int, qos: int, answer: type[PubAck | PubRec | PubComp]
    ) -> None:
        session = _opened(version)
        packet_id = session.publish("a", b"", 0, qos=qos)
        session.data_to_send()
        assert _blamed(session, answer(packet_id)) == 0x82

    @both_versions
    def test_puback_for_nothing(self, version: int) -> None:
        assert _blamed(_opened(version), PubAck(3)) == 0x82

    def test_pubrec_for_nothing(self) -> None:
        """Spec 3.6.2.1: the peer is told; its PUBCOMP for that is no error."""
        for version, code in ((4, 0), (5, 0x92)):
            session = _opened(version)
            _feed(session, PubRec(3))
            assert _sent(session) == [PubRel(3, code)]
            assert _feed(session, PubComp(3, code)) == [PubComp(3, code)]
            assert session.state is SessionState.CONNECTED

    @both_versions
    def test_window_refuses_and_changes_nothing(self, version: int) -> None:
        session = _opened(version, window=2)
        first = session.publish("a", b"", 0, qos=1)
        session.publish("a", b"", 0, qos=2)
        session.data_to_send()
        assert not session.can_publish
        with pytest.raises(LocalProtocolError, match="2 messages are under way"):
            session.publish("a", b"", 0, qos=1)
        assert (session.in_flight, session.data_to_send()) == (2, b"")
        assert session.publish("a", b"", 0) == 0
        _feed(session, PubAck(first))
        assert session.can_publish
        assert session.publish("a", b"", 0, qos=1) > 0

    def test_receive_maximum_of_the_broker(self) -> None:
        """Spec 4.9: PUBREC gives no room, PUBCOMP does."""
        session = _opened(window=9, offer=Properties(receive_maximum=1))
        packet_id = session.publish("a", b"", 0, qos=2)
        _feed(session, PubRec(packet_id))
        assert not session.can_publish
        _feed(session, PubComp(packet_id))
        assert session.can_publish

    @pytest.mark.parametrize(
        ("offer", "request_"),
        [
            (Properties(maximum_qos=0), {"qos": 1}),
            (Properties(maximum_qos=1), {"qos": 2}),
            (Properties(retain_available=0), {"retain": True}),
            (Properties(maximum_packet_size=20), {"qos": 1, "payload": bytes(20)}),
            (NO_PROPERTIES, {"properties": Properties(topic_alias=1)}),
            (NO_PROPERTIES, {"properties": Properties(subscription_identifier=(1,))}),
            (NO_PROPERTIES, {"topic_name": "a/#"}),
            (NO_PROPERTIES, {"topic_name": "x" * 65_536, "qos": 2}),
            (NO_PROPERTIES, {"qos": 3}),
        ],
    )
    def test_what_the_broker_does_not_take(
        self, offer: Properties, request_: dict[str, object]
    ) -> None:
        """Spec 3.2.2.3."""
        session = _opened(offer=offer)
        with pytest.raises(LocalProtocolError):
            session.publish(**{"topic_name": "a", "payload": b"", "now_ns": 0, **request_})  # type: ignore[arg-type]
        assert (session.in_flight, session.data_to_send()) == (0, b"")


class TestReceive:
    """Spec 4.3, receiver."""

    @both_versions
    def test_qos_0_and_1(self, version: int) -> None:
        session = _opened(version)
        messages = [Publish("a", b"0"), Publish("a", b"1", 1, packet_id=65_535)]
        assert _feed(session, *messages) == messages
        assert _sent(session) == [PubAck(65_535)]

    @both_versions
    def test_qos_2_is_passed_on_once(self, version: int) -> None:
        session = _opened(version)
        message = Publish("a", b"2", 2, packet_id=9)
        assert _feed(session, message, replace(message, dup=True), message) == [message]
        assert _sent(session) == [PubRec(9)] * 3
        assert _feed(session, PubRel(9)) == [PubRel(9)]
        assert _sent(session) == [PubComp(9)]
        assert _feed(session, message) == [message]

    def test_pubrel_for_nothing(self) -> None:
        """Spec 3.7.2.1."""
        for version, code in ((4, 0), (5, 0x92)):
            session = _opened(version)
            _feed(session, PubRel(9))
            assert _sent(session) == [PubComp(9, code)]

    def test_receive_maximum_of_ours(self) -> None:
        """Spec 4.9, 3.3.4."""
        session = _opened(ours=Properties(receive_maximum=2))
        _feed(session, *(Publish("a", b"", 2, packet_id=n) for n in (1, 2, 1)))
        _feed(session, Publish("a"), PubRel(1), Publish("a", b"", 1, packet_id=3))
        _feed(session, Publish("a", b"", 2, packet_id=1))
        session.data_to_send()
        assert _blamed(session, Publish("a", b"", 1, packet_id=3)) == 0x93

    def test_maximum_packet_size_of_ours(self) -> None:
        """Spec 3.1.2.11.4: counts the whole packet."""
        session = _opened(ours=Properties(maximum_packet_size=10))
        assert _feed(session, Publish("abc", b"12")) == [Publish("abc", b"12")]
        assert _blamed(session, Publish("abc", b"123")) == 0x95

    def test_limit_is_checked_on_the_header(self) -> None:
        session = Session(4, limit_bytes=100)
        session.connect(Connect("c", 4), 0)
        _feed(session, ConnAck())
        with pytest.raises(RemoteProtocolError, match="the limit is 100"):
            session.receive_data(bytes.fromhex("30 65"), 0)

    def test_topic_alias_is_refused_when_none_was_offered(self) -> None:
        """Spec 3.3.2.3.4."""
        packet = Publish("a", properties=Properties(topic_alias=1))
        assert _blamed(_opened(), packet) == 0x94

    def test_topic_alias(self) -> None:
        session = _opened(ours=Properties(topic_alias_maximum=2))
        alias = Properties(topic_alias=2)
        events = _feed(
            session,
            Publish("a", b"1", properties=alias),
            Publish("", b"2", properties=alias),
            Publish("b", b"3", properties=alias),
            Publish("", b"4", properties=alias),
        )
        assert [one.topic_name for one in events if isinstance(one, Publish)] == list("aabb")
        assert _blamed(session, Publish("", properties=Properties(topic_alias=1))) == 0x82

    def test_topic_alias_ends_with_the_connection(self) -> None:
        ours = Properties(topic_alias_maximum=2)
        session = _opened(ours=ours)
        _feed(session, Publish("a", b"1", properties=Properties(topic_alias=1)))
        session.connection_lost()
        _reopen(session, True, ours=ours)
        assert _blamed(session, Publish("", properties=Properties(topic_alias=1))) == 0x82

    def test_answer_that_the_broker_does_not_take(self) -> None:
        """Its own Maximum Packet Size leaves no way to acknowledge."""
        session = _opened(offer=Properties(maximum_packet_size=3))
        with pytest.raises(RemoteProtocolError, match="no way to answer"):
            _feed(session, Publish("a", b"", 1, packet_id=1))


class TestSubscribe:
    """Spec 3.8 to 3.11."""

    @both_versions
    def test_round(self, version: int) -> None:
        session = _opened(version, window=4)
        wanted = (Subscription("a/#", 1), Subscription("b", 2))
        packet_id = session.subscribe(wanted, 0)
        assert packet_id > 4
        assert _sent(session) == [Subscribe(packet_id, wanted)]
        answer = SubAck(packet_id, (1, 0x80))
        assert _feed(session, answer) == [answer]
        packet_id = session.unsubscribe(("b",), 0)
        assert _sent(session) == [Unsubscribe(packet_id, ("b",))]
        gone = UnsubAck(packet_id, (0,) if version == 5 else ())
        assert _feed(session, gone) == [gone]
        assert _blamed(session, gone) == 0x82

    @both_versions
    def test_wrong_answers(self, version: int) -> None:
        for answer in (
            SubAck(9, (0,)),
            UnsubAck(5, (0,) if version == 5 else ()),
            SubAck(5, (0, 0)),
        ):
            session = _opened(version, window=4)
            assert session.subscribe((Subscription("a"),), 0) == 5
            session.data_to_send()
            assert _blamed(session, answer) == 0x82

    def test_identifiers_go_round_and_run_out(self) -> None:
        """Spec 2.2.1: never one that is in use, never one of the window."""
        session = _opened(4, window=MAX_WINDOW)
        ids = [session.subscribe((Subscription("a"),), 0) for _ in range(65_535 - MAX_WINDOW)]
        assert sorted(ids) == list(range(MAX_WINDOW + 1, 65_536))
        with pytest.raises(LocalProtocolError, match="every Packet Identifier"):
            session.subscribe((Subscription("a"),), 0)
        _feed(session, SubAck(ids[7], (0,)))
        assert session.unsubscribe(("a",), 0) == ids[7]

    @pytest.mark.parametrize(
        ("offer", "topic_filter", "properties"),
        [
            (Properties(wildcard_subscription_available=0), "a/+", NO_PROPERTIES),
            (Properties(shared_subscription_available=0), "$share/g/a", NO_PROPERTIES),
            (
                Properties(subscription_identifier_available=0),
                "a",
                Properties(subscription_identifier=(1,)),
            ),
        ],
    )
    def test_what_the_broker_does_not_take(
        self, offer: Properties, topic_filter: str, properties: Properties
    ) -> None:
        """Spec 3.2.2.3.11 to 3.2.2.3.13."""
        session = _opened(offer=offer)
        with pytest.raises(LocalProtocolError, match="the broker has no"):
            session.subscribe((Subscription(topic_filter),), 0, properties)
        assert session.data_to_send() == b""
        assert session.subscribe((Subscription("a"),), 0) > 0


class TestKeepAlive:
    """Spec 3.1.2.10, 3.12."""

    def test_ping_when_nothing_was_sent_for_an_interval(self) -> None:
        session = _opened(keep_alive=10)
        assert session.next_tick_ns == 10 * _S
        session.tick(10 * _S - 1)
        assert session.data_to_send() == b""
        session.publish("a", b"", 4 * _S)
        session.data_to_send()
        assert session.next_tick_ns == 14 * _S
        session.tick(14 * _S)
        assert _sent(session) == [PingReq()]
        session.tick(15 * _S)
        assert session.data_to_send() == b""
        assert session.next_tick_ns == 24 * _S
        assert _feed(session, PingResp(), now_ns=16 * _S) == [PingResp()]
        session.tick(24 * _S)
        assert _sent(session) == [PingReq()]

    def test_acknowledgements_count_as_sent(self) -> None:
        session = _opened(keep_alive=10)
        _feed(session, Publish("a", b"", 1, packet_id=1), now_ns=9 * _S)
        assert session.next_tick_ns == 19 * _S

    def test_no_pingresp(self) -> None:
        session = _opened(keep_alive=10)
        session.tick(10 * _S)
        session.data_to_send()
        session.publish("a", b"", 19 * _S)
        session.data_to_send()
        with pytest.raises(RemoteProtocolError, match="no PINGRESP within 10 s") as caught:
            session.tick(20 * _S)
        assert caught.value.reason_code == 0x8D
        assert _sent(session) == [Disconnect(0x8D)]
        assert session.state is SessionState.CLOSED
        assert session.next_tick_ns is None
        session.tick(99 * _S)
        assert session.data_to_send() == b""

    def test_zero_is_off(self) -> None:
        session = _opened(keep_alive=0)
        session.tick(10**18)
        assert session.data_to_send() == b""
        assert session.next_tick_ns is None

    def test_server_keep_alive_wins(self) -> None:
        """Spec 3.2.2.3.14."""
        session = _opened(keep_alive=10, offer=Properties(server_keep_alive=3))
        assert session.next_tick_ns == 3 * _S


class TestResumption:
    """Spec 4.1, 4.4, 4.6."""

    @both_versions
    def test_sends_again_in_order_with_dup(self, version: int) -> None:
        session = _opened(version, clean_start=False)
        ids = [session.publish("t", bytes((n,)), 0, qos=qos) for n, qos in enumerate((2, 1, 2, 1))]
        _feed(session, PubRec(ids[0]), PubAck(ids[1]))
        late = session.publish("t", b"late", 0, qos=1)
        session.connection_lost()
        assert session.in_flight == 4
        assert _reopen(session, True) == [
            PubRel(ids[0]),
            Publish("t", b"\2", 2, dup=True, packet_id=ids[2]),
            Publish("t", b"\3", 1, dup=True, packet_id=ids[3]),
            Publish("t", b"late", 1, dup=True, packet_id=late),
        ]
        _feed(session, PubComp(ids[0]), PubRec(ids[2]), PubAck(ids[3]), PubAck(late))
        assert _sent(session) == [PubRel(ids[2])]
        _feed(session, PubComp(ids[2]))
        assert session.in_flight == 0

    @both_versions
    def test_session_not_present(self, version: int) -> None:
        session = _opened(version, clean_start=False)
        session.publish("t", b"", 0, qos=2)
        message = Publish("t", b"", 2, packet_id=7)
        _feed(session, message)
        session.connection_lost()
        assert _reopen(session, False) == []
        assert session.in_flight == 0
        assert _feed(session, message) == [message]

    @both_versions
    def test_received_qos_2_is_remembered(self, version: int) -> None:
        session = _opened(version, clean_start=False)
        message = Publish("t", b"", 2, packet_id=7)
        _feed(session, message)
        session.connection_lost()
        _reopen(session, True)
        assert _feed(session, replace(message, dup=True)) == []
        assert _sent(session) == [PubRec(7)]

    def test_half_a_packet_does_not_survive(self) -> None:
        session = _opened(clean_start=False)
        data = encode(Publish("t", b"payload"), 5)
        session.receive_data(data[:-1], 0)
        session.connection_lost()
        _reopen(session, True)
        session.receive_data(data, 0)
        assert session.events_received() == [Publish("t", b"payload")]

    def test_nothing_of_a_closed_connection_gets_into_the_next(self) -> None:
        session = _opened(clean_start=False)
        half = encode(Publish("t", b"payload"), 5)[:-1]
        session.receive_data(encode(Disconnect(0x8B), 5) + half, 0)
        assert session.events_received() == [Disconnect(0x8B)]
        assert _reopen(session, True) == []
        session.publish("t", b"never fetched", 0)
        session.disconnect(0)
        assert _reopen(session, True) == []
        assert _feed(session, PingResp()) == [PingResp()]

    def test_smaller_receive_maximum_paces_the_repetition(self) -> None:
        """Spec 4.9: PUBREL always, PUBLISH as there is room."""
        session = _opened(clean_start=False)
        ids = [session.publish("t", b"", 0, qos=qos) for qos in (1, 2, 1)]
        _feed(session, PubRec(ids[1]))
        session.connection_lost()
        offer = Properties(receive_maximum=1)
        assert _reopen(session, True, offer=offer) == [PubRel(ids[1])]
        assert not session.can_publish
        _feed(session, PubComp(ids[1]))
        assert _sent(session) == [Publish("t", b"", 1, dup=True, packet_id=ids[0])]
        _feed(session, PubAck(ids[0]))
        assert _sent(session) == [Publish("t", b"", 1, dup=True, packet_id=ids[2])]
        assert not session.can_publish
        _feed(session, PubAck(ids[2]))
        assert session.can_publish

    def test_acknowledgement_of_what_was_not_yet_sent_again(self) -> None:
        session = _opened(clean_start=False)
        ids = [session.publish("t", b"", 0, qos=1) for _ in range(2)]
        session.connection_lost()
        _reopen(session, True, offer=Properties(receive_maximum=1))
        assert _blamed(session, PubAck(ids[1])) == 0x82

    @pytest.mark.parametrize("qos", [1, 2])
    def test_message_that_the_broker_takes_no_more(self, qos: int) -> None:
        """Spec 3.2.2.3.6: discarded as if it were complete."""
        session = _opened(clean_start=False)
        session.publish("t", bytes(50), 0, qos=qos)
        small = session.publish("t", b"", 0, qos=1)
        session.connection_lost()
        again = _reopen(session, True, offer=Properties(maximum_packet_size=40))
        assert again == [Publish("t", b"", 1, dup=True, packet_id=small)]
        assert session.in_flight == 1


# What `_run` waits for, so that most rows of packets go on for a while.
_welcome = st.sampled_from(
    (PubAck(1), PubRec(2), PubComp(2), PubRel(4), SubAck(5, (0,)), PingResp(), PubRec(9))
)


def _from_server(version: int) -> st.SearchStrategy[list[Packet]]:
    return st.lists(st.one_of(_welcome, publishes(version), packets(version)), max_size=8)


class TestAnySplit:
    """Spec 4.2: any bytes, cut anywhere, give what the whole gives."""

    @staticmethod
    def _run(version: int, pieces: list[bytes]) -> tuple[list[Packet], bytes, int | None, str]:
        ours = Properties(topic_alias_maximum=9, receive_maximum=3)
        session = _opened(version, ours=ours if version == 5 else NO_PROPERTIES)
        for qos in (1, 2):
            session.publish("t", b"", 0, qos=qos)
        session.subscribe((Subscription("a"),), 0)
        fault = None
        for piece in pieces:
            try:
                session.receive_data(piece, 0)
            except RemoteProtocolError as error:
                fault = error.reason_code
        return session.events_received(), session.data_to_send(), fault, session.state.value

    @given(
        versions.flatmap(lambda v: st.tuples(_from_server(v), st.just(v))),
        st.binary(max_size=10),
        st.data(),
    )
    @THOROUGH
    def test_packets_and_rubbish(
        self, case: tuple[list[Packet], int], rubbish: bytes, data: st.DataObject
    ) -> None:
        several, version = case
        whole = b"".join(encode(packet, version) for packet in several) + rubbish
        cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=8)))
        edges = [0, *cuts, len(whole)]
        pieces = [whole[a:b] for a, b in pairwise(edges)]
        assert b"".join(pieces) == whole
        assert self._run(version, pieces) == self._run(version, [whole])

    @given(_from_server(5))
    @QUICK
    def test_byte_by_byte(self, several: list[Packet]) -> None:
        whole = b"".join(encode(packet, 5) for packet in several)
        assert self._run(5, [whole[n : n + 1] for n in range(len(whole))]) == self._run(5, [whole])

    def test_packets_of_the_server_pass_whole_and_split(self) -> None:
        several = [
            Publish("a", b"x", 2, packet_id=4),
            PubAck(1),
            PubRec(2),
            PubRel(4),
            PubComp(2),
            SubAck(5, (0,)),
            PingResp(),
        ]
        whole = b"".join(encode(packet, 5) for packet in several)
        events, sent, fault, state = self._run(5, [bytes((byte,)) for byte in whole])
        assert (events, fault, state) == (several, None, "connected")
        assert sent.endswith(encode(PubRel(2), 5) + encode(PubComp(4), 5))


@dataclass
class _Broker:
    """A broker's side of one session, as dictionaries; it never errs and never forgets."""

    version: int
    inbox: list[bytes] = field(default_factory=list)
    awaiting_pubrel: set[int] = field(default_factory=set)
    outbound: dict[int, Publish | PubRel] = field(default_factory=dict)
    next_id: int = 1
    has_session: bool = False

    def take(self, packet: Packet) -> list[Packet]:
        """Answer one packet of the client."""
        if isinstance(packet, Connect):
            present, self.has_session = self.has_session, True
            again = [
                replace(one, dup=True) if isinstance(one, Publish) else one
                for one in self.outbound.values()
            ]
            return [ConnAck(present), *again]
        if isinstance(packet, Publish):
            return self._take_publish(packet)
        if isinstance(packet, PubRel):
            self.awaiting_pubrel.discard(packet.packet_id)
            return [PubComp(packet.packet_id)]
        if isinstance(packet, PubRec):
            # Goes to the end: PUBREL follow the order of PUBREC, spec 4.6.
            self.outbound.pop(packet.packet_id)
            self.outbound[packet.packet_id] = PubRel(packet.packet_id)
            return [PubRel(packet.packet_id)]
        assert isinstance(packet, PubAck | PubComp)
        del self.outbound[packet.packet_id]
        return []

    def _take_publish(self, packet: Publish) -> list[Packet]:
        if packet.qos == 2:
            if packet.packet_id not in self.awaiting_pubrel:
                self.inbox.append(packet.payload)
            self.awaiting_pubrel.add(packet.packet_id)
            return [PubRec(packet.packet_id)]
        self.inbox.append(packet.payload)
        return [PubAck(packet.packet_id)] if packet.qos else []

    def publish(self, payload: bytes, qos: int) -> Publish:
        packet_id = 0
        if qos:
            while self.next_id in self.outbound:
                self.next_id = self.next_id % 20 + 1
            packet_id = self.next_id
            self.next_id = self.next_id % 20 + 1
        packet = Publish("t", payload, qos, packet_id=packet_id)
        if qos:
            self.outbound[packet_id] = packet
        return packet


class LossyNetwork(RuleBasedStateMachine):
    """Spec 4.3 over a network that is cut at any moment: at least once, exactly once, in order."""

    @initialize(version=versions, window=st.integers(1, 5))
    def start(self, version: int, window: int) -> None:
        self.window = window
        self.session = Session(version, window=window)
        self.broker = _Broker(version)
        self.to_broker: list[Packet] = []
        self.to_client: list[Packet] = []
        self.published: list[tuple[bytes, int]] = []
        self.sent_by_broker: list[tuple[bytes, int]] = []
        self.received: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.session.connect(Connect("c", self.session.version, clean_start=False), 0)
        self.collect()

    def collect(self) -> None:
        self.to_broker += _sent(self.session)

    def up(self, count: int) -> None:
        for packet in self.to_broker[:count]:
            self.to_client += self.broker.take(packet)
        del self.to_broker[:count]

    def down(self, count: int) -> None:
        for event in _feed(self.session, *self.to_client[:count]):
            if isinstance(event, Publish):
                self.received.append(event.payload)
        del self.to_client[:count]
        self.collect()

    @rule(qos=st.integers(0, 2))
    def publish(self, qos: int) -> None:
        payload = b"c%d" % len(self.published)
        if self.session.state is not SessionState.CONNECTED:
            with pytest.raises(LocalProtocolError):
                self.session.publish("t", payload, 0, qos=qos)
            return
        if qos and not self.session.can_publish:
            with pytest.raises(LocalProtocolError, match="window is full"):
                self.session.publish("t", payload, 0, qos=qos)
            return
        self.session.publish("t", payload, 0, qos=qos)
        self.published.append((payload, qos))
        self.collect()

    @precondition(lambda self: self.session.state is SessionState.CONNECTED)
    @rule(qos=st.integers(0, 2))
    def broker_publishes(self, qos: int) -> None:
        payload = b"b%d" % len(self.sent_by_broker)
        if len(self.broker.outbound) < 20:
            self.sent_by_broker.append((payload, qos))
            self.to_client.append(self.broker.publish(payload, qos))

    @rule(count=st.integers(1, 4))
    def network_up(self, count: int) -> None:
        self.up(count)

    @rule(count=st.integers(1, 4))
    def network_down(self, count: int) -> None:
        self.down(count)

    @rule(up=st.integers(0, 3), down=st.integers(0, 3))
    def cut(self, up: int, down: int) -> None:
        self.up(up)
        self.down(down)
        self.to_broker.clear()
        self.to_client.clear()
        self.session.connection_lost()
        self.open()

    @invariant()
    def window_holds(self) -> None:
        if not hasattr(self, "session"):
            return
        assert 0 <= self.session.in_flight <= self.window

    def teardown(self) -> None:
        if not hasattr(self, "session"):
            return
        self.cut(0, 0)
        while self.to_broker or self.to_client:
            self.up(len(self.to_broker))
            self.down(len(self.to_client))
        assert self.session.in_flight == 0
        assert not self.broker.outbound
        self.check(self.published, self.broker.inbox)
        self.check(self.sent_by_broker, self.received)

    @staticmethod
    def check(sent: list[tuple[bytes, int]], received: list[bytes]) -> None:
        counts = Counter(received)
        assert set(counts) <= {payload for payload, _ in sent}
        for payload, qos in sent:
            if qos == 0:
                assert counts[payload] <= 1
            elif qos == 1:
                assert counts[payload] >= 1
            else:
                assert counts[payload] == 1
        for qos in (1, 2):
            # Spec 4.6: order of the first arrivals of one QoS.
            order = [payload for payload, its in sent if its == qos]
            seen = [one for one in dict.fromkeys(received) if one in set(order)]
            assert seen == order


LossyNetwork.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLossyNetwork = LossyNetwork.TestCase
