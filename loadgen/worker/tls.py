"""TLS of a worker's connections: contexts, resumed sessions, and the results of handshakes."""

import socket
import ssl
from collections import Counter, deque

from loadgen.errors import UsageError
from loadgen.plan.groups import Tls
from loadgen.sentences import WORKER_TEXT
from loadgen.worker.frames import Header

_SESSIONS_KEPT = 64
_MOST_NEGOTIATED = 32  # pairs of version and cipher that are counted separately
_VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def tls_context(tls: Tls, device: int = 0) -> ssl.SSLContext:
    """Return the client context of a device; raise UsageError if files or ciphers do not load.

    The device's number replaces `{device}` in the names of certificate and key.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    certificate, key = (
        name and name.replace("{device}", str(device))
        for name in (tls.certificate_file, tls.key_file)
    )
    options = "the --tls options"
    try:
        if tls.version is not None:
            context.minimum_version = context.maximum_version = _VERSIONS[tls.version]
        if tls.ciphers is not None:
            options = f"--tls-ciphers {tls.ciphers}"
            context.set_ciphers(tls.ciphers)
        if tls.alpn is not None:
            context.set_alpn_protocols([tls.alpn])
        if not tls.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        elif tls.ca_file is not None:
            options = f"--tls-ca {tls.ca_file}"
            context.load_verify_locations(tls.ca_file)
        else:
            context.load_default_certs()
        if certificate is not None:
            options = f"--tls-certificate {certificate}"
            # Without a password OpenSSL would prompt for it at the terminal, in every worker.
            context.load_cert_chain(certificate, key, tls.passphrase or _no_passphrase)
    except (OSError, KeyError, ValueError) as error:
        problem = getattr(error, "reason", None) or (error.args[-1] if error.args else error)
        reason = str(problem).rstrip(".").replace("_", " ").lower()
        if "pem lib" in reason:  # all that OpenSSL reports
            reason = "the file is not in PEM format"
        raise UsageError(WORKER_TEXT.NO_TLS(reason=reason, options=options)) from None
    return context


def _no_passphrase() -> str:
    raise UsageError(WORKER_TEXT.ENCRYPTED_KEY())


class Handshakes:
    """The contexts of a worker's devices, and the count of their handshakes' results."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        each_its_own = "{device}" in (tls.certificate_file or "")
        self._context = None if each_its_own else tls_context(tls)
        self._sessions: deque[ssl.SSLSession] = deque(maxlen=_SESSIONS_KEPT)
        """Sessions of earlier connections; a ticket is valid for any device at the server."""
        self._negotiated: Counter[tuple[str, str]] = Counter()
        self._resumed = 0

    def context_of(self, device: int) -> ssl.SSLContext:
        """Return the shared context, or a separate one for a device with a certificate."""
        return self._context or tls_context(self._tls, device)

    def wrap(self, sock: socket.socket, context: ssl.SSLContext, host: str) -> ssl.SSLSocket:
        """Return a connection over TLS before its handshake."""
        session = self._sessions[0] if self._sessions else None
        self._sessions.rotate(1)
        return context.wrap_socket(
            sock, do_handshake_on_connect=False, server_hostname=host, session=session
        )

    def keep_session(self, wrapped: socket.socket) -> None:
        """Let later connections resume the session of one whose server has sent data.

        A resumed session is not stored again, as its copy costs as much as a resumption saves.
        """
        if not (self._tls.resume and self._context and isinstance(wrapped, ssl.SSLSocket)):
            return
        if wrapped.session_reused and len(self._sessions) == _SESSIONS_KEPT:
            return
        session = wrapped.session
        if session is not None and session.has_ticket:
            self._sessions.append(session)

    def count(self, wrapped: ssl.SSLSocket) -> None:
        """Count the result of a handshake, once for each connection."""
        cipher = wrapped.cipher()
        if cipher is None:
            return
        kind = (wrapped.version() or "", cipher[0])
        if kind not in self._negotiated and len(self._negotiated) >= _MOST_NEGOTIATED:
            kind = ("other", "other")
        self._negotiated[kind] += 1
        self._resumed += bool(wrapped.session_reused)

    def summary(self) -> Header:
        """Return connections by version and cipher, and the number of resumed sessions."""
        return {
            "connections": [
                {"version": version, "cipher": cipher, "count": count}
                for (version, cipher), count in self._negotiated.items()
            ],
            "resumed": self._resumed,
        }
