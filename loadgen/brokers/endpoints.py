"""The `--broker` argument as a value: the address of a broker, or a name of a private one."""

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, unquote

from loadgen.errors import UsageError
from loadgen.plan.removed import removal
from loadgen.plan.units import shown
from loadgen.sentences import BROKER_TEXT

DEFAULT_PORTS: Final = {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}
"""Port of a scheme whose URL has none (IANA; RFC 6455)."""

INSTRUMENTS: Final = ("reflector", "sink")  # brokers of ours that store and count nothing
BROKER_NAMES: Final = ("auto", "mosquitto", "nats", *INSTRUMENTS)

_DEFAULT_WEBSOCKET_PATH: Final = "/mqtt"
_MAX_URL_CHARACTERS: Final = 2048
_LABEL: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_LOCATION: Final = re.compile(r"(?:\[([^]]+)\]|([^:]*))(?::([^:]*))?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]*", re.IGNORECASE)
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a broker.

    `host` is a name or an address, IPv6 without brackets; `path` is "" without WebSocket. Neither
    `str` nor `repr` shows the password.
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
        return self.scheme in ("mqtts", "wss")

    @property
    def websocket(self) -> bool:
        return self.scheme in ("ws", "wss")

    @property
    def address(self) -> str:
        """`host:port`, IPv6 in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def redacted(self) -> str:
        """The URL with `***` in place of secrets; safe for files and logs."""
        login = ""
        if self.username is not None:
            login = "***" if self.secret_user else quote(self.username, safe="")
            login += ":***" if self.password is not None else ""
            login += "@"
        return f"{self.scheme}://{login}{self.address}{self.path}"


def parse_endpoint(text: str) -> Endpoint:
    """Return the endpoint of `scheme://[user[:password]@]host[:port][/path]`.

    User and password may be percent-encoded. Raise UsageError, without the password.
    """
    if len(text) > _MAX_URL_CHARACTERS:
        raise UsageError(BROKER_TEXT.URL_LONG(characters=len(text), most=_MAX_URL_CHARACTERS))
    if not text.isprintable() or " " in text:
        raise UsageError(BROKER_TEXT.URL_UNPRINTABLE())
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # What follows may hold a password, so it is not repeated.
        raise UsageError(BROKER_TEXT.NOT_A_URL())
    scheme = scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise UsageError(BROKER_TEXT.URL_SCHEME(scheme=shown(scheme), known=tuple(DEFAULT_PORTS)))

    authority, slash, path = rest.partition("/")
    if any(mark in rest.rpartition("@")[2] for mark in "?#"):
        raise UsageError(BROKER_TEXT.URL_QUERY())
    if slash and "@" in path and "@" not in authority:
        raise UsageError(BROKER_TEXT.URL_SLASH())
    if scheme.startswith("ws"):
        path = f"/{path}" if slash else _DEFAULT_WEBSOCKET_PATH
    elif path:
        raise UsageError(BROKER_TEXT.URL_PATH(scheme=scheme))

    login, at, location = authority.rpartition("@")
    username, password = _parse_login(login) if at else (None, None)
    host, port = _parse_location(location)
    return Endpoint(scheme, host, port or DEFAULT_PORTS[scheme], username, password, path)


def parse_broker(text: str) -> Endpoint | str:
    """Return the value of `--broker`: one of `BROKER_NAMES`, or an endpoint; raise UsageError."""
    name = text.strip().lower()
    if name in BROKER_NAMES:
        return name
    if removed := removal(name, "broker"):
        raise UsageError(BROKER_TEXT.BROKER_REMOVED(name=name, removed=removed))
    if "://" not in text:
        # Without a scheme it may still be user:password@host, so only plain words are repeated.
        word = f" {shown(text)}" if re.fullmatch(r"[\w.-]{1,40}", text) else ""
        raise UsageError(BROKER_TEXT.NO_BROKER(word=word, names=BROKER_NAMES))
    return parse_endpoint(text)


def _parse_login(login: str) -> tuple[str, str | None]:
    user, colon, secret = login.partition(":")
    if not user:
        raise UsageError(BROKER_TEXT.URL_NO_USER())
    try:
        username, password = unquote(user, errors="strict"), unquote(secret, errors="strict")
    except UnicodeDecodeError:
        raise UsageError(BROKER_TEXT.URL_ESCAPE()) from None
    # An MQTT UTF-8 string may not hold U+0000, and other control characters are discouraged
    # (MQTT 5, section 1.5.4); they would also reach a terminal.
    if _BAD_ESCAPE.search(login) or _CONTROL.search(username + password):
        raise UsageError(BROKER_TEXT.URL_ESCAPE())
    return username, password if colon else None


def _parse_location(location: str) -> tuple[str, int | None]:
    """Return host and port of `host`, `host:port`, `[IPv6]` or `[IPv6]:port`."""
    match = _LOCATION.fullmatch(location)
    address, name, port = ("", location, None) if match is None else match.groups()
    if not (address or name):
        raise UsageError(BROKER_TEXT.URL_NO_HOST())
    if port is not None and not (_PORT.fullmatch(port) and 1 <= int(port) <= 65535):
        raise UsageError(BROKER_TEXT.URL_PORT(port=shown(port)))
    try:
        if address:
            host = str(ipaddress.IPv6Address(address))
        else:
            host = (name if name.isascii() else name.encode("idna").decode("ascii")).lower()
            labels = host.removesuffix(".").split(".")
            if labels[-1].isdigit():
                host = str(ipaddress.IPv4Address(host))
            elif len(host) > 253 or not all(map(_LABEL.fullmatch, labels)):
                raise ValueError
    except ValueError:
        raise UsageError(BROKER_TEXT.HOST_NAME(host=shown(address or name))) from None
    return host, None if port is None else int(port)
