"""The handlers of devices that publish, receive and respond."""

from typing import Any

from loadgen.kernels.handlers import Handlers
from loadgen.kernels.receiver import on_acknowledged, on_message, on_refused
from loadgen.kernels.resume import on_return, write_again
from loadgen.kernels.sender import on_sent, on_unsent, write_due

MESSAGING: Any = Handlers(
    on_message,
    on_acknowledged,
    on_refused,
    write_due,
    on_sent,
    on_unsent,
    write_again,
    on_return,
)
