"""The numbers that all protocol versions share."""

from typing import Final

# The Protocol Version byte of CONNECT (spec 3.1.2.2); `version` everywhere means this number.
MQTT_3_1: Final = 3
MQTT_3_1_1: Final = 4
MQTT_5: Final = 5

VERSION_NAMES: Final = {MQTT_3_1: "3.1", MQTT_3_1_1: "3.1.1", MQTT_5: "5"}

PROTOCOL_NAMES: Final = {MQTT_3_1: "MQIsdp", MQTT_3_1_1: "MQTT", MQTT_5: "MQTT"}
"""The Protocol Name of CONNECT (section 3.1 of MQTT 3.1)."""

# The largest number that a variable byte integer can hold (spec 1.5.5).
MAX_REMAINING_LENGTH: Final = 268_435_455

# Spec 2.1.2. WILL is not a packet: Will Properties have their own column in the property table.
WILL, CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP = range(8)
SUBSCRIBE, SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(8, 16)

PACKET_NAMES: Final = (
    *("Will", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP"),
    *("SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT"),
    "AUTH",
)


def packet_types(names: str) -> frozenset[int]:
    """Return packet types by their names, as a table of the specification lists them."""
    return frozenset(map(PACKET_NAMES.index, names.split()))
