"""Power logs as meters and spreadsheets write them: the same watts, whatever the notation."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.report.build.cards_report import report_of
from loadgen.report.build.summary import summarize_run
from loadgen.report.power.power import OutletPower, outlets_over, require_usable
from loadgen.report.power.power_logs import parse_power_log
from loadgen.report.render.html import to_html
from loadgen.report.render.markdown import to_markdown
from loadgen.report.render.write import to_json
from tests.report.power.test_power import settings_of

BEGIN = datetime(2013, 4, 26, 10, 4, 5, tzinfo=UTC)
MINUTE_NS = 60 * 10**9
UTC_ZONE = ZoneInfo("UTC")


def minute(number: float) -> int:
    return int(BEGIN.timestamp()) * 10**9 + round(number * MINUTE_NS)


def parsed(
    text: str | bytes, columns: str | None = None, zone: str = "UTC"
) -> dict[str, list[float]]:
    """Watts by outlet; the moments must be minutes from BEGIN on."""
    data = text.encode() if isinstance(text, str) else text
    given = settings_of("x", zone=zone, columns=columns)
    samples = parse_power_log(data, "pdu.log", given.zone, given.columns)
    for _, own in samples.groupby("outlet"):
        assert [*own["wall_ns"]] == [minute(number) for number in range(len(own))]
    return {str(name): own["watts"].tolist() for name, own in samples.groupby("outlet", sort=False)}


def over(
    tmp_path: Path,
    text: str | bytes,
    *,
    columns: str | None = None,
    of: str = "",
    zone: str = "UTC",
) -> list[OutletPower]:
    """The outlets of a log over the two minutes from its beginning."""
    log = tmp_path / "pdu.log"
    log.write_bytes(text.encode() if isinstance(text, str) else text)
    given = settings_of(f"{log}{of}", zone=zone, columns=columns)
    return outlets_over(given, minute(0), minute(2))


# --- makes ----------------------------------------------------------------------------------

APC = """\
06
04/26/2013\t10:20:31
rack-pdu-7\tadmin\tRow 3\t192.168.1.7

Date\tTime\tDev Power (kW)\tDev Energy (kWh)\tPh1 I (A)\tPh1 V (V)
04/26/2013\t10:04:05\t0.135\t182.4\t0.6\t230
04/26/2013\t10:05:05\t0.139\t182.4\t0.6\t231
04/26/2013\t10:06:05\t0.137\t182.4\t0.6\t230
"""
RARITAN = """\
"Timestamp","Outlet 1 Active Power (W)","Outlet 1 Active Energy (Wh)","Outlet 1 RMS Current (A)"
"2013-04-26 10:04:05 UTC","135","18240","0.587"
"2013-04-26 10:05:05 UTC","139","18242","0.604"
"2013-04-26 10:06:05 UTC","137","18245","0.596"
"""
SERVER_TECHNOLOGY_LONG = """\
Date/Time,Outlet ID,Outlet Name,Status,Current (A),Active Power (W),Apparent Power (VA)
2013-04-26 10:04:05,AA1,Broker PSU 1,On,0.45,100.0,105
2013-04-26 10:04:05,AA2,Broker PSU 2,On,0.22,50.5,52
2013-04-26 10:05:05,AA1,Broker PSU 1,On,0.45,100.0,105
2013-04-26 10:05:05,AA2,Broker PSU 2,On,0.22,50.5,52
2013-04-26 10:06:05,AA1,Broker PSU 1,On,0.45,100.0,105
2013-04-26 10:06:05,AA2,Broker PSU 2,On,0.22,50.5,52
"""
SERVER_TECHNOLOGY_WIDE = """\
Time,AA1 Active Power (W),AA2 Active Power (W)
2013-04-26 10:04:05,100.0,50.5
2013-04-26 10:05:05,100.0,50.5
2013-04-26 10:06:05,100.0,50.5
"""
EATON = """\
Date;Time;Outlet A1 Active Power (W);Outlet A1 Energy (Wh);Outlet A2 Active Power (W);Voltage (V)
26/04/2013;10:04:05;135,0;18240;N/A;229,8
26/04/2013;10:05:05;139,5;18242;50,0;230,1
26/04/2013;10:06:05;1.137,25;18245;50,0;230,1
"""
SMA = """\
sep=;
Version CSV1|Tool SE|Linebreaks CR/LF|Delimiter semicolon|Decimalpoint comma|Precision 3

