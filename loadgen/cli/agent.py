"""`loadgen agent`: this host as a load host of commands elsewhere."""

import sys
from typing import Annotated

import typer


def command(
    join: Annotated[
        str,
        typer.Option(
            "--join", metavar="HOST:PORT", help="Address at which commands --listen for agents."
        ),
    ],
    secret: Annotated[
        str,
        typer.Option(
            "--secret",
            metavar="env:NAME|file:PATH",
            help="Secret that the commands have, too: 16 or more characters.",
        ),
    ],
    label: Annotated[
        str,
        typer.Option(
            "--label", metavar="NAME", help="Name of this host for --place. [default: host name]"
        ),
    ] = "",
) -> int:
    """Generate load for commands on another host, one after the other, until SIGTERM.

    Example: loadgen agent --join 10.0.0.1:7300 --secret file:secret --label left
    """
    import asyncio

    from loadgen.cli.cluster import parsed
    from loadgen.plan.units import parse_address
    from loadgen.run.hosts.agent import join_runs
    from loadgen.run.redaction import printable
    from loadgen.run.secrets import agent_secret

    address, port = parsed("join", join, parse_address)

    def show(reason: str) -> None:
        print(printable(f"loadgen agent: {reason}", 400), file=sys.stderr, flush=True)

    asyncio.run(join_runs(address, port, agent_secret(secret), label, show))
    return 0
