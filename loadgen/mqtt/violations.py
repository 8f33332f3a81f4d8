"""Violations of the specification by a broker that a worker can see, numbered for the kernels.

A violation is judged, and makes a run invalid, if it can change a figure or break a client. Others
are counted for a remark. Statements in brackets are those of MQTT 5.
"""

from typing import Final, NamedTuple


class Violation(NamedTuple):
    """A kind of violation; `is_judged` is False if it is merely remarked."""

    words: str
    is_judged: bool = True


VIOLATIONS: Final[list[Violation]] = []


def _judged(words: str) -> int:
    """Add a kind of violation to VIOLATIONS; return its index."""
    VIOLATIONS.append(Violation(words))
    return len(VIOLATIONS) - 1


def _remarked(words: str) -> int:
    VIOLATIONS.append(Violation(words, is_judged=False))
    return len(VIOLATIONS) - 1


MALFORMED = _judged("a packet that MQTT does not allow [4.13.1]")
DUP_AT_QOS_0 = _judged("a PUBLISH at QoS 0 with DUP set [MQTT-3.3.1-2]")
TOPIC_ALIAS = _judged("a PUBLISH with a topic alias, though none was allowed [MQTT-3.1.2-26]")
QOS_RAISED = _judged("a PUBLISH with more than the granted or published QoS [MQTT-3.8.4-8]")
IDENTIFIER_IN_USE = _judged(
    "a QoS 2 PUBLISH whose identifier another message still used [MQTT-4.3.3-5]"
)
UNKNOWN_ACKNOWLEDGEMENT = _judged("an acknowledgement of a message that waits for none [4.3]")
FAILED_PUBCOMP = _judged("a PUBCOMP with a failure for a message that it had accepted [4.3.3]")
UNKNOWN_PUBREL = _judged("a PUBREL that no message waits for [4.3.3]")
SESSION_PRESENT = _judged("Session Present for a session that cannot exist [MQTT-3.2.2-2]")
UNEXPECTED_PACKET = _judged("a packet that was not requested [3]")
RETAIN_ON_LIVE = _judged("a PUBLISH with RETAIN to an established subscription [MQTT-3.3.1-12]")
DUP_ON_FIRST = _judged("the first delivery of a message with DUP set [MQTT-3.3.1-3]")
UNKNOWN_REASON = _judged("a reason code that the packet must not carry [2.4]")
UNKNOWN_SUBACK = _judged("a SUBACK that no SUBSCRIBE waits for [MQTT-3.8.4-2]")
SUBACK_CODES = _judged("a SUBACK without exactly one reason code for each filter [MQTT-3.8.4-6]")
GRANT_RAISED = _judged("a grant of more than the requested QoS [MQTT-3.8.4-8]")
ASSIGNED_IDENTIFIER = _judged("an Assigned Client Identifier, though one was given [3.2.2.3.7]")
SERVER_DISCONNECT = _judged("a DISCONNECT, which MQTT 3.1.1 has for clients only [3.14 of 3.1.1]")
NO_SUBPROTOCOL = _judged("a WebSocket without the subprotocol mqtt [MQTT-6.0.0-4]")
TEXT_FRAME = _judged("a WebSocket frame that is not binary [MQTT-6.0.0-1]")
FORBIDDEN_FRAME = _judged("a WebSocket frame that RFC 6455 does not allow [RFC 6455, 5.1]")
SUBSCRIPTION_IDENTIFIER = _remarked(
    "a Subscription Identifier that was not requested [MQTT-3.3.4-3]"
)
UNREQUESTED_PROPERTY = _remarked("a property of CONNACK that was not requested [MQTT-3.1.2-28]")
UNREQUESTED_PINGRESP = _remarked("a PINGRESP that no PINGREQ waits for [3.13]")
SESSION_LOST = _remarked("a CONNACK without the session that had to be stored [MQTT-3.1.2-23]")

AWAITED: Final = (
    ("PUBLISH of QoS 1", "PUBACK"),
    ("PUBLISH of QoS 2", "PUBREC"),
    ("PUBREL", "PUBCOMP"),
)
"""The packet sent last and the packet that has to answer it, in the order of a message's states."""
ANSWERS: Final = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")

WRONG_ACKNOWLEDGEMENT = len(VIOLATIONS)
"""The first of the numbers for each state of a message and each answer."""
for _sent, _wanted in AWAITED:
    for _answer in ANSWERS:
        _judged(f"a {_sent} answered with {_answer} (the specification requires {_wanted})")
