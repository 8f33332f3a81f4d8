import asyncio
import json
from pathlib import Path

import pytest

from loadgen.cli.main import main
from loadgen.errors import CannotRunError
from loadgen.plan.plan import PhasePlan
from loadgen.run.calibrate import calibrate
from loadgen.run.environment import identity, store_calibration
from loadgen.run.interrupt import Interrupt, RunInterruptedError
from loadgen.run.progress import Snapshot
from tests.refusals import refused

SHORT = PhasePlan(warmup_s=0.1, duration_s=0.5, drain_s=5.0)


async def test_sequence_measures_each_way_with_real_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    seen: list[str] = []
    # As few devices as descriptors allow, so that it is short.
    result = await calibrate(identity(), 800, phases=SHORT, progress=lambda s: seen.append(s.phase))
    assert len(seen) == 5
    assert result["connect"]["devices"] == 300
    assert result["connect"]["per_s"] > 0
    for way in ("send", "receive"):
        for kind in ("single", "batched"):
            found = result[way][kind]
            assert found["rate"] > 0
            # The rate that fills a core and the time of a message are the same statement.
            assert found["per_s"] * found["cpu_us"] == pytest.approx(1e6, rel=0.02)
    for part in (result["latency"]["transit_us"], result["send_delay"]["latency_us"]):
        assert 0 < part["p50"] <= part["p90"] <= part["p99"]
    # What it was measured for: batches cost less than single messages.
    assert result["send"]["batched"]["cpu_us"] < result["send"]["single"]["cpu_us"]

    store_calibration(result)
    assert await asyncio.to_thread(main, ["calibrate", "--show", "--json"]) == 0
    assert json.loads(capfd.readouterr().out) == result
    assert await asyncio.to_thread(main, ["calibrate", "--show"]) == 0
    assert f"{result['connect']['per_s']:,}  connects/s" in capfd.readouterr().out


async def test_interrupt_ends_it_and_keeps_nothing() -> None:
    interrupt = Interrupt()

    def progress(snapshot: Snapshot) -> None:
        interrupt.request()

    with refused("INTERRUPTED", RunInterruptedError):
        await calibrate(identity(), 800, phases=SHORT, progress=progress, interrupt=interrupt)


async def test_too_few_descriptors_are_said() -> None:
    with pytest.raises(CannotRunError) as error:
        await calibrate({}, 400)
    assert error.value.code == "FEW_DESCRIPTORS"


def test_nothing_kept_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert main(["calibrate", "--show"]) == 3
    assert "run loadgen calibrate" in capsys.readouterr().err
