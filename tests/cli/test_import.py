"""`loadgen import mqttbench` from the command line."""

import json
import stat
from pathlib import Path

import pytest

from loadgen.cases.registry import build_scenario
from loadgen.cli.main import main
from loadgen.plan.scenario import read_toml
from tests.terminal import Captured

EXAMPLE = Path(__file__).parent / "mqttbench" / "fanin-q1.json"


def test_a_list_goes_to_standard_output_and_what_is_left_out_beside_it(
    capsys: Captured,
) -> None:
    assert main(["import", "mqttbench", str(EXAMPLE)]) == 0
    told = capsys.readouterr()
    scenario = build_scenario("run", read_toml(told.out), {})
    assert [group["count"] for group in scenario.tables] == [3, 1, 1]
    assert "run it with: loadgen run --scenario FILE" in told.err
    assert "rate: " in told.err


def test_files_are_written_once_and_credentials_for_their_owner_alone(
    tmp_path: Path, capsys: Captured
) -> None:
    out, clients = tmp_path / "fanin.toml", tmp_path / "clients.csv"
    words = ["import", "mqttbench", str(EXAMPLE), "--out", str(out), "--clients", str(clients)]
    assert main(words) == 0
    fields = read_toml(out.read_text())
    assert fields["clients_file"] == str(clients)
    assert clients.read_text() == "client_id,username,password\npub0,,\npub1,,\npub2,,\n"
    assert stat.S_IMODE(clients.stat().st_mode) == 0o600
    assert main(words) == 2
    assert "exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[{]", "is not JSON, line 1"),
        (b"[\n// a\n{]", "is not JSON, line 3"),
        (b"\xff\xfe", "is not JSON"),
        (json.dumps([{"version": "TCP2"}]).encode(), "client 0: version: 'TCP2'"),
    ],
)
def test_what_is_no_list_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: Captured, content: bytes, message: str
) -> None:
    path, out = tmp_path / "list.json", tmp_path / "out.toml"
    path.write_bytes(content)
    assert main(["import", "mqttbench", str(path), "--out", str(out)]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert told.err.count("\n") == 1
    assert not out.exists()


def test_other_tools_are_not_known(capsys: Captured) -> None:
    assert main(["import"]) == 2
    assert "mqttbench" in capsys.readouterr().err
    assert main(["import", "mqttbench", "/no/such/file"]) == 2
    assert "cannot be read: no such file" in capsys.readouterr().err
