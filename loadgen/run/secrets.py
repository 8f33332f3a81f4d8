"""Secrets of a run: typed, or read from the environment, a file or a command; kept in memory alone.

A scenario has only the source of a secret: `prompt`, `env:NAME`, `file:PATH` or `command:COMMAND`.
"""

import getpass
import json
import os
import stat
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

from loadgen.brokers.process import ServedBroker
from loadgen.errors import ScenarioError
from loadgen.plan.plan import Plan
from loadgen.run.redaction import SOURCE
from loadgen.sentences import RUN_TEXT, printable

_NAMES: Final = {
    "user": "User name of the broker",
    "password": "Password of the broker",
    "tls_passphrase": "Passphrase of the TLS key",
    "secret": "Secret of the agents",
}
"""Fields with the source of a secret, and their words in a prompt."""

_OTLP_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")
_LIMIT_BYTES = 65_535  # limit of a Password (MQTT 5, section 3.1.3.6)
_SHORTEST_BYTES = 16  # least length of the agents' secret, so that it cannot be guessed

_taken: dict[tuple[str, str], str] = {}  # secrets that were read, by field and source
_withheld: dict[str, str] = {}  # variables that were taken out of the environment


def take_secrets(fields: Mapping[str, object]) -> None:
    """Read the secrets that these fields of a scenario name; each source is read once a process.

    Variables leave the environment, so that no child has them: call this before one starts. One
    that was set again is read again. Raise ScenarioError if a secret cannot be read.
    """
    tables = fields.get("group")
    groups = json.loads(tables) if isinstance(tables, str) else []
    for name, source in ((name, part.get(name)) for part in (fields, *groups) for name in _NAMES):
        if isinstance(source, str) and (source[:4] == "env:" or (name, source) not in _taken):
            _taken[name, source] = _read(name, source)
    if fields.get("otlp"):
        for variable in _OTLP_HEADERS:
            _withhold(variable)


def agent_secret(source: str) -> bytes:
    """Return the secret that agents share with the commands which use them."""
    if not SOURCE.fullmatch(source):
        raise ScenarioError(RUN_TEXT.SECRET_SOURCE())
    take_secrets({"secret": source})
    secret = _taken["secret", source].encode()
    if len(secret) < _SHORTEST_BYTES:
        raise ScenarioError(RUN_TEXT.SHORT_SECRET(size=len(secret), least=_SHORTEST_BYTES))
    return secret


def known_secrets() -> tuple[str, ...]:
    """Return all secrets that were read, which must not appear in a file or message."""
    return (*_taken.values(), *_withheld.values())


def otlp_headers() -> str:
    """Return the headers for the collector, as OpenTelemetry writes them; "" for none."""
    common, own = (_withheld.get(name, os.environ.get(name, "")) for name in _OTLP_HEADERS)
    return own or common


def with_login(broker: ServedBroker, given: Mapping[str, object]) -> ServedBroker:
    """Return the broker with the user and the password that these fields of a scenario name."""
    user, password = _of("user", given), _of("password", given)
    secrets: dict[str, Any] = {} if user is None else {"username": user, "secret_user": True}
    if password is not None:
        secrets["password"] = password
    return replace(broker, endpoints=tuple(replace(one, **secrets) for one in broker.endpoints))


def with_secrets(plan: Plan) -> Plan:
    """Return the plan with the passphrase of its key and the logins of its groups."""
    fields = plan.scenario.plain()
    tables = json.loads(str(fields.get("group", "[]")))
    groups = list(plan.groups)
    for number, table in enumerate(tables):
        if any(login := (_of("user", table), _of("password", table))):
            groups[number] = replace(groups[number], login=login)
    tls = replace(plan.tls, passphrase=_of("tls_passphrase", fields))
    return replace(plan, tls=tls, groups=tuple(groups))


def readable_by_others(path: Path) -> bool:
    """Return True if another user can read or write this file of this user."""
    found = path.stat()
    own = found.st_uid == os.geteuid() and stat.S_ISREG(found.st_mode)
    return own and bool(found.st_mode & 0o077)


def _of(name: str, given: Mapping[str, object]) -> str | None:
    return _taken.get((name, str(given.get(name))))


def _read(name: str, source: str) -> str:
    kind, _, where = source.partition(":")
    try:
        if kind == "prompt":
            try:
                with Path("/dev/tty").open("rb"), warnings.catch_warnings():
                    # It must not show what is typed.
                    warnings.simplefilter("error", getpass.GetPassWarning)
                    secret = getpass.getpass(f"{_NAMES[name]}: ")
            except (OSError, EOFError, getpass.GetPassWarning):
                raise ScenarioError(RUN_TEXT.NO_TERMINAL(field=name)) from None
        elif kind == "env":
            if not _withhold(where):
                variable = printable(where, 100)
                raise ScenarioError(RUN_TEXT.NO_VARIABLE(field=name, variable=variable))
            secret = _withheld[where]
        else:
            if kind == "command":
                # Its errors go to the terminal.
                shell = ("/bin/sh", "-c", where)
                done = subprocess.run(shell, stdin=DEVNULL, stdout=PIPE, check=False)
                if done.returncode:
                    raise ScenarioError(RUN_TEXT.SECRET_FAILED(field=name, status=done.returncode))
                data = done.stdout
            else:
                data = _content_of(name, where)
            line = data.removesuffix(b"\n")
            secret = (line.removesuffix(b"\r") if line != data else data).decode()
        size = len(secret.encode())
    except UnicodeError:
        raise ScenarioError(RUN_TEXT.NOT_UTF_8(field=name, path=printable(source, 200))) from None
    if not 0 < size <= _LIMIT_BYTES or (name == "user" and "\0" in secret):
        shown = printable(source, 200)
        raise ScenarioError(RUN_TEXT.BAD_SECRET(field=name, source=shown, most=_LIMIT_BYTES))
    return secret


def _withhold(variable: str) -> bool:
    """Take a variable out of the environment; return True if there was one, now or before."""
    if variable in os.environ:
        _withheld[variable] = os.environ.pop(variable)
    return variable in _withheld


def _content_of(name: str, where: str) -> bytes:
    path = Path(where).expanduser()
    try:
        # Before it is opened: a pipe waits for its writer.
        if readable_by_others(path):
            mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"
            raise ScenarioError(RUN_TEXT.READABLE(field=name, path=path, mode=mode))
        with path.open("rb") as file:
            return file.read(_LIMIT_BYTES + 3)
    except OSError as error:
        raise ScenarioError(RUN_TEXT.UNREADABLE(field=name, path=path, reason=error)) from None
