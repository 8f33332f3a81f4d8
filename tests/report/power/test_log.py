"""Power logs in every notation: the same watts, and a refusal of what can be read in two ways."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.report.power.log import LogSamples, read_log, require_readable, samples_of
from loadgen.report.power.settings import LogSettings, log_settings
from loadgen.report.power.tables import Source

BEGIN = datetime(2013, 4, 26, 10, 4, 5, tzinfo=UTC)
MINUTE_NS = 60 * 10**9
LINE = "04/26/2013, 10:04:05, 203.18, 1.169, 0.58, 135, 182"
ONE = [135.0, 139.0, 137.0]


def minute(number: float) -> int:
    return int(BEGIN.timestamp()) * 10**9 + round(number * MINUTE_NS)


def settings_of(
    *logs: str | Path, zone: str = "UTC", columns: str | None = None, formats: Path | None = None
) -> LogSettings:
    made = log_settings(logs, zone, columns, formats=formats)
    assert made is not None
    return made


def samples(text: str | bytes, columns: str | None = None, zone: str = "UTC") -> LogSamples:
    data = text.encode() if isinstance(text, str) else text
    return samples_of(Source(data), "pdu.log", settings_of("x", zone=zone, columns=columns))


def parsed(
    text: str | bytes, columns: str | None = None, zone: str = "UTC"
) -> dict[str, list[float]]:
    """Watts by outlet; the moments must be minutes from BEGIN on."""
    watts = {}
    for outlet in samples(text, columns, zone).outlets:
        assert outlet.watts is not None
        assert [*outlet.watts.at] == [minute(number) for number in range(len(outlet.watts.at))]
        watts[outlet.name] = outlet.watts.values.tolist()
    return watts


def refusal(text: str | bytes, columns: str | None = None) -> PowerLogError:
    with pytest.raises(PowerLogError) as refused:
        samples(text, columns)
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 450
    assert "pdu.log" in str(refused.value)
    return refused.value


@pytest.mark.parametrize(
    ("text", "watts"),
    [
        (LINE.replace(", ", "\t"), [135.0]),
        (LINE.replace(", ", ";"), [135.0]),
        (",".join(f'"{field}"' for field in LINE.split(", ")), [135.0]),
        ("\ufeff" + LINE + "\r", [135.0]),
        # A spreadsheet in Germany: UTF-16, tabs, decimal commas, days first with points.
        (
            "\ufeffZeit\tLeistung (kW)\r\n26.04.2013 10:04:05\t0,135\r\n"
            "26.04.2013 10:05:05\t0,139\r\n26.04.2013 10:06:05\t0,137\r\n".encode("utf-16-le"),
            ONE,
        ),
        # The same as an older Windows wrote it, and in America, twelve hours a day.
        ("Zähler;Datum;Leistung in W\n1;26.4.2013 10:04:05;135\n".encode("cp1252"), [135.0]),
        ("Date,Time,Watts\n4/26/2013,10:04:05 AM,135\n4/26/2013,10:05:05 AM,139\n", ONE[:2]),
        # Two rotated files one after the other.
        (
            "time,watts\n2013-04-26 10:05:05,139\n2013-04-26 10:06:05,137\n"
            "time,watts\n2013-04-26 10:04:05,135\n",
            ONE,
        ),
        # The zone in the header, above it, in a column, after the time; a number that has none.
        ("Time (UTC+02:00),Power (W)\n2013-04-26 12:04:05,135\n", [135.0]),
        ("Time zone: UTC\nTime,W\n2013-04-26 10:04:05,135\n", [135.0]),
        ("Date,Time,Zone,W\n2013-04-26,12:04:05,+02:00,135\n", [135.0]),
        ("Timestamp,UTC offset,W\n2013-04-26 12:04:05,+2,135\n", [135.0]),
        ("time,W\n2013-04-26 12:04:05 UTC+2,135\n", [135.0]),
        ("Time (UTC),Power (W)\n1366970645.000,135\n", [135.0]),
        ("Time (UTC+2),W\n20130426120405,135\n", [135.0]),
        ("time|Power [mW]\n1366970645|135000\n", [135.0]),
        ('time,Power (W)\n1366970645,"1,100.5"\n', [1100.5]),
        ('time,Power (W)\n1366970645,"1,35,000"\n', [135e3]),
        ("time;Power (W)\n1366970645;1 100,5\n", [1100.5]),
        ("time;Power (W)\n1366970645;1'100.5\n", [1100.5]),
        ("time\tPower (W)\tx\t\n1366970645\t135\t\t\n", [135.0]),
        ("time,Power (W),Price per kWh\n1366970645,135,0.2999\n", [135.0]),
        ("time,Power,Unit\n1366970645,0.135,kW\n", [135.0]),
        # An unclosed quote is part of a name.
        ('time,name,watts\n1366970645,19" rack,135\n', [135.0]),
    ],
)
def test_notations(text: str | bytes, watts: list[float]) -> None:
    assert [*parsed(text).values()] == [pytest.approx(watts)]


@pytest.mark.parametrize(
    ("text", "columns", "watts"),
    [
        ('time,Power (W)\n1366970645,"1,100"\n', "decimal=point", 1100.0),
        ('time,Power (W)\n1366970645,"1,100"\n', "decimal=comma", 1.1),
        ("time,Power\n1366970645,135\n", "unit=kW", 135e3),
        ("time,Power (W)\n26/04/2013 10:04:05,1\n", "dates=dmy", 1.0),
        ("time,outlet,a W,b W\n1366970645,1,2,3\n", "watts=b W", 3.0),
        ("Start time,End time,W\n1366970645,1366970646,1\n", "time=start time", 1.0),
        ("when,a (kW)\n1366970645,0.135\n", "time=when,watts=a (kW)", 135.0),
        (
            "when,what\n26.04.2013 10:04:05,135\n",
            "time=when,watts=what,format=%d.%m.%Y %H:%M:%S",
            135.0,
        ),
    ],
)
def test_options_settle_it(text: str, columns: str, watts: float) -> None:
    assert [*parsed(text, columns).values()] == [[pytest.approx(watts)]]


@pytest.mark.parametrize(
    ("text", "columns", "code"),
    [
        ("", None, "NO_SAMPLE"),
        ("time,watts\n", None, "HEADER_UNKNOWN"),
        ("time,watts\n1366970645,-\n", None, "NO_SAMPLE"),
        ("no sample here", None, "NOT_A_TABLE"),
        ("a,b\n1,2\n", None, "HEADER_UNKNOWN"),
        ("time,watts\n1366970645,1\n", "time=time,watts=W", "NO_COLUMN"),
        (f"{LINE}\n{LINE}, 7", None, "LINE_WIDTH"),
        (f"{LINE}\nLog Date,Log Time,a,b,c,d,e", None, "LINE_WIDTH"),
        (LINE.replace("04/26", "26/04"), None, "LINE_TIME"),
        (LINE.replace("10:04:05", "10:61:05"), None, "LINE_TIME"),
        ("time,watts\nyesterday,1\n", None, "LINE_TIME"),
        ("time,watts\n1e400,1\n", None, "LINE_TIME"),
        (LINE.replace("135", "1_0"), None, "LINE_NUMBER"),
        (LINE.replace("135", "-5"), None, "LINE_NUMBER"),
        ("time,watts\n1366970645,1\x003\n", None, "LINE_NUMBER"),
        ("time,Power (W)\n1366970645,135 A\n", None, "LINE_QUANTITY"),
        (LINE.replace("135", "1e9"), None, "TOO_LARGE"),
        ("time,watts\n" + "1" * 50_000, None, "LINE_LONG"),
        (f"head\n{LINE}\n{LINE}", None, "HEADER_UNKNOWN"),
        (f"{LINE}\n{LINE}", None, "TWICE"),
        ('time,Power (W)\n1366970645,"1,100"\n', None, "MARK_UNCLEAR"),
        ("time;Power (W)\n1366970645;1.100\n", None, "MARK_UNCLEAR"),
        ("time;a (W)\n1366970645;1,5\n1366970646;1.5\n", None, "MARKS_MIXED"),
        ("time;kW\n1366970645;0.135\n", "decimal=comma", "MARK_CONTRADICTED"),
        ("time,Power\n1366970645,135\n", None, "UNIT_MISSING"),
        ("time,Energy\n1366970645,135\n", None, "UNIT_MISSING"),
        ("time,Power (kW)\n1366970645,2\n", "unit=W", "UNIT_CONTRADICTED"),
        ("time,E (Wh)\n1366970645,2\n", "counter_unit=kWh", "UNIT_CONTRADICTED"),
        ("time,Power (0.1 W)\n1366970645,135\n", None, "UNIT_SCALED"),
        ("time,Power (tenths of W)\n1366970645,2\n", None, "UNIT_SCALED"),
        ("time,Power*10 (W)\n1366970645,2\n", None, "UNIT_SCALED"),
        ("time,Power in 1/10 W\n1366970645,2\n", None, "UNIT_SCALED"),
        ("time,Energy (kWh/day)\n1366970645,2\n", None, "UNIT_SCALED"),
        ("time,Wh per min\n1366970645,2\n", "watts=Wh per min,unit=W", "UNIT_SCALED"),
        ("time,power_mw\n1366970645,2\n", "watts=power_mw,unit=W", "UNIT_UNCLEAR"),
        ("time,Meter (0.1 W)\n1366970645,2\n", "watts=Meter (0.1 W),unit=mW", "UNIT_SCALED"),
        ("time,Energy use\n1366970645,2\n", "watts=Energy use,unit=W", "NOT_THE_QUANTITY"),
        ("time,Voltage\n1366970645,230\n", "watts=Voltage,unit=W", "NOT_THE_QUANTITY"),
        ("time,Power (W)\n04/05/2013 10:04:05,1\n", None, "DATES_UNCLEAR"),
        ("Start time,End time,W\n1366970645,1366970646,1\n", None, "SEVERAL_TIMES"),
        ("time,outlet,a W,b W\n1366970645,1,2,3\n", None, "SEVERAL_COLUMNS"),
        ("time,W,kW\n1366970645,2,3\n", None, "SEVERAL_COLUMNS"),
        ("time,W,W\n1366970645,2,3\n1366970646,2,3\n", None, "SEVERAL_COLUMNS"),
        ("time,W\n2013-04-26 10:04:05 PDT,2\n", None, "FOREIGN_ZONE"),
        ("Time (CEST),W\n2013-04-26 12:04:05,2\n", None, "FOREIGN_ZONE"),
        ("Time,Zone,W\n2013-04-26 12:04:05,Europe/Berlin,2\n", None, "FOREIGN_ZONE"),
        ("Time zone: Europe/Berlin\nTime,W\n2013-04-26 12:04:05,2\n", None, "FOREIGN_ZONE"),
        ("2013-04-26 12:04:05 135 Watts\n" * 2, None, "HEADER_MISSING"),
        ('{"time":"2013-04-26 12:04:05","power":135}\n', None, "UNIT_MISSING"),
    ],
)
def test_refusals(text: str, columns: str | None, code: str) -> None:
    assert refusal(text, columns).code == code


def test_the_wrong_line_is_named() -> None:
    assert refusal(f"{LINE}\n\n{LINE.replace('26', '27').replace('135', 'x')}").values["line"] == 3
    assert refusal("time,W\n04/26/2013 10:04:05,1\n44/26/2013 10:04:05,1").values["line"] == 3


def test_a_number_with_a_stroke_is_no_factor() -> None:
    text = "time,Rack 4/10 Power (W),Rack 4/11 Power (W)\n1366970645,2,3\n"
    assert parsed(text) == {"Rack 4/10": [2.0], "Rack 4/11": [3.0]}


def test_states_and_second_clocks_tell_nothing_apart() -> None:
    for other in (["On"] * 5 + ["Off"] * 2 + ["On"] * 5, [f"10:0{p // 2} AM" for p in range(12)]):
        fine = (f"{1366970645 + 60 * p},{word},{p}" for p, word in enumerate(other))
        assert parsed("\n".join(["time,What,Power (W)", *fine])) == {"": [*range(12)]}


def test_a_zone_by_name_is_that_of_the_option() -> None:
    text = "Time [America/New_York],W,EUR/kWh\n2013-04-26 06:04:05,135,0.29991\n"
    assert parsed(text, zone="America/New_York") == {"": ONE[:1]}
    text = "time,W\n2013-04-26 03:04:05 PDT,135\n2013-04-26 03:05:05 PDT,139\n"
    assert parsed(text, zone="America/Los_Angeles") == {"": ONE[:2]}


def test_an_outlet_by_its_number_or_not_there(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("Time,Outlet 1 (W),Outlet 2 (W)\n1366970645,1,2\n")
    chosen = settings_of(f"{log}#2")
    assert [outlet.name for outlet in read_log(chosen.logs[0], chosen).outlets] == ["Outlet 2"]
    missing = settings_of(f"{log}#7")
    with pytest.raises(PowerLogError) as refused:
        read_log(missing.logs[0], missing)
    assert refused.value.code == "NO_OUTLET"
    assert refused.value.values["names"] == ("Outlet 1", "Outlet 2")


def test_a_half_written_last_line_is_fine_before_a_run(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{LINE}\n{LINE[:20]}")
    chosen = settings_of(log)
    require_readable(chosen)
    with pytest.raises(PowerLogError) as refused:
        read_log(chosen.logs[0], chosen)
    assert (refused.value.code, refused.value.values["line"]) == ("LINE_WIDTH", 2)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.log", tmp_path):
        chosen = settings_of(path)
        with pytest.raises(PowerLogError) as refused:
            read_log(chosen.logs[0], chosen)
        assert refused.value.code == "UNREADABLE"


def test_a_format_of_the_user_for_some_logs(tmp_path: Path) -> None:
    formats = tmp_path / "my.toml"
    formats.write_text(
        "['my meter']\nlogs = 'meter*.csv'\ntime = 'when'\nwatts = ['P*']\nunit = 'kW'\n"
        "[other]\nwatts = 'load'\nunit = 'mW'\n"
    )
    rows = "2013-04-26 10:04:05Z,0.135,7\n"
    for name, header, watts in (
        ("meter1.csv", "when,P1,x\n", 135.0),
        ("b.csv", "time,load,x\n", 0.000135),
    ):
        (tmp_path / name).write_text(header + rows)
        chosen = settings_of(tmp_path / name, formats=formats)
        (outlet,) = read_log(chosen.logs[0], chosen).outlets
        assert outlet.watts is not None and outlet.watts.values == pytest.approx([watts])


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


FACTORS = {"W": 1.0, "kW": 1e-3, "mW": 1e3, "µW": 1e6, "Watts": 1.0, "kilowatts": 1e-3, "dW": 10.0}
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
            "%a %b %d %H:%M:%S %Y",
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
        how.separator.join(f'"{part}"' if how.separator in part else part for part in row)
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
    series = {str(i + 1): [pair[i] / 1e4 for pair in watts] for i in range(2)}
    read = parsed(written(series, how), zone=how.zone)
    names = sorted(read)
    assert [name.removeprefix("Outlet ") for name in names] == ["1", "2"]
    for name, values in zip(names, series.values(), strict=True):
        # Four digits after the mark: kilowatts are rounded to a tenth of a watt.
        assert read[name] == pytest.approx(values, abs=0.06)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(how=NOTATIONS, other=st.sampled_from(["W", "kW", "mW"]))
def test_watts_follow_the_unit_that_is_written(how: Notation, other: str) -> None:
    series = {"1": [100.0 + place for place in range(12)]}
    how = replace(how, wide=True, unit_in_cell=False, encoding="utf-8")
    mutated = written(series, how).decode().replace(f"({how.unit})", f"({other})").encode()
    factor = FACTORS[how.unit] / FACTORS[other]
    if factor > 9000:
        with pytest.raises(PowerLogError) as refused:
            parsed(mutated, zone=how.zone)
        assert refused.value.code == "TOO_LARGE"
        return
    ((_, watts),) = parsed(mutated, zone=how.zone).items()
    assert watts == pytest.approx([value * factor for value in series["1"]], rel=1e-3)
