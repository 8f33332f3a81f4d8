"""Logs of devices, tools and people, with the watts by hand, in files of data."""

import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from loadgen.errors import PowerLogError
from loadgen.report.power.power import LEAST_SAMPLES, Overview, overview
from loadgen.report.power.settings import log_settings

NEW = sorted((Path(__file__).parents[2] / "data" / "power_logs").glob("*.toml"))
LOGS, *OTHERS = (
    tomllib.loads(path.read_text())
    for path in (
        *(
            Path(__file__).with_name(f"{n}.toml")
            for n in ["logs", "makers", "people", "devices", "experts"]
        ),
        *NEW,
    )
)
WAYS = {"columns", "header", "mend", "choose"}
"""Ways to make a refused log readable: options, a line above, replaced text, and outlets."""


def shown(case: dict[str, Any], directory: Path, *, as_told: bool) -> Overview:
    way = {key: case[key] for key in WAYS & case.keys() if as_told}
    log = case["log"].removesuffix("\n" * case.get("cut", 0)).replace(*way.get("mend", ("", "")))
    path = directory / "pdu.log"
    path.write_text(f"{way['header']}\n{log}" if "header" in way else log)
    outlets = case.get("of", way.get("choose", ""))
    settings = log_settings([f"{path}{outlets}"], case.get("zone", "UTC"), way.get("columns"))
    assert settings is not None
    return overview(settings, case.get("from"), case.get("to"))


@pytest.mark.parametrize(
    ("case", "is_refused_at_first"),
    [
        pytest.param(
            case, cases is not LOGS and bool(WAYS & case.keys()) and "watts" in case, id=name
        )
        for cases in (LOGS, *OTHERS)
        for name, (case,) in cases.items()
    ],
)
def test_logs_are_right_or_refused(
    case: dict[str, Any], is_refused_at_first: bool, tmp_path: Path
) -> None:
    if "refused" in case or is_refused_at_first:
        with pytest.raises(PowerLogError) as refused:
            shown(case, tmp_path, as_told=not is_refused_at_first)
        assert refused.value.code == case.get("refused", refused.value.code), str(refused.value)
        assert "\n" not in str(refused.value)
        if "watts" not in case:
            return
    view = shown(case, tmp_path, as_told=True)
    withheld: list[Any] = [outlet.withheld for outlet in view.outlets if outlet.withheld]
    assert [text.code for text in withheld] == ([case["withheld"]] if "withheld" in case else [])
    if "watts" in case:
        assert view.watts == pytest.approx(case["watts"], rel=case.get("near", 1e-6))
    remarks: list[Any] = [*chain.from_iterable(outlet.remarks for outlet in view.outlets)]
    codes = {remark.code for remark in remarks}
    are_few = any(outlet.inside < LEAST_SAMPLES for outlet in view.outlets)
    assert ("FEW_SAMPLES" in codes) is are_few
    assert case.get("remark", "") in codes | {""}
    if "unused" in case:
        assert [title for title, *_ in view.logs[0][1].unused] == case["unused"]


def test_most_new_logs_are_right_as_given_or_with_columns_named() -> None:
    cases = [case for path in NEW for (case,) in tomllib.loads(path.read_text()).values()]
    named = [of for of in cases if "watts" in of and not of.keys() & {"header", "mend", "choose"}]
    assert len(cases) >= 80 and len(named) >= 0.7 * len(cases)
