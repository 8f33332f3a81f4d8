"""The program `loadgen`, also as `python -m loadgen`."""

import os
import sys


def main() -> None:
    """Run the program; Ctrl-C is at most one line also while modules load, and at the end."""
    try:
        from loadgen.cli.main import main as run

        sys.exit(run())
    except KeyboardInterrupt:
        os._exit(130)


if __name__ == "__main__":
    main()
