"""How a connection ended, in words that many devices share."""

import errno
import os
from typing import Final


def ending(number: int) -> str:
    """The end of a connection by its errno; 0 where the peer closed it in order."""
    return os.strerror(number).lower() if number else "closed by the broker"


_CLOSINGS: Final = tuple(map(ending, (0, errno.ECONNRESET, errno.EPIPE)))


def before_connack(reason: str) -> str:
    """What to say of a connection that ended for this reason and had no CONNACK."""
    closed = reason in _CLOSINGS
    return "closed before CONNACK; has the broker reached a limit?" if closed else reason
