"""Violations of the protocol by a broker that a worker can see, numbered for the kernels.

Numbers in brackets are those of MQTT 5's statements.
"""

from typing import Final

from loadgen.kernels.compiled import compiled
from loadgen.kernels.in_flight import AWAIT_PUBACK, AWAIT_PUBCOMP, AWAIT_PUBREC
from loadgen.mqtt.constants import PUBACK

(
    MALFORMED,
    DUP_AT_QOS_0,
    TOPIC_ALIAS,
    EMPTY_TOPIC,
    QOS_RAISED,
    IDENTIFIER_IN_USE,
    UNKNOWN_ACKNOWLEDGEMENT,
    FAILED_PUBCOMP,
    UNKNOWN_PUBREL,
    SESSION_PRESENT,
    UNEXPECTED_PACKET,
) = range(11)
_WRONG_ACKNOWLEDGEMENTS: Final = 11
"""First of the numbers for each state of a message and each packet that answers one."""

_AWAITED: Final = {
    AWAIT_PUBACK: ("PUBLISH of QoS 1", "PUBACK"),
    AWAIT_PUBREC: ("PUBLISH of QoS 2", "PUBREC"),
    AWAIT_PUBCOMP: ("PUBREL", "PUBCOMP"),
}
"""The packet sent last and the packet that has to answer it, by the state of a message."""
_ANSWERS: Final = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")

WORDS = (
    "a packet that MQTT does not allow",
    "a PUBLISH at QoS 0 with DUP set [MQTT-3.3.1-2]",
    "a PUBLISH with a topic alias, and none was allowed [MQTT-3.1.2-26]",
    "a PUBLISH without a topic [MQTT-4.7.3-1]",
    "a PUBLISH with more than the granted or published QoS [MQTT-3.8.4-8]",
    "a QoS 2 PUBLISH without DUP whose identifier was still in use [MQTT-4.3.3-5]",
    "an acknowledgement of a message that waits for none",
    "a PUBCOMP with a failure for a message that it had taken",
    "a PUBREL that no message waits for",
    "Session Present in answer to Clean Start [MQTT-3.2.2-2]",
    "a packet that was not requested",
    *(
        f"a {sent} answered with {answer} (the specification wants {wanted})"
        for sent, wanted in _AWAITED.values()
        for answer in _ANSWERS
    ),
)


@compiled
def wrong_acknowledgement(state: int, packet_type: int) -> int:
    """Return the violation of answering a message in this state with this packet."""
    row = (state - AWAIT_PUBACK) * len(_ANSWERS)
    return _WRONG_ACKNOWLEDGEMENTS + row + packet_type - PUBACK
