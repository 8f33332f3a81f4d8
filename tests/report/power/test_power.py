"""Power logs: what is read, what is refused, and the arithmetic of the published figure."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from math import isnan, nan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.report.power import power_settings
from loadgen.report.power.power import OutletPower, outlet_power, outlets_over, require_usable
from loadgen.report.power.power_logs import (
    parse_power_log,
    read_log,
    read_power_log,
    require_readable,
)

PDU = Path(__file__).parent / "pdu"
BERLIN = ZoneInfo("Europe/Berlin")
LINE = "04/26/2013, 10:04:05, 203.18, 1.169, 0.58, 135, 182"
SECOND_NS = 10**9


def at(text: str) -> int:
    return (
        int(datetime.fromisoformat(f"2013-04-26T{text}").replace(tzinfo=UTC).timestamp())
        * SECOND_NS
    )


def settings_of(
    *logs: str | Path, zone: str = "UTC", columns: str | None = None
) -> power_settings.LogSettings:
    found = power_settings.log_settings(logs, zone, columns)
    assert found is not None
    return found


def power_of(
    log: str,
    wall_ns: Sequence[int],
    watts: Sequence[float],
    start_ns: int,
    end_ns: int,
    kwh: Sequence[float] | None = None,
    step_kwh: float = nan,
) -> OutletPower:
    """`outlet_power` of samples by hand."""
    samples = {
        "wall_ns": np.array(wall_ns, np.int64),
        "watts": np.array(watts, np.float64),
        "kwh": np.array(kwh or [nan] * len(wall_ns)),
        "step_kwh": np.full(len(wall_ns), step_kwh),
    }
    return outlet_power(log, samples, (start_ns, end_ns))


def parse(*lines: str, zone: ZoneInfo | None = None) -> list[tuple[int, float]]:
    samples = parse_power_log("\n".join(lines).encode(), "pdu.log", zone or ZoneInfo("UTC"))
    return [*zip(samples["wall_ns"], samples["watts"], strict=True)]


@pytest.mark.parametrize("window", [("10:04:05", "10:12:05"), ("10:04:05", "10:13:04")])
def test_the_published_messages_per_watt(window: tuple[str, str]) -> None:
    """Report, score card: PERSISTENT 460K msgs/sec, PERSISTENT.MPW 1523 msgs/Watt."""
    outlets = []
    for name in ("power_supply_1.log", "power_supply_2.log"):
        samples = read_power_log(PDU / name, ZoneInfo("UTC"))
        outlets.append(
            power_of(
                name,
                samples["wall_ns"].tolist(),
                samples["watts"].tolist(),
                at(window[0]),
                at(window[1]),
            )
        )
    require_usable(outlets[:1], "run")
    watts = sum(outlet.watts for outlet in outlets)
    assert 460_000 / watts == pytest.approx(1523, rel=0.005)


def test_the_zone_of_the_log_counts() -> None:
    assert parse(LINE, zone=BERLIN) == [(at("08:04:05"), 135.0)]


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        LINE.replace(", ", ","),
        LINE.replace(", ", "\t"),
        LINE.replace(", ", ";"),
        ",".join(f'"{field}"' for field in LINE.split(", ")),
        LINE + "\r",
        "\ufeff" + LINE,
    ],
)
def test_variants_of_a_line(line: str) -> None:
    assert parse(line) == [(at("10:04:05"), 135.0)]


def test_headers_and_blank_lines_are_passed_over() -> None:
    lines = ("", "Log Date,Log Time,,,,,", "(mm/dd/yyyy),(hh:mm:ss),V,A,,W,kWh", LINE, "", "")
    assert parse(*lines) == [(at("10:04:05"), 135.0)]


@pytest.mark.parametrize(
    ("lines", "says"),
    [
        ((LINE, LINE + ", 7"), "line 2: 8 columns instead of 7"),
        ((LINE, "Log Date,Log Time,a,b,c,d,e"), "line 2: 'Log Date Log Time' is not mm/dd/yyyy"),
        ((LINE.replace("04/26", "26/04"),), "line 1: '26/04/2013 10:04:05' is not mm/dd/yyyy"),
        ((LINE.replace("10:04:05", "10:61:05"),), "line 1: '04/26/2013 10:61:05' is not"),
        ((LINE.replace("135", "n/a"),), "line 1: watts 'n/a' is not a number"),
        ((LINE.replace("135", "nan"),), "line 1: watts 'nan' is not a number"),
        ((LINE.replace("135", "1_0"),), "line 1: watts '1_0' is not a number"),
        ((LINE.replace("135", "-5"),), "line 1: watts '-5' is not a number of 0 or more"),
        ((LINE.replace("135", "1e9"),), "line 1: 1e+09 watts at one outlet"),
        ((LINE.replace("203.18", "inf"),), "line 1: voltage 'inf' is not a number"),
        (("1" * 5000,), "line 1: longer than"),
        (("head", LINE, LINE), "line 3: a second sample of the outlet at 04/26/2013 10:04:05; if"),
        (("no sample here",), "has no sample"),
        (("",), "has no sample"),
    ],
)
def test_a_malformed_log_is_refused_by_line(lines: tuple[str, ...], says: str) -> None:
    with pytest.raises(PowerLogError) as refused:
        parse(*lines)
    assert says in str(refused.value)
    assert "pdu.log" in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 400


@pytest.mark.parametrize(
    "lines",
    [
        # Berlin, 2013: clocks go forward on March 31 at 2:00 and back on October 27 at 3:00.
        ("03/31/2013, 01:59:00", "03/31/2013, 03:01:00"),
        ("10/27/2013, 01:59:00", "10/27/2013, 03:01:00"),
        ("03/30/2013, 12:00:00", "04/01/2013, 12:00:00"),
        ("10/27/2013, 02:30:00",),
        ("03/31/2013, 02:30:00",),
    ],
)
def test_a_log_that_crosses_a_clock_change_near_the_run_is_refused(
    lines: tuple[str, ...], tmp_path: Path
) -> None:
    log = tmp_path / "pdu.log"
    log.write_text("\n".join(f"{line}, 203, 1, 0.6, 135, 182" for line in lines))
    first = datetime.strptime(lines[0], "%m/%d/%Y, %H:%M:%S").replace(tzinfo=UTC)
    start_ns = int(first.timestamp()) * SECOND_NS
    windows = (start_ns, start_ns + 60 * SECOND_NS)
    with pytest.raises(PowerLogError, match=r"the clock of Europe/Berlin (?:changes|is)"):
        outlets_over(settings_of(log, zone=BERLIN.key), *windows)
    assert outlets_over(settings_of(log), *windows)


def test_a_clock_change_far_from_the_run_does_no_harm(tmp_path: Path) -> None:
    """A month of samples an hour apart, by the clock of the wall; Berlin's changed on the 31st."""
    moments = [datetime(2013, 3, 15, tzinfo=UTC) + timedelta(hours=hour) for hour in range(31 * 24)]
    lines = [f"{m.astimezone(BERLIN):%Y-%m-%d %H:%M:%S},{m.day}" for m in moments]
    log = tmp_path / "month.csv"
    log.write_text("\n".join(["time,watts", *lines]))
    settings = settings_of(log, zone=BERLIN.key)
    for day in (20, 29, 2, 12):
        month = 3 if day > 14 else 4
        start_ns = int(datetime(2013, month, day, 6, tzinfo=UTC).timestamp()) * SECOND_NS
        (outlet,) = outlets_over(settings, start_ns, start_ns + 12 * 3600 * SECOND_NS)
        assert (outlet.watts, outlet.coverage, outlet.inside) == (day, 1.0, 12)
    near = int(datetime(2013, 3, 31, 12, tzinfo=UTC).timestamp()) * SECOND_NS
    with pytest.raises(PowerLogError, match="changes near 2013-03-31 03:00, within a day of the"):
        outlets_over(settings, near, near + 3600 * SECOND_NS)


