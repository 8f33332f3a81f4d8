"""`loadgen new`: the file that it writes is what `loadgen run` reads."""

import io
from pathlib import Path

import pytest
from typer.testing import CliRunner

from loadgen.cases.registry import build_scenario, resolve
from loadgen.cli.app import app
from loadgen.cli.main import main
from loadgen.plan.groups import DeviceGroup
from loadgen.plan.scenario import read_toml
from tests.terminal import Captured

ANSWERS = ("--devices=2k", "--topic={group}/{device}/x", "--rate=5k", "--qos=2", "--subscribers=3")


def groups_of(path: Path) -> tuple[DeviceGroup, ...]:
    return resolve(build_scenario("run", read_toml(path.read_text("utf-8")), {})).groups


def test_answers_of_a_script_are_groups(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "fleet.toml"
    assert main(["new", str(path), *ANSWERS]) == 0
    assert capsys.readouterr().out == f"loadgen run {path}\n"
    publishers, subscribers = groups_of(path)
    assert publishers.publishes and subscribers.subscribes
    assert (publishers.count, publishers.publishes.rate, publishers.publishes.qos) == (
        2000,
        5000,
        2,
    )
    assert publishers.publishes.topic == "publishers/{device}/x"
    assert (subscribers.count, subscribers.subscribes.filters) == (3, ("publishers/+/x",))


def test_other_answers_are_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    done = CliRunner().invoke(app(), ["new", str(path), "--devices=7"], input="\n70\n\n0\n")
    assert done.exit_code == 0, done.output
    (publishers,) = groups_of(path)
    assert publishers.count == 7 and publishers.publishes
    assert (publishers.publishes.rate, publishers.publishes.qos) == (70, 1)


def test_the_end_of_the_input_is_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("7\n"))
    assert main(["new", str(tmp_path / "fleet.toml"), "--topic=a/{device}"]) == 2
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith("loadgen: ") and "--rate" in line
    assert not (tmp_path / "fleet.toml").exists()


@pytest.mark.parametrize("wrong", ["--devices=0", "--topic=a/+", "--rate=x", "--qos=3"])
def test_a_wrong_answer_writes_nothing(tmp_path: Path, capsys: Captured, wrong: str) -> None:
    path = tmp_path / "fleet.toml"
    assert main(["new", str(path), *ANSWERS, wrong]) == 2
    assert wrong.partition("=")[0].strip("-") in capsys.readouterr().err
    assert not path.exists()
    path.write_text("mine")
    assert main(["new", str(path), *ANSWERS]) == 2
    assert path.read_text() == "mine"
