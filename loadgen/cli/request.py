"""`loadgen request`."""

from loadgen.cli.cases import case_command

__all__ = ["command"]

command = case_command("request")
