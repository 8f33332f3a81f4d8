"""amqtt, the broker that pip brings, in a process of its own.

It speaks MQTT 3.1.1 only and is written in Python: for hosts without Mosquitto, and for small
loads. This file is both ends: `run_amqtt` in the parent, and the child it starts.
"""

import asyncio
import logging
import ssl
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child, running
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import TlsFiles
from loadgen.brokers.ports import listen
from loadgen.errors import MissingProgramError


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


def run_amqtt(settings: AmqttSettings | None = None) -> AbstractAsyncContextManager[ChildBroker]:
    """An amqtt for the length of the block; MissingProgramError where it is not installed."""
    settings = settings or AmqttSettings()
    tls = settings.tls
    login = settings.username, settings.password
    scheme = "mqtt" if tls is None else "mqtts"
    try:
        stated = version("amqtt")
    except PackageNotFoundError:
        raise MissingProgramError("amqtt is not installed; install it: pip install amqtt") from None
    return running(
        ChildBroker(
            "amqtt",
            stated,
            "loadgen.brokers.amqtt_broker",
            Endpoint(scheme, settings.host, settings.port, *login),
            username=settings.username,
            password=settings.password,
            certificate=None if tls is None else str(tls.certificate),
            key=None if tls is None else str(tls.key),
            authority=None if tls is None or tls.authority is None else str(tls.authority),
        )
    )


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
