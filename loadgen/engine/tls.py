"""TLS of a worker's connections: contexts, resumed sessions, and what the handshakes agreed on."""

import asyncio
import ssl
from collections import Counter, deque
from dataclasses import replace
from typing import Any

from loadgen.engine.frames import Header
from loadgen.errors import UsageError
from loadgen.workload.groups import Tls

_SESSIONS_KEPT = 64
_MOST_NEGOTIATED = 32
"""Different pairs of version and cipher that are counted apart."""
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


class _ResumingContext(ssl.SSLContext):
    """A context whose connections resume a session of an earlier one, if it has one.

    A ticket speaks for the server, not for the device: any of the last ones will do.
    """

    sessions: deque[ssl.SSLSession]

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        if self.sessions and options.get("session") is None:
            options["session"] = self.sessions[0]
            self.sessions.rotate(1)
        return super().wrap_bio(*arguments, **options)

    def keep(self, wrapped: ssl.SSLObject) -> None:
        """Take the session of a connection that has heard from its server, if one is wanted.

        A connection that resumed one shows that those here are still good, and a session is a
        copy that costs as much as a handshake saves.
        """
        if wrapped.session_reused and len(self.sessions) == _SESSIONS_KEPT:
            return
        session = wrapped.session
        if session is not None and session.has_ticket:
            self.sessions.append(session)


def tls_of_device(tls: Tls, device: int) -> Tls:
    """The settings of one device, its number put into the names of certificate and key."""
    number = str(device)
    return replace(
        tls,
        certificate_file=tls.certificate_file and tls.certificate_file.replace("{device}", number),
        key_file=tls.key_file and tls.key_file.replace("{device}", number),
    )


def tls_context(tls: Tls) -> ssl.SSLContext:
    """The client context of a run; raises UsageError for files or ciphers that do not load."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.resume:
        context = _ResumingContext(ssl.PROTOCOL_TLS_CLIENT)
        context.sessions = deque(maxlen=_SESSIONS_KEPT)
    try:
        if tls.minimum is not None:
            context.minimum_version = _VERSIONS[tls.minimum]
        if tls.maximum is not None:
            context.maximum_version = _VERSIONS[tls.maximum]
        if tls.ciphers is not None:
            context.set_ciphers(tls.ciphers)
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif tls.ca_file is not None:
            context.load_verify_locations(tls.ca_file)
        else:
            context.load_default_certs()
        if tls.certificate_file is not None:
            # Without one OpenSSL would ask at the terminal, in every worker.
            context.load_cert_chain(
                tls.certificate_file, tls.key_file, tls.passphrase or _no_passphrase
            )
    except (OSError, KeyError, ValueError) as error:
        raise UsageError(f"TLS cannot be set up: {error}; check the --tls options") from None
    return context


def _no_passphrase() -> str:
    raise UsageError(
        "the private key of TLS is encrypted; say with --tls-passphrase where its passphrase is"
    )


class Handshakes:
    """The contexts of a worker's devices, and a count of what their handshakes ended with."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        each_its_own = "{device}" in (tls.certificate_file or "")
        self._context = None if each_its_own else tls_context(tls)
        self._negotiated: Counter[tuple[str, str]] = Counter()
        self._resumed = 0

    def context_of(self, device: int) -> ssl.SSLContext:
        """The context that all devices share, or one of its own for a certificate of its own."""
        return self._context or tls_context(tls_of_device(self._tls, device))

    def keep_session(self, transport: asyncio.Transport | None) -> None:
        """Let later connections resume the session of this one, where that is wanted."""
        if transport is not None and isinstance(self._context, _ResumingContext):
            self._context.keep(transport.get_extra_info("ssl_object"))

    def count(self, wrapped: ssl.SSLObject | None) -> None:
        """Note what a handshake ended with, once a connection."""
        cipher = None if wrapped is None else wrapped.cipher()
        if wrapped is None or cipher is None:
            return
        kind = (wrapped.version() or "", cipher[0])
        if kind not in self._negotiated and len(self._negotiated) >= _MOST_NEGOTIATED:
            kind = ("other", "other")
        self._negotiated[kind] += 1
        self._resumed += bool(wrapped.session_reused)

    def summary(self) -> Header:
        """Connections by version and cipher, and how many resumed a session."""
        return {
            "connections": [
                {"version": version, "cipher": cipher, "count": count}
                for (version, cipher), count in self._negotiated.items()
            ],
            "resumed": self._resumed,
        }
