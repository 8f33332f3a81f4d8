"""Errors of a full or read-only disk and of exhausted limits, as one error for the user."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from loadgen.errors import DiskError, HostLimitError

_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_LIMITS: Final = {
    errno.EMFILE: "this process has no descriptor left; raise ulimit -n",
    errno.ENFILE: "this host has no descriptor left; raise fs.file-max, or end what else runs",
    errno.EAGAIN: "there is no memory, or no process, left for a thread; raise ulimit -v or -u",
    errno.ENOMEM: "there is no memory left; use fewer devices or more hosts, or raise the limit",
}
_NO_THREAD: Final = "can't start new thread"  # all that Python says of it
_NO_TEMPORARY: Final = "No usable temporary directory"  # what `tempfile` says of a full disk


@contextmanager
def disk_errors(path: str | os.PathLike[str] = "") -> Iterator[None]:
    """Turn an OSError that is the disk's fault into a DiskError, within the block.

    `path` is the file that is written, "" for several. An exhausted limit of the host becomes a
    HostLimitError.
    """
    try:
        yield
    except MemoryError:
        raise HostLimitError(_LIMITS[errno.ENOMEM]) from None
    except RuntimeError as error:
        if str(error) != _NO_THREAD:
            raise
        raise HostLimitError(_LIMITS[errno.EAGAIN]) from None
    except OSError as error:
        if error.errno in _LIMITS and not isinstance(error, BlockingIOError):
            raise HostLimitError(_LIMITS[error.errno]) from None
        no_temporary = _NO_TEMPORARY in str(error)
        if error.errno not in _DISK and not no_temporary:
            raise
        # By its number: the text of Arrow's errors repeats the system's inside its own.
        reason = _NO_TEMPORARY if no_temporary else os.strerror(error.errno or 0)
        what = str(os.fspath(path) or error.filename or "a file")[:200]
        raise DiskError(
            f"cannot write {what}: {reason[0].lower()}{reason[1:]}; make room there and in /tmp, "
            "or name another disk with --out"
        ) from None
