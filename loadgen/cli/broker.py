"""`loadgen broker NAME`: a broker in the foreground."""

from typing import Annotated

import typer


def command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Name: auto, mosquitto, nats, reflector or sink.")
    ],
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="N", min=0, max=65535, help="Port to listen on.")
    ] = 1883,
) -> int:
    """Run a broker until Ctrl-C, and print its URL.

    The reflector and the sink are instruments, not systems under test.

    Example: loadgen broker mosquitto --port 1884
    """
    from loadgen.brokers.start import serve_forever

    serve_forever(name, host, port)
    return 0
