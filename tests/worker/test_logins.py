"""The file of identifiers and credentials."""

from pathlib import Path

import pytest

from loadgen.errors import ScenarioError
from loadgen.worker.logins import read_clients

SECRET = "correct-horse-battery"


def test_columns_come_in_any_order_and_may_be_missing(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text('password,client_id,username\n"a,""b",one,ann\n\n,two,\nc,three,cleo\n')
    assert read_clients(path) == [
        ("one", "ann", 'a,"b'),
        ("two", None, None),
        ("three", "cleo", "c"),
    ]
    path.write_bytes("\ufeffclient_id\r\nZähler\r\n".encode())
    assert read_clients(path) == [("Zähler", None, None)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "has no header"),
        (b"meter1,ann,secret\n", "has no header"),
        (b"client_id,user\nm,u\n", "has no header"),
        (b"client_id,username\nm\n", "line 2 .* has 1 values and the header 2"),
        (b"client_id\nm,x\n", "line 2 .* has 2 values and the header 1"),
        (b"client_id,username\na,u\n,u\n", "line 3 .* has no client_id"),
        (b"client_id\n" + b"m" * 65_536 + b"\n", "line 2 .* has no client_id that MQTT allows"),
        (b"client_id\na\nb\na\n", "line 4 .* has the client_id of line 2"),
        (b"client_id\n\xff\xfe\n", "it is no CSV text"),
        (b"client_id\na\0b\n", "no (CSV text|client_id)"),
        (b'client_id\n"' + b"x" * 200_000 + b'"\n', "it is no CSV text"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "clients.csv"
    path.write_bytes(content)
    with pytest.raises(ScenarioError, match=rf"^clients_file: .*{message}") as caught:
        read_clients(path)
    assert "\n" not in str(caught.value)


def test_no_value_of_the_file_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(f"client_id,username,password\na,u,{SECRET}\na,u,{SECRET}\n")
    with pytest.raises(ScenarioError) as caught:
        read_clients(path)
    assert SECRET not in str(caught.value)
    with pytest.raises(ScenarioError, match="No such file"):
        read_clients(tmp_path / "none")
    with pytest.raises(ScenarioError, match="Is a directory"):
        read_clients(tmp_path)
