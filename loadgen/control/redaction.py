"""Keeps secrets out of files and hostile characters out of text that people read."""

import re
from collections.abc import Iterable, Sequence

HIDDEN = "***"

_LOGIN = re.compile(r"(?<=://)([^/@\s:]*):([^@\s]*)@")
_SECRET_NAME = re.compile(r"password|secret|token", re.IGNORECASE)
_SECRET_GIVEN = re.compile(rf"(?:[^=]*=)?[^=]*(?:{_SECRET_NAME.pattern})[^=]*=", re.IGNORECASE)
"""NAME=, or OPTION=NAME=."""


def printable(text: str, limit: int) -> str:
    """At most `limit` characters of the text; what is not printable becomes its escape."""
    short = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode("ascii")
        for c in short
    )


def scrub(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret, and the password of every URL in it, replaced."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return _LOGIN.sub(rf"\1:{HIDDEN}@", text)


def redact_command(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """A command line that may be kept: no password, whether in a URL, an option or a NAME=VALUE."""
    secrets = tuple(secrets)
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        given = _SECRET_GIVEN.match(argument)
        if hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif given is not None and "://" not in given[0]:
            shown.append(f"{given[0]}{HIDDEN}")
        else:
            hide_next = argument.startswith("-") and bool(_SECRET_NAME.search(argument))
            shown.append(scrub(argument, secrets))
    return shown