;PSU 1;PSU 1;PSU 2;PSU 2
;Counter;Analog;Counter;Analog
dd.MM.yyyy HH:mm:ss;kWh;kW;kWh;kW
26.04.2013 10:04:05;11,475;0,135;3,100;0,050
26.04.2013 10:05:05;11,477;0,139;3,101;0,050
26.04.2013 10:06:05;11,480;0,137;3,102;0,050
"""
METER_IN_WORDS = """\
2013-04-26T10:04:05+00:00,135 W
2013-04-26T10:05:05+00:00,0.139 kW
2013-04-26T10:06:05+00:00,137000 mW
"""
VALUES_AND_UNITS = """\
Timestamp,Sensor,Value,Unit
2013-04-26T10:04:05Z,Outlet 1 Active Power,135,W
2013-04-26T10:04:05Z,Outlet 1 Active Energy,18240,Wh
2013-04-26T10:04:05Z,Outlet 1 RMS Current,0.6,A
2013-04-26T10:05:05Z,Outlet 1 Active Power,139,W
2013-04-26T10:05:05Z,Outlet 1 Active Energy,18242,Wh
2013-04-26T10:06:05Z,Outlet 1 Active Power,137,W
"""

ONE = [135.0, 139.0, 137.0]
TWO = [100.0] * 3, [50.5] * 3


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        (APC, {"Dev": ONE}),
        (RARITAN, {"Outlet 1": ONE}),
        (SERVER_TECHNOLOGY_LONG, {"AA1": TWO[0], "AA2": TWO[1]}),
        (SERVER_TECHNOLOGY_WIDE, {"AA1": TWO[0], "AA2": TWO[1]}),
        (SMA, {"PSU 1": ONE, "PSU 2": [50.0] * 3}),
        ("Time,Reading\n" + METER_IN_WORDS, {"": ONE}),
        (VALUES_AND_UNITS, {"Outlet 1": ONE}),
        # A spreadsheet in Germany: UTF-16, tabs, decimal commas, days first with points.
        (
            "\ufeffZeit\tLeistung (kW)\r\n26.04.2013 10:04:05\t0,135\r\n"
            "26.04.2013 10:05:05\t0,139\r\n26.04.2013 10:06:05\t0,137\r\n".encode("utf-16-le"),
            {"": ONE},
        ),
        # The same as an older Windows wrote it, and in America, twelve hours a day.
        ("Zähler;Datum;Leistung in W\n1;26.4.2013 10:04:05;135\n".encode("cp1252"), {"": [135.0]}),
        ("Date,Time,Watts\n4/26/2013,10:04:05 AM,135\n4/26/2013,10:05:05 AM,139\n", {"": ONE[:2]}),
        # Newest first, and two rotated files one after the other.
        ("time,watts\n2013-04-26 10:05:05,139\n2013-04-26 10:04:05,135\n", {"": ONE[:2]}),
        (
            "time,watts\n2013-04-26 10:05:05,139\n2013-04-26 10:06:05,137\n"
            "time,watts\n2013-04-26 10:04:05,135\n",
            {"": ONE},
        ),
        # The zone in the header, and a number since 1970 that has none.
        ("Time (UTC+02:00),Power (W)\n2013-04-26 12:04:05,135\n", {"": [135.0]}),
        ("Time (UTC),Power (W)\n1366970645.000,135\n", {"": [135.0]}),
        ("time,power_kw,peak_power_kw\n1366970645,0.135,9.9\n", {"": [135.0]}),
        ("time|Power [mW]\n1366970645|135000\n", {"": [135.0]}),
        ('time,Power (W)\n1366970645,"1,100.5"\n', {"": [1100.5]}),
        ("time;Power (W)\n1366970645;1 100,5\n", {"": [1100.5]}),
        ("time;Power (W)\n1366970645;1'100.5\n", {"": [1100.5]}),
        ("time\tPower (W)\tx\t\n1366970645\t135\t\t\n", {"": [135.0]}),
    ],
)
def test_logs_with_their_watts_by_hand(text: str | bytes, watts: dict[str, list[float]]) -> None:
    assert parsed(text) == {name: pytest.approx(values) for name, values in watts.items()}


def test_eaton_with_a_gap_and_mixed_marks() -> None:
    samples = parse_power_log(EATON.encode(), "e", UTC_ZONE)
    by_outlet = {str(name): own for name, own in samples.groupby("outlet")}
    assert by_outlet["Outlet A1"]["watts"].tolist() == [135.0, 139.5, 1137.25]
    assert by_outlet["Outlet A1"]["kwh"].tolist() == pytest.approx([18.24, 18.242, 18.245])
    assert by_outlet["Outlet A2"]["watts"].tolist() == [50.0, 50.0]
    assert by_outlet["Outlet A2"]["wall_ns"].tolist() == [minute(1), minute(2)]


def test_every_outlet_of_a_log_counts_once(tmp_path: Path) -> None:
    for text in (SERVER_TECHNOLOGY_LONG, SERVER_TECHNOLOGY_WIDE):
        outlets = over(tmp_path, text)
        assert sum(outlet.watts for outlet in outlets) == 150.5
        (second,) = over(tmp_path, text, of="#AA2")
        assert second.watts == 50.5
    # The same file for each of them, and an outlet by its number alone.
    log = tmp_path / "pdu.log"
    log.write_text(SERVER_TECHNOLOGY_WIDE.replace("AA", "Outlet "))
    given = settings_of(f"broker={log}#1", f"switch={log}#Outlet 2")
    found = outlets_over(given, minute(0), minute(2))
    assert [(o.node, o.outlet, o.watts) for o in found] == [
        ("broker", "Outlet 1", 100.0),
        ("switch", "Outlet 2", 50.5),
    ]


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        # Two outlets that no known column tells apart.
        (
            SERVER_TECHNOLOGY_LONG.replace("Outlet", "Strip"),
            None,
            "line 3: a second sample of the outlet at 2013-04-26 10:04:05; if a column tells "
            "outlets apart, name it with --pdu-columns outlet=NAME",
        ),
        ('time,Power (W)\n1366970645,"1,100"\n', None, "give --pdu-columns decimal=point or"),
        ("time;Power (W)\n1366970645;1.100\n", None, "'1.100', whose mark may be a decimal one"),
        ("time;a (W)\n1366970645;1,5\n1366970646;1.5\n", None, "'1.5' and '1,5'; give"),
        (
            "time,Power\n1366970645,135\n",
            None,
            "unit of its column 'Power'; give --pdu-columns unit=",
        ),
        ("time,Energy\n1366970645,135\n", None, "'Energy'; give --pdu-columns counter_unit="),
        ("time,power_mw\n1366970645,135\n", None, "'mw' may be milli or mega"),
        ("time,Power (0.1 W)\n1366970645,135\n", None, "what does '0.1 W' count?"),
        ("time,Power (W)\n1366970645,135 A\n", None, "line 2: watts '135 A' is not power"),
        (
            "time,Power (W)\n04/05/2013 10:04:05,1\n",
            None,
            "give --pdu-columns dates=dmy, dates=mdy",
        ),
        (
            "Start time,End time,W\n1366970645,1366970646,1\n",
            None,
            "name one with --pdu-columns time",
        ),
        (
            "time,outlet,a W,b W\n1366970645,1,2,3\n",
            None,
            "several columns of power ('a W', 'b W')",
        ),
        ("time,W,kW\n1366970645,2,3\n", None, "several columns that count the same ('W', 'kW')"),
        # The second line names no columns, though these would differ with it.
        ("time,W,W\n1366970645,2,3\n1366970646,2,3\n", None, "count the same ('W', 'W')"),
        ("time,W\n2013-04-26 10:04:05 PDT,2\n", None, "is not in UTC; give --pdu-timezone"),
        ("time,W\n2013-04-26 10:04:05 CET,2\n", "unit=W", "is not in UTC; give --pdu-timezone"),
    ],
)
def test_what_can_be_read_in_two_ways_is_refused_with_what_to_give(
    text: str, columns: str | None, says: str
) -> None:
    with pytest.raises(PowerLogError) as refused:
        parsed(text, columns)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300


@pytest.mark.parametrize(
    ("text", "columns", "watts"),
    [
        ('time,Power (W)\n1366970645,"1,100"\n', "decimal=point", 1100.0),
        ('time,Power (W)\n1366970645,"1,100"\n', "decimal=comma", 1.1),
        ("time,Power\n1366970645,135\n", "unit=kW", 135e3),
        ("time,power_mw\n1366970645,135\n", "watts=power_mw,unit=mW", 0.135),
        ("time,Power (W)\n26/04/2013 10:04:05,1\n", "dates=dmy", 1.0),
        ("time,outlet,a W,b W\n1366970645,1,2,3\n", "watts=b W", 3.0),
        ("Start time,End time,W\n1366970645,1366970646,1\n", "time=start time", 1.0),
        ("when,a (kW)\n1366970645,0.135\n", "time=when,watts=a (kW)", 135.0),
    ],
)
def test_what_is_given_settles_it(text: str, columns: str, watts: float) -> None:
    assert [*parsed(text, columns).values()] == [[pytest.approx(watts)]]


@pytest.mark.parametrize(
    ("header", "line", "watts"),
    [
        ("Zeit;Wirkleistung [W];Scheinleistung [W]", "1366970645;135;200", 135.0),
        ("Date,Average (W),Peak (W),Cap (W),Headroom (W)", "1366970645,135,150,300,165", 135.0),
        ("time,Power (W),Setpoint (W),Price per kWh", "1366970645,135,200,0.2999", 135.0),
        ("time,Power (W)", '1366970645,"1,35,000"', 135e3),
        ("time,Power,Unit", "1366970645,0.135,kW", 135.0),
        ("time,Power (W)", "20130426100405,135", 135.0),
        # The zone in a column of its own, beside a number, in the header, above it.
        ("Date,Time,Zone,W", "2013-04-26,12:04:05,+02:00,135", 135.0),
        ("Timestamp,UTC offset,W", "2013-04-26 12:04:05,+2,135", 135.0),
        ("time,W", "2013-04-26 12:04:05 UTC+2,135", 135.0),
        ("Time (UTC+2),W", "2013-04-26 12:04:05,135", 135.0),
        ("Time zone: UTC\nTime,W", "2013-04-26 10:04:05,135", 135.0),
        ("Time (UTC+2),W", "20130426120405,135", 135.0),
    ],
)
def test_what_a_header_says_besides(header: str, line: str, watts: float) -> None:
    assert parsed(f"{header}\n{line}\n") == {"": [watts]}


@pytest.mark.parametrize(
    ("text", "columns", "says"),
    [
        # Columns of watts that are not outlets beside each other, and more than one could be it.
        ("time,Pavg (W),Pmin (W),Pmax (W)\n1366970645,2,1,3\n", None, "Pavg, Pmin, Pmax; choose"),
        ("time,Power 1m avg (W),Power 5m avg (W)\n1366970645,2,3\n", None, "1m, 5m; choose"),
        ("time,AC Power (W),DC Power (W)\n1366970645,2,1.9\n", None, "AC, DC; choose"),
        ("time,Power (W),Delta (W)\n1366970645,2,1\n", None, "Power (W), Delta; choose"),
        ("time,Total (W),Phase A (W)\n1366970645,2,2\n", None, "'Total' seems to be the sum"),
        # What is given is not what the log says.
        ("time,Power (kW)\n1366970645,2\n", "unit=W", "'Power (kW)' itself, and --pdu-columns"),
        ("time,E (Wh)\n1366970645,2\n", "counter_unit=kWh", "leave counter_unit out"),
        ("time;kW\n1366970645;0.135\n", "decimal=comma", "'0.135', whose decimal mark is not a"),
        # Not a unit, but a part or a multiple of one.
        ("time,Power (tenths of W)\n1366970645,2\n", None, "else convert it"),
        ("time,Power*10 (W)\n1366970645,2\n", None, "what does 'Power*10 (W)' count?"),
        ("time,Power in 1/10 W\n1366970645,2\n", None, "what does 'Power in 1/10 W' count?"),
        ("time,Energy (kWh/day)\n1366970645,2\n", None, "what does 'Energy (kWh/day)' count?"),
        # A zone that is not the one given.
        ("Time (CEST),W\n2013-04-26 12:04:05,2\n", None, "12:04:05 CEST' is not in UTC"),
        ("Time,Zone,W\n2013-04-26 12:04:05,Europe/Berlin,2\n", None, "Europe/Berlin' is not in"),
        ("# Time zone: Europe/Berlin\nTime,W\n2013-04-26 12:04:05,2\n", None, "is not in UTC"),
        # No table at all.
        ('{"time":"2013-04-26 12:04:05","power":135}\n', None, "is no table: write it with"),
        ("2013-04-26 12:04:05 135 Watts\n" * 2, None, "is no table: write it with"),
    ],
)
def test_what_would_be_a_wrong_figure_is_refused(
    tmp_path: Path, text: str, columns: str | None, says: str
) -> None:
    with pytest.raises(PowerLogError) as refused:
        over(tmp_path, text, columns=columns)
    assert says in str(refused.value)


def test_a_number_with_a_stroke_is_no_factor() -> None:
    assert parsed("time,Rack 4/10 Power (W),Rack 4/11 Power (W)\n1366970645,2,3\n") == {
        "Rack 4/10": [2.0],
        "Rack 4/11": [3.0],
    }


@pytest.mark.parametrize("column", ["Device", "Node", "Gerät", "MAC"])
@pytest.mark.parametrize(("first", "second"), [("alpha", "beta"), ("17", "18")])
@pytest.mark.parametrize("outlet", ["", ",Outlet"])
def test_two_meters_in_turn_are_not_one(column: str, first: str, second: str, outlet: str) -> None:
    """A poller asks one after the other, so no two samples are of one moment."""
    lines = [
        f"{1366970645 + 60 * place},{name}{',1' if outlet else ''},{watts}"
        for place, (name, watts) in enumerate([(first, 100), (second, 35)] * 6)
    ]
    text = "\n".join([f"time,{column}{outlet},Power (W)", *lines])
    with pytest.raises(PowerLogError, match=f"differ in column 2, '{first}' and '{second}'"):
        parsed(text)
    # A state that changes now and then, or a second clock, tells nothing apart.
    for other in (["On"] * 5 + ["Off"] * 2 + ["On"] * 5, [f"10:0{p // 2} AM" for p in range(12)]):
        fine = (f"{1366970645 + 60 * p},{word},{p}" for p, word in enumerate(other))
        assert parsed("\n".join(["time,What,Power (W)", *fine])) == {"": [*range(12)]}


def test_a_sum_that_is_taken_a_moment_later_is_one(tmp_path: Path) -> None:
    """At one moment of twenty the load had changed meanwhile, and the machine has losses."""
    lines = [
        f"{1366970645 + s},{100 + s},20,{(120 + s) * 1.03 + 50 * (s == 7):.1f}" for s in range(20)
    ]
    with pytest.raises(PowerLogError, match="'PSU C' seems to be the sum"):
        over(tmp_path, "\n".join(["time,PSU A (W),PSU B (W),PSU C (W)", *lines]))


def test_a_copy_of_a_log_is_not_added_to_it(tmp_path: Path) -> None:
    text = "\n".join(["time,Power (W)", *(f"{1366970645 + s},{100 + s % 7}" for s in range(121))])
    for name in ("a", "b"):
        (tmp_path / name).write_text(text)
    outlets = outlets_over(settings_of(tmp_path / "a", tmp_path / "b"), minute(0), minute(2))
    with pytest.raises(PowerLogError, match="have the same samples, which would be added twice"):
        require_usable(outlets, "run")
    require_usable(outlets[:1], "run")


def test_a_zone_that_begins_like_a_half_of_the_day() -> None:
    text = "Time [America/New_York],W,EUR/kWh\n2013-04-26 06:04:05,135,0.29991\n"
    assert parsed(text, zone="America/New_York") == {"": ONE[:1]}
    samples = parse_power_log(text.encode(), "p", ZoneInfo("America/New_York"))
    assert samples["kwh"].isna().all()  # a price is no counter


def test_a_zone_by_name_is_that_of_the_option() -> None:
    text = "time,W\n2013-04-26 03:04:05 PDT,135\n2013-04-26 03:05:05 PDT,139\n"
    assert parsed(text, zone="America/Los_Angeles") == {"": ONE[:2]}


@pytest.mark.parametrize(
    "text",
    [
        "time,A (W),B (W),Total (W)\n1366970645,1,2,3\n",
        "time,outlet,W\n1366970645,1,1\n1366970645,2,2\n1366970645,PDU total,3\n",
        # By its numbers alone.
        "time,A (W),B (W),C (W)\n"
        + "".join(f"{1366970645 + s},{s + 1},20,{s + 21}\n" for s in range(4)),
    ],
)
def test_a_total_beside_its_outlets_is_not_added(tmp_path: Path, text: str) -> None:
    with pytest.raises(PowerLogError, match="seems to be the sum of other outlets"):
        over(tmp_path, text)
    first = "#A" if "A (W)" in text else "#1"
    assert [outlet.watts for outlet in over(tmp_path, text, of=first)]


# --- the same series in every notation ------------------------------------------------------


@dataclass(frozen=True)
class Notation:
    """A way to write a series down."""

    unit: str = "W"
    unit_in_cell: bool = False
    mark: str = "."
    part: str = ""
    separator: str = ";"
    encoding: str = "utf-8"
    when: str = "%Y-%m-%d %H:%M:%S"
    zone: str = "UTC"
    newest_first: bool = False
    wide: bool = False
    end: str = "\n"


FACTORS = {"W": 1.0, "kW": 1e-3, "mW": 1e3, "Watts": 1.0, "kilowatts": 1e-3, "dW": 10.0}
NOTATIONS = st.builds(
    Notation,
    unit=st.sampled_from([*FACTORS]),
    unit_in_cell=st.booleans(),
    mark=st.sampled_from(".,"),
    part=st.sampled_from(["", "mark", " ", "\u202f", "'"]),
    separator=st.sampled_from(";\t|,"),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"]),
    when=st.sampled_from(
        [
            "%Y-%m-%d %H:%M:%S",
            "%Y-%m-%dT%H:%M:%S%z",
            "%d.%m.%Y %H:%M:%S",
            "%m/%d/%Y %I:%M:%S %p",
            "%d/%m/%Y %H:%M:%S",
            "%d-%b-%Y %H:%M:%S",
            "%b %d, %Y %H:%M:%S",
            "%Y%m%dT%H%M%S",
            "%s",
        ]
    ),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu"]),
    newest_first=st.booleans(),
    wide=st.booleans(),
    end=st.sampled_from(["\n", "\r\n"]),
)


def number(value: float, how: Notation) -> str:
    whole, _, fraction = f"{value:.4f}".partition(".")
    part = {"mark": "." if how.mark == "," else ","}.get(how.part, how.part)
    return f"{int(whole):,}".replace(",", part) + how.mark + fraction


def written(series: dict[str, list[float]], how: Notation) -> bytes:
    """The log of a series, a sample a minute from BEGIN on."""
    zone = ZoneInfo(how.zone)

    def moment(place: int) -> str:
        at = (BEGIN + timedelta(minutes=place)).astimezone(zone)
        return str(int(at.timestamp())) if how.when == "%s" else at.strftime(how.when)

    def cell(value: float) -> str:
        text = number(value * FACTORS[how.unit], how)
        return f"{text} {how.unit}" if how.unit_in_cell else text

    unit = "" if how.unit_in_cell else f" ({how.unit})"
    places = range(len(next(iter(series.values()))))
    if how.wide:
        rows = [[moment(p), *(cell(values[p]) for values in series.values())] for p in places]
        header = ["Time", *(f"Outlet {name} power{unit}" for name in series)]
    else:
        rows = [[moment(p), name, cell(v[p])] for p in places for name, v in series.items()]
        header = ["Time", "Outlet", f"Active power{unit}"]
    if how.newest_first:
        rows.reverse()
    text = how.end.join(
        how.separator.join(f'"{one}"' if how.separator in one else one for one in row)
        for row in [header, *rows]
    )
    return text.encode(how.encoding)


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(
    how=NOTATIONS,
    watts=st.lists(st.tuples(*[st.integers(0, 30_000_000)] * 2), min_size=3, max_size=12),
)
def test_the_same_series_in_every_notation(how: Notation, watts: list[tuple[int, int]]) -> None:
    """Tenths of a milliwatt, so that no notation rounds."""
    series = {str(i + 1): [one[i] / 1e4 for one in watts] for i in range(2)}
    found = parsed(written(series, how), zone=how.zone)
    names = sorted(found)
    assert [name.removeprefix("Outlet ") for name in names] == ["1", "2"]
    for name, values in zip(names, series.values(), strict=True):
        # Four digits after the mark: kilowatts are rounded to a tenth of a watt.
        assert found[name] == pytest.approx(values, abs=0.06)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(how=NOTATIONS, other=st.sampled_from(["W", "kW", "mW"]))
def test_a_unit_that_was_changed_is_noticed(how: Notation, other: str) -> None:
    """The figure follows the unit that is written, and a counter beside it does not agree."""
    series = {"1": [100.0 + place for place in range(12)]}
    how = replace(how, wide=True, unit_in_cell=False, encoding="utf-8")
    text = written(series, how).decode()
    mutated = text.replace(f"({how.unit})", f"({other})").encode()
    factor = FACTORS[how.unit] / FACTORS[other]
    if factor > 9000:
        with pytest.raises(PowerLogError, match="watts at one outlet"):
            parsed(mutated, zone=how.zone)
        return
    ((_, found),) = parsed(mutated, zone=how.zone).items()
    assert found == pytest.approx([value * factor for value in series["1"]], rel=1e-3)


# --- counters -------------------------------------------------------------------------------


def counted(
    unit: str = "W", watts: float = 600.0, wh: float = 10.0, reset: int | None = None
) -> str:
    """600 W for twelve minutes are 10 Wh a minute."""
    lines = []
    for place in range(13):
        since = place if reset is None or place < reset else place - reset
        lines.append(
            f"{1366970645 + 60 * place},{watts:g},{5000 * (since == place) + wh * since:.1f}"
        )
    return "\n".join([f"time,Power ({unit}),Energy (Wh)", *lines])


def outlet_of(tmp_path: Path, text: str, minutes: int = 12) -> OutletPower:
    log = tmp_path / "counter.csv"
    log.write_text(text)
    (outlet,) = outlets_over(settings_of(log), minute(0), minute(minutes))
    return outlet


def test_a_counter_that_agrees_and_one_that_does_not(tmp_path: Path) -> None:
    fine = outlet_of(tmp_path, counted())
    assert fine.energy is not None and fine.energy.result == "agrees"
    assert fine.energy.watts_kwh == pytest.approx(0.12) == fine.energy.counter_kwh
    assert (fine.withheld, fine.remarks) == ("", ())
    for text in (counted(unit="mW"), counted(watts=700), counted(wh=11)):
        wrong = outlet_of(tmp_path, text)
        assert "kWh, and the watts make" in wrong.withheld
    # Within its resolution: 12 minutes of whole kilowatt-hours say nothing.
    coarse = counted(wh=0).replace("Wh", "kWh").replace("5000.0", "5000").replace(",0.0", ",5000")
    assert outlet_of(tmp_path, coarse).withheld == ""


def test_a_reset_is_told_as_a_reset(tmp_path: Path) -> None:
    outlet = outlet_of(tmp_path, counted(reset=6))
    assert outlet.energy is not None and outlet.energy.result == "reset"
    assert "was reset in the window" in str(outlet.remarks) and not outlet.withheld
    # Beside a reset, watts that are wrong are still wrong.
    assert outlet_of(tmp_path, counted(reset=6, watts=900)).withheld


def test_a_counter_alone_gives_the_mean(tmp_path: Path) -> None:
    """900 W for six minutes, then 300 W: no sample of watts knows it as well."""
    wh = [5000 + 15 * min(place, 6) + 5 * max(place - 6, 0) for place in range(13)]
    lines = [f"{1366970645 + 60 * place},{value:.1f}" for place, value in enumerate(wh)]
    outlet = outlet_of(tmp_path, "\n".join(["time,Energy (Wh)", *lines]))
    assert outlet.watts == pytest.approx(600.0) and outlet.coverage == 1.0
    assert outlet.curve[0] == pytest.approx((0.0, 60.0, 900.0))
    assert outlet.energy is not None and outlet.energy.watts_kwh is None
    assert outlet.energy.counter_kwh == pytest.approx(0.12)
    # With few samples far apart it is as good: nothing is held, everything is counted.
    few = "\n".join(["time,Energy (Wh)", lines[0], lines[6], lines[12]])
    sparse = outlet_of(tmp_path, few)
    assert sparse.watts == pytest.approx(600.0) and sparse.coverage == 1.0
    assert "has 2 samples inside the window" in str(sparse.remarks)
    # A reset leaves a minute out.
    reset = [
        line if place < 6 else f"{1366970645 + 60 * place},{5 * (place - 6):.1f}"
        for place, line in enumerate(lines)
    ]
    again = outlet_of(tmp_path, "\n".join(["time,Energy (Wh)", *reset]))
    assert again.coverage == pytest.approx(11 / 12) and "was reset" in str(again.remarks)
    assert again.watts == pytest.approx((5 * 900 + 6 * 300) / 11)


def test_a_counter_alone_that_is_too_coarse_or_none(tmp_path: Path) -> None:
    lines = [f"{1366970645 + 60 * place},{5000 + 3 * place}" for place in range(13)]
    log = "\n".join(["time,Energy (kWh)", *lines])
    whole = outlet_of(tmp_path, log)
    assert whole.withheld == "" and "is 2.8% of its energy" in str(whole.remarks)
    assert "too coarse for a mean" in outlet_of(tmp_path, log, minutes=6).withheld
    # Energy of each interval goes up and down: it is no counter.
    each = "\n".join(
        ["time,Energy (Wh)", *(f"{1366970645 + 60 * p},{10 + p % 3}" for p in range(13))]
    )
    with pytest.raises(PowerLogError, match="does not count up"):
        outlet_of(tmp_path, each)


# --- what the card says ---------------------------------------------------------------------


def test_the_row_says_what_is_wrong_with_its_watts(make: ModuleType, tmp_path: Path) -> None:
    """The measurement window is seconds 3 to 7 of the run."""
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": minute(0) - 3 * 10**9}
    run = make.fabricate(tmp_path / "run", case="persistent", clock=clock)

    def rows(log: str) -> dict[str, tuple[float | None, str]]:
        (tmp_path / "pdu.csv").write_text(log)
        card = summarize_run(run, [tmp_path / "pdu.csv"], "UTC")
        found = {row.name: (row.value, row.remark) for row in card.rows}
        for rendering in (
            to_html(report_of([card])),
            to_markdown(report_of([card])),
            to_json(report_of([card])),
        ):
            for _, remark in found.values():
                assert remark.partition("/")[0] in rendering.decode()
        return found

    fine = [f"{1366970645 + s / 10:.1f},100,{1 + s * 100 / 36000:.6f}" for s in range(-5, 60)]
    head = "time,Power (W),Energy (Wh)"
    assert rows("\n".join([head, *fine]))["PERSISTENT.MPW"] == (5.0, "")
    few = rows("\n".join([head, *fine[5::10]]))
    assert few["PERSISTENT.MPW"][0] == 5.0
    assert "pdu.csv has 4 samples inside the window." in few["PERSISTENT.MPW"][1]
    assert "pdu.csv has 4 samples inside the window." in few["PERSISTENT.JPM"][1]
    wrong = rows("\n".join([head.replace("(W)", "(kW)"), *fine]))
    for name in ("PERSISTENT.MPW", "PERSISTENT.JPM"):
        value, remark = wrong[name]
        assert value is None and remark.startswith("Withheld: the counter of ")


def test_the_row_says_in_which_zone_bare_times_were_read(
    make: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two outlets of one log, whose times say no zone: one sentence, unless the user named it."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    clock = {"monotonic_ns": make.ANCHOR_NS, "wall_ns": minute(0) - 3 * 10**9}
    run = make.fabricate(tmp_path / "run", case="persistent", clock=clock)
    start = datetime.fromtimestamp(minute(0) / 1e9, tz=ZoneInfo("Europe/Berlin"))

    def remark(zone: str, timezone: str | None) -> str:
        times = [start + timedelta(seconds=tenth / 10) for tenth in range(-30, 80)]
        lines = [
            f"{time:%Y-%m-%d %H:%M:%S.%f}{zone},{outlet},50" for time in times for outlet in "AB"
        ]
        (tmp_path / "pdu.csv").write_text("\n".join(["time,outlet,Power (W)", *lines]))
        card = summarize_run(run, [tmp_path / "pdu.csv"], timezone)
        (row,) = (row for row in card.rows if row.name == "PERSISTENT.MPW")
        assert row.value == 5.0
        return row.remark

    told = remark("", None)
    assert told.count("were read as those of Europe/Berlin, the zone of this host") == 1
    assert remark("", "Europe/Berlin") == remark("+02:00", None) == ""