def test_a_sample_from_before_the_window_counts_for_its_beginning() -> None:
    outlet = power_of(
        "a", [s * SECOND_NS for s in (0, 10, 20)], [100, 200, 300], 5 * SECOND_NS, 15 * SECOND_NS
    )
    assert outlet.watts == pytest.approx(150)
    assert outlet.coverage == 1.0
    assert outlet.samples == 2
    assert outlet.curve == ((0.0, 5.0, 100.0), (5.0, 10.0, 200.0))


def test_time_weighs_and_not_the_number_of_samples() -> None:
    seconds = (0, 1, 2, 3, 4, 5, 7)
    watts = (10, 10, 10, 10, 10, 100, 10)
    outlet = power_of("a", [s * SECOND_NS for s in seconds], watts, 0, 8 * SECOND_NS)
    assert outlet.watts == pytest.approx((6 * 10 + 2 * 100) / 8)


def test_a_gap_is_not_covered_and_the_error_names_the_log() -> None:
    seconds = [*range(0, 100, 10), *range(200, 300, 10)]
    outlet = power_of(
        "outlet-7.log", [s * SECOND_NS for s in seconds], [50.0] * 20, 0, 300 * SECOND_NS
    )
    # The last sample before the gap holds for 2.5 spacings: 90 to 115 of 200.
    assert outlet.coverage == pytest.approx(1 - 85 / 300)
    with pytest.raises(PowerLogError, match=r"outlet-7\.log covers 72% .* of run r1; at least 90%"):
        require_usable([outlet], "r1")


