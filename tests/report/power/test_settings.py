"""The power logs of a run, and the options to read them."""

from pathlib import Path

import pytest

from loadgen.errors import PowerLogError
from loadgen.report.power.formats import parse_columns
from loadgen.report.power.settings import (
    PduLog,
    distinct_logs,
    host_timezone,
    log_settings,
    parse_offset,
    pdu_log,
    time_zone,
)
from tests.refusals import refused
from tests.tables import rows_of


def test_one_log_twice_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.touch()
    (tmp_path / "b.log").symlink_to(log)
    twice: tuple[list[str | Path], ...] = (
        [log, tmp_path / "b.log"],
        [log, f"{log}#1"],
        [f"{log}#1,2", f"{log}#2"],
    )
    for logs in twice:
        with refused("GIVEN_TWICE", PowerLogError):
            distinct_logs(logs)
    assert len(distinct_logs([f"{log}#1", f"{log}#2"])) == 2


def test_a_name_that_is_no_zone() -> None:
    for name in ("Mars/Olympus", "../../etc/passwd", ""):
        with refused("ZONE_UNKNOWN", PowerLogError):
            time_zone(name)


def test_this_hosts_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    assert time_zone(None).key == "Asia/Tokyo"
    monkeypatch.delenv("TZ")
    assert time_zone(None).key == host_timezone()


def test_a_log_as_the_option_names_it(tmp_path: Path) -> None:
    odd = tmp_path / "a=b#3"
    odd.touch()
    assert pdu_log(str(odd)) == PduLog(odd)
    assert pdu_log(f"n={odd}") == PduLog(odd, "n")
    assert pdu_log("n=x.log#1, 2") == PduLog(Path("x.log"), "n", ("1", "2"))
    assert pdu_log("x.log") == PduLog(Path("x.log"))
    with refused("OUTLET_UNNAMED", PowerLogError):
        pdu_log("x.log#1,,2")


def test_an_offset_is_a_time_with_a_sign() -> None:
    assert parse_offset("1.5s") == 1_500_000_000
    assert parse_offset("-2") == -2_000_000_000
    assert parse_offset("+500ms") == 500_000_000
    for text in ("soon", "--1", "400d"):
        with refused("OFFSET", PowerLogError):
            parse_offset(text)


@pytest.mark.parametrize(("text", "code"), rows_of("report.power_text_refused"))
def test_columns_that_name_nothing(text: str, code: str) -> None:
    with refused(code, PowerLogError):
        parse_columns(text)


def test_titles_may_have_commas_and_equals_signs() -> None:
    columns = parse_columns("watts=a, b=c,unit=kW, time = when")
    assert (columns.watts, columns.unit, columns.time) == (("a, b=c",), "kW", ("when",))
    assert columns.named == {"watts", "unit", "time"}


@pytest.mark.parametrize(("code", "toml"), rows_of("report.power_formats_refused"))
def test_a_file_of_formats_that_cannot_be_used(tmp_path: Path, toml: str | None, code: str) -> None:
    file = tmp_path / "my.toml"
    if toml is not None:
        file.write_text(toml)
    with refused(code, PowerLogError):
        log_settings(["x"], "UTC", formats=file)
