"""Keeps secrets out of files and hostile characters out of text that people read."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from loadgen import errors
from loadgen.errors import CannotRunError, LoadgenError
from loadgen.sentences import Text, printable

HIDDEN = "***"
_LOGIN = re.compile(r"(?<=://)([^/@\s:]*):([^@\s]+)@")
_SECRET_NAME = re.compile(r"(?i:password|passphrase|secret|token|access[._-]?key)")
_SECRET_GIVEN = re.compile(rf"(?:[\w-]+=)?[\w.-]*{_SECRET_NAME.pattern}[\w.-]*=(?=.)")
"""NAME=, or OPTION=NAME=."""
SOURCE = re.compile(r"prompt|env:\w+|file:.+|command:.+")
"""The source of a secret, which is not secret itself (`plan.fields.Secret`)."""


def error_from(header: Mapping[str, Any], where: str = "") -> LoadgenError:
    """Return the error that another process described, with `where` before its message."""
    found = getattr(errors, str(header.get("type")), CannotRunError)
    known = isinstance(found, type) and issubclass(found, LoadgenError)
    words = where + printable(str(header.get("message", "")), 500)
    message = Text.of(words, str(header.get("code", "")), header.get("values", {}))
    error: LoadgenError = (found if known else CannotRunError)(message)
    return error


def scrub(text: str, secrets: Iterable[str]) -> str:
    """Return the text with every secret, in each spelling, and every password of a URL replaced."""
    for secret in secrets:
        forms = {secret, quote(secret, safe=""), repr(secret)[1:-1], ascii(secret)[1:-1]}
        forms |= {form.replace('"', r"\"") for form in forms}
        for form in sorted(filter(None, forms), key=len, reverse=True):
            text = text.replace(form, HIDDEN)
    return _LOGIN.sub(rf"\1:{HIDDEN}@", text)


def redact_command(argv: Sequence[str], secrets: Iterable[str] = ()) -> list[str]:
    """Return a command line without passwords in URLs, options or NAME=VALUE."""
    secrets = tuple(secrets)
    shown: list[str] = []
    hide_next = False
    for argument in argv:
        name_given = _SECRET_GIVEN.match(argument)
        said = argument[name_given.end() :] if name_given is not None else argument
        if SOURCE.fullmatch(said):
            shown.append(argument)
            hide_next = False
        elif hide_next:
            shown.append(HIDDEN)
            hide_next = False
        elif name_given is not None:
            shown.append(f"{name_given[0]}{HIDDEN}")
        else:
            option, _, value = argument.partition("=")
            hide_next = option[:1] == "-" and not value and bool(_SECRET_NAME.search(option))
            shown.append(scrub(argument, secrets))
    return shown
