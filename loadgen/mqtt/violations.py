"""Violations of the specification by a broker that a worker can see, numbered for the kernels.

A violation is judged, and makes a run invalid, if it can change a figure or break a client. Others
are counted for a remark. Statements in brackets are those of MQTT 5.
"""

from typing import Final, NamedTuple

(
    MALFORMED,
    DUP_AT_QOS_0,
    TOPIC_ALIAS,
    QOS_RAISED,
    IDENTIFIER_IN_USE,
    UNKNOWN_ACKNOWLEDGEMENT,
    FAILED_PUBCOMP,
    UNKNOWN_PUBREL,
    SESSION_PRESENT,
    UNEXPECTED_PACKET,
    RETAIN_ON_LIVE,
    DUP_ON_FIRST,
    UNKNOWN_REASON,
    UNKNOWN_SUBACK,
    SUBACK_CODES,
    GRANT_RAISED,
    ASSIGNED_IDENTIFIER,
    SERVER_DISCONNECT,
    NO_SUBPROTOCOL,
    TEXT_FRAME,
    FORBIDDEN_FRAME,
    SUBSCRIPTION_IDENTIFIER,
    UNREQUESTED_PROPERTY,
    UNREQUESTED_PINGRESP,
    SESSION_LOST,
    WRONG_ACKNOWLEDGEMENT,
) = range(26)
"""WRONG_ACKNOWLEDGEMENT is the first of the numbers for each state of a message and each answer."""

AWAITED: Final = (
    ("PUBLISH of QoS 1", "PUBACK"),
    ("PUBLISH of QoS 2", "PUBREC"),
    ("PUBREL", "PUBCOMP"),
)
"""The packet sent last and the packet that has to answer it, in the order of a message's states."""
ANSWERS: Final = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")


class Violation(NamedTuple):
    """A kind of violation; `is_judged` is False if it is merely remarked."""

    words: str
    is_judged: bool = True


VIOLATIONS: Final = (
    Violation("a packet that MQTT does not allow [4.13.1]"),
    Violation("a PUBLISH at QoS 0 with DUP set [MQTT-3.3.1-2]"),
    Violation("a PUBLISH with a topic alias, and none was allowed [MQTT-3.1.2-26]"),
    Violation("a PUBLISH with more than the granted or published QoS [MQTT-3.8.4-8]"),
    Violation("a QoS 2 PUBLISH whose identifier another message still used [MQTT-4.3.3-5]"),
    Violation("an acknowledgement of a message that waits for none [4.3]"),
    Violation("a PUBCOMP with a failure for a message that it had taken [4.3.3]"),
    Violation("a PUBREL that no message waits for [4.3.3]"),
    Violation("Session Present for a session that cannot exist [MQTT-3.2.2-2]"),
    Violation("a packet that was not requested [3]"),
    Violation("a PUBLISH with RETAIN to an established subscription [MQTT-3.3.1-12]"),
    Violation("the first delivery of a message with DUP set [MQTT-3.3.1-3]"),
    Violation("a reason code that the packet must not carry [2.4]"),
    Violation("a SUBACK that no SUBSCRIBE waits for [MQTT-3.8.4-2]"),
    Violation("a SUBACK without exactly one reason code for each filter [MQTT-3.8.4-6]"),
    Violation("a grant of more than the requested QoS [MQTT-3.8.4-8]"),
    Violation("an Assigned Client Identifier, though one was given [3.2.2.3.7]"),
    Violation("a DISCONNECT from the server of MQTT 3.1.1 [3.14 of 3.1.1]"),
    Violation("a WebSocket without the subprotocol mqtt [MQTT-6.0.0-4]"),
    Violation("a WebSocket frame that is not binary [MQTT-6.0.0-1]"),
    Violation("a WebSocket frame that RFC 6455 does not allow [RFC 6455, 5.1]"),
    Violation("a Subscription Identifier that was not requested [MQTT-3.3.4-3]", False),
    Violation("a property of CONNACK that was not requested [MQTT-3.1.2-28]", False),
    Violation("a PINGRESP that no PINGREQ waits for [3.13]", False),
    Violation("a CONNACK without the session that had to be stored [MQTT-3.1.2-23]", False),
    *(
        Violation(f"a {sent} answered with {answer} (the specification wants {wanted})")
        for sent, wanted in AWAITED
        for answer in ANSWERS
    ),
)
