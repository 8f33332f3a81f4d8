"""Logs of devices, tools and people, with the watts by hand: logs.toml, makers.toml."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import PowerLogError
from loadgen.report.power.overview import overview
from loadgen.report.power.settings import log_settings

LOGS, MAKERS = (
    tomllib.loads((Path(__file__).parent / name).read_text())
    for name in ("logs.toml", "makers.toml")
)


@pytest.mark.parametrize("name", LOGS)
def test_logs_with_their_watts_by_hand(name: str, tmp_path: Path) -> None:
    (case,) = LOGS[name]
    path = tmp_path / "pdu.log"
    path.write_text(case["log"])
    log = f"{path}{case.get('of', '')}"
    settings = log_settings([log], case.get("zone", "UTC"), case.get("columns"))
    assert settings is not None

    if "refused" in case:
        with pytest.raises(PowerLogError) as refused:
            overview(settings)
        assert refused.value.code == case["refused"], str(refused.value)
        assert "\n" not in str(refused.value)
        return
    shown = overview(settings, case.get("from"), case.get("to"))
    texts: list[Any] = [outlet.withheld for outlet in shown.outlets if outlet.withheld]
    assert [text.code for text in texts] == ([case["withheld"]] if "withheld" in case else [])
    if "watts" in case:
        assert shown.watts == pytest.approx(case["watts"])
    remarks: list[Any] = [remark for outlet in shown.outlets for remark in outlet.remarks]
    assert case.get("remark", "FEW_SAMPLES") in {remark.code for remark in remarks}
    if "unused" in case:
        assert [title for title, *_ in shown.logs[0][1].unused] == case["unused"]


@pytest.mark.parametrize("name", MAKERS)
def test_logs_of_makers_are_right_or_refused(name: str, tmp_path: Path) -> None:
    """A log that needs `columns` is refused without them."""
    (case,) = MAKERS[name]
    path = tmp_path / "pdu.log"
    path.write_text(case["log"])
    as_it_is = log_settings([path], "UTC")
    settings = log_settings([path], "UTC", case.get("columns"))
    assert as_it_is is not None and settings is not None
    if "refused" in case:
        with pytest.raises(PowerLogError) as refused:
            overview(as_it_is)
        assert refused.value.code == case["refused"], str(refused.value)
    if "watts" in case:
        shown = overview(settings)
        assert not shown.withheld
        assert shown.watts == pytest.approx(case["watts"])
