import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadgen.api import read
from loadgen.cases.registry import CASES
from loadgen.cli.app import app, program
from loadgen.cli.main import main
from loadgen.errors import CannotRunError, RunDirectoryError
from loadgen.run import secrets
from tests.programs import python
from tests.run_files import manifest
from tests.tables import rows_of
from tests.terminal import Captured

TAKEN = "taken'\"ü\\"
HEAVY = (
    *("numba", "numpy", "pyarrow", "pyspark", "pandas", "plotly"),
    *("asyncio", "rich", "loadgen.worker", "loadgen.run.coordinator"),
)


def complaint(capsys: Captured, *arguments: str) -> tuple[int, str]:
    """Exit status and the one line that the program says on stderr; stdout must stay empty."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert out == ""
    assert re.fullmatch(r"loadgen: [^\n]+\n", err), err
    return status, err


BAD = tomllib.loads((Path(__file__).parent / "bad_usage.toml").read_text())


@pytest.mark.parametrize("case", BAD["refused"], ids=lambda case: " ".join(case["words"]))
def test_bad_usage_is_one_line_and_status_2(
    capsys: Captured, case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    status, line = complaint(capsys, *case["words"])
    assert status == 2
    assert case["message"] in line
    assert [path.name for path in tmp_path.rglob("*")] == []


def test_malformed_power_log_is_refused_before_the_run(capsys: Captured, tmp_path: Path) -> None:
    log = tmp_path / "outlet.csv"
    log.write_text("05/06/2031,12:00:00,230,1,0.9,abc,1\n")
    out = tmp_path / "run"
    status, line = complaint(capsys, "persistent", "--quiet", f"--pdu={log}", f"--out={out}")
    assert status == 2
    assert "line 1" in line
    assert not out.exists()


def test_unreachable_broker_is_one_line_and_status_3(capsys: Captured, tmp_path: Path) -> None:
    out = tmp_path / "run"
    scenario = tmp_path / "scenario.toml"
    scenario.write_text('broker = "mqtt://u:s3cret@127.0.0.1:1"')
    scenario.chmod(0o600)
    arguments = ("fanin", "--quiet", f"--out={out}", f"--scenario={scenario}")
    status, line = complaint(capsys, *arguments)
    assert status == 3
    assert "no broker at mqtt://u:***@127.0.0.1:1" in line
    assert not out.exists()


@pytest.mark.parametrize("case", BAD["secret"], ids=lambda case: " ".join(case["words"]))
def test_a_secret_on_the_command_line_is_refused(capsys: Captured, case: dict[str, Any]) -> None:
    status, line = complaint(capsys, *case["words"])
    assert status == 2
    assert "all users of this host can read a command line" in line
    assert re.search("env:NAME|spark-defaults.conf|OTEL_EXPORTER", line) and "s3cret" not in line
    assert not line.startswith("loadgen: ***")


def test_plan_names_a_variant_as_its_command_does(capsys: Captured) -> None:
    printed = []
    for words in (["vertical"], ["--topology", "vertical"]):
        assert main(["plan", "specjms", *words, "--base", "3"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] and "1.order" in printed[0]


def test_what_only_looks_like_a_secret_is_none(capsys: Captured) -> None:
    words = ("--broker", "mqtt://u:@127.0.0.1", "--broker-note", "with tokens: rate=5")
    assert main(["plan", "fanin", *words]) == 0
    assert main(["plan", "fanin", "--broker-note=by-token", "--devices", "10"]) == 0
    assert main(["plan", "fanin", "--broker=mqtt://u@127.0.0.1", "--password", "env:SECRET"]) == 0
    assert "worker" in capsys.readouterr().out


def test_unexpected_error_is_one_line_with_the_place_of_its_traceback(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(name: str, host: str, port: int) -> None:
        raise RuntimeError(f"first\nsecond mqtt://me:s3cret@h {[TAKEN]}")

    monkeypatch.setattr(secrets, "_taken", {("password", "env:P"): TAKEN})
    monkeypatch.setattr("loadgen.cli.broker.serve_forever", fail)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    status, line = complaint(capsys, "broker", "auto")
    assert status == 3
    assert "RuntimeError: first second mqtt://me:***@h" in line and "taken" not in line
    (saved,) = tmp_path.iterdir()
    assert str(saved) in line
    text = saved.read_text()
    assert "Traceback" in text
    assert "s3cret" not in text and "taken" not in text


@pytest.mark.parametrize("words", [("--help",), ("plan", "fanin")])
def test_a_reader_that_went_away_is_a_known_end(words: tuple[str, ...]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ended = subprocess.run(
        [sys.executable, "-m", "loadgen", *words], stdout=writing, stderr=subprocess.PIPE
    )
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (3, b"")


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [
        (CannotRunError("not today \x1b[2J"), 3, r"loadgen: not today \x1b[2J"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_an_error_of_the_tree_and_ctrl_c_have_a_status(
    raised: BaseException, status: int, line: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: object) -> None:
        raise raised

    monkeypatch.setattr("loadgen.cli.broker.serve_forever", fail)
    assert main(["broker", "auto"]) == status
    assert capsys.readouterr().err.strip() == line


def test_a_line_without_a_command_shows_the_help(capsys: Captured) -> None:
    assert main(["--help"]) == 0
    assert "connburst" in capsys.readouterr().out
    assert main([]) == 2
    assert "Commands" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "fanin"]])
def test_version_is_that_of_the_distribution(capsys: Captured, arguments: list[str]) -> None:
    assert main(arguments) == 0
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"loadgen {project['version']}\n"


def test_every_command_is_known() -> None:
    commands = app()
    names = {command.name for command in commands.registered_commands}
    names |= {group.name for group in commands.registered_groups}
    runs = {*CASES, "compare", "demo", "search", "sweep"}
    looks = {"scorecard", "history", "power", "probe", "plan", "tune", "calibrate"}
    assert names == runs | looks | {"agent", "broker", "certificates", "import", "new", "report"}


def test_help_and_wrong_options_import_nothing_heavy() -> None:
    lines = (
        *("--version", "--help", "fanin --help", "fanin --bogus", "fanin --devices=-5"),
        *("search fanin --bogus", "plan"),
    )
    code = (
        "import sys; from loadgen.cli.main import main\n"
        "for line in sys.argv[2:]:\n"
        "    main(line.split())\n"
        "    heavy = [n for n in sys.argv[1].split(',') if n in sys.modules]\n"
        "    if heavy: sys.exit(f'{line}: imported {heavy}')\n"
    )
    done = python("-c", code, ",".join(HEAVY), *lines)
    assert done.returncode == 0, done.stderr


def test_ctrl_c_while_modules_load_is_silent_and_status_130() -> None:
    code = (
        "import sys; from loadgen.__main__ import main\n"
        "class Loading:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'loadgen.cli.app': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Loading()); main()\n"
    )
    done = python("-c", code)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_run_does_without_numba_in_the_process_that_conducts_it() -> None:
    code = (
        "import atexit, importlib, sys; from loadgen.cli.main import main;"
        "modules = 'loadgen.run.coordinator', 'loadgen.report.build.summary';"
        "atexit.register(lambda: [*map(importlib.import_module, modules),"
        "print('numba' in sys.modules)]); main()"
    )
    nobody = [*("fanin", "--broker", "mqtt://127.0.0.1:1"), "--quiet"]
    done = python("-c", code, *nobody)
    assert (done.returncode, done.stdout) == (3, "False\n"), done.stderr


def test_options_are_made_for_the_command_that_is_named_alone() -> None:
    listed = program()
    assert not listed.commands["fanin"].params
    context = listed.make_context("loadgen", ["fanin", "--devices=5"])
    _, named, _ = listed.resolve_command(context, ["fanin", "--devices=5"])
    assert len(named.params) > 20


def test_plan_tells_what_a_run_needs_and_runs_nothing(
    capsys: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["plan", "connburst", "--devices=3k", "--json", "--workers=3"]
    assert main([*words, "--broker=mqtt://127.0.0.1"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["workers"] == 3
    assert plan["needs"]["descriptors_per_worker"] > 1_000
    assert main(["plan", "fanin", "--devices", "10"]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert {"1  subscriber", "1  worker", "10  publishers, 10 msg/s together"} <= set(lines)
    assert main(["plan", "fanin", "--rate=9M", "--each-host=cores=1"]) == 0
    assert "No number of such hosts is enough; the limit is processors: " in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_plan_tells_the_commands_of_every_host(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = "plan fanin --hosts 4 --broker mqtt://192.0.2.1 --place pub=left,1 sub=right"
    words = [*line.split(), "--each-host", "cores=8", "--json"]
    monkeypatch.setattr(sys, "argv", ["loadgen", *words])
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert [role["hosts"] for role in found["roles"]] == [[0, 1], [2]]
    assert list(found["commands"]) == ["COORDINATOR", "hosts 0 to 1", "hosts 2 to 3"]
    joined = "COORDINATOR:7300 --secret file:secret"
    run, *agents = found["commands"].values()
    assert run == f"loadgen {line.removeprefix('plan ')} --listen {joined}"
    assert agents == [f"loadgen agent --join {joined} --label {one}" for one in ("left", "right")]
    assert main(words[:-1]) == 0
    shown = capsys.readouterr().out
    assert "on hosts 0 to 1: 0.01 processors" in shown and agents[0] in shown


PROBED = {
    *("schema", "broker", "version", "mqtt", "known_by", "cases", "seconds"),
    *("receive_maximum", "maximum_qos", "maximum_packet_size_bytes", "payload_bytes"),
    *("topic_alias_maximum", "server_keep_alive_s", "retain_available"),
    *("wildcard_subscription_available", "subscription_identifier_available"),
    *("shared_subscription_available", "session_available", "session_expiry_s", "will_available"),
}
"""The names that `loadgen probe --json` has; scripts read them."""


def test_probe_tells_what_a_broker_can_do_and_play(capsys: Captured) -> None:
    assert main(["probe", "--broker=nats", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown.keys() == PROBED
    assert shown["mqtt"] == ["3.1.1"] and shown["version"].startswith("nats ")
    assert shown["maximum_qos"] == 2 and shown["receive_maximum"] is None
    assert shown["known_by"]["receive_maximum"] == {"basis": "absent", "detail": "MQTT 5 only"}
    assert tuple(shown["cases"]) == tuple(CASES)
    for name, case in shown["cases"].items():
        assert case.keys() == {"runs", "mqtt", "lacks", "remarks"}
        needs = any(word in str(case["lacks"]) for word in ("MQTT 5", "backend", "--mqtt 5"))
        assert needs or case["runs"], name
    assert {case["runs"] for case in shown["cases"].values()} == {True, False, None}


# The whole program ---------------------------------------------------------------------------

REFLECTED = ["--broker=reflector", "--devices=20", "--rate=200", "--warmup=0.2", "--settle=0.2"]


def loadgen(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "loadgen", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(Path.cwd())},
        process_group=0,
    )


def until(process: subprocess.Popen[str], phase: str) -> None:
    """Read the progress of a run until this phase."""
    assert process.stderr is not None
    next(line for line in process.stderr if line.startswith(phase))


def until_written(process: subprocess.Popen[str], run: Path, files: int) -> None:
    while len(list(run.glob("intervals/*.parquet"))) < files:
        assert process.poll() is None
        time.sleep(0.05)


def test_run_writes_json_alone_to_stdout_and_leaves_a_score_card(tmp_path: Path) -> None:
    with loadgen("fanin", *REFLECTED, "--duration=1", "--json", cwd=tmp_path) as process:
        out, err = process.communicate()
    card = json.loads(out)
    assert card["schema"] == 1
    assert card["counts"]["sent"] == pytest.approx(200, abs=20)
    assert process.returncode == (0 if card["verdict"]["valid"] else 1)
    assert "connected" in err
    (run,) = (tmp_path / "runs").iterdir()
    assert run.name.endswith("-fanin")
    assert {path.name for path in run.iterdir()} == {
        *("run.json", "events.jsonl", "broker.jsonl", "intervals", "SHA256SUMS", "hgrm"),
        *("histograms.hlog", "histograms.parquet", "scorecard.json", "scorecard.csv"),
        *("scorecard.md", "scorecard.html"),
    }
    assert json.loads((run / "scorecard.json").read_text()) == card


def test_a_killed_run_leaves_its_seconds(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with loadgen("fanin", *REFLECTED, "--duration=10m", f"--out={run}", cwd=tmp_path) as process:
        until(process, "measure")
        until_written(process, run, len(list(run.glob("intervals/*.parquet"))) + 3)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    result = read(run)
    assert [reason.code for reason in result.reasons] == ["INTERRUPTED"]
    # What was under way between two rows is not lost.
    assert 0 < result.counts.received <= result.counts.expected


def test_a_run_killed_before_its_window_is_told_as_that(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("fanin", *REFLECTED, "--warmup=10m", f"--out={run}")
    with loadgen(*arguments, cwd=tmp_path) as process:
        until(process, "warm-up")
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    with pytest.raises(RunDirectoryError) as caught:
        read(run)
    assert caught.value.code in ("NO_INTERVALS", "EMPTY_WINDOW")


DIES = """
import os, signal, sys
from types import SimpleNamespace
from loadgen.run import interval_files, testbed

