"""Every error a user can meet, one tree; the exit status of the command rides on the class.

    LoadgenError                      exit 3
    ├── UsageError                    exit 2   what the caller gave cannot be used
    │   ├── ScenarioError                      unknown key, bad value, contradiction
    │   ├── RunDirectoryError                  occupied, missing, damaged or mixed run directory
    │   └── PowerLogError                      unreadable, or does not cover the run
    ├── CannotRunError                exit 3   the run was right, the world was not
    │   ├── BrokerUnreachableError             nothing listens, or no answer in time
    │   ├── BrokerRefusedError                 CONNACK or SUBACK with a failure reason code
    │   ├── HostLimitError                     descriptors, ports, memory, kernel limits
    │   ├── DiskError                          the disk is full, or takes nothing for another reason
    │   └── MissingProgramError                a program or package that the request needs is absent
    └── ProtocolError                 exit 3   MQTT was broken, named by whose fault it is
        ├── LocalProtocolError                 we asked for something the protocol forbids
        └── RemoteProtocolError                the peer sent something the protocol forbids

A message is one line that says what is wrong and what to do.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar


class LoadgenError(Exception):
    """Root of the tree; `exit_status` is what the command ends with."""

    exit_status: ClassVar[int] = 3


class UsageError(LoadgenError):
    """What the caller gave cannot be used; nothing was changed."""

    exit_status: ClassVar[int] = 2


class ScenarioError(UsageError):
    """A scenario key is unknown, a value is out of range, or options contradict each other."""


class RunDirectoryError(UsageError):
    """A run directory is occupied, missing, damaged or mixes two runs."""


class PowerLogError(UsageError):
    """A power log cannot be read, or does not cover the measurement window."""


class CannotRunError(LoadgenError):
    """The request was right, but this host or the broker does not allow it now."""


class BrokerUnreachableError(CannotRunError):
    """Nothing listens at the endpoint, or it did not answer in time."""


class BrokerRefusedError(CannotRunError):
    """The broker answered CONNECT or SUBSCRIBE with a failure reason code."""


class HostLimitError(CannotRunError):
    """Descriptors, ports, memory or a kernel limit of this host are too small."""


class DiskError(CannotRunError):
    """A file could not be written: the disk is full, broken or read-only."""


class MissingProgramError(CannotRunError):
    """A program or package that the request needs is not installed."""


class ProtocolError(LoadgenError):
    """MQTT was broken; the subclass says by whom."""


class LocalProtocolError(ProtocolError):
    """This side asked for something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids.

    `reason_code` is the MQTT 5 reason code (section 2.4) that a DISCONNECT would carry.
    """

    def __init__(self, message: str, reason_code: int = 0x81) -> None:
        super().__init__(message)
        self.reason_code = reason_code


# For a caller in Python ------------------------------------------------------------------------

_OPTION = re.compile(
    r"(?<![\w-])--(?P<no>no-)?(?P<name>[a-z](?:[a-z-]*[a-z])?)"
    r"(?:[ =](?P<value>[\d\[{'/][^\s,;)]*|[a-z]+://[^\s,;)]+|[A-Z]+\b))?"
)
_FIELD = re.compile(r"^(for|set)(?=: )")
_ARGUMENTS: Mapping[str, str] = {
    "for": "target",
    "from": "start",
    "to": "highest",
    "set": "axes",
    "step-duration": "step_s",
}
"""Options that have another name in `loadgen.api`."""


@contextmanager
def in_python() -> Iterator[None]:
    """Errors that come through name fields and arguments, as a caller in Python gives them."""
    try:
        yield
    except LoadgenError as error:
        if error.args:
            error.args = (python_words(str(error.args[0])), *error.args[1:])
        raise


def python_words(message: str) -> str:
    """A message that names options of the command line, with the fields that they are."""
    return _OPTION.sub(
        _field, _FIELD.sub(lambda found: _ARGUMENTS.get(found[0], found[0]), message)
    )


def _field(found: re.Match[str]) -> str:
    name = _ARGUMENTS.get(found["name"], found["name"].replace("-", "_"))
    value = "False" if found["no"] else found["value"]
    return f"{name}={value}" if value else name
