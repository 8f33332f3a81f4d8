"""The words for ends of connections, which many devices share."""

import errno
import os
from typing import Final

NO_PINGRESP: Final = "no PINGRESP in time"


def ending(number: int) -> str:
    """Return the words for an errno; 0 if the peer closed the connection in order."""
    return os.strerror(number).lower() if number else "closed by the broker"


_CLOSINGS: Final = tuple(map(ending, (0, errno.ECONNRESET, errno.EPIPE)))


def before_connack(reason: str) -> str:
    """Return the sentence for a connection that ended for this reason before its CONNACK."""
    closed = reason in _CLOSINGS
    return "closed before CONNACK; has the broker reached a limit?" if closed else reason
