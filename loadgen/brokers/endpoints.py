"""The `--broker` argument as a value: the address of a broker, or a name of a private one."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from loadgen.brokers.messages import Message
from loadgen.errors import UsageError
from loadgen.plan.removed import removal
from loadgen.plan.units import shown

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
"""Port of each scheme if the URL has none (IANA; RFC 6455 for the WebSocket schemes)."""

BROKER_NAMES: Final = ("auto", "mosquitto", "nats", "reflector", "sink")
"""Names of private brokers."""

_DEFAULT_WEBSOCKET_PATH: Final = "/mqtt"
_MAX_URL_CHARACTERS: Final = 2048
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a broker.

    `host` is a name, an IPv4 address or an IPv6 address without brackets; `path` is empty unless
    the transport is WebSocket. Neither `str` nor `repr` shows the password.
    """

    scheme: str
    host: str
    port: int
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    path: str = ""
    secret_user: bool = False  # the user name is not shown either

    @property
    def tls(self) -> bool:
        """True if the connection is encrypted."""
        return self.scheme in ("mqtts", "wss")

    @property
    def websocket(self) -> bool:
        """True for MQTT in WebSocket frames (MQTT 5, section 6)."""
        return self.scheme in ("ws", "wss")

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def redacted(self) -> str:
        """The URL with `***` in place of what is secret; safe for files and logs."""
        login = ""
        if self.username is not None:
            login = "***" if self.secret_user else quote(self.username, safe="")
            login += ":***" if self.password is not None else ""
            login += "@"
        return f"{self.scheme}://{login}{self.address}{self.path}"


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint of a URL.

    `scheme://[user[:password]@]host[:port][/path]`, scheme one of `DEFAULT_PORTS`; user and
    password may be percent-encoded. Raises UsageError, in one line and without the password.
    """
    if len(text) > _MAX_URL_CHARACTERS:
        raise UsageError(Message.URL_LONG(characters=len(text), most=_MAX_URL_CHARACTERS))
    if not text.isprintable() or " " in text:
        raise UsageError(Message.URL_UNPRINTABLE())
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # What follows may hold a password, so it is not repeated.
        raise UsageError(Message.NOT_A_URL())
    scheme = scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise UsageError(Message.URL_SCHEME(scheme=shown(scheme), known=tuple(DEFAULT_PORTS)))

    authority, slash, path = rest.partition("/")
    if any(mark in rest.rpartition("@")[2] for mark in "?#"):
        raise UsageError(Message.URL_QUERY())
    if slash and "@" in path and "@" not in authority:
        raise UsageError(Message.URL_SLASH())
    if scheme.startswith("ws"):
        path = f"/{path}" if slash else _DEFAULT_WEBSOCKET_PATH
    elif path:
        raise UsageError(Message.URL_PATH(scheme=scheme))

    login, at, location = authority.rpartition("@")
    username, password = _parse_login(login) if at else (None, None)
    host, port_text = _split_location(location)
    port = DEFAULT_PORTS[scheme] if port_text is None else _parse_port(port_text)
    return Endpoint(scheme, _parse_host(host), port, username, password, path)


def parse_broker(text: str) -> Endpoint | str:
    """Return the value of a `--broker` argument: one of `BROKER_NAMES`, or an endpoint.

    Raises UsageError if it is neither.
    """
    name = text.strip().lower()
    if name in BROKER_NAMES:
        return name
    if removed := removal(name, "broker"):
        raise UsageError(Message.BROKER_REMOVED(name=name, removed=removed))
    if "://" not in text:
        # Without a scheme it may still be user:password@host, so only plain words are repeated.
        word = f" {shown(text)}" if re.fullmatch(r"[\w.-]{1,40}", text) else ""
        raise UsageError(Message.NO_BROKER(word=word, names=BROKER_NAMES))
    return parse_endpoint(text)


def _parse_login(login: str) -> tuple[str, str | None]:
    user, colon, secret = login.partition(":")
    if _BAD_ESCAPE.search(login):
        raise UsageError(Message.URL_ESCAPE())
    if not user:
        raise UsageError(Message.URL_NO_USER())
    try:
        username, password = unquote(user, errors="strict"), unquote(secret, errors="strict")
    except UnicodeDecodeError:
        raise UsageError(Message.URL_NOT_UTF_8()) from None
    # An MQTT UTF-8 string may not hold U+0000, and other control characters are discouraged
    # (MQTT 5, section 1.5.4); they would also reach a terminal.
    if any(ord(character) < 32 or ord(character) == 127 for character in username + password):
        raise UsageError(Message.URL_CONTROL())
    return username, password if colon else None


def _split_location(location: str) -> tuple[str, str | None]:
    if location.startswith("["):
        inside, bracket, after = location[1:].partition("]")
        if not bracket or (after and not after.startswith(":")):
            raise UsageError(Message.URL_BRACKET())
        try:
            address = ipaddress.IPv6Address(inside)
        except ValueError:
            raise UsageError(Message.HOST_NOT_IPV6(host=shown(inside))) from None
        return str(address), after[1:] if after else None
    host, colon, port = location.partition(":")
    if ":" in port:
        raise UsageError(Message.HOST_COLONS())
    return host, port if colon else None


def _parse_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise UsageError(Message.URL_PORT(port=shown(text)))
    return int(text)


def _parse_host(host: str) -> str:
    if not host:
        raise UsageError(Message.URL_NO_HOST())
    if ":" in host:
        return host
    if not host.isascii():
        try:
            host = host.encode("idna").decode("ascii")
        except UnicodeError:
            raise UsageError(Message.HOST_NAME(host=shown(host))) from None
    labels = host.removesuffix(".").split(".")
    if labels[-1].isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise UsageError(Message.HOST_NOT_IPV4(host=shown(host))) from None
    if len(host) > 253 or not all(_LABEL.fullmatch(label) for label in labels):
        raise UsageError(Message.HOST_NAME(host=shown(host)))
    return host.lower()