def test_a_log_of_another_time_covers_nothing() -> None:
    outlet = power_of("a", [0, SECOND_NS], [5.0, 5.0], 50 * SECOND_NS, 60 * SECOND_NS)
    assert (outlet.coverage, outlet.watts, outlet.samples, outlet.curve) == (0.0, 0.0, 0, ())


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(st.integers(1, 5), min_size=1, max_size=30),
    watts=st.lists(st.integers(0, 500), min_size=31, max_size=31),
    window=st.tuples(st.integers(0, 60), st.integers(1, 60)),
)
def test_the_mean_is_that_of_every_second_held(
    steps: list[int], watts: list[int], window: tuple[int, int]
) -> None:
    """Against the definition, second by second."""
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


def test_one_log_twice_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(LINE)
    (tmp_path / "b.log").symlink_to(log)
    with pytest.raises(PowerLogError, match="is given twice"):
        power_settings.distinct_logs([log, tmp_path / "b.log"])


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PowerLogError, match=r"missing\.log cannot be read: no such file"):
        read_power_log(tmp_path / "missing.log", ZoneInfo("UTC"))


def test_a_name_that_is_no_zone() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd", ""):
        with pytest.raises(PowerLogError, match="is not a time zone"):
            power_settings.time_zone(name)


def test_this_hosts_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert power_settings.time_zone(None).key == "Asia/Tokyo"
    monkeypatch.delenv("TZ")
    assert power_settings.time_zone(None).key == power_settings.host_timezone()


# --- formats --------------------------------------------------------------------------------

SERVERVIEW = """Time,Blade 1(power),Blade 1(energy),"Rack, upper(power)"
2013-04-26 10:04:05,100,0.1,200
2013-04-26 10:05:05,110,0.2,-
2013-04-26 10:06:05,120,0.3,220
"""
NAMED = """Recorded at;Socket;Active power;Total
2013-04-26T10:04:05Z;1;100;1.000
2013-04-26T10:04:35Z;2;50;7.000
2013-04-26T10:05:05Z;1;110;1.002
2013-04-26T10:05:35Z;2;52;7.001
"""
NAMES = "time=recorded at,watts=Active power,outlet=Socket,kwh=Total,decimal=point"


def read_text(text: str, columns: str | None = None) -> list[tuple[str, int, float, float | None]]:
    named = power_settings.parse_columns(columns) if columns else None
    samples = parse_power_log(text.encode(), "pdu.csv", ZoneInfo("UTC"), named)
    columns_ = samples[["outlet", "wall_ns", "watts", "kwh"]]
    return [
        (outlet, wall_ns, watts, None if isnan(kwh) else kwh)
        for outlet, wall_ns, watts, kwh in columns_.itertuples(index=False)
    ]


