"""Recordings of results as a terminal shows them: `python -m bench.recordings [WIDTH ...]`.

Plays each case, a comparison, a search and a sweep for seconds on private brokers, and writes
docs/examples/terminal-WIDTH.txt. Progress, which goes to stderr, is not recorded.
"""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
import termios
from contextlib import suppress
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "docs" / "examples"
WIDTHS = (80, 120)
_SHORT = "-t 3 --warmup 1 -b mosquitto"
COMMANDS = (
    f"fanin -d 100 -r 500 -q 1 {_SHORT}",
    f"fanout --topics 5 --ratio 20 -r 50 {_SHORT}",
    f"persistent --pairs 10 -r 200 {_SHORT}",
    f"latency -d 50 --background-rate 500 -r 200 {_SHORT}",
    "connburst -d 500 -t 2 -b mosquitto",
    f"queue --queues 5 --consumers 4 -r 200 {_SHORT}",
    f"bridge -r 100 {_SHORT}",
    f"request -d 20 -r 100 {_SHORT}",
    f"specjms horizontal --base 1 {_SHORT}",
    f"run scenarios/run.toml {_SHORT}",
    "compare mosquitto nats -n 2 fanin -d 100 -r 500 -q 1 -t 3 --warmup 1",
    "search fanin --for rate --from 500 --to 2k -d 100 -t 3 --warmup 1 -b mosquitto",
    f"sweep fanout --set ratio=1,10 --topics 5 -r 50 {_SHORT}",
)


def recorded(command: str, width: int, directory: str) -> str:
    """Return what a terminal of this width shows of a command's result, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    words = [sys.executable, "-m", "loadgen", *command.split(), "--out", directory]
    environment = {**os.environ, "NO_COLOR": "1", "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    errors = Path(directory + ".stderr")
    with errors.open("wb") as stderr:
        process = subprocess.Popen(words, stdout=theirs, stderr=stderr, env=environment)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while part := os.read(ours, 1 << 16):
            shown += part
    os.close(ours)
    status = process.wait()
    text = (shown or errors.read_bytes()).decode().replace("\r\n", "\n")
    text = text.replace(directory, "OUT")
    return f"$ loadgen {command}\n{re.sub(r' +$', '', text, flags=re.M)}status {status}\n"


def main(widths: list[int]) -> None:
    EXAMPLES.mkdir(exist_ok=True)
    for width in widths:
        with tempfile.TemporaryDirectory() as directory:
            texts = [
                recorded(command, width, f"{directory}/{place}")
                for place, command in enumerate(COMMANDS)
            ]
        (EXAMPLES / f"terminal-{width}.txt").write_text("\n".join(texts))


if __name__ == "__main__":
    main([*map(int, sys.argv[1:])] or [*WIDTHS])
