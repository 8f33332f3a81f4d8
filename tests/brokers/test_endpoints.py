from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.brokers.endpoints import (
    BROKER_NAMES,
    DEFAULT_PORTS,
    Endpoint,
    parse_broker,
    parse_endpoint,
)
from loadgen.errors import UsageError
from loadgen.plan.scenario import read_toml

REFUSED = read_toml((Path(__file__).parent / "urls.toml").read_text())["refused"]

_hosts = st.one_of(
    st.ip_addresses().map(str),
    st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z])?(\.[a-z]{1,5}){0,2}", fullmatch=True),
)
_secrets = st.text(st.characters(min_codepoint=32, exclude_categories=("Cs", "Cc")), max_size=12)


@pytest.mark.parametrize("scheme", sorted(DEFAULT_PORTS))
def test_default_ports(scheme: str) -> None:
    endpoint = parse_endpoint(f"{scheme}://example.org")
    assert (endpoint.scheme, endpoint.host, endpoint.port) == (
        scheme,
        "example.org",
        {"mqtt": 1883, "mqtts": 8883, "ws": 80, "wss": 443}[scheme],
    )
    assert endpoint.tls == (scheme in {"mqtts", "wss"})
    assert endpoint.websocket == (scheme in {"ws", "wss"})


@given(
    scheme=st.sampled_from(sorted(DEFAULT_PORTS)),
    host=_hosts,
    port=st.integers(1, 65535),
    user=_secrets.filter(bool),
    password=st.none() | _secrets,
)
def test_every_part_comes_back(
    scheme: str, host: str, port: int, user: str, password: str | None
) -> None:
    from urllib.parse import quote

    shown_host = f"[{host}]" if ":" in host else host
    login = quote(user, safe="") + ("" if password is None else f":{quote(password, safe='')}")
    endpoint = parse_endpoint(f"{scheme}://{login}@{shown_host}:{port}")
    assert (endpoint.username, endpoint.password) == (user, password)
    assert (endpoint.scheme, endpoint.host, endpoint.port) == (scheme, host, port)
    # What is shown is a URL again, the same but for the password.
    again = parse_endpoint(endpoint.redacted)
    assert again.password == (None if password is None else "***")
    assert (again.host, again.port, again.username) == (host, port, user)


@given(password=st.text("abcXYZ0189", min_size=6, max_size=20))
def test_password_is_never_shown(password: str) -> None:
    endpoint = parse_endpoint(f"mqtts://carol:{password}@broker:1")
    for shown in (str(endpoint), repr(endpoint), endpoint.redacted, f"{endpoint}"):
        assert password not in shown
        assert "carol" in shown


@given(st.text(max_size=60) | st.text(":/@[]%.mqtws?#-\n\0", max_size=40).map("mqtt://".__add__))
def test_nonsense_is_one_line(text: str) -> None:
    try:
        endpoint = parse_broker(text)
    except UsageError as error:
        assert str(error).isprintable()
        assert 0 < len(str(error)) < 250
    else:
        assert endpoint in BROKER_NAMES or (
            isinstance(endpoint, Endpoint) and endpoint.host and 1 <= endpoint.port <= 65535
        )


@pytest.mark.parametrize(("text", "code"), [*REFUSED, ("mqtt://" + "a" * 3000, "URL_LONG")])  # type: ignore[misc]
def test_refused_with_its_fault(text: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_broker(text)
    assert caught.value.code == code
    assert len(str(caught.value)) < 250


def test_password_is_not_in_an_error() -> None:
    for text in ("alice:hunter22@broker", "mqtt://alice:hunter22@bro ker", "alice:hunter22@b://x"):
        with pytest.raises(UsageError) as caught:
            parse_broker(text)
        assert "hunter22" not in str(caught.value)


def test_names_and_paths() -> None:
    assert [parse_broker(name.upper()) for name in BROKER_NAMES] == list(BROKER_NAMES)
    assert parse_endpoint("ws://h").path == "/mqtt"
    assert parse_endpoint("ws://h/").path == "/"
    assert parse_endpoint("wss://h/a/b").path == "/a/b"
    assert parse_endpoint("mqtt://h/").path == ""
    assert parse_endpoint("MQTT://Host.Example:1883").host == "host.example"
    assert parse_endpoint("mqtt://[::1]:5").address == "[::1]:5"
    assert parse_endpoint("mqtt://bücher.example").host == "xn--bcher-kva.example"
