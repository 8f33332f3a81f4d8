"""`loadgen broker NAME`: a broker in the foreground."""

from loadgen.cli.options import Flags, declared, with_options


def _serve(flags: Flags) -> int:
    """Run a broker until Ctrl-C, and print its URL.

    The reflector and the sink are instruments, not systems under test.

    Example: loadgen broker mosquitto --port 1884
    """
    from loadgen.brokers.start import serve_forever

    serve_forever(flags["name"], flags["host"], flags["port"])
    return 0


command = with_options(_serve, declared("broker"))
