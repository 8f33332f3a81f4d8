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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

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
    """A run under way, on a terminal whose other end is `terminal`, which says what it says; its
    results go into a pipe whose other end is `reader`."""

    process: "subprocess.Popen[bytes]"
    directory: Path
    mark: str
    scratch: Path
    terminal: int
    reader: int
    said: bytes = b""
    hold: list[Callable[[], object]] = field(default_factory=list)
    """What gives back what was taken from the host."""

    def listen(self) -> None:
        """Until the terminal is gone, or nobody has it any more."""
        with suppress(OSError):
            while data := os.read(self.terminal, 1 << 16):
                self.said += data

    def terminal_gone(self) -> None:
        if self.terminal >= 0:
            os.close(self.terminal)
            self.terminal = -1

    def reader_gone(self) -> None:
        if self.reader >= 0:
            os.close(self.reader)
            self.reader = -1

    def descendants(self) -> dict[int, str]:
        """Processes of this run but the first, by their names."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if self.mark.encode() in (path / "environ").read_bytes():
                    found[int(path.name)] = (path / "comm").read_text().strip()
        found.pop(self.process.pid, None)
        return found

    def worker(self) -> int:
        """A process that plays devices."""
        names = self.descendants()
        return next((pid for pid, name in names.items() if re.fullmatch(r"loadgen-\d+", name)), 0)


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
    playing.hold.append(filler.unlink)


def _limit(name: int, of_worker: bool, bound: Callable[[int], int]) -> Failure:
    def fail(playing: Playing) -> None:
        pid = playing.worker() if of_worker else playing.process.pid
        if pid:
            resource.prlimit(pid, name, (bound(pid), resource.prlimit(pid, name)[1]))

    return fail


def _descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _address_space(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


FAILURES: dict[str, Failure] = {
    "INT": _signals(signal.SIGINT),
    "INT twice": _signals(signal.SIGINT, signal.SIGINT),
    "TERM": _signals(signal.SIGTERM),
    "HUP": _signals(signal.SIGHUP),
    "terminal gone": Playing.terminal_gone,
    "reader gone": Playing.reader_gone,
    "worker killed": _kill_worker,
    "disk full": _fill_disk,
    "descriptors": _limit(resource.RLIMIT_NOFILE, False, _descriptors),
    "worker's descriptors": _limit(resource.RLIMIT_NOFILE, True, _descriptors),
    "memory": _limit(resource.RLIMIT_AS, False, _address_space),
    "worker's memory": _limit(resource.RLIMIT_AS, True, _address_space),
}


@contextmanager
def _small_disk(disk: Path) -> Iterator[None]:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_BYTES}", "none", str(disk)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _has_begun(playing: Playing, phase: str) -> bool:
    """Whether the run has come to a phase, as its own files say."""
    with suppress(OSError, ValueError):
        if phase == "starting":
            return bool(playing.descendants())
        if phase == "score card":
            return "verdict" in json.loads((playing.directory / "run.json").read_bytes())
        lines = (playing.directory / "events.jsonl").read_bytes().splitlines()
        return any(f'"phase","detail":"{phase}"'.encode() in line for line in lines)
    return False


def _await(playing: Playing, phase: str) -> bool:
    end_s = time.monotonic() + _LONGEST_S
    while time.monotonic() < end_s and playing.process.poll() is None:
        if _has_begun(playing, phase):
            return True
        time.sleep(0.002)
    return False


def _on_terminal() -> None:
    """Have the standard input as the terminal of this session, and keep the standard output."""
    results = os.dup(1)
    os.login_tty(os.dup(0))
    os.dup2(results, 1)


@contextmanager
def _started(scratch: Path, arguments: Sequence[str]) -> Iterator[Playing]:
    """The command in a session of its own, on a terminal of its own."""
    directory = scratch / "disk" / "run"
    mark = f"{_MARK}={uuid.uuid4().hex}"
    (scratch / "tmp").mkdir()
    environment = os.environ | dict([mark.split("=")]) | {"TMPDIR": str(scratch / "tmp")}
    master, slave = pty.openpty()
    reader, results = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments, "--out", str(directory)],
        stdin=slave, stdout=results, stderr=slave,
        env=environment, preexec_fn=_on_terminal,
    )  # fmt: skip
    os.close(slave)
    os.close(results)
    playing = Playing(process, directory, mark, scratch, master, reader)
    listening = threading.Thread(target=playing.listen, daemon=True)
    listening.start()
    try:
        yield playing
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
        for pid in playing.descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        playing.terminal_gone()
        playing.reader_gone()


@dataclass(frozen=True, slots=True)
class Ending:
    """What a run ended with."""

    began: bool
    status: int | None
    seconds: float
    said: tuple[str, ...]
    readable: str
    left: tuple[str, ...]


def _ended(playing: Playing, phase: str, failure: Failure) -> Ending:
    began = _await(playing, phase)
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
    for give_back in playing.hold:
        give_back()
    left = [f"process {name}" for name in playing.descendants().values()]
    left += [str(path.name) for path in (playing.scratch / "tmp").iterdir()]
    left += (
        [path.name for path in playing.directory.rglob(".*")] if playing.directory.exists() else []
    )
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", playing.said.decode("utf-8", "replace"))
    lines = [line.strip() for line in re.split(r"[\r\n]+", text)]
    told = tuple(line for line in lines if line.startswith("loadgen: ") or "Traceback" in line)
    return Ending(began, status, seconds, told, _readable(playing.directory), tuple(left))


def _readable(directory: Path) -> str:
    if not directory.exists() or not any(directory.iterdir()):
        return "nothing was written"
    try:
        card = summarize_run(directory)
    except LoadgenError as error:
        return f"no: {error}"
    codes = ", ".join(dict.fromkeys(reason.code for reason in card.verdict.reasons))
    return f"{card.verdict.word} {codes}, {card.counts.sent} sent"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.failing", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("failures", nargs="*", metavar="FAILURE", help=", ".join(FAILURES))
    parser.add_argument("--phases", nargs="+", default=PHASES, choices=PHASES)
    return parser.parse_args()


def main() -> None:
    arguments = _parse()
    for name in arguments.failures or FAILURES:
        for phase in arguments.phases:
            with ExitStack() as stack:
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="failing-"))
                scratch = Path(made)
                (scratch / "disk").mkdir()
                if name == "disk full":
                    stack.enter_context(_small_disk(scratch / "disk"))
                before = _in_memory()
                playing = stack.enter_context(_started(scratch, COMMAND))
                ending = _ended(playing, phase, FAILURES[name])
                left = [*ending.left, *filter(_is_orphan, _in_memory() - before)]
            print(
                f"{name:<20} {phase:<10} {'' if ending.began else '(too late) '}"
                f"status {ending.status} after {ending.seconds:.1f} s; "
                f"left: {', '.join(left) or 'nothing'}; readable: {ending.readable}; "
                f"said: {' | '.join(ending.said)[:230] or '-'}",
                flush=True,
            )


def _in_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def _is_orphan(name: str) -> bool:
    """Whether something in /dev/shm is still there after a moment: others run there, too."""
    time.sleep(4)
    return (Path("/dev/shm") / name).exists()


if __name__ == "__main__":
    main()
