"""Logs of devices, tools and people, with the watts by hand, in files of data."""

import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import PowerLogError
from loadgen.report.power.power import LEAST_SAMPLES, Overview, overview
from loadgen.report.power.settings import log_settings

LOGS, *OTHERS = (
    tomllib.loads((Path(__file__).parent / f"{name}.toml").read_text())
    for name in ("logs", "makers", "people", "devices", "experts")
)


def shown(case: dict[str, Any], columns: str | None, directory: Path) -> Overview:
    path = directory / "pdu.log"
    path.write_text(case["log"])
    settings = log_settings([f"{path}{case.get('of', '')}"], case.get("zone", "UTC"), columns)
    assert settings is not None
    return overview(settings, case.get("from"), case.get("to"))


@pytest.mark.parametrize(
    ("case", "is_refused_without"),
    [
        pytest.param(case, cases is not LOGS and {"columns", "watts"} <= case.keys(), id=name)
        for cases in (LOGS, *OTHERS)
        for name, (case,) in cases.items()
    ],
)
def test_logs_are_right_or_refused(
    case: dict[str, Any], is_refused_without: bool, tmp_path: Path
) -> None:
    columns = case.get("columns")
    if "refused" in case or is_refused_without:
        with pytest.raises(PowerLogError) as refused:
            shown(case, None if is_refused_without else columns, tmp_path)
        assert refused.value.code == case.get("refused", refused.value.code), str(refused.value)
        assert "\n" not in str(refused.value)
        if "watts" not in case:
            return
    view = shown(case, columns, tmp_path)
    withheld: list[Any] = [outlet.withheld for outlet in view.outlets if outlet.withheld]
    assert [text.code for text in withheld] == ([case["withheld"]] if "withheld" in case else [])
    if "watts" in case:
        assert view.watts == pytest.approx(case["watts"])
    remarks: list[Any] = [*chain.from_iterable(outlet.remarks for outlet in view.outlets)]
    codes = {remark.code for remark in remarks}
    are_few = any(outlet.inside < LEAST_SAMPLES for outlet in view.outlets)
    assert ("FEW_SAMPLES" in codes) is are_few
    assert case.get("remark", "") in codes | {""}
    if "unused" in case:
        assert [title for title, *_ in view.logs[0][1].unused] == case["unused"]
