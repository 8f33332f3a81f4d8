import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from typing import Final

import uvloop

from loadgen.brokers.endpoints import INSTRUMENTS, Endpoint, parse_broker
from loadgen.brokers.mosquitto import default_memory_limit_bytes, find_mosquitto, run_mosquitto
from loadgen.brokers.nats import run_nats
from loadgen.brokers.process import BrokerProcess, ProgramSettings, ServedBroker
from loadgen.brokers.reflector import run_reflector, run_sink
from loadgen.errors import UsageError
from loadgen.plan.accounts import Account
from loadgen.scratch import scratch_directory
from loadgen.sentences import BROKER_TEXT

_Starter = Callable[[ProgramSettings], AbstractAsyncContextManager[BrokerProcess]]
_STARTERS: Final[dict[str, _Starter]] = {
    "mosquitto": run_mosquitto,
    "nats": run_nats,
    "reflector": run_reflector,
    "sink": run_sink,
}


@contextlib.asynccontextmanager
async def serve(
    spec: str | Sequence[str] = "auto",
    *,
    instances: int = 1,
    persistence: bool = False,
    save_each: bool = False,
    encrypted: bool = False,
    accounts: Sequence[Account] = (),
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncIterator[ServedBroker]:
    """Serve brokers for the length of the block.

    `spec` is one name (`BROKER_NAMES`) or any number of URLs. A name starts `instances` private
    brokers on `host`, the first on `port` (0 chooses one). `save_each`, `encrypted` and `accounts`
    are for Mosquitto and NATS, which keeps sessions in files in any case. Raise UsageError for
    arguments that contradict each other, MissingProgramError, and CannotRunError.
    """
    specs = [spec] if isinstance(spec, str) else list(spec)
    parsed = [parse_broker(text) for text in specs]
    endpoints = tuple(item for item in parsed if isinstance(item, Endpoint))
    names = [item for item in parsed if isinstance(item, str)]
    if not parsed:
        raise UsageError(BROKER_TEXT.BROKER_MISSING())
    if endpoints:
        if names or instances != 1:
            raise UsageError(BROKER_TEXT.URL_AND_NAME())
        yield ServedBroker.at(endpoints)
        return
    if len(names) > 1:
        raise UsageError(BROKER_TEXT.SEVERAL_NAMES())
    name = names[0]
    if name == "auto":
        name = "mosquitto" if find_mosquitto() is not None else "nats"
    if instances < 1 or (port and instances > 1):
        raise UsageError(BROKER_TEXT.INSTANCES(instances=instances))
    if (encrypted or accounts or save_each) and name not in ("mosquitto", "nats"):
        raise UsageError(BROKER_TEXT.NO_SETTINGS(name=name))
    if name in INSTRUMENTS and persistence:
        raise UsageError(BROKER_TEXT.STORES_NOTHING(name=name))
    start, authority = _STARTERS[name], None
    # The reflector forks its instances: each alone would load the kernels again.
    together = instances if name in INSTRUMENTS else 1
    settings = ProgramSettings(
        host,
        port,
        save_each,
        together,
        accounts=tuple(accounts),
        persistence=persistence,
        memory_limit_bytes=default_memory_limit_bytes(instances),
    )
    async with AsyncExitStack() as stack:
        if encrypted:
            from loadgen.brokers.certificates import make_certificates  # late: needs cryptography

            directory = stack.enter_context(scratch_directory("certificates"))
            files = await asyncio.to_thread(make_certificates, directory / "tls", [host])
            authority = files.authority
            settings = replace(settings, certificate=files.certificate, key=files.key)
        # One after the other, so that the first error stops the rest.
        programs = range(instances // together)
        brokers = [await stack.enter_async_context(start(settings)) for _ in programs]
        where = tuple(endpoint for broker in brokers for endpoint in broker.endpoints)
        version = brokers[0].version
        yield ServedBroker(name, version, where, tuple(brokers), authority, len(accounts))


def serve_forever(name: str, host: str = "127.0.0.1", port: int = 1883) -> None:
    """Run a broker in the foreground until SIGINT or SIGTERM, and print its URL."""
    if isinstance(parse_broker(name), Endpoint):
        raise UsageError(BROKER_TEXT.FOREGROUND_URL())

    async def serve_until_signal() -> None:
        over = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, over.set)
        async with serve(name, host=host, port=port) as served:
            for endpoint in served.endpoints:
                print(endpoint.redacted, flush=True)
            print(f"{served.name} {served.version}, process {served.pids[0]}", file=sys.stderr)
            await over.wait()

    uvloop.run(serve_until_signal())
