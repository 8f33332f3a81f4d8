"""Power logs: what is read, what is refused, and the arithmetic of the published figure."""

from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.scorecard.power import (
    distinct_logs,
    host_timezone,
    outlet_power,
    parse_power_log,
    read_power_log,
    require_coverage,
    time_zone,
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


def parse(*lines: str, zone: ZoneInfo | None = None) -> list[tuple[int, float]]:
    samples = parse_power_log("\n".join(lines).encode(), "pdu.log", zone or ZoneInfo("UTC"))
    return [(sample.wall_ns, sample.watts) for sample in samples]


@pytest.mark.parametrize("window", [("10:04:05", "10:12:05"), ("10:04:05", "10:13:04")])
def test_the_published_messages_per_watt(window: tuple[str, str]) -> None:
    """Report, score card: PERSISTENT 460K msgs/sec, PERSISTENT.MPW 1523 msgs/Watt."""
    outlets = []
    for name in ("power_supply_1.log", "power_supply_2.log"):
        samples = read_power_log(PDU / name, ZoneInfo("UTC"))
        outlets.append(
            outlet_power(
                name,
                [s.wall_ns for s in samples],
                [s.watts for s in samples],
                at(window[0]),
                at(window[1]),
            )
        )
    require_coverage(outlets[:1], "run")
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
        (("head", LINE, LINE.replace("10:04", "10:03")), "line 3: time goes back from 2013"),
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
def test_a_log_that_crosses_a_clock_change_is_refused(lines: tuple[str, ...]) -> None:
    samples = [f"{line}, 203, 1, 0.6, 135, 182" for line in lines]
    with pytest.raises(PowerLogError, match="the clock of Europe/Berlin changes near"):
        parse(*samples, zone=BERLIN)
    assert len(parse(*samples)) == len(lines)


def test_a_sample_from_before_the_window_counts_for_its_beginning() -> None:
    outlet = outlet_power(
        "a", [s * SECOND_NS for s in (0, 10, 20)], [100, 200, 300], 5 * SECOND_NS, 15 * SECOND_NS
    )
    assert outlet.watts == pytest.approx(150)
    assert outlet.coverage == 1.0
    assert outlet.samples == 2
    assert outlet.curve == ((0.0, 100.0), (5.0, 200.0), (10.0, 200.0))


def test_time_weighs_and_not_the_number_of_samples() -> None:
    seconds = (0, 1, 2, 3, 4, 5, 7)
    watts = (10, 10, 10, 10, 10, 100, 10)
    outlet = outlet_power("a", [s * SECOND_NS for s in seconds], watts, 0, 8 * SECOND_NS)
    assert outlet.watts == pytest.approx((6 * 10 + 2 * 100) / 8)


def test_a_gap_is_not_covered_and_the_error_names_the_log() -> None:
    seconds = [*range(0, 100, 10), *range(200, 300, 10)]
    outlet = outlet_power(
        "outlet-7.log", [s * SECOND_NS for s in seconds], [50.0] * 20, 0, 300 * SECOND_NS
    )
    # The last sample before the gap holds for 2.5 spacings: 90 to 115 of 200.
    assert outlet.coverage == pytest.approx(1 - 85 / 300)
    with pytest.raises(PowerLogError, match=r"outlet-7\.log covers 72% .* of run r1; at least 90%"):
        require_coverage([outlet], "r1")


def test_a_log_of_another_time_covers_nothing() -> None:
    outlet = outlet_power("a", [0, SECOND_NS], [5.0, 5.0], 50 * SECOND_NS, 60 * SECOND_NS)
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
    outlet = outlet_power(
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
        distinct_logs([log, tmp_path / "b.log"])


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PowerLogError, match=r"missing\.log cannot be read: no such file"):
        read_power_log(tmp_path / "missing.log", ZoneInfo("UTC"))


def test_a_name_that_is_no_zone() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd", ""):
        with pytest.raises(PowerLogError, match="is not a time zone"):
            time_zone(name)


def test_this_hosts_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert time_zone(None).key == "Asia/Tokyo"
    monkeypatch.delenv("TZ")
    assert time_zone(None).key == host_timezone()
