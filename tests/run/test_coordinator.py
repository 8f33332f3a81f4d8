import asyncio
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from loadgen.cases.registry import build_scenario
from loadgen.errors import HostLimitError
from loadgen.plan.scenario import Scenario
from loadgen.report.record import open_run
from loadgen.run import coordinator, preflight
from loadgen.run.coordinator import RunResult, run_crash_command
from loadgen.run.hosts import load_host
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.progress import Snapshot
from loadgen.run.rundir import EventLog
from tests.refusals import refused
from tests.run_files import manifest
from tests.tables import rows_of
from tests.testbeds import run

TIMES = {"warmup": 0.1, "duration": 0.6, "settle": 0.1}
FANIN = {"broker": "reflector", "devices": 100, "rate": 1000, **TIMES}


def fanin(**changed: object) -> Scenario:
    return build_scenario("fanin", None, {**FANIN, **changed})


Fake = Callable[..., Any]


def when(phase: str, act: Callable[[], object]) -> Callable[[Snapshot], None]:
    def progress(snapshot: Snapshot) -> None:
        if snapshot.phase == phase:
            act()

    return progress


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Play a scenario with stand-in workers that err on request."""

    async def fake(
        scenario: Scenario | None = None,
        interrupt: Interrupt | None = None,
        progress: Callable[[Snapshot], None] = lambda _: None,
        **wrong: object,
    ) -> RunResult:
        monkeypatch.setenv("FAKE_WORKER", json.dumps(wrong))
        monkeypatch.setattr(load_host, "WORKER_ENTRY", "tests.run.fake_worker:run_worker")
        return await run(
            scenario or fanin(),
            tmp_path / "run",
            interrupt=interrupt,
            progress=progress,
            command=("loadgen", "fanin"),
        )

    return fake


async def test_run_directory_of_an_ordinary_run(fake: Fake) -> None:
    result = await fake()
    assert result.exit_status == 0, result.verdict
    assert (result.measured, result.interrupted) == (True, False)
    document = manifest(result.directory)
    keys = "schema id case program started command scenario plan seed environment broker clock"
    keys += " windows connect subscribe network observed interrupted digest ledger remarks verdict"
    assert document.keys() == set(keys.split())
    assert document["verdict"] == {"valid": True, "reasons": []}
    assert document["interrupted"] is False
    assert list(document["windows"]) == ["connect", "subscribe", "warmup", "measure", "drain"]
    assert document["connect"]["connected"] == 101
    assert document["broker"]["started_by_us"] is True
    assert document["broker"]["protocol"] == "MQTT 3.1.1"
    assert document["command"] == ["loadgen", "fanin"]
    assert document["observed"]["workers_lost"] == []
    assert document["observed"]["own_delay"]["p99_us"] >= 0
    record = open_run(result.directory).record
    assert (record.case, record.valid, record.connected) == ("fanin", True, 101)
    assert not list(result.directory.rglob(".*"))


@pytest.mark.parametrize(("wrong", "code"), rows_of("run.invalid_runs"))
async def test_what_goes_wrong_makes_the_run_invalid(
    fake: Fake, wrong: dict[str, Any], code: str
) -> None:
    result = await fake(fanin(drain=0.3), **wrong)
    assert code in result.verdict.codes
    assert result.exit_status == 1
    reasons = manifest(result.directory)["verdict"]["reasons"]
    assert code in {reason["code"] for reason in reasons}


@pytest.mark.parametrize("phase", ["broker", "workers"])
async def test_interrupt_before_there_is_anything_leaves_nothing(
    fake: Fake, tmp_path: Path, phase: str
) -> None:
    interrupt = Interrupt()
    with pytest.raises(RunInterruptedError) as caught:
        await fake(interrupt=interrupt, progress=when(phase, interrupt.asked.set))
    assert caught.value.exit_status == 130
    assert not (tmp_path / "run").exists()


async def test_cancelled_run_ends_its_work(fake: Fake) -> None:
    reached = asyncio.Event()
    progress = when("measure", reached.set)
    task = asyncio.ensure_future(fake(fanin(duration=300), progress=progress))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(asyncio.all_tasks()) == 1


async def test_worker_lost_before_the_window_is_no_result(fake: Fake) -> None:
    result = await fake(die="subscribe")
    assert (result.measured, result.exit_status) == (False, 3)
    assert "WORKER_LOST" in result.verdict.codes
    assert manifest(result.directory)["observed"]["workers_lost"] == [0]


async def test_nobody_connected_leaves_nothing(fake: Fake, tmp_path: Path) -> None:
    with refused("NOT_ONE_CONNECTED"):
        await fake(fail_connect=1000)
    assert not (tmp_path / "run").exists()


async def test_occupied_directory_is_refused_before_anything_starts(
    fake: Fake, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "mine").touch()
    phases: list[Snapshot] = []
    with refused("NOT_EMPTY"):
        await fake(progress=phases.append)
    assert phases == []
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["mine"]


async def test_unreachable_broker_is_one_error_and_leaves_nothing(tmp_path: Path) -> None:
    with refused("NOT_RUNNING", where="mqtt://127.0.0.1:1"):
        await run(fanin(broker="mqtt://127.0.0.1:1"), tmp_path / "run")
    with refused("NO_SUCH_NAME"):
        await run(fanin(broker="mqtt://nowhere.invalid"), tmp_path / "run")
    with refused("OTHER_USERS"):
        two = ("mqtt://a:x@127.0.0.1", "mqtt://b:y@127.0.0.1")
        await run(fanin(broker=two), tmp_path / "run")
    assert not (tmp_path / "run").exists()


async def test_host_that_is_too_small_is_told_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(HostLimitError):
        await run(fanin(devices=9_000_000, workers=1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


NOBODY = "mqtt://127.0.0.1:1"
"""Nobody listens there: what is refused before anyone is asked has another error."""


@pytest.mark.parametrize(("case", "client_id", "row", "device"), rows_of("run.named_as_another"))
async def test_a_listed_client_must_not_be_named_as_one_of_another_group(
    tmp_path: Path, case: str, client_id: str, row: str, device: int | None
) -> None:
    path = tmp_path / "clients.csv"
    first = 10 if case == "fanout" else 2
    path.write_text("\n".join(["client_id", *(f"x{n}" for n in range(first - 1)), row]))
    fields: dict[str, object] = {"devices": 2} if case == "fanin" else {}
    fields |= {"broker": NOBODY, "client_id": client_id, "clients_file": str(path)}
    clash = refused("SAME_CLIENT_ID", device=device)
    with refused("NOT_RUNNING") if device is None else clash:
        await run(build_scenario(case, None, fields), tmp_path / "run")


@pytest.mark.parametrize("checked", [10_000, 2])
@pytest.mark.parametrize(("field", "there", "missing"), rows_of("run.certificate_missing"))
async def test_a_device_without_its_certificate_is_found_before_anyone_is_asked(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    checked: int,
    field: str,
    there: int,
    missing: str,
) -> None:
    monkeypatch.setattr(preflight, "FILES_CHECKED", checked)
    for number in range(30):
        for kind in ("pem", "key"):
            if number < there or kind != missing[-3:]:
                (tmp_path / f"{number}.{kind}").touch()
    given = {
        "broker": NOBODY.replace("mqtt", "mqtts"),
        "devices": 30,
        "tls_certificate": f"{tmp_path}/{{device}}.pem",
        "tls_key": f"{tmp_path}/{{device}}.key",
    }
    # Of many devices only the ends of each group are looked at.
    named = missing if checked > 30 or not there else f"29{missing[-4:]}"
    with refused("TLS_FILE", field=field, path=str(tmp_path / named)):
        await run(build_scenario("fanin", None, given), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("field", ["tls_ca", "tls_certificate"])
async def test_a_tls_file_that_is_not_there_is_named(tmp_path: Path, field: str) -> None:
    for case in ("fanin", "specjms"):
        given = {"broker": NOBODY.replace("mqtt", "mqtts"), field: f"{tmp_path}/none.pem"}
        with refused("TLS_FILE", field=field, devices="every device"):
            await run(build_scenario(case, None, given), tmp_path / "run")


async def said_by(directory: Path, command: str) -> str:
    """Return the events of a command that does not fail."""
    events = EventLog(directory, ())
    try:
        await run_crash_command(command, events)
    finally:
        events.close()
    return (directory / "events.jsonl").read_text()


async def test_its_last_words_are_kept_short_and_harmless(tmp_path: Path) -> None:
    said = await said_by(tmp_path, r"printf 'first\n\033[2J%0999d' 1")
    assert r"the command has ended: \\x1b[2J000" in said and "first" not in said
    assert len(said) < 1000


@pytest.mark.parametrize(("command", "ended"), rows_of("run.crash_failed"))
async def test_its_failure_is_one_line(tmp_path: Path, command: str, ended: str) -> None:
    with refused("CRASH_FAILED") as error:
        await said_by(tmp_path, command)
    assert error.value.values["ended"] == ended and "\n" not in str(error.value)


async def test_it_may_leave_a_broker_behind_and_may_not_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await said_by(tmp_path, f"sleep 60 & echo $! > {tmp_path}/left")
    left = int((tmp_path / "left").read_text())
    os.kill(left, 0)
    os.kill(left, 9)
    monkeypatch.setattr(coordinator, "CRASH_COMMAND_LIMIT_S", 0.3)
    with refused("CRASH_SLOW"):
        await said_by(tmp_path, f"echo $$ > {tmp_path}/hung; sleep 60")
    hung = int((tmp_path / "hung").read_text())
    assert not psutil.pid_exists(hung)
