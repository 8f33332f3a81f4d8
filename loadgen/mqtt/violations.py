"""Violations of the specification by a broker that a worker can see, numbered for the kernels.

violations.toml has their words. A judged one makes a run invalid; others are counted for a remark.
"""

from typing import Final, NamedTuple

from loadgen.sentences import read_table


class Violation(NamedTuple):
    """A kind of violation; `is_judged` is False if it is merely remarked."""

    words: str
    is_judged: bool = True


NAMED: Final = read_table("loadgen.mqtt", "violations.toml")
VIOLATIONS: Final = [
    Violation(words, kind == "judged") for kind, rows in NAMED.items() for words in rows.values()
]
MALFORMED, DUP_AT_QOS_0, TOPIC_ALIAS, QOS_RAISED, IDENTIFIER_IN_USE = range(5)
UNKNOWN_ACKNOWLEDGEMENT, FAILED_PUBCOMP, FAILED_PUBREL, UNKNOWN_PUBREL = range(5, 9)
SESSION_PRESENT, UNEXPECTED_PACKET, RETAIN_ON_LIVE, DUP_ON_FIRST, UNKNOWN_REASON = range(9, 14)
UNKNOWN_SUBACK, SUBACK_CODES, GRANT_RAISED, ASSIGNED_IDENTIFIER, SERVER_DISCONNECT = range(14, 19)
NO_SUBPROTOCOL, TEXT_FRAME, FORBIDDEN_FRAME, SUBSCRIPTION_IDENTIFIER = range(19, 23)
UNREQUESTED_PROPERTY, UNREQUESTED_PINGRESP, SESSION_LOST = range(23, 26)

AWAITED: Final = (
    ("PUBLISH of QoS 1", "PUBACK"),
    ("PUBLISH of QoS 2", "PUBREC"),
    ("PUBREL", "PUBCOMP"),
)
"""The packet sent last and the packet that has to answer it, in the order of a message's states."""
ANSWERS: Final = ("PUBACK", "PUBREC", "PUBREL", "PUBCOMP")

WRONG_ACKNOWLEDGEMENT = len(VIOLATIONS)
"""The first number of those for a state of a message and a wrong answer."""
for _sent, _wanted in AWAITED:
    for _answer in ANSWERS:
        _words = f"a {_sent} answered with {_answer} (the specification requires {_wanted})"
        VIOLATIONS.append(Violation(_words))
