"""The file of identifiers and logins."""

from pathlib import Path

import pytest

from loadgen.errors import ScenarioError
from loadgen.worker.logins import read_clients
from tests.refusals import refused
from tests.tables import rows_of

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


@pytest.mark.parametrize(("content", "code", "values"), rows_of("worker.clients_refused"))
def test_a_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: str, code: str, values: dict[str, object]
) -> None:
    path = tmp_path / "clients.csv"
    path.write_bytes(content.format(m="m" * 65_536, x="x" * 200_000).encode("latin-1"))
    with refused(code, ScenarioError, **values) as caught:
        read_clients(path)
    assert "\n" not in str(caught.value)


def test_no_value_of_the_file_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "clients.csv"
    path.write_text(f"client_id,username,password\na,u,{SECRET}\na,u,{SECRET}\n")
    with pytest.raises(ScenarioError) as caught:
        read_clients(path)
    assert SECRET not in str(caught.value)
    with refused("UNREADABLE", reason="no such file or directory"):
        read_clients(tmp_path / "none")
    with refused("UNREADABLE", reason="is a directory"):
        read_clients(tmp_path)