def test_serverview_has_a_column_an_outlet() -> None:
    assert read_text(SERVERVIEW) == [
        ("Blade 1", at("10:04:05"), 100.0, None),
        ("Rack, upper", at("10:04:05"), 200.0, None),
        ("Blade 1", at("10:05:05"), 110.0, None),
        ("Blade 1", at("10:06:05"), 120.0, None),
        ("Rack, upper", at("10:06:05"), 220.0, None),
    ]


def test_a_quote_that_is_not_closed_is_part_of_the_name() -> None:
    text = 'time,outlet,watts\n1366970645,19" rack,5\n1366970645,"a, b",6\n'
    assert [sample[::2] for sample in read_text(text)] == [("19\u201d rack", 5.0), ("a, b", 6.0)]


def test_named_columns_and_times_with_a_zone_of_their_own() -> None:
    assert read_text(NAMED, NAMES)[:2] == [
        ("1", at("10:04:05"), 100.0, 1.0),
        ("2", at("10:04:35"), 50.0, 7.0),
    ]
    # The zone of the log is for times that have none.
    columns = power_settings.parse_columns(NAMES)
    samples = parse_power_log(NAMED.encode(), "a", BERLIN, columns)
    assert samples["wall_ns"][0] == at("10:04:05")


@pytest.mark.parametrize(
    ("text", "columns"),
    [
        ("timestamp,watts\n2013-04-26T10:04:05,135\n", None),
        ("Date,Time,Power (W)\n2013-04-26,10:04:05,135\n", None),
        ("time\tActive Power (W)\n1366970645\t135\n", None),
        ("time,watts\n1366970645000,135\n", None),
        ("when,what\n26.04.2013 10:04:05,135\n", "time=when,watts=what,format=%d.%m.%Y %H:%M:%S"),
        ("node,watts,time\nbroker-1,135,2013-04-26 10:04:05\n", None),
    ],
)
def test_ways_to_write_a_time(text: str, columns: str | None) -> None:
    (sample,) = read_text(text, columns)
    assert sample[1:3] == (at("10:04:05"), 135.0)


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        ("a,b\n1,2\n", None, "header of no known format; name its columns with --pdu-columns"),
        ("time,watts\n1366970645,1\n", "time=time,watts=W", "has no column 'W'; its header is:"),
        ("time,watts\nyesterday,1\n", None, "line 2: 'yesterday' is not a time"),
        ("time,watts\n1e400,1\n", None, "line 2: '1e400' is not a time"),
        ("time,watts\n1366970645,1,3\n", None, "line 2: 3 columns instead of 2"),
        ("time,watts\n1366970645,-1\n", None, "line 2: watts '-1' is not a number of 0 or more"),
        ("time,watts\n", None, "has no sample"),
        (NAMED, NAMES.replace(",decimal=point", ""), "'1.000', whose mark may be a decimal one or"),
        ("time,watts\n1366970645,-\n", None, "has no sample"),
        ('time,watts\n1366970645,1"3\n', None, "line 2: watts"),
        ("time,watts\n1366970645,1\x003\n", None, "line 2: watts"),
        (NAMED.replace("10:05:05", "10:04:05"), NAMES, "line 4: a second sample of outlet '1' at"),
    ],
)
def test_a_table_that_cannot_be_used(text: str, columns: str | None, says: str) -> None:
    with pytest.raises(PowerLogError) as refused:
        read_text(text, columns)
    assert says in str(refused.value) and "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "time=a,watts=b,time=c", "time=a,watts=", "volts=a", "x", "unit=V", "decimal=,"]
)
def test_columns_that_name_nothing(text: str) -> None:
    with pytest.raises(PowerLogError, match="pdu_columns: "):
        power_settings.parse_columns(text)


def test_outlets_are_grouped_and_sampled_at_different_seconds(tmp_path: Path) -> None:
    log = tmp_path / "pdu=1.csv"
    log.write_text(NAMED)
    settings = settings_of(f"rack={log}#2", f"broker={log}#1", columns=NAMES)
    first, second = outlets_over(settings, at("10:04:35"), at("10:05:35"))
    assert (first.node, first.outlet, first.watts, first.coverage) == ("rack", "2", 50.0, 1.0)
    assert (second.node, second.outlet, second.watts) == ("broker", "1", 105.0)
    whole = settings_of(log, columns=NAMES)
    assert [o.name for o in outlets_over(whole, at("10:04:35"), at("10:05:35"))] == [
        f"{log}#1",
        f"{log}#2",
    ]


