"""amqtt, the broker that pip brings, in a process of its own.

It speaks MQTT 3.1.1 only and is written in Python: for hosts without Mosquitto, and for small
loads. This file is both ends: `run_amqtt` in the parent, and the child it starts.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import Final

from loadgen.brokers.child import Child, Json, Serving, run_child, start_child
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import TlsFiles
from loadgen.brokers.ports import listen
from loadgen.errors import CannotRunError, MissingProgramError


@dataclass(frozen=True, slots=True)
class AmqttSettings:
    """How an embedded amqtt listens; `port` 0 chooses one.

    Durable sessions are always kept, in memory: a crash loses them.
    """

    host: str = "127.0.0.1"
    port: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsFiles | None = None


class Amqtt:
    """A running amqtt; made by `run_amqtt`."""

    __slots__ = ("_child", "_port", "_settings", "version")

    name: Final = "amqtt"

    def __init__(self, settings: AmqttSettings) -> None:
        self.version = version("amqtt")
        self._settings = settings
        self._port = settings.port
        self._child: Child | None = None

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """Where it listens, with the login that it wants."""
        settings = self._settings
        scheme = "mqtt" if settings.tls is None else "mqtts"
        login = settings.username, settings.password
        return (Endpoint(scheme, settings.host, self._port, *login),)

    @property
    def pid(self) -> int:
        """Its process; after `start`, the new one."""
        if self._child is None:
            raise CannotRunError("amqtt is not running; start it first")
        return self._child.process.pid

    async def start(self) -> None:
        """Start it, on the port it had before if it ran before."""
        await self.stop()
        settings = self._settings
        tls = settings.tls
        config: Json = {
            "host": settings.host,
            "port": self._port,
            "username": settings.username,
            "password": settings.password,
            "certificate": None if tls is None else str(tls.certificate),
            "key": None if tls is None else str(tls.key),
            "authority": None if tls is None or tls.authority is None else str(tls.authority),
        }
        self._child = await start_child("amqtt", "loadgen.brokers.amqtt_broker", config)
        self._port = self._child.greeting["port"]

    def kill(self) -> None:
        """End it at once, as a crash would: every session is lost."""
        if self._child is not None:
            self._child.kill()

    async def stop(self) -> None:
        """End it."""
        child, self._child = self._child, None
        if child is not None:
            await child.stop()


@contextlib.asynccontextmanager
async def run_amqtt(settings: AmqttSettings | None = None) -> AsyncIterator[Amqtt]:
    """An amqtt for the length of the block; MissingProgramError where it is not installed."""
    try:
        broker = Amqtt(settings or AmqttSettings())
    except PackageNotFoundError:
        raise MissingProgramError("amqtt is not installed; install it: pip install amqtt") from None
    try:
        await broker.start()
        yield broker
    finally:
        await broker.stop()


async def serve(config: Json) -> Serving:
    """The child: what `run_child` wants."""
    from amqtt.broker import Broker

    # Two log records a message otherwise cost more than the message.
    logging.disable(logging.CRITICAL)
    login = {"username": config["username"], "password": config["password"]}
    broker = Broker(
        {
            # The listener is ours, so that its backlog can be: a burst of connects overflows 100.
            "listeners": {"default": {"type": "external"}},
            "plugins": {"loadgen.brokers.amqtt_login.OneLogin": login},
        }
    )
    await broker.start()
    stated = f"amqtt {version('amqtt')}".encode()
    await broker.retain_message(None, "$SYS/broker/version", stated)
    tls = None
    if config["certificate"] is not None:
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=config["authority"])
        tls.load_cert_chain(config["certificate"], config["key"])
    listener = listen(config["host"], config["port"])
    connected = partial(broker.stream_connected, listener_name="default")
    server = await asyncio.start_server(connected, sock=listener, backlog=4096, ssl=tls)

    async def close() -> None:
        server.close()

    return Serving({"port": listener.getsockname()[1]}, lambda question: {}, close)


if __name__ == "__main__":
    run_child(serve)
