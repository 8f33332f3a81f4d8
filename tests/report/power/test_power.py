"""Power over a window: the arithmetic of the published figure, gaps, counters, and remarks."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import nan
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.formats import Format
from loadgen.report.power.log import Outlet, Points
from loadgen.report.power.power import (
    OutletPower,
    outlet_power,
    outlets_over,
    require_usable,
    steps_of,
)
from loadgen.report.power.settings import PduLog, log_settings
from tests.examples import examples
from tests.refusals import refused
from tests.report.power.test_log import minute, settings_of
from tests.tables import rows_of

PDU = Path(__file__).parent / "pdu"
BERLIN = ZoneInfo("Europe/Berlin")
SECOND_NS = 10**9


def at(text: str) -> int:
    moment = datetime.fromisoformat(f"2013-04-26T{text}").replace(tzinfo=UTC)
    return int(moment.timestamp()) * SECOND_NS


def power_of(
    log: str,
    wall_ns: Sequence[int],
    watts: Sequence[float],
    start_ns: int,
    end_ns: int,
    kwh: Sequence[float] = (),
    step_kwh: float = nan,
    form: Format = Format(),  # noqa: B008
) -> OutletPower:
    """`outlet_power` of samples by hand."""
    times = np.array(wall_ns, np.int64)
    of_watts = Points("watts", times, np.array(watts, np.float64), 0.01)
    energy = Points("kwh", times, np.array(kwh), step_kwh) if kwh else None
    outlet = Outlet("", of_watts, energy)
    steps = steps_of(log, outlet, form)
    return outlet_power(PduLog(Path(log)), outlet, steps, (start_ns, end_ns), form)


def codes(outlet: OutletPower) -> set[str]:
    remarks: Any = outlet.remarks
    return {remark.code for remark in remarks}


@pytest.mark.parametrize("window", [("10:04:05", "10:12:05"), ("10:04:05", "10:13:04")])
def test_the_published_messages_per_watt(window: tuple[str, str]) -> None:
    """Report, score card: PERSISTENT 460K msgs/sec, PERSISTENT.MPW 1523 msgs/Watt."""
    logs = settings_of(PDU / "power_supply_1.log", PDU / "power_supply_2.log")
    (outlets,) = outlets_over(logs, [(at(window[0]), at(window[1]))])
    require_usable(outlets[:1], "run")
    watts = sum(outlet.watts for outlet in outlets)
    assert 460_000 / watts == pytest.approx(1523, rel=0.005)


@pytest.mark.parametrize(("lines",), rows_of("report.clock_changes"))
def test_a_log_that_crosses_a_clock_change_near_the_run_is_refused(
    lines: list[str], tmp_path: Path
) -> None:
    log = tmp_path / "pdu.log"
    log.write_text("\n".join(f"{line}, 203, 1, 0.6, 135, 182" for line in lines))
    first = datetime.strptime(lines[0], "%m/%d/%Y, %H:%M:%S").replace(tzinfo=UTC)
    start_ns = int(first.timestamp()) * SECOND_NS
    windows = [(start_ns, start_ns + 60 * SECOND_NS)]
    with pytest.raises(PowerLogError) as refused:
        outlets_over(settings_of(log, zone=BERLIN.key), windows)
    assert refused.value.code in ("CLOCK_CHANGES", "ONLY_CHANGED_TIMES")
    assert outlets_over(settings_of(log), windows)


def test_a_clock_change_far_from_the_run_does_no_harm(tmp_path: Path) -> None:
    """A month of hourly samples in local time; Berlin's clock changed on the 31st."""
    moments = [datetime(2013, 3, 15, tzinfo=UTC) + timedelta(hours=hour) for hour in range(31 * 24)]
    lines = [f"{m.astimezone(BERLIN):%Y-%m-%d %H:%M:%S},{m.day}" for m in moments]
    log = tmp_path / "month.csv"
    log.write_text("\n".join(["time,watts", *lines]))
    logs = settings_of(log, zone=BERLIN.key)
    for day in (20, 29, 2, 12):
        month = 3 if day > 14 else 4
        start_ns = int(datetime(2013, month, day, 6, tzinfo=UTC).timestamp()) * SECOND_NS
        ((outlet,),) = outlets_over(logs, [(start_ns, start_ns + 12 * 3600 * SECOND_NS)])
        assert (outlet.watts, outlet.coverage, outlet.inside) == (day, 1.0, 12)
    near = int(datetime(2013, 3, 31, 12, tzinfo=UTC).timestamp()) * SECOND_NS
    with refused("CLOCK_CHANGES", PowerLogError):
        outlets_over(logs, [(near, near + 3600 * SECOND_NS)])


