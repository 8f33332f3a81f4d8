"""`loadgen agent`: this host as a load host of commands elsewhere."""

import sys

from loadgen.cli.options import Flags, declared, with_options


def _join(flags: Flags) -> int:
    """Generate load for commands on another host, one after the other, until SIGTERM.

    Example: loadgen agent --join 10.0.0.1:7300 --secret file:secret --label left
    """
    import asyncio

    from loadgen.cli.cluster import parsed
    from loadgen.plan.units import parse_address
    from loadgen.run.hosts.agent import join_runs
    from loadgen.run.redaction import printable
    from loadgen.run.secrets import agent_secret

    address, port = parsed("join", flags["join"], parse_address)

    def show(reason: str) -> None:
        print(printable(f"loadgen agent: {reason}", 400), file=sys.stderr, flush=True)

    secret = agent_secret(flags["secret"])
    asyncio.run(join_runs(address, port, secret, flags["label"], show))
    return 0


command = with_options(_join, declared("agent"))
