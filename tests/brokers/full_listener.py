"""A port at which a connection is neither taken nor refused."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def full_listener() -> Iterator[tuple[str, int]]:
    """Provide host and port of a listener whose queue is full: another connection waits for
    long."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with suppress(BlockingIOError):
                waiting.connect(address)
        yield address