def test_a_sample_from_before_the_window_counts_for_its_beginning() -> None:
    outlet = power_of(
        "a", [s * SECOND_NS for s in (0, 10, 20)], [100, 200, 300], 5 * SECOND_NS, 15 * SECOND_NS
    )
    assert outlet.watts == pytest.approx(150)
    assert outlet.coverage == 1.0
    assert outlet.samples == 2
    assert outlet.curve == ((0.0, 5.0, 100.0), (5.0, 10.0, 200.0))


def test_a_gap_is_not_covered_and_the_error_names_the_log() -> None:
    seconds = [*range(0, 100, 10), *range(200, 300, 10)]
    outlet = power_of(
        "outlet-7.log", [s * SECOND_NS for s in seconds], [50.0] * 20, 0, 300 * SECOND_NS
    )
    # The last sample before the gap holds for 2.5 spacings: 90 to 115 of 200.
    assert outlet.coverage == pytest.approx(1 - 85 / 300)
    assert outlet.gaps == (85.0,)
    with refused("COVERS_LITTLE", PowerLogError, log="outlet-7.log", run="r1"):
        require_usable([outlet], "r1")


def test_a_log_of_another_time_covers_nothing() -> None:
    outlet = power_of("a", [0, SECOND_NS], [5.0, 5.0], 50 * SECOND_NS, 60 * SECOND_NS)
    assert (outlet.coverage, outlet.watts, outlet.samples, outlet.curve) == (0.0, 0.0, 0, ())


@examples(60)
@given(
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    watts=st.lists(st.integers(0, 500), min_size=31, max_size=31),
    window=st.tuples(st.integers(0, 60), st.integers(1, 60)),
)
def test_the_mean_is_that_of_every_second_held(
    steps: list[int], watts: list[int], window: tuple[int, int]
) -> None:
    """Compared with the definition, second by second."""
    times = [0]
    for step in steps:
        times.append(times[-1] + step)
    spacing = sorted(steps)
    middle = len(spacing) // 2
    usual = spacing[middle] if len(spacing) % 2 else (spacing[middle - 1] + spacing[middle]) / 2
    held: list[float] = []
    start, length = window
    # Half seconds, so that a hold of 2.5 spacings ends on a step.
    tenths = 10
    for tick in range(start * tenths, (start + length) * tenths):
        place = max(i for i, t in enumerate(times) if t * tenths <= tick)
        limit = usual if place == len(times) - 1 else 2.5 * usual
        if tick < (times[place] + limit) * tenths:
            held.append(watts[place])
    outlet = power_of(
        "a",
        [t * SECOND_NS for t in times],
        watts[: len(times)],
        start * SECOND_NS,
        (start + length) * SECOND_NS,
    )
    # A quarter second can end between two tenths.
    assert outlet.coverage == pytest.approx(
        len(held) / (length * tenths), abs=0.11 * len(times) / length
    )
    if outlet.coverage == 1.0:
        assert outlet.watts == pytest.approx(sum(held) / len(held), abs=1e-6)


@pytest.mark.parametrize(("counter", "result"), rows_of("report.watts_against_counter"))
def test_watts_against_the_counter(counter: list[float], result: str | None) -> None:
    times = [0, 1800 * SECOND_NS, 3600 * SECOND_NS]
    step_kwh = 0.1 if any(value % 1 for value in counter) else 1.0
    outlet = power_of("a", times, [600.0] * 3, 0, 3600 * SECOND_NS, counter, step_kwh)
    assert (outlet.energy and outlet.energy.result) == result
    assert bool(outlet.withheld) is (result == "disagrees")
    assert ("RESET" in codes(outlet)) is (result == "reset")
    if outlet.energy is not None and counter == sorted(counter):
        assert outlet.energy.watts_kwh == pytest.approx(0.6)
        assert outlet.energy.counter_kwh == pytest.approx(counter[-1] - counter[0])


def outlet_of(tmp_path: Path, text: str, minutes: int = 12) -> OutletPower:
    log = tmp_path / "counter.csv"
    log.write_text(text)
    ((outlet,),) = outlets_over(settings_of(log), [(minute(0), minute(minutes))])
    return outlet


