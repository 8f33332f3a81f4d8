import pytest

from loadgen.api import scenario
from loadgen.cases.registry import CASES, build_scenario
from loadgen.errors import ScenarioError
from loadgen.plan.removed import REMOVED, RemovedName, removal, with_removed_fields
from loadgen.run.seal import digest_of


@pytest.mark.parametrize("removed", REMOVED, ids=lambda removed: removed.name)
def test_each_name_is_gone_and_has_an_alternative(removed: RemovedName) -> None:
    assert removal(removed.name, removed.kind) == f"removed; {removed.instead}"
    assert not any(removed.name in case.scenario.fields() for case in CASES.values())


def test_other_names_and_kinds_are_not_removed() -> None:
    assert removal("devices", "field", "argument", "broker") is None
    assert removal("impair", "broker") is None


def test_python_and_toml_refuse_a_removed_field_in_one_line() -> None:
    with pytest.raises(ScenarioError, match=r"^impair: removed; [^\n]+netem"):
        scenario("fanin", impair="delay=20ms")
    with pytest.raises(ScenarioError, match=r"^impair: removed; "):
        build_scenario("fanin", {"impair": "delay=20ms"}, {})


def test_a_search_of_an_earlier_version_has_the_same_digest() -> None:
    # The scenario as the earlier version wrote it, with the field at its default.
    fields = scenario("fanin").plain()
    assert digest_of(with_removed_fields(fields)) == digest_of({**fields, "impair": None})
