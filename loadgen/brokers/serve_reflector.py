"""The reflector: a small, fast broker of MQTT 3.1, 3.1.1 and 5 without lasting sessions.

Its limit is a ceiling for what the harness can measure on a host. As the sink it takes every
message and delivers none. It is compiled (kernels/forwarding.py), and serves until it is ended.

`python -m loadgen.brokers.serve_reflector NAME HOST PORT...` forks a process for each further port:
they share the compiled kernels, and end with the first one.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Sequence
from typing import Final

import numpy as np

from loadgen.brokers.ports import listen
from loadgen.errors import LoadgenError
from loadgen.kernels import forwarding as kernel
from loadgen.kernels.syscalls import EPOLLET, EPOLLIN, EVENT_WORDS, watch
from loadgen.mqtt import packets
from loadgen.mqtt.codec import encode
from loadgen.mqtt.constants import MQTT_3_1_1, MQTT_5
from loadgen.mqtt.properties import Properties

_MOST_DESCRIPTORS: Final = 1 << 20
_PR_SET_PDEATHSIG: Final = 1
_CONNACK_5: Final = packets.ConnAck(
    properties=Properties(
        session_expiry_interval=0,
        maximum_packet_size=kernel.PACKET_LIMIT_BYTES,
        subscription_identifier_available=0,
        retain_available=0,
    )
)


def serve(host: str, ports: Sequence[int], *, is_sink: bool) -> None:
    """Serve without end; raise HostLimitError."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = min(hard, _MOST_DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    served = [(listen(host, port), select.epoll()) for port in ports]
    tables, parent = _tables(*served[0], most, is_sink), os.getpid()
    kernel.serve(tables, 0)  # which compiles it
    place = next((one for one in range(1, len(ports)) if os.fork() == 0), 0)
    if place == 0:
        print("serving", flush=True)
    else:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:
            return  # the first process ended before the signal was armed
        tables = _tables(*served[place], most, is_sink)
    for listener, epoll in served[:place] + served[place + 1 :]:
        listener.close()
        epoll.close()
    kernel.serve(tables, -1)


def _tables(
    listener: socket.socket, epoll: select.epoll, most: int, is_sink: bool
) -> kernel.ReflectorTables:
    """Return the state of a process that serves at most so many descriptors."""
    subscriptions = 8 << most.bit_length()
    sizes = {
        **dict.fromkeys(("links", "rests", "outs", "dirty"), most),
        **dict.fromkeys(("shapes", "shares"), kernel.SHAPES),
        "subscriptions": subscriptions,
        "by_key": 2 * subscriptions,
        "by_link": subscriptions + most,
        "levels": kernel.LEVELS,
        "buffer": kernel.PACKET_LIMIT_BYTES + kernel.READ_BYTES,
        "scratch": kernel.PACKET_LIMIT_BYTES,
        "events": kernel.EVENTS_AT_ONCE * EVENT_WORDS,
        "words": EVENT_WORDS,
    }
    fields = kernel.ReflectorTables.fields.items()
    arrays = {name: np.zeros(sizes.get(name, 1), field.dtype) for name, field in fields}
    arrays["by_link"][: subscriptions - 1] = np.arange(1, subscriptions)
    greeting = encode(packets.ConnAck(), MQTT_3_1_1) + encode(_CONNACK_5, MQTT_5)
    arrays["greetings"] = np.frombuffer(greeting, np.uint8)
    tables = kernel.ReflectorTables(**arrays)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # accepted ones inherit it
    tables.state.epoll, tables.state.listener = epoll.fileno(), listener.fileno()
    tables.state.is_sink = is_sink
    watch(epoll.fileno(), listener.fileno(), EPOLLIN | EPOLLET, 0, tables.words)
    return tables


if __name__ == "__main__":
    try:
        serve(sys.argv[2], [int(port) for port in sys.argv[3:]], is_sink=sys.argv[1] == "sink")
    except LoadgenError as error:
        sys.exit(str(error))
