"""Lets the kernels read and send whenever a socket or the schedule has something for them.

Owns the epoll set of the plain connections, the timers in it and the kernels' arguments.
"""

import asyncio
import selectors
from collections.abc import Callable

from loadgen.engine.context import address_table, pump_fleet, serve_fleet
from loadgen.engine.fleet import Fleet, Table, poll_arguments, pump_arguments
from loadgen.engine.reactor import LINGER, TIMER
from loadgen.engine.streams import Streams
from loadgen.engine.syscalls import EPOLLET, EPOLLIN, arm_timer, make_timer, watch
from loadgen.workload.traffic import EVENTS, HEAP_SIZE, READY, REARM

_LINGER_NS = 5_000_000  # the loop's other business can wait this long while there is traffic


class Poller:
    """The hot path of one worker; `on_events` looks at what a kernel left for Python."""

    def __init__(
        self, fleet: Fleet, loop: asyncio.AbstractEventLoop, handle_events: Callable[[], None]
    ) -> None:
        self.epoll = selectors.EpollSelector()
        self.timer = make_timer()
        self._fleet = fleet
        self._loop = loop
        self._handle_events = handle_events
        self._tick_ns = fleet.plan.send_tick_us * 1000
        self._linger_timer = make_timer()
        self._linger_ns = 0
        self._streams: Streams | None = None
        self._chain: Table | None = None
        self._poll_table: Table
        self._pump_table: Table

    def begin(self, streams: Streams | None, chain: Table | None) -> None:
        """Wait for the sockets from now on; `chain` as in behaviour.py."""
        self._streams = streams
        self._chain = chain
        self._linger_ns = 0 if streams is not None else _LINGER_NS
        for timer, name in ((self.timer, TIMER), (self._linger_timer, LINGER)):
            watch(self.epoll.fileno(), timer, EPOLLIN | EPOLLET, name, self._fleet.words)
        self.bind_arguments()
        self._loop.add_reader(self.epoll.fileno(), self.on_ready)

    def bind_arguments(self) -> None:
        """Write down the kernels' arguments; wanted again when arrays were replaced."""
        fleet = self._fleet
        self._poll_table = address_table(poll_arguments(fleet, self.epoll.fileno()))
        self._pump_table = address_table(pump_arguments(fleet, self.timer, self._tick_ns))

    def on_ready(self) -> None:
        """Plain connections have something, or messages are due."""
        segments = serve_fleet(
            self._linger_ns,
            self._linger_timer,
            self._poll_table,
            self._pump_table,
            self._fleet.clock,
            self._fleet.totals,
            self._chain,
        )
        self._write_segments(segments)
        self.on_events()

    def on_events(self) -> None:
        """Handle the events of a kernel, and send when a publisher became free."""
        totals = self._fleet.totals
        if totals[EVENTS]:
            self._handle_events()
        if totals[REARM]:
            self.pump()
        if totals[READY]:
            self._loop.call_soon(self.on_ready)

    def pump(self) -> None:
        """Send what is due."""
        self._write_segments(pump_fleet(self._pump_table, self._chain))
        if self._fleet.totals[EVENTS]:
            self._handle_events()

    def _write_segments(self, segments: int) -> None:
        if segments and self._streams is not None:
            self._streams.write_segments(segments)

    def begin_schedule(self, start_ns: int) -> None:
        """Send by the schedule from `start_ns` on."""
        self.bind_arguments()
        arm_timer(self.timer, start_ns, self._fleet.clock)

    def end_schedule(self) -> None:
        """Send nothing more."""
        arm_timer(self.timer, 0, self._fleet.clock)
        self._fleet.totals[HEAP_SIZE] = 0
