"""The run directory: claimed before a run, written so that a killed run stays readable.

Every file is written under a hidden name and then renamed, except events.jsonl, which grows. A new
directory is for its owner alone; what is put into a directory is as private as that.
"""

import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import orjson

from loadgen.errors import DiskError, HostLimitError, RunDirectoryError
from loadgen.run.redaction import scrub
from loadgen.sentences import RUN_TEXT, printable

EVENTS_A_KIND = 1000  # events of one kind that are written; the rest is only counted
KINDS = 200  # maximum number of kinds of events in a run; events of further kinds are dropped
_DETAIL_CHARACTERS = 500
_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_LIMITS: Final = {
    errno.EMFILE: RUN_TEXT.NO_DESCRIPTOR,
    errno.ENFILE: RUN_TEXT.NO_DESCRIPTOR_OF_HOST,
    errno.EAGAIN: RUN_TEXT.NO_THREAD,
    errno.ENOMEM: RUN_TEXT.NO_MEMORY,
}
_NO_THREAD: Final = "can't start new thread"  # all that Python says of it
_NO_TEMPORARY: Final = "No usable temporary directory"  # what `tempfile` says of a full disk


@contextmanager
def disk_errors(path: str | os.PathLike[str] = "") -> Iterator[None]:
    """Turn errors of the disk or a limit into DiskError or HostLimitError, within the block."""
    try:
        yield
    except MemoryError:
        raise HostLimitError(RUN_TEXT.NO_MEMORY()) from None
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise HostLimitError(RUN_TEXT.NO_THREAD()) from None
    except OSError as error:
        if error.errno in _LIMITS and not isinstance(error, BlockingIOError):
            raise HostLimitError(_LIMITS[error.errno]()) from None
        no_temporary = _NO_TEMPORARY in str(error)
        if error.errno not in _DISK and not no_temporary:
            raise
        # By its number: the text of Arrow's errors repeats the system's inside its own.
        reason = _NO_TEMPORARY if no_temporary else os.strerror(error.errno or 0)
        what = str(os.fspath(path) or error.filename or "a file")[:200]
        reason = reason[0].lower() + reason[1:]
        raise DiskError(RUN_TEXT.DISK(path=what, reason=reason)) from None


def make_private(path: Path) -> None:
    """Make a directory that its owner alone may enter, and what is missing above it."""
    make_folder(path.parent)
    path.mkdir(mode=0o700)


