"""The errors that a user can meet, in one tree; the class has the exit status of the command.

A message is one line: what is wrong, with the value, and what to do. `code` and `values` are those
of its sentence (`loadgen.sentences`), if it has one.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from loadgen.sentences import Text, Values


class LoadgenError(Exception):
    """Root of the tree; the command ends with `exit_status`."""

    exit_status: ClassVar[int] = 3

    @property
    def code(self) -> str:
        return str(getattr(self.args[0], "code", "")) if self.args else ""

    @property
    def values(self) -> Values:
        values: Values = getattr(self.args[0], "values", {}) if self.args else {}
        return values


class UsageError(LoadgenError):
    """The caller's input cannot be used; nothing was changed."""

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
    """MQTT was violated; the subclass names the side."""


class LocalProtocolError(ProtocolError):
    """This side requested something that the protocol forbids."""


class RemoteProtocolError(ProtocolError):
    """The peer sent something that the protocol forbids.

    `reason_code` is the MQTT 5 reason code (section 2.4) that a DISCONNECT would carry.
    """

    def __init__(self, message: str, reason_code: int = 0x81) -> None:
        super().__init__(message)
        self.reason_code = reason_code


def reword(error: LoadgenError, words: str) -> None:
    """Replace the message of an error; its code and values remain."""
    error.args = (Text.of(words, error.code, error.values), *error.args[1:])


def as_header(error: Exception) -> dict[str, Any]:
    """Return an error as JSON for another process; its values are texts."""
    kind, values = type(error).__name__, getattr(error, "values", {})
    return {
        "type": kind,
        "message": str(error) or kind,
        "code": getattr(error, "code", ""),
        "values": {name: str(value) for name, value in values.items()},
    }


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
"""Options with another name in `loadgen.api`."""


@contextmanager
def in_python() -> Iterator[None]:
    """Let errors name fields and arguments as in Python, instead of options."""
    try:
        yield
    except LoadgenError as error:
        if error.args:
            reword(error, python_words(str(error.args[0])))
        raise


def python_words(message: str) -> str:
    """Replace options of the command line in a message by the names of their fields."""
    return _OPTION.sub(
        _field, _FIELD.sub(lambda match: _ARGUMENTS.get(match[0], match[0]), message)
    )


def _field(option: re.Match[str]) -> str:
    name = _ARGUMENTS.get(option["name"], option["name"].replace("-", "_"))
    value = "False" if option["no"] else option["value"]
    return f"{name}={value}" if value else name
