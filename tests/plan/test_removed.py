from pathlib import Path

import pytest

from loadgen.api import UsageError, run_async, scenario
from loadgen.cases.registry import CASES, build_scenario
from loadgen.errors import ScenarioError
from loadgen.plan.removed import ADDED, REMOVED, RemovedName, removal, with_removed
from loadgen.run.seal import digest_of
from tests.refusals import refused


@pytest.mark.parametrize("removed", REMOVED, ids=lambda removed: removed.name)
def test_each_name_is_gone_and_has_an_alternative(removed: RemovedName) -> None:
    assert removal(removed.name, removed.kind) == f"removed; {removed.instead}"
    assert not any(removed.name in case.scenario.fields() for case in CASES.values())


def test_other_names_and_kinds_are_not_removed() -> None:
    assert removal("devices", "field", "argument", "broker") is None
    assert removal("impair", "broker") is None


def test_python_and_toml_refuse_a_removed_field_in_one_line() -> None:
    removed = removal("impair", "field")
    with refused("REMOVED", ScenarioError, name="impair", removed=removed):
        scenario("fanin", impair="delay=20ms")
    with refused("REMOVED", ScenarioError, name="impair", removed=removed):
        build_scenario("fanin", {"impair": "delay=20ms"}, {})


async def test_python_refuses_a_removed_argument_in_one_line(tmp_path: Path) -> None:
    named = {"faults": "lose=1/2"}
    with refused("REMOVED", UsageError, name="faults"):
        await run_async(scenario("fanin"), tmp_path / "run", **named)  # type: ignore[arg-type]


def test_python_refuses_a_removed_broker_in_one_line() -> None:
    with refused("REMOVED_BROKER", ScenarioError, entry="amqtt"):
        scenario("fanin", broker="amqtt")


def test_a_search_of_an_earlier_version_has_the_same_digest() -> None:
    # The scenario as the earlier version wrote it: with one field more, and without new ones.
    fields = scenario("fanin").plain()
    added = {*ADDED} & {*fields}
    earlier = {name: value for name, value in fields.items() if name not in added}
    assert len(earlier) == len(fields) - len(added)
    assert digest_of(with_removed(fields, "field")) == digest_of({**earlier, "impair": None})
