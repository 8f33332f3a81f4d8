import pytest

from loadgen.cases.registry import build_scenario
from loadgen.errors import ScenarioError
from tests.refusals import refused


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("fast", "not a condition"),
        ("end_to_end.p99", "not a condition"),
        ("end_to_end.p99=5ms", "not a condition"),
        ("end_to_end.p99<5", "no unit; write 5ms"),
        ("end_to_end.p98<5ms", "not a latency"),
        ("endtoend.p99<5ms", "not a latency"),
        ("gone==0", "unknown"),
        ("lost<much", "not a number"),
        ("sent_rate<5%", "not a number"),
        ("end_to_end.p99<5parsec", "unknown unit"),
    ],
)
def test_what_cannot_be_read_is_refused_in_one_line(text: str, complaint: str) -> None:
    with refused("VALUE", ScenarioError, option="--require") as caught:
        build_scenario("fanin", None, {"require": [text]})
    assert complaint in caught.value.values["fault"]
    assert "\n" not in str(caught.value)
