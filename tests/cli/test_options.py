from pathlib import Path
from typing import Any

import pytest

from loadgen.cases.registry import CASES, RENAMED
from loadgen.cli.main import main
from loadgen.cli.options import case_options, declared, named_values, read_scenario
from loadgen.cli.report import QUICK_BUDGET
from loadgen.errors import ScenarioError
from loadgen.judge.next_step import AIMS, MOST_STEPS, PRECISION
from loadgen.run.hosts.remote_host import WAIT_S
from tests.refusals import refused
from tests.tables import rows_of
from tests.terminal import Captured


@pytest.mark.parametrize("case", CASES)
def test_every_field_of_a_case_is_an_option_and_no_other(case: str) -> None:
    names = {parameter.name for parameter in case_options(CASES[case])}
    fields = set(CASES[case].scenario.fields())
    renamed = {old for old, new in RENAMED.items() if new in fields}
    assert names == fields | renamed | {"scenario", "set_"}


def test_old_name_of_a_field_is_read_and_not_shown(capsys: Captured) -> None:
    old, new = next(iter(RENAMED.items()))
    assert getattr(read_scenario(CASES["fanin"], {old: "9", "qos": "1"}), new) == 9
    with refused("TWICE", ScenarioError):
        read_scenario(CASES["fanin"], {old: "9", new: "8"})
    assert main(["fanin", "--help-all"]) == 0
    shown = capsys.readouterr().out
    assert f"--{new.replace('_', '-')}" in shown
    assert f"--{old.replace('_', '-')}" not in shown


def test_every_renamed_field_is_listed_among_the_changes() -> None:
    changes = (Path(__file__).parents[2] / "CHANGELOG.md").read_text()
    for old, new in RENAMED.items():
        assert f"`{old}`" in changes and f"`{new}`" in changes, old


def test_numbers_and_times_are_read_as_people_write_them() -> None:
    scenario = read_scenario(
        CASES["fanin"], {"devices": "10k", "rate": "2.5M", "duration": "500ms"}
    )
    assert (scenario.devices, scenario.rate, scenario.duration) == (10_000, 2_500_000.0, 0.5)


def test_flags_win_over_set_nothing_and_both_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text('case = "fanin"\ndevices = 5\nrate = "1k"\nwarmup = 1\n')
    given: dict[str, Any] = {"scenario": file, "devices": "7", "set_": ["warmup=2s"]}
    scenario = read_scenario(CASES["fanin"], given)
    assert (scenario.devices, scenario.rate, scenario.warmup) == (7, 1000.0, 2.0)


def test_option_that_was_not_given_leaves_the_file_alone(tmp_path: Path) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text("subscribe = true\nbroker = ['mqtt://a', 'mqtt://b']\n")
    given: dict[str, Any] = {"scenario": file, "subscribe": None, "broker": [], "set_": None}
    scenario = read_scenario(CASES["connburst"], given)
    assert scenario.subscribe is True
    assert scenario.broker == ("mqtt://a", "mqtt://b")


def test_set_takes_any_field_and_keeps_what_follows_the_first_equals_sign() -> None:
    assert named_values(["rate=10k", "tls-ciphers=A=B"]) == {"rate": "10k", "tls_ciphers": "A=B"}


def test_malformed_set_is_refused() -> None:
    for pair in ("rate", "=5", " =1"):
        with refused("SET_FORM", ScenarioError):
            named_values([pair])
    with refused("SET_TWICE", ScenarioError, name="rate"):
        named_values(["rate=1", "rate=2"])
    with refused("OPTION_AND_SET", ScenarioError, name="rate"):
        read_scenario(CASES["fanin"], {"rate": "5", "set_": ["rate=6"]})


@pytest.mark.parametrize(("content", "code"), rows_of("cli.scenario_files_refused"))
def test_scenario_file_that_cannot_be_used_is_one_line(
    tmp_path: Path, content: str, code: str
) -> None:
    file = tmp_path / "scenario.toml"
    file.write_text(content, "latin-1")
    with refused(code) as caught:
        read_scenario(CASES["fanin"], {"scenario": file})
    assert str(caught.value).isprintable()


def test_missing_scenario_file_is_one_line(tmp_path: Path) -> None:
    with refused("UNREADABLE_SCENARIO", reason="no such file or directory"):
        read_scenario(CASES["fanin"], {"scenario": tmp_path / "a\nb"})


@pytest.mark.parametrize(("words", "options"), rows_of("cli.errors_name_options"))
def test_an_error_names_options_and_no_fields(
    words: list[str], options: list[str], capsys: Captured
) -> None:
    assert main(words) == 2
    line = capsys.readouterr().err
    assert all(option in line for option in options) and "_" not in line


def test_help_texts_have_the_defaults_of_the_code() -> None:
    details = {
        parameter.name: parameter.annotation.__metadata__[0]
        for table in ("run", "search", "report")
        for parameter in declared(table)
    }
    assert details["for_"].metavar == "|".join(AIMS)
    for name, default in (
        ("precision", f"[default: {PRECISION:.0%}]"),
        ("most_steps", f"[default: {MOST_STEPS}]"),
        ("hosts_wait", f"[default: {WAIT_S:g}s]"),
        ("quick", f"--budget {QUICK_BUDGET}."),
    ):
        assert default in details[name].help
