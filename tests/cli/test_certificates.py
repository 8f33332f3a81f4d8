from pathlib import Path

import pytest

from loadgen.cli.main import main
from tests.tables import rows_of
from tests.terminal import Captured


def test_one_command_makes_them_and_says_how_they_are_used(
    tmp_path: Path, capsys: Captured
) -> None:
    out = tmp_path / "certs"
    words = ["certificates", "--out", str(out), "--host", "a.example", "--host", "10.0.0.7"]
    assert main([*words, "--clients", "2", "--key", "ecdsa"]) == 0
    files = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    devices = {f"clients/{number}.{kind}" for number in (0, 1) for kind in ("pem", "key")}
    assert files == {"ca.pem", "ca.key", "server.pem", "server.key"} | devices
    said = capsys.readouterr().out
    assert f"--tls-ca {out}/ca.pem" in said
    assert f"--tls-certificate '{out}/clients/{{device}}.pem'" in said


@pytest.mark.parametrize(("words", "said"), rows_of("cli.certificates_refused"))
def test_bad_input_is_one_line_and_makes_nothing(
    tmp_path: Path, words: list[str], said: str, capsys: Captured
) -> None:
    out = tmp_path / "certs"
    assert main(["certificates", "--out", str(out), *words]) == 2
    assert said in capsys.readouterr().err
    assert not out.exists()
