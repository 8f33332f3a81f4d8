"""A private Mosquitto, with its defaults unless they would falsify a measurement."""

import base64
import hashlib
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Final

from loadgen.brokers.process import Program, ProgramSettings, printed_version, run_program
from loadgen.brokers.this_host import available_memory_bytes
from loadgen.errors import MissingProgramError
from loadgen.plan.accounts import Account
from loadgen.sentences import BROKER_TEXT, read_table

# Debian puts the broker where only root's PATH looks.
_EXTRA_DIRECTORIES: Final = ("/usr/sbin", "/usr/local/sbin", "/opt/homebrew/sbin", "/snap/bin")
_PASSWORDS: Final = "passwords"
_RIGHTS: Final = "rights"
_SALT_BYTES: Final = 12
_HASH_ITERATIONS: Final = 101  # as mosquitto_passwd of 2.0 writes them
AUTOSAVE_S: Final = 5


def find_mosquitto() -> Path | None:
    """Return the program on PATH or in the directories for system programs, None if absent."""
    directories = [*os.get_exec_path(), *_EXTRA_DIRECTORIES]
    program = shutil.which("mosquitto", path=os.pathsep.join(directories))
    return None if program is None else Path(program).resolve()


def render_config(settings: ProgramSettings, directory: Path, port: int) -> str:
    memory_limit_bytes = settings.memory_limit_bytes
    if memory_limit_bytes is None:
        memory_limit_bytes = default_memory_limit_bytes()
    lines = [
        *read_table("loadgen.brokers", "mosquitto.toml")["lines"],
        # Before 2.0.18 an unknown user name ends the program, so only root names one: itself,
        # since the unprivileged default could not read a directory of mode 0700.
        *(["user root"] if os.geteuid() == 0 else []),
        f"memory_limit {memory_limit_bytes}",
        f"allow_anonymous {'false' if settings.accounts else 'true'}",
        f"persistence {'true' if settings.persistence else 'false'}",
    ]
    if settings.persistence:
        # persistent_client_expiration stays unset: durable sessions last as long as the broker.
        lines += [
            f"persistence_location {directory}/",
            "persistence_file mosquitto.db",
            # The interval is in changes or in seconds.
            f"autosave_on_changes {'true' if settings.save_each else 'false'}",
            f"autosave_interval {1 if settings.save_each else AUTOSAVE_S}",
        ]
    if settings.accounts:
        lines += [f"password_file {directory / _PASSWORDS}", f"acl_file {directory / _RIGHTS}"]
    lines += [f"listener {port} {settings.host}", "max_connections -1"]
    if settings.certificate is not None:
        lines += [f"certfile {settings.certificate}", f"keyfile {settings.key}"]
    lines += settings.more_lines
    return "\n".join(lines) + "\n"


def password_line(account: Account, salt: bytes) -> str:
    """Return a line of a password file like mosquitto_passwd(1): PBKDF2 with SHA-512."""
    password = account.password.encode()
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, _HASH_ITERATIONS)
    parts = (base64.b64encode(part).decode() for part in (salt, digest))
    return f"{account.user_name}:$7${_HASH_ITERATIONS}${'$'.join(parts)}"


def mosquitto(settings: ProgramSettings) -> Program:
    program = find_mosquitto()
    if program is None:
        raise MissingProgramError(BROKER_TEXT.NO_MOSQUITTO())
    # Its main loop writes the database after it has answered what it read (2.0.11, src/loop.c and
    # src/handle_publish.c).
    when = f"every {AUTOSAVE_S} s"
    if settings.save_each:
        when = "after each pass of its loop that changed something, once the answers are sent"
    storage = (
        "mosquitto acknowledges a message before it stores it: it keeps messages in memory and "
        f"writes its whole database to disk {when}. A crash may lose what it has not yet written; "
        "no setting of Mosquitto 2.0 makes it store first."
    )

    def configure(directory: Path, port: int) -> list[str]:
        config, accounts = directory / "mosquitto.conf", settings.accounts
        config.write_text(render_config(settings, directory, port), "utf-8")
        if accounts and not (directory / _RIGHTS).exists():
            passwords = [password_line(one, os.urandom(_SALT_BYTES)) for one in accounts]
            rights = []  # an ACL file (mosquitto.conf(5), acl_file)
            for one in accounts:
                rights.append(f"user {one.user_name}")
                rights += [f"topic write {topic}" for topic in one.publishes]
                rights += [f"topic read {topic}" for topic in one.receives]
            for name, lines in ((_PASSWORDS, passwords), (_RIGHTS, rights)):
                (directory / name).write_text("\n".join(lines) + "\n", "utf-8")
        return [str(program), "-c", str(config)]

    return Program(
        "mosquitto",
        printed_version(program, "-h", b"mosquitto version "),
        configure,
        ready=b" running",
        failures=("Error",),
        public=partial(render_config, settings),  # it names the file of passwords
        storage=storage if settings.persistence else "",
        # Without data to save it is killed: to end by a signal takes up to 100 ms.
        saves=settings.persistence,
    )


run_mosquitto: Final = partial(run_program, mosquitto)
"""Context with a running Mosquitto; with persistence, it saves its database at the end."""


def default_memory_limit_bytes(brokers: int = 1) -> int:
    """Return half of the memory now available, divided among the brokers."""
    return available_memory_bytes() // 2 // brokers
