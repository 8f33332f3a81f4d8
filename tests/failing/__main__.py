"""A run whose host fails it, in every phase: what it ends with, and what it leaves behind.

python -m tests.failing                               every failure in every phase
python -m tests.failing "disk full" HUP --phases measure drain

Each is a run of a few seconds with a private broker. What fails, fails as soon as the run's files
say that the phase has begun. Asked is: the exit status, one line about it, whether the results so
far can be read, and whether a process or a file is left. `disk full` needs the right to mount, and
fills a file system of its own.
"""

import argparse
import json
import os
import pty
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from loadgen.errors import LoadgenError
from loadgen.report.build.summary import summarize_run

PHASES = ("starting", "connect", "subscribe", "warm-up", "measure", "drain", "stop", "score card")
_LONGEST_S = 90.0
_DISK_BYTES = 8 << 20
_MARK = "LOADGEN_FAILING"
COMMAND = (
    *("fanin", "--broker", "mosquitto", "--devices", "40", "--qos", "1", "--rate", "400"),
    *("--connect-rate", "40", "--workers", "2", "--warmup", "1", "--duration", "2"),
    *("--drain", "5", "--settle", "1"),
)


@dataclass(slots=True)
class Playing:
    """A run under way; what it prints comes from `terminal`, its results from `reader`."""

    process: "subprocess.Popen[bytes]"
    scratch: Path
    mark: str
    terminal: int
    reader: int
    said: bytes = b""

    @property
    def directory(self) -> Path:
        return self.scratch / "disk" / "run"

    def listen(self) -> None:
        """Read until the terminal is gone."""
        with suppress(OSError):
            while data := os.read(self.terminal, 1 << 16):
                self.said += data

    def close(self, name: str) -> None:
        """Close its terminal or its reader."""
        if (descriptor := getattr(self, name)) >= 0:
            os.close(descriptor)
            setattr(self, name, -1)

    def descendants(self) -> dict[int, str]:
        """Return the processes of this run but the first, by their names."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "comm").read_text().strip()
        found.pop(self.process.pid, None)
        return found

    def worker(self) -> int:
        """Return a process that plays devices, 0 if there is none."""
        names = self.descendants()
        return next((pid for pid, name in names.items() if re.fullmatch(r"loadgen-\d+", name)), 0)

    def has_begun(self, phase: str) -> bool:
        """Return True if the run has come to a phase, as its own files say."""
        with suppress(OSError, ValueError):
            if phase == "starting":
                return bool(self.descendants())
            if phase == "score card":
                return "verdict" in json.loads((self.directory / "run.json").read_bytes())
            events = (self.directory / "events.jsonl").read_bytes()
            return f'"phase","detail":"{phase}"'.encode() in events
        return False


Failure = Callable[[Playing], None]


def _signals(*numbers: signal.Signals) -> Failure:
    def fail(playing: Playing) -> None:
        for number in numbers:
            playing.process.send_signal(number)
            time.sleep(0.3)

    return fail


def _kill_worker(playing: Playing) -> None:
    if pid := playing.worker():
        os.kill(pid, signal.SIGKILL)


def _fill_disk(playing: Playing) -> None:
    filler = playing.scratch / "disk" / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(1 << 12))


def _limit(name: int, of_worker: bool) -> Failure:
    """Let a process have no more of it than it has now."""

    def fail(playing: Playing) -> None:
        pid = playing.worker() if of_worker else playing.process.pid
        if pid:
            process = psutil.Process(pid)
            memory = name == resource.RLIMIT_AS
            bound = process.memory_info().vms if memory else process.num_fds()
            resource.prlimit(pid, name, (bound, resource.prlimit(pid, name)[1]))

    return fail


FAILURES: dict[str, Failure] = {
    "INT": _signals(signal.SIGINT),
    "INT twice": _signals(signal.SIGINT, signal.SIGINT),
    "TERM": _signals(signal.SIGTERM),
    "HUP": _signals(signal.SIGHUP),
    "terminal gone": lambda playing: playing.close("terminal"),
    "reader gone": lambda playing: playing.close("reader"),
    "worker killed": _kill_worker,
    "disk full": _fill_disk,
    "descriptors": _limit(resource.RLIMIT_NOFILE, False),
    "worker's descriptors": _limit(resource.RLIMIT_NOFILE, True),
    "memory": _limit(resource.RLIMIT_AS, False),
    "worker's memory": _limit(resource.RLIMIT_AS, True),
}


@contextmanager
def _scratch(small_disk: bool) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="failing-") as made:
        disk = Path(made) / "disk"
        disk.mkdir()
        (Path(made) / "tmp").mkdir()
        if small_disk:
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(disk)]
            subprocess.run(mount, check=True)
        try:
            yield Path(made)
        finally:
            if small_disk:
                subprocess.run(["umount", "-l", str(disk)], check=True)


def _on_terminal() -> None:
    """Have the standard input as the terminal of this session, and keep the standard output."""
    results = os.dup(1)
    os.login_tty(os.dup(0))
    os.dup2(results, 1)


@contextmanager
def _started(scratch: Path) -> Iterator[Playing]:
    """Start the command in a separate session, on a separate terminal."""
    name, value = _MARK, uuid.uuid4().hex
    master, slave = pty.openpty()
    reader, results = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen", *COMMAND, "--out", str(scratch / "disk" / "run")],
        stdin=slave,
        stdout=results,
        stderr=slave,
        env=os.environ | {name: value, "TMPDIR": str(scratch / "tmp")},
        preexec_fn=_on_terminal,
    )
    os.close(slave)
    os.close(results)
    playing = Playing(process, scratch, f"{name}={value}", master, reader)
    threading.Thread(target=playing.listen, daemon=True).start()
    try:
        yield playing
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pid in playing.descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        playing.close("terminal")
        playing.close("reader")


def _ended(playing: Playing, phase: str, failure: Failure) -> str:
    """Let a run fail in a phase, and return how it ended."""
    end_s = time.monotonic() + _LONGEST_S
    while not (began := playing.has_begun(phase)) and playing.process.poll() is None:
        if time.monotonic() > end_s:
            break
        time.sleep(0.002)
    if began:
        failure(playing)
    begun_s = time.monotonic()
    status: int | None = None
    with suppress(subprocess.TimeoutExpired):
        status = playing.process.wait(_LONGEST_S)
    seconds = time.monotonic() - begun_s
    end_s = time.monotonic() + 3
    while playing.descendants() and time.monotonic() < end_s:
        time.sleep(0.05)  # those that end with their parent may need a moment
    (playing.scratch / "disk" / "filler").unlink(missing_ok=True)
    left = [f"process {name}" for name in playing.descendants().values()]
    left += [path.name for path in (playing.scratch / "tmp").iterdir()]
    left += [path.name for path in playing.directory.rglob(".*")]
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", playing.said.decode("utf-8", "replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    said = [line for line in lines if line.startswith("loadgen: ") or "Traceback" in line]
    return (
        f"{'' if began else '(too late) '}status {status} after {seconds:.1f} s; "
        f"left: {', '.join(left) or 'nothing'}; readable: {_readable(playing.directory)}; "
        f"said: {' | '.join(said)[:230] or '-'}"
    )


def _readable(directory: Path) -> str:
    if not directory.exists() or not any(directory.iterdir()):
        return "nothing was written"
    try:
        card = summarize_run(directory)
    except LoadgenError as error:
        return f"no: {error}"
    codes = ", ".join(dict.fromkeys(reason.code for reason in card.verdict.reasons))
    return f"{card.verdict.word} {codes}, {card.counts.sent} sent"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.failing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("failures", nargs="*", metavar="FAILURE", help=", ".join(FAILURES))
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES)
    arguments = parser.parse_args()
    for name in arguments.failures or FAILURES:
        for phase in arguments.phases:
            before = set(Path("/dev/shm").iterdir())
            with _scratch(name == "disk full") as scratch, _started(scratch) as playing:
                ending = _ended(playing, phase, FAILURES[name])
            new = set(Path("/dev/shm").iterdir()) - before
            time.sleep(4 if new else 0)  # others run there, too
            orphans = ", ".join(path.name for path in new if path.exists())
            print(f"{name:<20} {phase:<10} {ending}; in memory: {orphans or 'nothing'}", flush=True)


if __name__ == "__main__":
    main()
