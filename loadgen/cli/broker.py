"""`loadgen broker NAME`: a broker in the foreground."""

from loadgen.brokers.start import serve_forever
from loadgen.cli.options import Flags


def serve(flags: Flags) -> int:
    serve_forever(flags["name"], flags["host"], flags["port"])
    return 0
