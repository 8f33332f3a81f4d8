"""What a broker may not do and a worker can see, numbered for the kernels.

Numbers in brackets are those of MQTT 5's statements.
"""

(
    MALFORMED,
    DUP_AT_QOS_0,
    TOPIC_ALIAS,
    EMPTY_TOPIC,
    QOS_RAISED,
    IDENTIFIER_IN_USE,
    UNKNOWN_ACKNOWLEDGEMENT,
    WRONG_ACKNOWLEDGEMENT,
    FAILED_PUBCOMP,
    UNKNOWN_PUBREL,
    SESSION_PRESENT,
    UNEXPECTED_PACKET,
) = range(12)

WORDS = (
    "a packet that MQTT does not allow",
    "a PUBLISH at QoS 0 with DUP set [MQTT-3.3.1-2]",
    "a PUBLISH with a topic alias, and none was allowed [MQTT-3.1.2-26]",
    "a PUBLISH without a topic [MQTT-4.7.3-1]",
    "a PUBLISH with more than the granted or published QoS [MQTT-3.8.4-8]",
    "a QoS 2 PUBLISH without DUP whose identifier was still in use [MQTT-4.3.3-5]",
    "an acknowledgement of a message that waits for none",
    "an acknowledgement that does not belong to the message's QoS or step",
    "a PUBCOMP with a failure for a message that it had taken",
    "a PUBREL that no message waits for",
    "Session Present in answer to Clean Start [MQTT-3.2.2-2]",
    "a packet that nobody asked for",
)
