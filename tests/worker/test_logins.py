"""The file of identifiers and credentials."""

from pathlib import Path

import pytest

from loadgen.errors import ScenarioError
from loadgen.worker.logins import read_clients
from tests.refusals import refused

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
    ("content", "code", "values"),
    [
        (b"", "NO_HEADER", {}),
        (b"meter1,ann,secret\n", "NO_HEADER", {}),
        (b"client_id,user\nm,u\n", "NO_HEADER", {}),
        (b"client_id,username\nm\n", "COLUMNS", {"line": 2, "values": 1, "columns": 2}),
        (b"client_id\nm,x\n", "COLUMNS", {"line": 2, "values": 2, "columns": 1}),
        (b"client_id,username\na,u\n,u\n", "CLIENT_ID", {"line": 3}),
        (b"client_id\n" + b"m" * 65_536 + b"\n", "CLIENT_ID", {"line": 2}),
        (b"client_id\na\nb\na\n", "SAME_CLIENT_ID", {"line": 4, "other": 2}),
        (b"client_id\n\xff\xfe\n", "UNREADABLE", {"reason": "it is not CSV text"}),
        (b"client_id\na\0b\n", "CLIENT_ID", {"line": 2}),
        (b'client_id\n"' + b"x" * 200_000 + b'"\n', "UNREADABLE", {"reason": "it is not CSV text"}),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: bytes, code: str, values: dict[str, object]
) -> None:
    path = tmp_path / "clients.csv"
    path.write_bytes(content)
    with refused(code, ScenarioError, **values) as caught:
        read_clients(path)
    assert "\n" not in str(caught.value)


def test_no_value_of_the_file_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(f"client_id,username,password\na,u,{SECRET}\na,u,{SECRET}\n")
    with pytest.raises(ScenarioError) as caught:
        read_clients(path)
    assert SECRET not in str(caught.value)
    with refused("UNREADABLE", reason="No such file or directory"):
        read_clients(tmp_path / "none")
    with refused("UNREADABLE", reason="Is a directory"):
        read_clients(tmp_path)