def test_a_counter_alone_gives_the_mean(tmp_path: Path) -> None:
    """900 W for six minutes, then 300 W."""
    wh = [5000 + 15 * min(place, 6) + 5 * max(place - 6, 0) for place in range(13)]
    lines = [f"{1366970645 + 60 * place},{value:.1f}" for place, value in enumerate(wh)]
    outlet = outlet_of(tmp_path, "\n".join(["time,Total energy (Wh)", *lines]))
    assert outlet.watts == pytest.approx(600.0) and outlet.coverage == 1.0
    assert outlet.curve[0] == pytest.approx((0.0, 60.0, 900.0))
    assert outlet.energy is not None and outlet.energy.watts_kwh is None
    assert outlet.energy.counter_kwh == pytest.approx(0.12)
    # With few samples far apart it is as good: nothing is held, everything is counted.
    few = "\n".join(["time,Total energy (Wh)", lines[0], lines[6], lines[12]])
    sparse = outlet_of(tmp_path, few)
    assert sparse.watts == pytest.approx(600.0) and sparse.coverage == 1.0
    assert "FEW_SAMPLES" in codes(sparse)
    # A reset leaves a minute out.
    reset = [
        line if place < 6 else f"{1366970645 + 60 * place},{5 * (place - 6):.1f}"
        for place, line in enumerate(lines)
    ]
    again = outlet_of(tmp_path, "\n".join(["time,Total energy (Wh)", *reset]))
    assert again.coverage == pytest.approx(11 / 12) and "RESET" in codes(again)
    assert again.watts == pytest.approx((5 * 900 + 6 * 300) / 11)


def test_outlets_are_grouped_by_node(tmp_path: Path) -> None:
    log = tmp_path / "pdu=1.csv"
    log.write_text("time,A (W),B (W)\n1366970645,100,50\n1366970675,110,52\n")
    logs = settings_of(f"rack={log}#B", f"broker={log}#A")
    ((first, second),) = outlets_over(logs, [(minute(0), minute(1))])
    assert (first.node, first.outlet, first.watts, first.coverage) == ("rack", "B", 51.0, 1.0)
    assert (second.node, second.name, second.watts) == ("broker", f"{log}#A", 105.0)


def test_the_row_says_what_is_wrong_with_its_watts(make: ModuleType, tmp_path: Path) -> None:
    """The measurement window is seconds 3 to 7 of the run."""
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": minute(0) - 3 * 10**9}
    run = make.fabricate(tmp_path / "run", case="persistent", clock=clock)

    def rows(log: str) -> dict[str, tuple[float | None, str]]:
        (tmp_path / "pdu.csv").write_text(log)
        card = summarize_run(run, log_settings([tmp_path / "pdu.csv"], "UTC"))
        renderings = [str(text) for text in make.rendered(card)[:3]]
        for remark in (row.remark.partition("/")[0] for row in card.rows):
            assert all(remark in text for text in renderings)
        return {row.name: (row.value, row.remark) for row in card.rows}

    fine = [f"{1366970645 + s / 10:.1f},100,{1 + s * 100 / 36000:.6f}" for s in range(-5, 60)]
    head = "time,Power (W),Energy (Wh)"
    assert rows("\n".join([head, *fine]))["PERSISTENT.MPW"] == (5.0, "")
    few = rows("\n".join([head, *fine[5::10]]))
    assert few["PERSISTENT.MPW"][0] == 5.0
    assert few["PERSISTENT.MPW"][1] == few["PERSISTENT.JPM"][1] != ""
    peaks = rows("\n".join(["time,Power (W),Peak (W)", *(f"{line[:16]},900" for line in fine)]))
    assert peaks["PERSISTENT.MPW"][0] == 5.0 and "Peak (W)" in peaks["PERSISTENT.MPW"][1]
    wrong = rows("\n".join([head.replace("(W)", "(kW)"), *fine]))
    for name in ("PERSISTENT.MPW", "PERSISTENT.JPM"):
        value, remark = wrong[name]
        assert value is None and remark.startswith("Withheld: ")


def test_the_row_says_in_which_zone_bare_times_were_read(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two outlets of a log without zones get one remark, unless the user named the zone."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": minute(0) - 3 * 10**9}
    run = make.fabricate(tmp_path / "run", case="persistent", clock=clock)
    start = datetime.fromtimestamp(minute(0) / 1e9, tz=ZoneInfo("Europe/Berlin"))

    def remark(zone: str, timezone: str | None) -> str:
        times = [start + timedelta(seconds=tenth / 10) for tenth in range(-30, 80)]
        lines = [
            f"{time:%Y-%m-%d %H:%M:%S.%f}{zone},{outlet},50.0" for time in times for outlet in "12"
        ]
        (tmp_path / "pdu.csv").write_text("\n".join(["time,outlet,Power (W)", *lines]))
        card = summarize_run(run, log_settings([tmp_path / "pdu.csv"], timezone))
        (row,) = (row for row in card.rows if row.name == "PERSISTENT.MPW")
        assert row.value == 5.0
        return row.remark

    assert remark("", None).count("Europe/Berlin") == 1
    assert remark("", "Europe/Berlin") == remark("+02:00", None) == ""
