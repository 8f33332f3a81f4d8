"""The progress of a run for people: one live line on a terminal, else a line now and then."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TextIO

from loadgen.run.rundir import EventLog
from loadgen.sentences import duration

PLAIN_EVERY_S = 5.0

_BEFORE = {
    "broker": "checking the broker ...",
    "workers": "starting workers ...",
    "leave": "disconnecting the devices of the last run ...",
}


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Where a run stands. Rates are of the last moments; `backlog` counts messages that are due and
    unsent, or sent and not received; `left_s` is the time until the phase ends, if known;
    `compiled` the kernels that are compiled, of how many."""

    phase: str
    devices: int = 0
    connected: int = 0
    failed: int = 0
    sent_per_s: float = 0.0
    received_per_s: float = 0.0
    backlog: int = 0
    p99_us: float | None = None
    left_s: float | None = None
    compiled: tuple[int, int] | None = None
    busy: str = ""


Progress = Callable[[Snapshot], None]


def silent(_snapshot: Snapshot) -> None:
    """Show nothing."""


def describe(snapshot: Snapshot) -> str:
    if snapshot.busy:
        return snapshot.busy
    if snapshot.compiled is not None:
        count, total = snapshot.compiled
        return f"compiling for this processor (only once): {count} of {total} ..."
    if not snapshot.devices:
        return _BEFORE.get(snapshot.phase, f"{snapshot.phase} ...")
    parts = [f"{snapshot.phase:<9}", f"{snapshot.connected:,}/{snapshot.devices:,} connected"]
    if snapshot.failed:
        parts.append(f"{snapshot.failed:,} failed")
    if snapshot.phase in ("warm-up", "measure", "drain"):
        parts.append(f"out {snapshot.sent_per_s:,.0f}/s")
        parts.append(f"in {snapshot.received_per_s:,.0f}/s")
        parts.append(f"backlog {snapshot.backlog:,}")
        if snapshot.p99_us is not None:
            parts.append(f"p99 {duration(snapshot.p99_us)}")
    if snapshot.left_s is not None:
        # A drain ends as soon as every message has its state.
        most = "up to " if snapshot.phase == "drain" else ""
        parts.append(f"{most}{max(0.0, snapshot.left_s):.0f} s left")
    return "  ".join(parts)


@contextmanager
def progress_on(stream: TextIO, *, quiet: bool = False) -> Iterator[Progress]:
    """Provide a function that shows snapshots on `stream`, in a form that suits the stream."""
    if quiet:
        yield silent
        return
    if not stream.isatty():
        shown_phase, shown_at = "", 0.0

        def show_now_and_then(snapshot: Snapshot) -> None:
            nonlocal shown_phase, shown_at
            now = time.monotonic()
            if snapshot.phase != shown_phase or now - shown_at >= PLAIN_EVERY_S:
                shown_phase, shown_at = snapshot.phase, now
                with suppress(OSError):
                    print(describe(snapshot), file=stream, flush=True)

        yield show_now_and_then
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    # It is redrawn on request, without a thread of rich.
    live = Live(console=Console(file=stream), auto_refresh=False, transient=True)
    live.start()

    def show(snapshot: Snapshot) -> None:
        text = Text(describe(snapshot), no_wrap=True, overflow="ellipsis")
        with suppress(OSError):
            if snapshot.phase == "busy":
                live.console.print(snapshot.busy, markup=False)  # stays above the live line
            else:
                live.update(text, refresh=True)

    try:
        yield show
    finally:
        with suppress(OSError):
            live.stop()


def reported(progress: Progress, events: EventLog, every_s: float) -> Progress:
    """Return a progress that also writes into the event log, every `every_s` seconds."""
    last_s = time.monotonic()

    def show(snapshot: Snapshot) -> None:
        nonlocal last_s
        progress(snapshot)
        now_s = time.monotonic()
        if now_s - last_s >= every_s and snapshot.devices:
            last_s = now_s
            events.write("progress", describe(snapshot))

    return show
