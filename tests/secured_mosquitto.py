"""A Mosquitto that wants a login, TLS or WebSocket, as the brokers of users do."""

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.mosquitto import mosquitto, password_line
from loadgen.brokers.process import ProgramBroker, ProgramSettings, running
from loadgen.plan.accounts import Account


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of a TLS listener; `authority` is what client certificates are checked against."""

    certificate: Path
    key: Path
    authority: Path | None = None
    require_client_certificate: bool = False


class SecuredMosquitto(ProgramBroker):
    """A running Mosquitto; made by `run_secured`."""

    shape: Endpoint

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        return tuple(replace(self.shape, port=endpoint.port) for endpoint in super().endpoints)


@asynccontextmanager
async def run_secured(
    *more_lines: str,
    username: str | None = None,
    password: str | None = None,
    tls: TlsFiles | None = None,
    websocket: bool = False,
) -> AsyncIterator[SecuredMosquitto]:
    """A Mosquitto for the length of the block, with `more_lines` in its configuration."""
    with tempfile.TemporaryDirectory() as made:
        directory = Path(made)
        lines = ["protocol websockets"] if websocket else []
        if tls is not None:
            lines += [f"certfile {tls.certificate}", f"keyfile {tls.key}"]
            lines += [f"cafile {tls.authority}"] if tls.authority is not None else []
            lines += [f"require_certificate {str(tls.require_client_certificate).lower()}"]
        if websocket:
            # Nobody uses it; 2.0.11 does not start when all its listeners are for WebSocket.
            lines.append(f"listener 0 {directory / 'socket'}")
        if username is not None and password is not None:
            passwords = directory / "passwords"
            passwords.touch(mode=0o600)
            passwords.write_text(password_line(Account(username, password), b"twelve bytes") + "\n")
            lines += ["allow_anonymous false", f"password_file {passwords}"]
        chosen = ProgramSettings(more_lines=(*lines, *more_lines))
        broker = SecuredMosquitto(mosquitto(chosen), chosen, directory)
        scheme = ("wss" if tls else "ws") if websocket else "mqtts" if tls else "mqtt"
        path = "/mqtt" if websocket else ""
        broker.shape = Endpoint(scheme, chosen.host, 0, username, password, path)
        async with running(broker):
            yield broker
