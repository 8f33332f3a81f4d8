import pytest

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from tests.refusals import refused
from tests.tables import rows_of


@pytest.mark.parametrize(("text", "complaint"), rows_of("plan.thresholds_refused"))
def test_what_cannot_be_read_is_refused_in_one_line(text: str, complaint: str) -> None:
    with refused("VALUE", ScenarioError, option="--require") as caught:
        build_scenario("fanin", None, {"require": [text]})
    assert complaint in caught.value.values["fault"]
    assert "\n" not in str(caught.value)