def die(*_arguments, **_options):
    os.kill(os.getpid(), signal.SIGKILL)

{patch}
from loadgen.cli.main import main
main(sys.argv[1:])
"""


@pytest.mark.parametrize("patch", rows_of("cli.dies_before_its_seal"))
def test_a_run_killed_between_its_verdict_and_its_seal_keeps_every_message(
    tmp_path: Path, patch: str
) -> None:
    words = ("fanin", *REFLECTED, "--duration=2", "--quiet", f"--out={tmp_path / 'run'}")
    died = subprocess.run([sys.executable, "-c", DIES.format(patch=patch), *words], cwd=tmp_path)
    assert died.returncode == -signal.SIGKILL
    result = read(tmp_path / "run")
    assert result.counts.sent == result.counts.received == 400
    assert "digest" not in json.loads((tmp_path / "run" / "run.json").read_text())


def test_connects_of_a_killed_burst_can_be_read(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("connburst", "--broker=reflector", "--devices=1000", "--rate=20", f"--out={run}")
    with loadgen(*arguments, cwd=tmp_path) as process:
        until_written(process, run, 2)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    result = read(run)
    assert [reason.code for reason in result.reasons] == ["INTERRUPTED"]
    assert 0 < result.counts.connects < 1000


@pytest.mark.parametrize("limit_bytes", [3_000, 100_000])
def test_a_disk_that_takes_no_more_is_one_line_and_status_3(
    tmp_path: Path, limit_bytes: int
) -> None:
    """The smaller limit refuses run.json, the larger one the score card."""
    limited = (
        "import resource, sys; from loadgen.cli.main import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({limit_bytes}, {limit_bytes}));"
        "sys.exit(main())"
    )
    command = ("fanin", *REFLECTED, "--duration=0.5", "--quiet", "--out=run")
    process = python("-c", limited, *command, cwd=tmp_path)
    assert process.returncode == 3
    last = process.stderr.splitlines()[-1]
    assert re.fullmatch(r"loadgen: cannot write run/\S+: file too large; [^\n]+", last)
    assert "Traceback" not in process.stderr
    assert (tmp_path / "run").exists() is (limit_bytes == 100_000)


def test_a_full_disk_behind_stdout_is_one_line_and_status_3(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            [sys.executable, "-m", "loadgen", "plan", "fanin", "--json"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert process.returncode == 3
    assert re.fullmatch(r"loadgen: cannot write a file: no space left[^\n]+\n", process.stderr)


@pytest.mark.usefixtures("stand_in_workers")
def test_quiet_run_says_only_its_result(capfd: Captured, tmp_path: Path) -> None:
    main(["fanin", *REFLECTED, "--duration=0.5", "--quiet", f"--out={tmp_path / 'r'}"])
    out, err = capfd.readouterr()
    assert err == ""
    verdict, headline = out.splitlines()
    assert re.match(r"(IN)?VALID[A-Z_, ]*  fanin · ", verdict)
    assert " msg/s " in headline and " lost of " in headline


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    run = tmp_path / "run"
    arguments = ("fanin", *REFLECTED, "--duration=10m", "--json", f"--out={run}")
    with loadgen(*arguments, cwd=tmp_path) as process:
        until(process, "measure")
        # As a terminal does it: to every process of the foreground group.
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate()
    assert process.returncode == 130
    card = json.loads(out)
    assert card["verdict"]["reasons"][0]["code"] == "INTERRUPTED"
    assert card["run"]["seconds"] < 600
    assert manifest(run)["interrupted"] is True