def test_a_log_as_it_is_given(tmp_path: Path) -> None:
    odd = tmp_path / "a=b#3"
    odd.write_text(LINE)
    assert power_settings.pdu_log(str(odd)) == power_settings.PduLog(odd)
    assert power_settings.pdu_log(f"n={odd}") == power_settings.PduLog(odd, "n")
    assert power_settings.pdu_log("n=x.log#1, 2") == power_settings.PduLog(
        Path("x.log"), "n", ("1", "2")
    )
    assert power_settings.pdu_log("x.log") == power_settings.PduLog(Path("x.log"))
    with pytest.raises(PowerLogError, match="has no name"):
        power_settings.pdu_log("x.log#1,,2")


def test_an_outlet_twice_or_not_there(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text(NAMED)
    given: tuple[list[str | Path], ...] = ([log, f"{log}#1"], [f"{log}#1,2", f"{log}#2"])
    for twice in given:
        with pytest.raises(PowerLogError, match="is given twice"):
            power_settings.distinct_logs(twice)
    assert len(power_settings.distinct_logs([f"{log}#1", f"{log}#2"])) == 2
    settings = settings_of(f"{log}#7", columns=NAMES)
    with pytest.raises(PowerLogError, match="has no outlet '7'; it has 1, 2"):
        read_log(settings.logs[0], settings)


def test_an_offset_is_a_time_with_a_sign() -> None:
    assert power_settings.parse_offset("1.5s") == 1_500_000_000
    assert power_settings.parse_offset("-2") == -2_000_000_000
    assert power_settings.parse_offset("+500ms") == 500_000_000
    for text in ("soon", "--1", "400d"):
        with pytest.raises(PowerLogError, match="pdu_offset: "):
            power_settings.parse_offset(text)


def test_a_half_written_last_line_is_fine_before_a_run(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{LINE}\n{LINE[:20]}")
    settings = settings_of(log)
    require_readable(settings)
    with pytest.raises(PowerLogError, match="line 2: "):
        read_log(settings.logs[0], settings)


# --- the counter of kilowatt-hours ----------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "result"),
    [
        # An hour of 600 W is 0.6 kWh.
        ([10.0, 10.3, 10.6], "agrees"),
        ([10.0, 10.4, 10.9], "disagrees"),
        ([10.0, 10.0, 11.0], "too coarse"),
        ([10.0, 10.0, 10.0], "too coarse"),
        ([10.0, 12.0, 14.0], "disagrees"),
        ([10.3, 10.6, 10.0], "reset"),
        ([10.3, 11.6, 10.0], "disagrees"),
        # What goes down all the time is no counter.
        ([10.6, 10.3, 10.0], None),
    ],
)
def test_watts_against_the_counter(counter: list[float], result: str | None) -> None:
    times = [0, 1800 * SECOND_NS, 3600 * SECOND_NS]
    step_kwh = 0.1 if any(value % 1 for value in counter) else 1.0
    outlet = power_of("a", times, [600.0] * 3, 0, 3600 * SECOND_NS, counter, step_kwh)
    assert (outlet.energy and outlet.energy.result) == result
    assert bool(outlet.withheld) is (result == "disagrees")
    assert ("was reset in the window" in str(outlet.remarks)) is (result == "reset")
    if outlet.energy is not None and counter == sorted(counter):
        assert outlet.energy.watts_kwh == pytest.approx(0.6)
        assert outlet.energy.counter_kwh == pytest.approx(counter[-1] - counter[0])


def test_the_reports_counter_is_too_coarse_to_tell() -> None:
    settings = settings_of(PDU / "power_supply_1.log")
    (outlet,) = outlets_over(settings, at("10:04:05"), at("10:12:05"))
    assert outlet.energy is not None
    assert (outlet.energy.counter_kwh, outlet.energy.resolution_kwh) == (0.0, 1.0)
    assert outlet.energy.result == "too coarse"
