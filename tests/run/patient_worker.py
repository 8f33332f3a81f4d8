"""A worker whose withheld acknowledgements wait for their batch, however long it takes."""

import socket

from loadgen.worker import outgoing, worker


def run_worker(channel: socket.socket) -> None:
    """Run `loadgen.worker.worker.run_worker` without the release of acknowledgements that
    waited."""
    outgoing._STALE_S = 3_600.0
    worker.run_worker(channel)