def make_folder(path: Path) -> None:
    """Make a directory as private as its parent, unless it exists."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(mode=_mode_in(path.parent, 0o777), exist_ok=True)


def open_in_place(path: str | Path, flags: int) -> int:
    """Open a file as private as its directory; this is an `opener` of `open`."""
    return os.open(path, flags, _mode_in(Path(path).parent, 0o666))


def appending(path: Path) -> IO[bytes]:
    return open(path, "ab", buffering=0, opener=open_in_place)


def _mode_in(directory: Path, most: int) -> int:
    return (directory.stat().st_mode | 0o700) & most


def numbered(path: Path) -> Path:
    """Return the path, with a number added if it exists."""
    found, number = path, 2
    while found.exists():
        found = path.with_name(f"{path.name}-{number}")
        number += 1
    return found


def default_directory(now: datetime, case: str) -> Path:
    """Return `runs/<UTC stamp>-<case>`, with a number added if it exists."""
    return numbered(Path("runs") / f"{now.astimezone(UTC):%Y%m%dT%H%M%SZ}-{case}")


@contextmanager
def directory_errors(path: Path) -> Iterator[None]:
    """Turn an OSError about a directory into a RunDirectoryError or DiskError, within the block."""
    try:
        with disk_errors(path):
            yield
    except OSError as error:
        is_file = isinstance(error, (FileExistsError, NotADirectoryError))
        reason = "it is a file" if is_file else error
        raise RunDirectoryError(RUN_TEXT.NOT_WRITTEN(path=path, reason=reason)) from None


@contextmanager
def directory_or_new(out: str | Path | None, name: str) -> Iterator[Path]:
    """Make the directory `out`, or a default one that no other process uses, for the block.

    What was made and stays empty is removed.
    """
    if out == "":
        raise RunDirectoryError(RUN_TEXT.NO_DIRECTORY())
    default = default_directory(datetime.now(UTC), name)
    path = default if out is None else Path(out)
    missing = [above for above in path.parents if not above.exists()]
    made: list[Path] = []
    tries = range(20 if out is None else 0)
    try:
        with directory_errors(path):
            while not made and (out is None or not path.is_dir()):
                try:
                    make_private(path)
                    made = [path, *missing]
                except (FileExistsError, FileNotFoundError):
                    # Other processes make and remove these, too.
                    if not tries:
                        raise
                    tries = tries[1:]
                    path = numbered(default)
        yield path
    finally:
        with suppress(OSError):
            for empty in made:
                empty.rmdir()


@contextmanager
def exclusive(directory: Path, *, wait: bool = False) -> Iterator[None]:
    """Keep every other process out of a directory that can be continued; it is made if need be.

    Raise RunDirectoryError at once if another one is in it, or `wait` until it has left. The lock
    is on the directory itself, leaves no file behind, and is gone with the process.
    """
    with directory_or_new(directory, ""):
        lock = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Some network file systems lock no directories.
            with suppress(OSError):
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
                except BlockingIOError:
                    raise RunDirectoryError(RUN_TEXT.IN_USE(path=directory)) from None
            yield
        finally:
            os.close(lock)


def require_free(path: Path) -> None:
    """Raise RunDirectoryError if the directory is taken; change nothing."""
    with directory_errors(path):
        occupied = path.exists() and next(path.iterdir(), None) is not None
    if occupied:
        raise RunDirectoryError(RUN_TEXT.NOT_EMPTY(path=path))


def claim(path: Path) -> Path:
    """Create the run directory, or take an empty one; raise RunDirectoryError otherwise."""
    require_free(path)
    with directory_errors(path):
        with suppress(FileExistsError):
            make_private(path)
        (path / "intervals").mkdir(mode=_mode_in(path, 0o777))
    return path


def release(path: Path) -> None:
    """Remove the files of a run that ended before it wrote run.json."""
    if (path / "run.json").exists():
        return
    parts = (path / name for name in ("events.jsonl", "broker.jsonl"))
    for part in (*(path / "intervals").glob("*.parquet"), *parts):
        part.unlink(missing_ok=True)
    with suppress(OSError):
        (path / "intervals").rmdir()
        path.rmdir()


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Provide a hidden name to write a file under, and rename it to `path`; raise DiskError."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with disk_errors(path):
            os.close(open_in_place(hidden, os.O_WRONLY | os.O_CREAT))
            yield hidden
            hidden.replace(path)
    finally:
        hidden.unlink(missing_ok=True)


def write_atomically(path: Path, data: bytes) -> None:
    with replacing(path) as hidden:
        hidden.write_bytes(data)


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    options = orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_APPEND_NEWLINE
    write_atomically(path, orjson.dumps(document, option=options))


class EventLog:
    """Writes events.jsonl: one JSON object a line, bounded in number and length, escaped."""

    def __init__(self, directory: Path, secrets: Iterable[str] = ()) -> None:
        self._file = appending(directory / "events.jsonl")
        self._secrets = tuple(secrets)
        self._counts: dict[str, int] = {}

    def redacted(self, text: str) -> str:
        """Return a foreign text without secrets, bounded and escaped."""
        return printable(scrub(text, self._secrets), _DETAIL_CHARACTERS)

    def write(
        self,
        kind: str,
        detail: str = "",
        worker: int | None = None,
        *,
        time_ns: int | None = None,
        group: str = "",
        device: int | None = None,
    ) -> None:
        """Write one line, by default of now; beyond `EVENTS_A_KIND` of a kind only count."""
        kind = printable(kind, 40)
        if kind not in self._counts and len(self._counts) >= KINDS:
            return
        count = self._counts[kind] = self._counts.get(kind, 0) + 1
        if count <= EVENTS_A_KIND:
            self._append(
                {
                    "time_ns": time.monotonic_ns() if time_ns is None else time_ns,
                    "kind": kind,
                    "worker": worker,
                    "group": printable(group, 100),
                    "device": device,
                    "detail": self.redacted(detail),
                }
            )

    def close(self) -> None:
        """Note how many events of which kind were left out, and close the file."""
        for kind, count in self._counts.items():
            if count > EVENTS_A_KIND:
                left_out = f"{count - EVENTS_A_KIND} more of {kind}"
                now_ns = time.monotonic_ns()
                self._append({"time_ns": now_ns, "kind": "not_written", "detail": left_out})
        self._file.close()

    def _append(self, event: Mapping[str, Any]) -> None:
        present = {name: value for name, value in event.items() if value not in (None, "")}
        with disk_errors(self._file.name):
            self._file.write(orjson.dumps(present, option=orjson.OPT_APPEND_NEWLINE))
