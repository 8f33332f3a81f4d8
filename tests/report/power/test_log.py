"""Power logs in every notation: the same watts, and a refusal of what can be read in two ways."""

import tomllib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from operator import itemgetter
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.errors import PowerLogError
from loadgen.report.power.log import LogSamples, read_log, require_readable, samples_of
from loadgen.report.power.settings import LogSettings, log_settings
from tests.examples import examples
from tests.refusals import refused
from tests.tables import rows_of

NOTATIONS_OF_LOGS = tomllib.loads((Path(__file__).parent / "notations.toml").read_text())
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
    return samples_of(data, "pdu.log", settings_of("x", zone=zone, columns=columns))


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


GERMAN = "\ufeffZeit\tLeistung (kW)\r\n26.04.2013 10:04:05\t0,135\r\n26.04.2013 10:05:05\t0,139\r\n"


@pytest.mark.parametrize("case", NOTATIONS_OF_LOGS["right"], ids=itemgetter("log"))
def test_notations(case: dict[str, Any]) -> None:
    assert [*parsed(case["log"], case.get("columns")).values()] == [pytest.approx(case["watts"])]


def test_encodings_of_spreadsheets() -> None:
    assert parsed(GERMAN.encode("utf-16-le")) == {"": [pytest.approx(135), pytest.approx(139)]}
    older = "Zähler;Datum;Leistung in W\n1;26.4.2013 10:04:05;135\n".encode("cp1252")
    assert parsed(older) == {"": [135.0]}


@pytest.mark.parametrize("case", NOTATIONS_OF_LOGS["refused"], ids=itemgetter("log"))
def test_refusals(case: dict[str, Any]) -> None:
    assert refusal(case["log"], case.get("columns")).code == case["code"]


def test_the_wrong_line_is_named() -> None:
    assert refusal("time,watts\n" + "1" * 50_000).code == "LINE_LONG"
    assert refusal(f"{LINE}\n\n{LINE.replace('26', '27').replace('135', 'x')}").values["line"] == 3
    assert refusal("time,W\n04/26/2013 10:04:05,1\n44/26/2013 10:04:05,1").values["line"] == 3


def test_states_and_second_clocks_tell_nothing_apart() -> None:
    for other in (["On"] * 5 + ["Off"] * 2 + ["On"] * 5, [f"10:0{p // 2} AM" for p in range(12)]):
        fine = (f"{1366970645 + 60 * p},{word},{p}" for p, word in enumerate(other))
        assert parsed("\n".join(["time,What,Power (W)", *fine])) == {"": [*range(12)]}


def test_an_outlet_by_its_number_or_not_there(tmp_path: Path) -> None:
    log = tmp_path / "a.csv"
    log.write_text("Time,Outlet 1 (W),Outlet 2 (W)\n1366970645,1,2\n")
    chosen = settings_of(f"{log}#2")
    assert [outlet.name for outlet in read_log(chosen.logs[0], chosen).outlets] == ["Outlet 2"]
    missing = settings_of(f"{log}#7")
    with refused("NO_OUTLET", PowerLogError, names=("Outlet 1", "Outlet 2")):
        read_log(missing.logs[0], missing)


def test_a_half_written_last_line_is_fine_before_a_run(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(f"{LINE}\n{LINE[:20]}")
    chosen = settings_of(log)
    require_readable(chosen)
    with refused("LINE_WIDTH", PowerLogError, line=2):
        read_log(chosen.logs[0], chosen)


def test_a_log_that_is_not_there(tmp_path: Path) -> None:
    for path in (tmp_path / "missing.log", tmp_path):
        chosen = settings_of(path)
        with refused("UNREADABLE", PowerLogError):
            read_log(chosen.logs[0], chosen)


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
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    when=st.sampled_from(rows_of("report.times")),
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
@examples(150)
@given(
    how=NOTATIONS,
    watts=st.lists(st.tuples(*[st.integers(0, 30_000_000)] * 2), min_size=3, max_size=12),
)
def test_the_same_series_in_every_notation(how: Notation, watts: list[tuple[int, int]]) -> None:
    """Watts are multiples of a tenth of a milliwatt, so that no notation rounds."""
    series = {str(i + 1): [pair[i] / 1e4 for pair in watts] for i in range(2)}
    read = parsed(written(series, how), zone=how.zone)
    names = sorted(read)
    assert [name.removeprefix("Outlet ") for name in names] == ["1", "2"]
    for name, values in zip(names, series.values(), strict=True):
        # Four digits after the mark: kilowatts are rounded to a tenth of a watt.
        assert read[name] == pytest.approx(values, abs=0.06)
