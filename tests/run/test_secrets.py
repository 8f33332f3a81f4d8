import os
import pty
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadgen.brokers.endpoints import Endpoint
from loadgen.brokers.process import ServedBroker
from loadgen.cases.registry import build_scenario, resolve
from loadgen.errors import ScenarioError
from loadgen.run import secrets
from loadgen.run.secrets import known_secrets, take_secrets, with_login

ODD = "%41 'a\"b\\ü=:@/ "


@pytest.fixture(autouse=True)
def _nothing_taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(secrets, "_taken", {})
    monkeypatch.setattr(secrets, "_withheld", {})
    yield


def private(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def refusal(**given: object) -> str:
    with pytest.raises(ScenarioError) as caught:
        take_secrets(given)
    return caught.value.code


def test_user_and_password_reach_every_endpoint(tmp_path: Path) -> None:
    file = private(tmp_path / "a: file", ODD.encode() + b"\n")
    os.environ["TESTED_USER"] = "token"
    given = {"user": "env:TESTED_USER", "password": f"file:{file}"}
    take_secrets(given)
    served = ServedBroker.at((Endpoint("mqtt", "a", 1), Endpoint("mqtt", "b", 2)))
    known = with_login(served, given)
    assert [(one.username, one.password) for one in known.endpoints] == [("token", ODD)] * 2
    assert [one.redacted for one in known.endpoints] == ["mqtt://***:***@a:1", "mqtt://***:***@b:2"]
    assert set(known.secrets) == {"token", ODD} == set(known_secrets())
    # No child has it, and it can be asked for again.
    assert "TESTED_USER" not in os.environ
    take_secrets(given)
    assert with_login(served, {}) == served
    # One that was set again is another secret.
    os.environ["TESTED_USER"] = "other"
    take_secrets(given)
    assert {one.username for one in with_login(served, given).endpoints} == {"other"}
    assert "TESTED_USER" not in os.environ


@pytest.mark.parametrize(
    ("data", "secret"),
    [(b"a", "a"), (b"a\n", "a"), (b"a\r\n", "a"), (b"a\n\n", "a\n"), (b"a\r", "a\r")],
)
def test_one_line_end_is_no_part_of_a_secret(tmp_path: Path, data: bytes, secret: str) -> None:
    source = f"file:{private(tmp_path / 'p', data)}"
    take_secrets({"password": source, "user": f"command:cat {source[5:]}"})
    assert set(known_secrets()) == {secret}


def test_what_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    path = private(tmp_path / "p", b"hunter2")
    path.chmod(0o640)
    assert refusal(password=f"file:{path}") == "READABLE"
    path.chmod(0o600)
    for data in (b"", b"x" * 65_536):
        assert refusal(password=f"file:{private(path, data)}") == "BAD_SECRET"
    assert refusal(password=f"file:{private(path, bytes([255]))}") == "NOT_UTF_8"
    assert refusal(user=f"file:{private(path, b'x' + bytes(1))}") == "BAD_SECRET"
    assert refusal(password=f"file:{tmp_path}/none") == "UNREADABLE"
    assert refusal(tls_passphrase="env:NOT_THERE") == "NO_VARIABLE"
    assert refusal(password="command:exit 3") == "SECRET_FAILED"
    assert refusal(password="command:true") == "BAD_SECRET"
    assert not known_secrets()


def test_a_file_of_somebody_else_is_not_ours_to_protect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private(tmp_path / "p", b"x")
    path.chmod(0o444)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    take_secrets({"password": f"file:{path}"})
    assert known_secrets() == ("x",)


def test_a_pipe_is_read_once() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"piped\n")
    os.close(writing)
    given = {"password": f"file:/dev/fd/{reading}"}
    take_secrets(given)
    take_secrets(given)
    os.close(reading)
    assert known_secrets() == ("piped",)


def test_passphrase_is_in_the_workload_and_not_shown() -> None:
    os.environ["TESTED_PHRASE"] = ODD
    url = "mqtts://h"
    fields = {"broker": url, "tls_certificate": "c", "tls_passphrase": "env:TESTED_PHRASE"}
    scenario = build_scenario("fanin", None, fields)
    take_secrets(scenario.plain())
    tls = secrets.with_secrets(resolve(scenario)).tls
    assert tls.passphrase == ODD and "passphrase" not in repr(tls)
    assert scenario.plain()["tls_passphrase"] == "env:TESTED_PHRASE"


def test_headers_of_the_collector_leave_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "a=1")
    take_secrets({"otlp": None})
    assert (secrets.otlp_headers(), known_secrets()) == ("a=1", ())
    take_secrets({"otlp": "http://h"})
    assert "OTEL_EXPORTER_OTLP_HEADERS" not in os.environ
    assert secrets.otlp_headers() == "a=1"


ASK = """
import sys
from loadgen.run.secrets import known_secrets, take_secrets
from loadgen.errors import ScenarioError
try:
    take_secrets({"password": "prompt"})
    print("read", len(known_secrets()[0]))
except ScenarioError as error:
    print(error.code)
"""


def test_a_prompt_shows_nothing_of_what_is_typed() -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(sys.executable, [sys.executable, "-c", ASK])
    said = b""
    while b": " not in said:
        said += os.read(terminal, 1 << 10)
    time.sleep(0.05)
    os.write(terminal, b"hunter2\n")
    while b"\n" not in said.partition(b"read")[2]:
        said += os.read(terminal, 1 << 10)
    os.waitpid(pid, 0)
    os.close(terminal)
    assert said.split() == b"Password of the broker: read 7".split()


def test_nobody_is_asked_without_a_terminal() -> None:
    asked = subprocess.run(
        [sys.executable, "-c", ASK],
        input="hunter2\n",
        capture_output=True,
        text=True,
        start_new_session=True,
        check=True,
    )
    assert (asked.stdout, asked.stderr) == ("NO_TERMINAL\n", "")
