"""What a case does with messages: compiled functions that the kernels are given as one argument."""

from collections.abc import Callable
from typing import NamedTuple

from loadgen.kernels.compiled import is_plain


class Handlers(NamedTuple):
    """The functions of a case.

    on_message       (fleet, row, buffer, message, now_ns, position): a message came that was not
                     there before; acknowledges it, returns the position after what it wrote
    on_acknowledged  (fleet, row, packet_id, now_ns, position): a message of the device is
                     acknowledged for good; the group that counts it, and the position
    on_refused       (fleet, row, packet_id, phase): it is refused, which ends it as well; called
                     before, returns the deliveries that nobody is to expect any more
    write_due        (fleet, number, packet_id, sent_ns, position, sent): write a publisher's next
                     message and fill its row of the batch; the position after it
    on_sent          (fleet, row, sent, phase, sent_ns): a message of the batch is out
    on_unsent        (fleet, sent): it is not, and will be written again
    write_again      (fleet, row, packet_id, dup, copy, position): write what a device had sent and
                     nobody acknowledged before its connection broke; the position after it
    on_return        (fleet, row): a device is back, before anything is written again
    """

    on_message: Callable[..., int]
    on_acknowledged: Callable[..., tuple[int, int]]
    on_refused: Callable[..., int]
    write_due: Callable[..., int]
    on_sent: Callable[..., None]
    on_unsent: Callable[..., None]
    write_again: Callable[..., int]
    on_return: Callable[..., None]


if not is_plain():
    import loadgen.kernels.handler_types  # noqa: F401
