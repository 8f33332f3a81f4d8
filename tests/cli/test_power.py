"""`loadgen power`: what it prints, as a table and as JSON, and how it refuses."""

from pathlib import Path

import orjson
import pytest

from loadgen.cli.main import main
from tests.tables import rows_of
from tests.terminal import Captured

LOG = "time,PSU 1 (W),PSU 2 (W),PSU 1 max (W),Temp (C)\n" + "".join(
    f"2013-04-26T10:04:{second:02d}Z,{100 + second},50.5,200,25\n" for second in range(0, 40, 2)
)


def test_power_as_json(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "psu.csv"
    log.write_text(LOG)
    assert main(["power", str(log), "--json"]) == 0
    document = orjson.loads(capsys.readouterr().out)
    assert document == {
        "watts": 169.5,
        "withheld": False,
        "remark": document["remark"],
        "outlets": [
            {"log": str(log), "outlet": "PSU 1", "watts": 119.0, "samples": 20},
            {"log": str(log), "outlet": "PSU 2", "watts": 50.5, "samples": 20},
        ],
        "unused": [{"log": str(log), "column": "PSU 1 max (W)", "reason": "max"}],
    }
    assert "PSU 1 max (W)" in document["remark"]


def test_power_of_a_window_as_a_table(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "psu.csv"
    log.write_text(LOG)
    window = ["--from", "2013-04-26T10:04:10Z", "--to", "2013-04-26 12:04:20"]
    assert main(["power", f"{log}#1", *window, "--pdu-timezone", "Europe/Berlin"]) == 0
    shown = capsys.readouterr().out
    for words in ("PSU 1 (W)", "PSU 1 max (W) (max)", "114.00", "2013-04-26 10:04:20Z"):
        assert words in shown


@pytest.mark.parametrize("words", rows_of("cli.power_refused"))
def test_power_refuses_with_one_line_and_status_2(
    tmp_path: Path, capsys: Captured, words: list[str]
) -> None:
    log = tmp_path / "psu.csv"
    log.write_text(LOG)
    assert main(["power", str(log), *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1


def test_withheld_watts_are_null(tmp_path: Path, capsys: Captured) -> None:
    log = tmp_path / "psu.csv"
    log.write_text("time,power (kW)\n1366970645,0.2\n1366970646,0.1\n")
    assert main(["power", str(log), "--json"]) == 0
    document = orjson.loads(capsys.readouterr().out)
    assert (document["watts"], document["withheld"]) == (None, True)
