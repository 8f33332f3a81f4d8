"""The meaning of messages in a case: compiled functions that kernels take as one argument."""

from collections.abc import Callable
from typing import NamedTuple


class Handlers(NamedTuple):
    """The functions of a case; `position` is the end of what was written to `out`.

    on_message       (fleet, message, position): acknowledge a message that arrived for the first
                     time, and account for it; return the new position
    on_acknowledged  (fleet, row, packet_id, now_ns, position): end a message that is acknowledged;
                     return the group that counts it, and the new position
    on_refused       (fleet, row, packet_id, phase): prepare the end of a refused message, before
                     on_acknowledged; return the number of deliveries that it would have had
    write_due        (fleet, number, packet_id, sent_ns, position, sent): write a publisher's next
                     message and fill its row of the batch; return the new position
    on_sent          (fleet, row, sent, phase, sent_ns): count a message that the socket took
    on_unsent        (fleet, sent): take back a message that will be written again
    write_again      (fleet, row, packet_id, dup, copy, position): write a message that was not
                     acknowledged before the connection broke; return the new position
    on_return        (fleet, row): note that a device is back, before anything is written again
    """

    on_message: Callable[..., int]
    on_acknowledged: Callable[..., tuple[int, int]]
    on_refused: Callable[..., int]
    write_due: Callable[..., int]
    on_sent: Callable[..., None]
    on_unsent: Callable[..., None]
    write_again: Callable[..., int]
    on_return: Callable[..., None]
