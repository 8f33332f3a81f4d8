"""`loadgen agent`: this host as a load host of commands elsewhere."""

import sys

import uvloop

from loadgen.cli.cluster import parsed
from loadgen.cli.options import Flags
from loadgen.plan.units import parse_address
from loadgen.run.hosts.agent import join_runs
from loadgen.run.secrets import agent_secret
from loadgen.sentences import printable


def join(flags: Flags) -> int:
    address, port = parsed("join", flags["join"], parse_address)

    def show(reason: str) -> None:
        print(printable(f"loadgen agent: {reason}", 400), file=sys.stderr, flush=True)

    secret = agent_secret(flags["secret"])
    uvloop.run(join_runs(address, port, secret, flags["label"], show))
    return 0
