"""Some thousand sessions of the grammar; `python -m tests.fuzz.sessions` plays more of them."""

import pytest

from loadgen.mqtt import violations
from tests.fuzz.session_checker import Breach, Checker, Event
from tests.fuzz.sessions import play

WELCOME = (1, "<", bytes.fromhex("20020000"))
SUBSCRIBE = (1, ">", bytes.fromhex("82060001 000174 01".replace(" ", "")))
GRANT = (1, "<", bytes.fromhex("9003000101"))
MESSAGE = bytes(4) + bytes(range(12)) + bytes(16)
SENT = (0, ">", bytes.fromhex("3225000174 0001".replace(" ", "")) + MESSAGE)


def check(events: list[Event]) -> list[Breach]:
    checker = Checker(4)
    for event in events:
        checker.check(event)
    return checker.breaches


def delivery(first_byte: int = 0x32) -> Event:
    return (1, "<", bytes((first_byte,)) + SENT[2][1:])


KINDS = {
    *("MALFORMED", "UNEXPECTED_PACKET", "SERVER_DISCONNECT", "UNKNOWN_REASON"),
    *("SESSION_PRESENT", "SESSION_LOST", "ASSIGNED_IDENTIFIER", "UNREQUESTED_PROPERTY"),
    *("UNKNOWN_SUBACK", "SUBACK_CODES", "GRANT_RAISED", "UNREQUESTED_PINGRESP", "FAILED_PUBREL"),
    *("QOS_RAISED", "RETAIN_ON_LIVE", "DUP_ON_FIRST", "TOPIC_ALIAS", "SUBSCRIPTION_IDENTIFIER"),
    *("IDENTIFIER_IN_USE", "UNKNOWN_PUBREL", "UNKNOWN_ACKNOWLEDGEMENT", "FAILED_PUBCOMP"),
    *(f"PUBLISH of QoS 1 answered with {kind}" for kind in (5, 7)),
    *(f"PUBLISH of QoS 2 answered with {kind}" for kind in (4, 7)),
    *(f"PUBREL answered with {kind}" for kind in (4, 5)),
}
"""Each kind of breach of a server, which kernels and checker count alike."""


def test_the_numbers_of_violations_are_those_of_their_table() -> None:
    names = [name for rows in violations.NAMED.values() for name in rows]
    assert [getattr(violations, name) for name in names] == [*range(len(names))]


def test_codec_kernels_and_checker_agree_and_see_each_kind_of_breach() -> None:
    assert play(2_000, 1).keys() == KINDS


@pytest.mark.parametrize(
    ("event", "name", "paragraph"),
    [
        (delivery(0x33), "RETAIN_ON_LIVE", "MQTT-3.3.1-12"),
        (delivery(0x3A), "DUP_ON_FIRST", "MQTT-3.3.1-3"),
        (delivery(0x36), "MALFORMED", "4.13.1"),
        (GRANT, "UNKNOWN_SUBACK", "MQTT-3.8.4-2"),
        ((1, "<", b"\xd0\0"), "UNREQUESTED_PINGRESP", "3.13"),
        ((1, "<", b"\xd0\1\0"), "MALFORMED", "4.13.1"),
        ((1, "<", b"\xe0\0"), "SERVER_DISCONNECT", "3.14 of 3.1.1"),
        (WELCOME, "UNEXPECTED_PACKET", "3"),
    ],
)
def test_the_checker_names_a_breach_with_its_paragraph(
    event: Event, name: str, paragraph: str
) -> None:
    sound = [WELCOME, SUBSCRIBE, GRANT, SENT]
    assert check([*sound, delivery()]) == []
    (breach,) = check([*sound, event])
    assert breach == (len(sound), name, paragraph)
