"""amqtt, the broker that pip brings, in a process of its own.

It speaks MQTT 3.1.1 only and is written in Python: for hosts without Mosquitto, and for small
loads. This file is both ends: `run_amqtt` in the parent, and the child it starts.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from functools import partial
from importlib.metadata import PackageNotFoundError, version

from loadgen.brokers.child import ChildBroker, Json, Serving, run_child
from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.ports import listen
from loadgen.brokers.process import running
from loadgen.errors import MissingProgramError


def run_amqtt(
    *, host: str = "127.0.0.1", port: int = 0
) -> AbstractAsyncContextManager[ChildBroker]:
    """An amqtt for the length of the block; `port` 0 chooses one.

    Durable sessions are always kept, in memory: a crash loses them. Raises MissingProgramError
    where it is not installed.
    """
    try:
        stated = version("amqtt")
    except PackageNotFoundError:
        raise MissingProgramError("amqtt is not installed; install it: pip install amqtt") from None
    module = "loadgen.brokers.amqtt_broker"
    return running(ChildBroker("amqtt", stated, module, Endpoint("mqtt", host, port)))


async def serve(config: Json) -> Serving:
    """The child: what `run_child` wants."""
    from amqtt.broker import Broker

    # Two log records a message otherwise cost more than the message.
    logging.disable(logging.CRITICAL)
    broker = Broker(
        {
            # The listener is ours, so that its backlog can be: a burst of connects overflows 100.
            "listeners": {"default": {"type": "external"}},
            "plugins": {"loadgen.brokers.amqtt_login.Everybody": {}},
        }
    )
    await broker.start()
    stated = f"amqtt {version('amqtt')}".encode()
    await broker.retain_message(None, "$SYS/broker/version", stated)
    listener = listen(config["host"], config["port"])
    connected = partial(broker.stream_connected, listener_name="default")
    server = await asyncio.start_server(connected, sock=listener, backlog=4096)
    return Serving({"port": listener.getsockname()[1]}, lambda question: {}, server.close)


if __name__ == "__main__":
    run_child(serve)
