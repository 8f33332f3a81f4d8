"""Starts a relay: what stands between clients and a broker, and errs on command."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.faults import parse_faults
from loadgen.brokers.process import running
from loadgen.brokers.reflector import ErringBroker
from loadgen.errors import UsageError


def run_relay(
    broker: Endpoint,
    faults: str = "none",
    *,
    host: str = "127.0.0.1",
    certificate: tuple[Path, Path] | None = None,
    websocket: bool = False,
    record: str = "",
) -> AbstractAsyncContextManager[ErringBroker]:
    """A relay in front of `broker`, which it reaches over TCP, for the length of the block.

    It listens on a port of its own, for TLS with `certificate` (PEM files: chain, key), and for
    `websocket`. `record` as of `run_reflector`, and the same errors.
    """
    if parse_faults(faults).ceiling:
        raise UsageError("a relay has no ceiling; use the reflector, or limit the broker")
    scheme = ("wss" if certificate else "ws") if websocket else "mqtts" if certificate else "mqtt"
    files = [str(path) for path in certificate or ()]
    return running(
        ErringBroker(
            "relay",
            "loadgen relay",
            "loadgen.brokers.relay_server",
            Endpoint(scheme, host, 0, path="/mqtt" if websocket else ""),
            broker=[broker.host, broker.port],
            certificate=files,
            websocket=websocket,
            faults=faults,
            record=record,
        )
    )
